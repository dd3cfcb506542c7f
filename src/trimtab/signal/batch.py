"""The batch and its door: the only place where a caller's tensors become flat tokens, and where they are checked.

Past this door every token is trainable, finite and has a place on every level. It knows nothing of formulas or recipes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.layout import (
    Cells,
    EpisodeFlag,
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
    places,
    renumbered,
)

TokenField = Tensor | Sequence[Tensor]

LOGP_SLACK = 1e-4
"""How far above 0 a log-prob may lie: float32 log-softmax rounding stays below 1e-5, a probability or loss does not."""

LOGPS = ("logp_old", "logp_rollout", "logp_ref")
FLOATS = (*LOGPS, "value", "token_reward")
INTEGERS = ("position", "turn", "version")


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

    @property
    def num_tokens(self) -> int:
        return self.levels.num_tokens

    @property
    def segments(self) -> Segments:
        return self.levels.segments

    @classmethod
    def from_padded(cls, trainable: Tensor, *, reward: Tensor, group: Tensor, **fields: Any) -> "SignalBatch":
        """From [rows, width] tensors, padded on either side; `trainable` may be bool, 0/1 integers or 0/1 floats."""
        _refuse(trainable.ndim != 2, f"trainable has shape {list(trainable.shape)}", "[rows, width]")
        cells, segments = padded_cells(_as_flags(trainable))
        return _build(cells, segments, trainable.shape[1], reward, group, fields)

    @classmethod
    def from_list(cls, trainable: Sequence[Tensor], *, reward: Tensor, group: Tensor, **fields: Any) -> "SignalBatch":
        """From one 1-D tensor a sequence."""
        for i, entry in enumerate(trainable):
            _refuse(entry.ndim != 1, f"trainable[{i}] has shape {list(entry.shape)}", "one 1-D tensor a sequence")
        cells, segments = list_cells([_as_flags(entry) for entry in trainable])
        return _build(cells, segments, None, reward, group, fields)

    @classmethod
    def from_packed(
        cls, trainable: Tensor, cu_seqlens: Tensor, *, reward: Tensor, group: Tensor, **fields: Any
    ) -> "SignalBatch":
        """From one packed 1-D row and its boundaries [0, end of sequence 0, …]."""
        _refuse(trainable.ndim != 1, f"trainable has shape {list(trainable.shape)}", "[tokens]")
        cells, segments = packed_cells(_as_flags(trainable), cu_seqlens)
        return _build(cells, segments, None, reward, group, fields)

    def check(self) -> "SignalBatch":
        """Everything a formula may rely on, tested once; returns the batch."""
        _check_levels(self)
        for name in (*FLOATS, *self.extra):
            values = self.extra[name] if name in self.extra else getattr(self, name)
            if values is not None:
                _check_tokens(name, values, self.segments, is_logp=name in LOGPS)
        wrong = places(~torch.isfinite(self.reward) & self.scored)
        if wrong:
            raise SignalError(
                f"SignalBatch: reward is {self.reward[wrong[0]].item()} at episode {wrong[0]} ({len(wrong)} in all), "
                "so every baseline it enters would be too. "
                "Mark failed rewards with scored=False, or repair the reward function."
            )
        return self


def _refuse(wrong: bool, what: str, wanted: str) -> None:
    if wrong:
        raise SignalError(f"SignalBatch: {what}, so its layout cannot be told. Give {wanted}.")


def _as_flags(trainable: Tensor) -> Tensor:
    if trainable.dtype == torch.bool:
        return trainable
    flags = trainable != 0
    odd = (trainable != flags.to(trainable.dtype)).nonzero()
    if odd.shape[0]:
        at = [int(place) for place in odd[0]]
        raise SignalError(
            f"SignalBatch: trainable is {trainable[tuple(at)].item()} at {at}, so it is neither in nor out. "
            "It holds 0 and 1; a soft weight belongs in the loss weighting."
        )
    return flags


def _build(
    cells: Cells, segments: Segments, width: int | None, reward: Tensor, group: Tensor, given: dict[str, Any]
) -> SignalBatch:
    known = {f.name for f in fields(SignalBatch)} | {"episode", "attention"}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise SignalError(f"SignalBatch: has no field {unknown}; other token fields go into extra={{name: tensor}}.")
    named = [n for n in (*FLOATS, *INTEGERS) if n != "token_reward" and given.get(n) is not None]
    tokens = {n: cells.gather(given[n], n).detach() for n in named}
    others: Mapping[str, TokenField] = given.get("extra") or {}
    extra = {n: cells.gather(values, n).detach() for n, values in others.items()}
    levels = _levels(segments, given.get("episode"), reward, group)
    floats = [tokens[n].dtype for n in FLOATS if n in tokens]
    dtype = floats[0] if floats else torch.get_default_dtype()
    scored = given.get("scored")
    counts = segments.token_counts
    length = given.get("length")
    return SignalBatch(
        levels=levels,
        cells=cells,
        reward=reward.detach().to(dtype),
        scored=torch.ones_like(reward, dtype=torch.bool) if scored is None else scored.bool(),
        sequence_id=torch.arange(len(counts), device=counts.device) if (i := given.get("sequence_id")) is None else i,
        length=counts if length is None else length,
        ended=_ended(given.get("ended"), given.get("attention"), width),
        value_after=given.get("value_after"),
        token_reward=_moved_reward(given.get("token_reward"), given.get("attention"), cells, segments),
        extra=extra,
        **tokens,
    ).check()


def _levels(segments: Segments, episode: Tensor | None, reward: Tensor, group: Tensor) -> Levels:
    if episode is None:
        episode = torch.arange(segments.num_sequences, device=segments.token_counts.device)
    if reward.ndim != 1 or group.shape != reward.shape:
        raise SignalError(
            f"SignalBatch: reward has shape {list(reward.shape)} and group {list(group.shape)}; both hold one entry an "
            "episode. Broadcasting would give every episode every reward."
        )
    if group.dtype.is_floating_point:
        raise SignalError("SignalBatch: group holds floats, so equal prompts might not compare equal. Give integers.")
    return Levels(segments, episode, *renumbered(group))


def _ended(
    ended: SequenceFlag | Literal["shorter_than_row"] | None, attention: Tensor | None, width: int | None
) -> Tensor | None:
    """The finish reason where there is one; inferred from the row only when asked for by name."""
    if ended is None or isinstance(ended, Tensor):
        return None if ended is None else ended.bool()
    if ended != "shorter_than_row" or attention is None or width is None:
        raise SignalError(
            f"SignalBatch: ended = {ended!r} cannot be read. Give a bool a sequence, "
            "or 'shorter_than_row' together with the padded batch's attention mask."
        )
    shorter = _as_flags(attention).sum(1) < width
    if not bool(shorter.any()):
        warnings.warn(
            f"SignalBatch: ended = 'shorter_than_row' finds no row shorter than the width {width}, "
            "so no sequence counts as ended. "
            "If the batch was cropped to its longest row, give the finish reasons instead.",
            stacklevel=4,
        )
    return shorter


def _moved_reward(
    reward: TokenField | None, attention: Tensor | None, cells: Cells, segments: Segments
) -> Tensor | None:
    """A reward on a dropped token moves to the last trainable token before it; padding, where known, pays nothing."""
    if reward is None:
        return None
    if not isinstance(reward, Tensor):
        reward = cells.joined(reward, "token_reward")
    if attention is not None:
        reward = torch.where(_as_flags(attention), reward, torch.zeros_like(reward))
    flat, owner = reward.reshape(-1), cells.owners("token_reward")
    size = flat.shape[0]
    is_token = torch.zeros(size, dtype=torch.long, device=flat.device).index_fill(0, cells.index, 1)
    target = is_token.cumsum(0) - 1
    paid = (flat != 0).nonzero().squeeze(1)
    home = target[paid]
    lost = (
        (home < 0) | (segments.sequence_of_token[home.clamp(min=0)] != owner[paid]) if segments.num_tokens else home < 0
    )
    if bool(lost.any()):
        at = int(paid[lost][0])
        raise SignalError(
            f"SignalBatch: token_reward is {flat[at].item()} at cell {at}, before the first trainable token of its "
            "sequence, so no action can be credited. Put it on a later token, or add it to the episode's reward."
        )
    return flat.new_zeros(segments.num_tokens).index_add(0, home, flat[paid])


def _check_levels(batch: SignalBatch) -> None:
    levels = batch.levels
    per_sequence = {
        "episode": levels.episode_of_sequence,
        "sequence_id": batch.sequence_id,
        "length": batch.length,
        "ended": batch.ended,
        "value_after": batch.value_after,
    }
    for name, values in per_sequence.items():
        if values is not None and values.shape != (levels.num_sequences,):
            raise SignalError(
                f"SignalBatch: {name} has shape {list(values.shape)} for {levels.num_sequences} sequences. "
                "Give one entry a sequence."
            )
    if batch.scored.shape != batch.reward.shape:
        raise SignalError(
            f"SignalBatch: scored has shape {list(batch.scored.shape)} for {levels.num_episodes} episodes."
        )
    episodes = levels.episode_of_sequence
    if episodes.numel() and (int(episodes.min()) < 0 or int(episodes.max()) >= levels.num_episodes):
        raise SignalError(
            f"SignalBatch: a sequence names episode {int(episodes.max())} but there are {levels.num_episodes} rewards, "
            "so it has none. Give one reward and one group an episode."
        )
    ids = batch.sequence_id
    if torch.unique(ids).numel() != ids.numel():
        raise SignalError(
            "SignalBatch: sequence_id names two sequences alike, so a random choice would couple them. Make ids unique."
        )


def _check_tokens(name: str, values: Float[Tensor, " _"], segments: Segments, *, is_logp: bool) -> None:
    if values.dtype in (torch.float16, torch.bfloat16):
        raise SignalError(
            f"SignalBatch: {name} is {str(values.dtype).removeprefix('torch.')}, so differences of log-probs round "
            "away (to 0 or 0.06 near -8). Compute it in float32: logits.float().log_softmax(-1)."
        )
    if not values.dtype.is_floating_point:
        raise SignalError(f"SignalBatch: {name} holds {values.dtype}, not floats. Give float32 or float64.")
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise SignalError(
            f"SignalBatch: {name} is {values[first].item()} at {int(bad.sum())} trainable tokens "
            f"(first: {_place(first, segments)}), so their gradient is undefined. "
            "Drop them with trainable, or repair what produced them."
        )
    if is_logp and bool((values > LOGP_SLACK).any()):
        first = int((values > LOGP_SLACK).nonzero()[0])
        raise SignalError(
            f"SignalBatch: {name} is {values[first].item():.6g} at {_place(first, segments)}, "
            "and a log-prob is never above 0, so this is something else "
            "(a probability, a loss with its sign, an unnormalised logit). Give log-probs."
        )


def _place(token: int, segments: Segments) -> str:
    sequence = int(segments.sequence_of_token[token])
    return f"token {token - int(segments.first_token[sequence])} of sequence {sequence}"
