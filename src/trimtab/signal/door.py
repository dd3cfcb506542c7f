"""The door: the only place where a caller's tensors are read and checked, once, before any formula sees them.

It knows nothing of batches, formulas or recipes: plain tensors in, plain tensors or a refusal out.
"""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.layout import Cells, Levels, Segments, places, renumbered

TokenField = Tensor | Sequence[Tensor]
Numbers = Tensor | Sequence[float]

LOGP_SLACK = 1e-4
"""How far above 0 a log-prob may lie: float32 log-softmax rounding stays below 1e-5, a probability or loss does not."""

LOGPS = ("logp_old", "logp_rollout", "logp_ref")
FLOATS = (*LOGPS, "value")
INTEGERS = ("position", "turn", "version")


def refuse_layout(wrong: bool, what: str, wanted: str) -> None:
    """Raise when a tensor does not have the layout its constructor is named for."""
    if wrong:
        raise SignalError(f"SignalBatch: {what}, so its layout cannot be told. Give {wanted}.")


def as_flags(mask: Tensor, name: str = "trainable") -> Tensor:
    """A mask as booleans; anything but 0 and 1 is refused."""
    if mask.dtype == torch.bool:
        return mask
    flags = mask != 0
    odd = (mask != flags.to(mask.dtype)).nonzero()
    if odd.shape[0]:
        at = [int(place) for place in odd[0]]
        raise SignalError(
            f"SignalBatch: {name} is {mask[tuple(at)].item()} at {at}, so it is neither in nor out. "
            "It holds 0 and 1; a soft weight belongs in the loss weighting."
        )
    return flags


def levels_of(segments: Segments, episode: Tensor | None, reward: Tensor, group: Tensor) -> Levels:
    """The index maps; one episode a sequence unless `episode` says otherwise."""
    if episode is None:
        episode = torch.arange(segments.num_sequences, device=segments.token_counts.device)
    if reward.ndim != 1 or group.shape != reward.shape:
        raise SignalError(
            f"SignalBatch: reward has shape {list(reward.shape)} and group {list(group.shape)}; both hold one entry an "
            "episode. Broadcasting would give every episode every reward."
        )
    if group.dtype.is_floating_point:
        raise SignalError("SignalBatch: group holds floats, so equal prompts might not compare equal. Give integers.")
    check_sequences({"episode": episode}, segments.num_sequences)
    if episode.numel() and (int(episode.min()) < 0 or int(episode.max()) >= reward.shape[0]):
        raise SignalError(
            f"SignalBatch: a sequence names episode {int(episode.max())} but there are {reward.shape[0]} rewards, "
            "so it has none. Give one reward and one group an episode."
        )
    return Levels(segments, episode, *renumbered(group))


def ended_of(ended: Tensor | str | None, attention: Tensor | None, width: int | None) -> Tensor | None:
    """The finish reason where there is one; inferred from the row only when asked for by name."""
    if ended is None or isinstance(ended, Tensor):
        return None if ended is None else as_flags(ended, "ended").clone()
    if ended != "shorter_than_row" or attention is None or width is None:
        raise SignalError(
            f"SignalBatch: ended = {ended!r} cannot be read. Give a bool a sequence, "
            "or 'shorter_than_row' together with the padded batch's attention mask."
        )
    shorter = as_flags(attention, "attention").sum(1) < width
    if not bool(shorter.any()):
        warnings.warn(
            f"SignalBatch: ended = 'shorter_than_row' finds no row shorter than the width {width}, "
            "so no sequence counts as ended. "
            "If the batch was cropped to its longest row, give the finish reasons instead.",
            stacklevel=4,
        )
    return shorter


def moved_reward(
    reward: TokenField | None, attention: Tensor | None, cells: Cells, segments: Segments
) -> Tensor | None:
    """A reward on a dropped token moves to the last trainable token before it; padding, where known, pays nothing."""
    if reward is None:
        return None
    if not isinstance(reward, Tensor):
        reward = cells.joined(reward, "token_reward")
    cells.check_shape(reward, "token_reward")
    reward = reward.detach()
    if attention is not None:
        reward = torch.where(as_flags(attention, "attention"), reward, torch.zeros_like(reward))
    elif len(cells.shape) == 2:
        raise SignalError(
            "SignalBatch: token_reward on padded rows needs the attention mask, because what stands in padding cannot "
            "be told from a reward on tool output. Give attention=…, or the list layout."
        )
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


def as_vector(values: Numbers, name: str) -> Tensor:
    """One number an episode, from a tensor, a list or an array."""
    try:
        return values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SignalError(
            f"SignalBatch: {name} cannot be read as numbers ({error}). Give one number an episode."
        ) from error


def check_attention(attention: object, cells: Cells) -> None:
    """The attention mask has the layout of padded rows; only they have cells without a token."""
    if not isinstance(attention, Tensor) or len(cells.shape) != 2:
        raise SignalError(
            "SignalBatch: attention tells padding in padded rows; a list or a packed row has none. Leave it out."
        )
    cells.check_shape(attention, "attention")


def common_dtype(fields: Mapping[str, Tensor]) -> torch.dtype:
    """The one dtype of all token fields; two of them would round one side of a difference."""
    found = {name: values.dtype for name, values in fields.items()}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in found.items())
        raise SignalError(
            f"SignalBatch: fields differ in precision ({shown}), so one side of a difference is rounded. "
            "Give one dtype."
        )
    return next(iter(found.values()), torch.get_default_dtype())


def check_sequences(fields: Mapping[str, Tensor | None], num_sequences: int) -> None:
    """One entry a sequence."""
    for name, values in fields.items():
        if values is not None and values.shape != (num_sequences,):
            raise SignalError(
                f"SignalBatch: {name} has shape {list(values.shape)} for {num_sequences} sequences. "
                "Give one entry a sequence."
            )


def check_ids(sequence_id: Tensor) -> None:
    """Every sequence has a name of its own."""
    if torch.unique(sequence_id).numel() != sequence_id.numel():
        raise SignalError(
            "SignalBatch: sequence_id names two sequences alike, so a random choice would couple them. Make ids unique."
        )


def check_reward(reward: Tensor, scored: Tensor) -> None:
    """One finite reward an episode, where it was scored at all."""
    if scored.shape != reward.shape:
        raise SignalError(f"SignalBatch: scored has shape {list(scored.shape)} for {reward.shape[0]} episodes.")
    wrong = places(~torch.isfinite(reward) & scored)
    if wrong:
        raise SignalError(
            f"SignalBatch: reward is {reward[wrong[0]].item()} at episode {wrong[0]} ({len(wrong)} in all), "
            "so every baseline it enters would be too. "
            "Mark failed rewards with scored=False, or repair the reward function."
        )


def check_tokens(name: str, values: Tensor, segments: Segments) -> None:
    """Floats of enough precision, finite at every trainable token, and a log-prob never above 0."""
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
    if name in LOGPS and bool((values > LOGP_SLACK).any()):
        first = int((values > LOGP_SLACK).nonzero()[0])
        raise SignalError(
            f"SignalBatch: {name} is {values[first].item():.6g} at {_place(first, segments)}, "
            "and a log-prob is never above 0, so this is something else "
            "(a probability, a loss with its sign, an unnormalised logit). Give log-probs."
        )


def _place(token: int, segments: Segments) -> str:
    sequence = int(segments.sequence_of_token[token])
    return f"token {token - int(segments.first_token[sequence])} of sequence {sequence}"
