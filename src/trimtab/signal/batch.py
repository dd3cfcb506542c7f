"""The batch: one set of rollouts as flat trainable tokens with their levels. It knows no formula and no recipe.

Past the door every token is trainable, finite and has a place on every level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import SignalError, nearest
from trimtab.signal.door import (
    FLOATS,
    INTEGERS,
    Numbers,
    TokenField,
    as_flags,
    as_vector,
    check_attention,
    check_ids,
    check_reward,
    check_sequences,
    check_tokens,
    common_dtype,
    ended_of,
    levels_of,
    moved_reward,
    refuse_layout,
)
from trimtab.signal.layout import (
    Cells,
    EpisodeFlag,
    EpisodeIndex,
    Levels,
    PerEpisode,
    PerSequence,
    PerToken,
    Segments,
    SequenceFlag,
    SequenceIndex,
    TokenIndex,
    list_cells,
    packed_cells,
    padded_cells,
)


@dataclass(frozen=True)
class SignalBatch:
    """One batch of rollouts: trainable tokens only, flat, with their levels.

    Two answers of 2 and 3 trainable tokens to one prompt:
        levels.token_counts = [2, 3]        reward = [1., 0.]        levels.group_of_episode = [0, 0]
        logp_old = [-0.1, -0.7, -0.2, -1.2, -0.4]
    Build one with `from_padded`, `from_list` or `from_packed`; they gather, check and keep the way back in `cells`.
    """

    levels: Levels
    cells: Cells
    reward: PerEpisode
    group: EpisodeIndex
    """The caller's name of each episode's prompt."""
    scored: EpisodeFlag
    """False where the reward function failed, timed out or abstained: the episode neither votes nor trains."""
    sequence_id: SequenceIndex
    """A name for each sequence that survives permutation and splitting; seeds random selection."""
    length: SequenceIndex
    """Generated length of each sequence, untrainable tokens included where the caller counts them."""
    ended: SequenceFlag | None = None
    """True where the sequence ended by itself; None where the rollout carries no finish reason."""
    logp_old: PerToken | None = None
    logp_rollout: PerToken | None = None
    logp_ref: PerToken | None = None
    value: PerToken | None = None
    value_after: PerSequence | None = None
    """Value of the state after the last token; read only where the sequence did not end."""
    token_reward: PerToken | None = None
    position: TokenIndex | None = None
    turn: TokenIndex | None = None
    version: TokenIndex | None = None
    """Version of the parameters that sampled each token."""
    extra: Mapping[str, PerToken] = field(default_factory=dict[str, PerToken])

    dtype: torch.dtype = torch.float32
    """Of every token field; rewards are held in float64, so that statistics do not round them."""

    @property
    def num_tokens(self) -> int:
        return self.levels.num_tokens

    @property
    def segments(self) -> Segments:
        return self.levels.segments

    @classmethod
    def from_padded(cls, trainable: Tensor, *, reward: Numbers, group: Numbers, **fields: Any) -> "SignalBatch":
        """From [rows, width] tensors, padded on either side; `trainable` may be bool, 0/1 integers or 0/1 floats."""
        refuse_layout(trainable.ndim != 2, f"trainable has shape {list(trainable.shape)}", "[rows, width]")
        cells, segments = padded_cells(as_flags(trainable))
        return _build(cells, segments, trainable.shape[1], reward, group, fields)

    @classmethod
    def from_list(cls, trainable: Sequence[Tensor], *, reward: Numbers, group: Numbers, **fields: Any) -> "SignalBatch":
        """From one 1-D tensor a sequence."""
        for i, entry in enumerate(trainable):
            refuse_layout(entry.ndim != 1, f"trainable[{i}] has shape {list(entry.shape)}", "one 1-D tensor a sequence")
        cells, segments = list_cells([as_flags(entry) for entry in trainable])
        return _build(cells, segments, None, reward, group, fields)

    @classmethod
    def from_packed(
        cls, trainable: Tensor, cu_seqlens: Tensor, *, reward: Numbers, group: Numbers, **fields: Any
    ) -> "SignalBatch":
        """From one packed 1-D row and its boundaries [0, end of sequence 0, …]."""
        refuse_layout(trainable.ndim != 1, f"trainable has shape {list(trainable.shape)}", "[tokens]")
        cells, segments = packed_cells(as_flags(trainable), cu_seqlens)
        return _build(cells, segments, None, reward, group, fields)


def _build(
    cells: Cells, segments: Segments, width: int | None, rewards: Numbers, groups: Numbers, given: dict[str, Any]
) -> SignalBatch:
    """Gather, check, and only then make the batch."""
    reward, group = as_vector(rewards, "reward"), as_vector(groups, "group")
    known = {f.name for f in fields(SignalBatch)} | {"episode", "attention"}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise SignalError(
            f"SignalBatch: has no field {unknown}{nearest(unknown[0], known)}; "
            "other token fields go into extra={name: tensor}."
        )
    others: Mapping[str, TokenField] = given.get("extra") or {}
    tokens = {n: cells.gather(given[n], n).detach() for n in (*FLOATS, *INTEGERS) if given.get(n) is not None}
    extra = {n: cells.gather(values, n).detach() for n, values in others.items()}
    attention = given.get("attention")
    if attention is not None:
        check_attention(attention, cells)
    paid = moved_reward(given.get("token_reward"), attention, cells, segments)
    for name, values in {**tokens, **extra, **({} if paid is None else {"token_reward": paid})}.items():
        if name not in INTEGERS:
            check_tokens(name, values, segments)
    sequences = _sequence_fields(segments, width, given)
    check_sequences(sequences, segments.num_sequences)
    check_ids(sequences["sequence_id"])
    levels = levels_of(segments, given.get("episode"), reward, group)
    floats = {**{n: tokens[n] for n in FLOATS if n in tokens}, **extra, "value_after": sequences["value_after"]}
    dtype = common_dtype({n: v for n, v in {**floats, "token_reward": paid}.items() if v is not None})
    reward = reward.detach().double().clone()
    scored = torch.ones_like(reward, dtype=torch.bool)
    scored = scored if given.get("scored") is None else as_flags(given["scored"], "scored").clone()
    check_reward(reward, scored)
    return SignalBatch(
        levels=levels,
        cells=cells,
        reward=reward,
        group=group,
        scored=scored,
        token_reward=paid,
        extra=extra,
        dtype=dtype,
        **sequences,
        **tokens,
    )


def _sequence_fields(segments: Segments, width: int | None, given: dict[str, Any]) -> dict[str, Any]:
    counts = segments.token_counts
    ids, length = given.get("sequence_id"), given.get("length")
    return {
        "sequence_id": torch.arange(len(counts), device=counts.device) if ids is None else ids,
        "length": counts if length is None else length,
        "ended": ended_of(given.get("ended"), given.get("attention"), width),
        "value_after": None if (after := given.get("value_after")) is None else after.detach().clone(),
    }
