"""The only currency between sampling and learning: sequences as flat tensors, level after level.

The same object, in one serial form, is what passes a pipe, waits in the buffer, lies in a checkpoint and is dumped for
a replay. Names do not change on the way. It does not know tasks, models or formulas.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.episode import STATUSES, Status
from trimtab.signal import SignalBatch

FORMAT = 1
"""Raised when the serial form changes its meaning."""
Level = Literal["token", "trainable", "sequence", "episode"]
LEVELS: tuple[Level, ...] = ("token", "trainable", "sequence", "episode")
FINISHES = ("eos", "length")
"""How a sequence ended: by the policy's own end token, or cut off."""
WHOLE: dict[str, tuple[Level, torch.dtype]] = {
    "ids": ("token", torch.int32),
    "trainable": ("token", torch.bool),
    "logp_rollout": ("trainable", torch.float32),
    "version": ("trainable", torch.int32),
    "turn": ("trainable", torch.int32),
    "length": ("sequence", torch.int32),
    "prompt_length": ("sequence", torch.int32),
    "finish": ("sequence", torch.int8),
    "episode": ("sequence", torch.int32),
    "reward": ("episode", torch.float64),
    "status": ("episode", torch.int8),
    "ticket": ("episode", torch.int64),
    "sample": ("episode", torch.int32),
}
"""Every field that is always there: its level and its number format."""
OPTIONAL: dict[str, torch.dtype] = {"logp_trainer": torch.float32, "value_old": torch.float32}
"""Fields over trainable tokens that may be missing, whole or for some sequences: then they are nan there."""
SUPPORT = ("support_ids", "support_counts")


