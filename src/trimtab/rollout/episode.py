"""The only place that says what a rollout is: episodes in groups, and the same as plain tensors for pipes and disks.

It does not know tasks, models or the signal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

Status = Literal["ok", "error", "timeout", "abstain"]
"""The status of a reward. Only an `ok` episode has a reward; the others neither vote in their group nor train."""
STATUSES: tuple[Status, ...] = ("ok", "error", "timeout", "abstain")


@dataclass(frozen=True)
class Episode:
    """One attempt at a prompt: all that the model read and wrote, in order, and what it earned.

    Prompt `7*8+5=`, turn `[7*8]`, observation `56;`, turn `61<eos>`: `trainable` is true at the two turns, and the
    fields below it have one entry for each true cell: `turn` is 0 in the first five and 1 in the last three.
    """

    ids: Tensor
    trainable: Tensor
    logp: Tensor
    """float32; of the distribution that the engine sampled from."""
    version: Tensor
    """Of the parameters that chose the token."""
    turn: Tensor
    ended: bool
    """The policy closed its last turn itself."""
    reward: float
    """nan unless `status` is ok."""
    status: Status
    message: str = ""
    support: tuple[Tensor, Tensor] | None = None
    """Where top-p or top-k left fewer tokens: their ids, flat, and how many for each trainable token."""
    logp_trainer: Tensor | None = None
    """The trainer's log-probs at the version that sampled, if probed. They separate engine error from staleness."""

    @property
    def num_tokens(self) -> int:
        """Trainable tokens."""
        return len(self.logp)

    @property
    def is_scored(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Group:
    """All episodes of one prompt; `ticket` is the prompt's number in the run."""

    ticket: int
    prompt: str
    episodes: tuple[Episode, ...]

    @property
    def version(self) -> int:
        """The oldest version that sampled a token of it."""
        return min((int(episode.version.min()) for episode in self.episodes if episode.num_tokens), default=0)

    @property
    def is_constant(self) -> bool:
        """All its scored episodes earned the same, so comparing them teaches nothing."""
        rewards = [episode.reward for episode in self.episodes if episode.is_scored]
        return not rewards or min(rewards) == max(rewards)


def with_trainer(group: Group, logps: Sequence[Tensor]) -> Group:
    """The group with the trainer's own log-probs of its tokens, episode after episode."""
    episodes = (replace(episode, logp_trainer=logp) for episode, logp in zip(group.episodes, logps, strict=True))
    return replace(group, episodes=tuple(episodes))


def pack(groups: Sequence[Group]) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Groups as flat tensors and a little JSON; `unpack` is the way back, bit for bit."""
    episodes = [episode for group in groups for episode in group.episodes]
    tensors = {
        "ids": _joined([episode.ids for episode in episodes], torch.int64),
        "trainable": _joined([episode.trainable for episode in episodes], torch.bool),
        "logp": _joined([episode.logp for episode in episodes], torch.float32),
        "version": _joined([episode.version for episode in episodes], torch.int64),
        "turn": _joined([episode.turn for episode in episodes], torch.int64),
        "id_counts": torch.tensor([len(episode.ids) for episode in episodes], dtype=torch.int64),
        "reward": torch.tensor([episode.reward for episode in episodes], dtype=torch.float64),
        "ended": torch.tensor([episode.ended for episode in episodes], dtype=torch.bool),
        "status": torch.tensor([STATUSES.index(episode.status) for episode in episodes], dtype=torch.int64),
        "episode_counts": torch.tensor([len(group.episodes) for group in groups], dtype=torch.int64),
        "ticket": torch.tensor([group.ticket for group in groups], dtype=torch.int64),
    }
    probed = [index for index, episode in enumerate(episodes) if episode.logp_trainer is not None]
    supported = [index for index, episode in enumerate(episodes) if episode.support is not None]
    tensors["probed"] = torch.tensor(probed, dtype=torch.int64)
    tensors["logp_trainer"] = _joined([cast(Tensor, episodes[i].logp_trainer) for i in probed], torch.float32)
    supports = [cast("tuple[Tensor, Tensor]", episodes[i].support) for i in supported]
    tensors["supported"] = torch.tensor(supported, dtype=torch.int64)
    tensors["support_ids"] = _joined([ids for ids, _ in supports], torch.int64)
    tensors["support_counts"] = _joined([counts for _, counts in supports], torch.int64)
    messages = {str(index): episode.message for index, episode in enumerate(episodes) if episode.message}
    return tensors, {"prompts": [group.prompt for group in groups], "messages": messages}


def unpack(tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> list[Group]:
    """What `pack` was given."""
    prompts, messages = cast("list[str]", meta["prompts"]), cast("dict[str, str]", meta["messages"])
    id_counts = cast("list[int]", tensors["id_counts"].tolist())
    trainable = tensors["trainable"].split(id_counts)
    counts = _sums(tensors["trainable"], id_counts)
    logp, version, turn = (tensors[name].split(counts) for name in ("logp", "version", "turn"))
    probed, supported = _numbered(tensors["probed"]), _numbered(tensors["supported"])
    trainer = tensors["logp_trainer"].split([counts[i] for i in probed])
    kept = tensors["support_counts"].split([counts[i] for i in supported])
    support = tensors["support_ids"].split([int(part.sum()) for part in kept])
    ended, reward, status = (tensors[name].tolist() for name in ("ended", "reward", "status"))
    episodes = [
        Episode(
            ids=ids,
            trainable=trainable[index],
            logp=logp[index],
            version=version[index],
            turn=turn[index],
            ended=ended[index],
            reward=reward[index],
            status=STATUSES[status[index]],
            message=messages.get(str(index), ""),
            support=(support[supported[index]], kept[supported[index]]) if index in supported else None,
            logp_trainer=trainer[probed[index]] if index in probed else None,
        )
        for index, ids in enumerate(tensors["ids"].split(id_counts))
    ]
    groups: list[Group] = []
    first = 0
    for ticket, prompt, count in zip(
        tensors["ticket"].tolist(), prompts, tensors["episode_counts"].tolist(), strict=True
    ):
        groups.append(Group(int(ticket), prompt, tuple(episodes[first : first + count])))
        first += count
    return groups


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(parts)).to(dtype) if parts else torch.zeros(0, dtype=dtype)


def _sums(flags: Tensor, widths: Sequence[int]) -> list[int]:
    """How many are true in each of the parts that `flags` is cut into."""
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), flags.cumsum(0)])
    marks = ends[torch.tensor([0, *widths], dtype=torch.int64).cumsum(0)]
    return cast("list[int]", marks.diff().tolist())


def _numbered(indices: Tensor) -> dict[int, int]:
    """Each index with its place among them."""
    return {int(index): place for place, index in enumerate(indices)}
