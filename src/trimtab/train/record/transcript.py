"""The only place that writes episodes out for people: who wrote what, turn after turn, and what it earned."""

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, cast

from trimtab.rollout.episode import STATUSES
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.tokenizer import decode
from trimtab.train.learner import Learned

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHOWN_GROUPS = 2
SHOWN_EPISODES = 2
"""Of each group, the best and the worst: what the policy is pushed towards, and away from."""


def transcripts(rollouts: Rollouts, learned: Learned, tokenizer: "PreTrainedTokenizerFast") -> list[dict[str, object]]:
    """A few episodes of a batch; groups whose answers earned different rewards first."""
    advantage = learned.advantage.split(cast("list[int]", rollouts.token_counts.tolist()))
    owner = rollouts.ticket[rollouts.episode.long()]
    told: list[dict[str, object]] = []
    groups = {group.tickets[0]: group for group in rollouts.groups()}
    for ticket in sorted(groups, key=lambda ticket: groups[ticket].is_constant)[:SHOWN_GROUPS]:
        group, places = groups[ticket], cast("list[int]", (owner == ticket).nonzero()[:, 0].tolist())
        for number in _best_and_worst(group):
            mine = advantage[places[number]]
            told.append(
                {
                    "ticket": ticket,
                    "version": group.oldest_version,
                    "prompt": group.prompts[ticket],
                    "turns": _turns(group, number, tokenizer),
                    "reward": float(group.reward[number]),
                    "status": STATUSES[int(group.status[number])],
                    "message": group.messages.get(number, ""),
                    "advantage": float(mine.mean()) if len(mine) else 0.0,
                }
            )
    return told


def _best_and_worst(group: Rollouts) -> list[int]:
    reward, scored = cast("list[float]", group.reward.tolist()), cast("list[bool]", group.scored.tolist())
    ranked = sorted(range(len(reward)), key=lambda number: (not scored[number], -reward[number]))
    return list(dict.fromkeys((ranked[0], ranked[-1])))


def _turns(group: Rollouts, number: int, tokenizer: "PreTrainedTokenizerFast") -> list[dict[str, str]]:
    """Runs of cells with the same author. The first is the prompt, which is left out: it has a field of its own."""
    one = slice(int(group.first_id[number]), int(group.first_id[number + 1]))
    flags, ids = cast("list[bool]", group.trainable[one].tolist()), cast("list[int]", group.ids[one].tolist())
    cells = list(zip(flags, ids, strict=True))
    parts = [(trains, [token for _, token in part]) for trains, part in groupby(cells, key=itemgetter(0))]
    return [
        {"by": "policy" if trains else "environment", "text": decode(tokenizer, ids)}
        for place, (trains, ids) in enumerate(parts)
        if trains or place > 0
    ]