@dataclass(frozen=True)
class Rollouts:
    """Sequences with all that was recorded while they were sampled.

    One prompt of 2 tokens with answers of 1 and 2 tokens, the second one cut off:
        ids = [p, p, a, p, p, b, b]   trainable = [0, 0, 1, 0, 0, 1, 1]   length = [3, 4]   finish = [0, 1]
        logp_rollout = [-0.1, -0.7, -0.2]   reward = [1, 0]   ticket = [5, 5]   sample = [0, 1]
    """

    ids: Tensor
    trainable: Tensor
    """True at what the policy chose; false at prompts and at what an environment said."""
    logp_rollout: Tensor
    """Of the distribution that the engine sampled from. One entry per trainable token, like the fields below."""
    version: Tensor
    """Of the parameters that chose the token."""
    turn: Tensor
    length: Tensor
    """Tokens of each sequence, prompt included."""
    prompt_length: Tensor
    finish: Tensor
    """A place in `FINISHES`."""
    episode: Tensor
    """The place of each sequence's episode."""
    reward: Tensor
    """One per episode, like the fields below; nan unless `status` is ok."""
    status: Tensor
    """A place in `STATUSES`."""
    ticket: Tensor
    """The prompt's number in the run; episodes with one ticket are a group."""
    sample: Tensor
    """The episode's number in its group."""
    prompts: Mapping[int, str]
    """The text of each ticket's prompt."""
    messages: Mapping[int, str] = field(default_factory=dict[int, str])
    """What a reward said about an episode, by the episode's place."""
    logp_trainer: Tensor | None = None
    """The trainer's log-probs at the version that sampled, where probed. They separate engine error from staleness."""
    value_old: Tensor | None = None
    support_ids: Tensor | None = None
    """Where top-p or top-k left fewer tokens: their ids, flat."""
    support_counts: Tensor | None = None
    """How many of them each trainable token has."""
    extra: Mapping[Level, Mapping[str, Tensor]] = field(default_factory=dict[Level, Mapping[str, Tensor]])
    """Fields of your own, by level and name."""

    def __post_init__(self) -> None:
        sizes = {"token": len(self.ids), "trainable": len(self.logp_rollout), "sequence": len(self.length),
                 "episode": len(self.reward)}  # fmt: skip
        levels: dict[str, tuple[Level, Tensor]] = {
            name: (level, getattr(self, name)) for name, (level, _) in WHOLE.items()
        }
        levels |= {n: ("trainable", v) for n in OPTIONAL if (v := getattr(self, n)) is not None}
        levels |= {f"extra.{lv}.{n}": (lv, v) for lv, named in self.extra.items() for n, v in named.items()}
        for name, (level, values) in levels.items():
            if values.ndim != 1 or len(values) != sizes[level]:
                raise SignalError(
                    f"Rollouts: {name} has shape {list(values.shape)} and there are {sizes[level]} {_PLURAL[level]}, "
                    f"so its values have no place. Give one value per {level.replace('trainable', 'trainable token')}."
                )
        held, trained = int(self.length.sum()), int(self.trainable.sum())
        if held != sizes["token"] or trained != sizes["trainable"]:
            raise SignalError(
                f"Rollouts: length adds up to {held} of {sizes['token']} tokens, and trainable is true at {trained} "
                f"where logp_rollout has {sizes['trainable']} values, so tokens and values do not match. Give whole "
                "sequences, and log-probs of trainable tokens only."
            )
        if self.support_ids is not None and self.support_counts is not None:
            named = int(self.support_counts.sum())
            if len(self.support_counts) != trained or named != len(self.support_ids):
                raise SignalError(
                    f"Rollouts: the support counts {len(self.support_counts)} tokens and {named} ids, and there are "
                    f"{trained} and {len(self.support_ids)}, so it cannot be read. Record it for every trainable "
                    "token, or for none."
                )

    @property
    def num_sequences(self) -> int:
        return len(self.length)

    @property
    def num_tokens(self) -> int:
        """Trainable tokens in all."""
        return len(self.logp_rollout)

    @cached_property
    def token_counts(self) -> Tensor:
        """Trainable tokens of each sequence."""
        return _sums(self.trainable, self.length)

    @cached_property
    def first_id(self) -> Tensor:
        """Where each sequence begins among `ids`; one entry more than sequences."""
        return _starts(self.length)

    @cached_property
    def first_token(self) -> Tensor:
        """Where each sequence begins among trainable tokens; one entry more than sequences."""
        return _starts(self.token_counts)

    @property
    def position(self) -> Tensor:
        """The place of each trainable token in its sequence."""
        place = torch.arange(len(self.ids)) - self.first_id[:-1].repeat_interleave(self.length.long())
        return place[self.trainable].int()

    @property
    def ended(self) -> Tensor:
        """The policy closed the sequence itself."""
        return self.finish == FINISHES.index("eos")

    @property
    def scored(self) -> Tensor:
        """Episodes that have a reward."""
        return self.status == STATUSES.index("ok")

    @property
    def reward_mean(self) -> float:
        """Over episodes that have a reward; nan where none has."""
        return float(self.reward[self.scored].float().mean()) if bool(self.scored.any()) else float("nan")

    @property
    def num_bytes(self) -> int:
        """Of the fields that all rollouts have: the same before and after they were joined with others."""
        return sum(len(getattr(self, name)) * dtype.itemsize for name, (_, dtype) in WHOLE.items())

    @property
    def group(self) -> Tensor:
        """The place of each episode's prompt among the prompts of these rollouts."""
        place = {ticket: number for number, ticket in enumerate(self.tickets)}
        return torch.tensor([place[ticket] for ticket in cast("list[int]", self.ticket.tolist())], dtype=torch.int64)

    @property
    def sequence_id(self) -> Tensor:
        """A number that no other sequence of the run has. Random selection in the signal hashes it."""
        largest = int(self.sample.max()) + 1 if len(self.sample) else 1
        return (self.ticket * largest + self.sample)[self.episode.long()]

    @property
    def tickets(self) -> list[int]:
        """Each ticket once, in the order of the rollouts."""
        return list(dict.fromkeys(cast("list[int]", self.ticket.tolist())))

    @property
    def is_constant(self) -> bool:
        """All scored episodes earned the same, so comparing them teaches nothing."""
        rewards = self.reward[self.scored]
        return not len(rewards) or bool(rewards.min() == rewards.max())

    @property
    def oldest_version(self) -> int:
        """Of the parameters that sampled a token; 0 where there is no token."""
        return int(self.version.min()) if len(self.version) else 0

    def statuses(self) -> Counter[Status]:
        """How many episodes have each reward status."""
        return Counter(STATUSES[number] for number in cast("list[int]", self.status.tolist()))

    def places(self, sequences: Tensor) -> Tensor:
        """Where the trainable tokens of these sequences stand, sequence after sequence."""
        return _spans(self.first_token[:-1][sequences], self.token_counts[sequences])

    def take(self, sequences: Tensor) -> "Rollouts":
        """These sequences in this order, with their episodes and no others."""
        owners = self.episode[sequences].long()
        episodes, owner = torch.unique(owners, sorted=True, return_inverse=True)
        tokens, whole = self.places(sequences), _spans(self.first_id[:-1][sequences], self.length[sequences].long())
        at = {"token": whole, "trainable": tokens, "sequence": sequences, "episode": episodes}
        chosen = {name: getattr(self, name)[at[level]] for name, (level, _) in WHOLE.items()}
        tickets = set(cast("list[int]", chosen["ticket"].tolist()))
        place = {int(old): new for new, old in enumerate(episodes.tolist())}
        support = None
        if self.support_ids is not None and self.support_counts is not None:
            first = _starts(self.support_counts)[:-1][tokens]
            support = self.support_ids[_spans(first, self.support_counts[tokens].long())]
        return replace(
            self,
            **{**chosen, "episode": owner.int()},
            prompts={ticket: text for ticket, text in self.prompts.items() if ticket in tickets},
            messages={place[old]: text for old, text in self.messages.items() if old in place},
            **{name: None if (v := getattr(self, name)) is None else v[tokens] for name in OPTIONAL},
            support_ids=support,
            support_counts=None if self.support_counts is None else self.support_counts[tokens],
            extra={level: {n: v[at[level]] for n, v in named.items()} for level, named in self.extra.items()},
        )

    def groups(self) -> "list[Rollouts]":
        """One for each ticket."""
        tickets = cast("list[int]", self.ticket.tolist())
        starts = [0, *(i for i in range(1, len(tickets)) if tickets[i] != tickets[i - 1]), len(tickets)]
        together = len(set(tickets)) == len(starts) - 1
        if together and torch.equal(self.episode, torch.arange(len(tickets), dtype=self.episode.dtype)):
            return [self] if len(starts) == 2 else [self._between(*span) for span in pairwise(starts)]
        owner = self.ticket[self.episode.long()]
        return [self.take((owner == ticket).nonzero()[:, 0]) for ticket in dict.fromkeys(tickets)]

    def _between(self, first: int, last: int) -> "Rollouts":
        """The sequences from `first` up to `last`, where each has an episode of its own: slices, and nothing copied."""
        tokens = slice(int(self.first_token[first]), int(self.first_token[last]))
        span = slice(first, last)
        at = {"token": slice(int(self.first_id[first]), int(self.first_id[last])), "trainable": tokens,
              "sequence": span, "episode": span}  # fmt: skip
        held: dict[str, Any] = {name: getattr(self, name)[at[level]] for name, (level, _) in WHOLE.items()}
        held |= {name: v[tokens] for name in OPTIONAL if (v := getattr(self, name)) is not None}
        if self.support_ids is not None and self.support_counts is not None:
            start = int(self.support_counts[: tokens.start].sum())
            counts = self.support_counts[tokens]
            held |= {"support_ids": self.support_ids[start : start + int(counts.sum())], "support_counts": counts}
        ticket = int(held["ticket"][0])
        return Rollouts(
            **{**held, "episode": self.episode[span] - first},
            prompts={ticket: self.prompts[ticket]} if ticket in self.prompts else {},
            messages={place - first: text for place, text in self.messages.items() if first <= place < last},
            extra={level: {n: v[at[level]] for n, v in named.items()} for level, named in self.extra.items()},
        )

    def batch(self, *, dtype: torch.dtype = torch.float32, **given: Tensor | None) -> SignalBatch:
        """The signal's batch in one precision; the trainer adds, per trainable token, what its recipe needs."""
        sequence = {"sequence_id": self.sequence_id, "ended": self.ended, "episode": self.episode.long()}
        return SignalBatch.from_tokens(
            self.token_counts,
            reward=self.reward.float(),
            group=self.group,
            scored=self.scored,
            logp_rollout=self.logp_rollout.to(dtype),
            version=self.version.long(),
            turn=self.turn.long(),
            extra=dict(self.extra.get("trainable", {})),
            **sequence,
            **given,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The serial form's tensors; `head` is the rest of it, and `read` the way back, bit for bit."""
        named = {name: getattr(self, name) for name in (*WHOLE, *OPTIONAL, *SUPPORT)}
        extra = {f"extra.{level}.{name}": v for level, held in self.extra.items() for name, v in held.items()}
        return {name: value for name, value in named.items() if value is not None} | extra

    def head(self) -> dict[str, object]:
        """The serial form's texts, as JSON."""
        texts = {"prompts": self.prompts, "messages": self.messages}
        return {
            "format": FORMAT,
            **{name: {str(key): text for key, text in held.items()} for name, held in texts.items()},
        }

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], head: Mapping[str, Any]) -> "Rollouts":
        """What `tensors` and `head` were made of. Tensors under other names are left alone."""
        if head.get("format") != FORMAT:
            raise SignalError(
                f"Rollouts: the serial form has format {head.get('format')!r} and this version of trimtab reads "
                f"{FORMAT}, so it would be misread. Read it with the version that wrote it."
            )
        lost = [name for name in WHOLE if name not in tensors]
        if lost:
            raise SignalError(
                f"Rollouts: {', '.join(lost)} is missing, so the sequences cannot be read. Write it again."
            )
        extra: dict[Level, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("extra."):
                _, level, name = key.split(".", 2)
                extra.setdefault(cast(Level, level), {})[name] = value
        prompts, messages = ({int(key): str(text) for key, text in head[n].items()} for n in ("prompts", "messages"))
        known = {one.name for one in fields(cls)} - {"extra", "prompts", "messages"}
        held: dict[str, Any] = {name: value for name, value in tensors.items() if name in known}
        return cls(**held, prompts=prompts, messages=messages, extra=cast("dict[Level, Mapping[str, Tensor]]", extra))


_PLURAL = {"token": "tokens", "trainable": "trainable tokens", "sequence": "sequences", "episode": "episodes"}


def _starts(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.long().cumsum(0)])


def _sums(flags: Tensor, widths: Tensor) -> Tensor:
    """How many are true in each of the parts that `flags` is cut into."""
    return _starts(flags)[_starts(widths)].diff()


def _spans(first: Tensor, counts: Tensor) -> Tensor:
    """The numbers first, first + 1, … of every span, one span after the other.

    >>> _spans(torch.tensor([5, 0]), torch.tensor([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total) + (first - (ends - counts)).repeat_interleave(counts, output_size=total)
