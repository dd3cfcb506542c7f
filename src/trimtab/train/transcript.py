"""The only place that writes episodes out for people: who wrote what, turn after turn, and what it earned."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, cast

from trimtab.rollout.assemble import Assembled
from trimtab.rollout.episode import Episode, Group
from trimtab.rollout.tokenizer import decode
from trimtab.train.learn import Learned

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHOWN_GROUPS = 2
SHOWN_EPISODES = 2
"""Of each group, the best and the worst: what the policy is pushed towards, and away from."""


def transcripts(
    groups: Sequence[Group], assembled: Assembled, learned: Learned, tokenizer: "PreTrainedTokenizerFast"
) -> list[dict[str, object]]:
    """A few episodes of a batch; groups whose answers earned different rewards first."""
    advantage = learned.advantage.split(list(assembled.token_counts))
    asked = [episode for group in groups for episode in group.episodes]
    number_of = {id(episode): number for number, episode in enumerate(asked)}
    told: list[dict[str, object]] = []
    for group in sorted(groups, key=lambda group: group.is_constant)[:SHOWN_GROUPS]:
        ranked = sorted(group.episodes, key=lambda episode: (not episode.is_scored, -episode.reward))
        for episode in {id(one): one for one in (ranked[0], ranked[-1])}.values():
            mine = advantage[number_of[id(episode)]]
            told.append(
                {
                    "ticket": group.ticket,
                    "version": group.version,
                    "prompt": group.prompt,
                    "turns": _turns(episode, tokenizer),
                    "reward": episode.reward,
                    "status": episode.status,
                    "message": episode.message,
                    "advantage": float(mine.mean()) if len(mine) else 0.0,
                }
            )
    return told


def _turns(episode: Episode, tokenizer: "PreTrainedTokenizerFast") -> list[dict[str, str]]:
    """Runs of cells with the same author. The first is the prompt, which is left out: it has a field of its own."""
    flags, ids = cast("list[bool]", episode.trainable.tolist()), cast("list[int]", episode.ids.tolist())
    cells = list(zip(flags, ids, strict=True))
    parts = [(trains, [token for _, token in part]) for trains, part in groupby(cells, key=itemgetter(0))]
    return [
        {"by": "policy" if trains else "environment", "text": decode(tokenizer, ids)}
        for place, (trains, ids) in enumerate(parts)
        if trains or place > 0
    ]
