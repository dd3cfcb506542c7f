"""The door: the only place where a caller's fields are read and checked, once, before any formula sees them.

It knows nothing of formulas or recipes: whatever the caller holds in, plain tensors or a refusal out.
"""

import warnings
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.cell import Cells
from trimtab.signal.layout import Levels, Segments, SequenceIndex, places
from trimtab.signal.tensors import Array, Numbers, as_flags, as_integers, as_names, as_tensor, host, read_all

TokenField = Numbers
"""One number per token, in the layout of `trainable`."""

LOGP_SLACK = 1e-4
"""How far above 0 a log-prob may lie: float32 log-softmax rounding stays below 1e-5, a probability or loss does not."""

LARGEST = 1e18
"""Numbers beyond it overflow float32 as soon as they are squared, in a spread or a value loss."""

LOGPS = ("logp_old", "logp_rollout", "logp_ref")
FLOATS = (*LOGPS, "value_old")
INTEGERS = ("position", "turn", "version")


def refuse_layout(wrong: bool, what: str, wanted: str) -> None:
    """Raise when a tensor does not have the layout its constructor is named for."""
    if wrong:
        raise SignalError(f"SignalBatch: {what}, so its layout cannot be told. Give {wanted}.")


def owners_of(segments: Segments, episode: Numbers | None, num_rewards: int) -> Tensor | None:
    """The episode of each sequence; None where every sequence is an episode of its own."""
    device, rows = segments.token_counts.device, segments.num_sequences
    if episode is None and num_rewards != rows:
        raise SignalError(
            f"SignalBatch: there are {num_rewards} rewards for {rows} sequences, so rewards and answers do not match. "
            "Give one reward and one group per sequence, or say with episode=… which sequence belongs to which reward."
        )
    if episode is None:
        return None
    owner = as_integers(episode, "SignalBatch: episode", device)
    check_sequences({"episode": owner}, rows)
    wrong = places((owner < 0) | (owner >= num_rewards))
    if wrong:
        raise SignalError(
            f"SignalBatch: sequence {wrong[0]} names episode {int(owner[wrong[0]])} but there are {num_rewards} "
            "rewards, so it has none. Give one reward and one group per episode, and count episodes from 0."
        )
    return owner


def levels_of(segments: Segments, owner: Tensor | None, group: Tensor, num_groups: int) -> Levels:
    """The index maps."""
    if owner is not None:
        return Levels(segments, owner, group, num_groups)
    return Levels(segments, segments.everyone, group, num_groups, one_each=True)


def group_of(group: Numbers, reward: Tensor) -> Tensor:
    """The caller's name of each episode's prompt: integers or strings, one per reward."""
    names = as_names(group, "SignalBatch: group", reward.device)
    if reward.ndim != 1 or names.shape != reward.shape:
        raise SignalError(
            f"SignalBatch: reward has shape {list(reward.shape)} and group {list(names.shape)}; both hold one entry "
            "per episode. Broadcasting would give every episode every reward."
        )
    return names


def reward_of(reward: Numbers, device: torch.device) -> Tensor:
    """One number per episode, in float64, always a new tensor."""
    values = as_tensor(reward, "SignalBatch: reward", dtype=torch.float64, device=device)
    return values.detach().to(device, torch.float64, copy=True)


def ended_of(ended: Numbers | None, attention: Tensor | None, width: int | None, device: torch.device) -> Tensor | None:
    """The finish reason where there is one; inferred from the row only when asked for by name."""
    if ended is None:
        return None
    if not isinstance(ended, str):
        return _flags_per_sequence(ended, device)
    if ended != "shorter_than_row" or attention is None or width is None:
        raise SignalError(
            f"SignalBatch: ended = {ended!r} cannot be read. Give one bool per sequence, "
            "or 'shorter_than_row' together with the padded batch's attention mask."
        )
    shorter = attention.sum(1) < width
    if not bool(shorter.any()):
        warnings.warn(
            f"SignalBatch: ended = 'shorter_than_row' finds no row shorter than the width {width}, "
            "so no sequence counts as ended. "
            "If the batch was cropped to its longest row, give the finish reasons instead.",
            stacklevel=5,
        )
    return shorter


def _flags_per_sequence(ended: Numbers, device: torch.device) -> Tensor:
    if isinstance(ended, list | tuple) and any(isinstance(one, str) for one in cast("list[object]", ended)):
        raise SignalError(
            "SignalBatch: ended holds texts, and which of them mean that a sequence ended by itself depends on the "
            "engine. Give bools: [reason == 'stop' for reason in finish_reasons]."
        )
    return as_flags(cast("object", ended), "SignalBatch: ended", device)


def length_of(length: Numbers | None, counts: Tensor) -> Tensor:
    """Generated length of each sequence: 0 or more; the trainable tokens where the caller does not say."""
    if length is None:
        return counts.clone()
    read = as_tensor(length, "SignalBatch: length", device=counts.device)
    whole = read.to(torch.long) if read.dtype != torch.bool and bool((read == read.floor()).all()) else read
    values = as_integers(whole, "SignalBatch: length", counts.device)
    below = places(values.reshape(-1) < 0)
    if below:
        raise SignalError(
            f"SignalBatch: length is {int(values.reshape(-1)[below[0]])} at {below[0]}, and a sequence has 0 tokens or "
            "more. Give generated lengths."
        )
    return values


def observed_of(given: Numbers | None, counts: SequenceIndex) -> SequenceIndex | None:
    """How many tokens of the environment each sequence holds: 0 or more."""
    if given is None:
        return None
    values = as_integers(given, "SignalBatch: observed", counts.device)
    below = places(values.reshape(-1) < 0)
    if below:
        raise SignalError(
            f"SignalBatch: observed is {int(values.reshape(-1)[below[0]])} at {below[0]}, and a sequence holds 0 "
            "tokens of its environment or more. Give counts."
        )
    return values


def attention_of(attention: Numbers | None, cells: Cells) -> Tensor | None:
    """The attention mask in the layout of padded rows, true at every trainable token."""
    if attention is None:
        return None
    if len(cells.shape) != 2:
        raise SignalError(
            "SignalBatch: attention tells padding in padded rows; a list or a packed row has none. Leave it out."
        )
    flags = as_flags(attention, "SignalBatch: attention", cells.device)
    cells.check_shape(flags, "attention")
    blind = cells.index[~flags.reshape(-1)[cells.index]]
    if blind.numel():
        at = int(blind[0])
        raise SignalError(
            f"SignalBatch: attention is 0 at row {at // cells.shape[1]}, column {at % cells.shape[1]}, where trainable "
            f"is 1 ({blind.numel()} such tokens), so the model never saw a token it is to learn. Mend one of the masks."
        )
    return flags


def moved_reward(
    reward: TokenField | None, attention: Tensor | None, cells: Cells, segments: Segments, dtype: torch.dtype | None
) -> Tensor | None:
    """A reward on a dropped token moves to the last trainable token before it; padding, where known, pays nothing."""
    if reward is None:
        return None
    paying = cells.field(reward, "token_reward", dtype).detach()
    if attention is not None:
        paying = torch.where(attention, paying, torch.zeros_like(paying))
    elif len(cells.shape) == 2:
        raise SignalError(
            "SignalBatch: token_reward on padded rows needs the attention mask, because what stands in padding cannot "
            "be told from a reward on tool output. Give attention=…, or the list layout."
        )
    flat, owner = paying.reshape(-1), cells.owners("token_reward")
    size = flat.shape[0]
    is_token = torch.zeros(size, dtype=torch.long, device=flat.device).index_fill(0, cells.index, 1)
    target = is_token.cumsum(0) - 1
    paid = (flat != 0).nonzero().squeeze(1)
    home = target[paid]
    lost = home < 0
    if segments.num_tokens:
        lost |= segments.sequence_of_token[home.clamp(min=0)] != owner[paid]
    if bool(lost.any()):
        at = int(paid[lost][0])
        raise SignalError(
            f"SignalBatch: token_reward is {flat[at].item()} at cell {at}, before the first trainable token of its "
            "sequence, so no action can be credited. Put it on a later token, or add it to the episode's reward."
        )
    return flat.new_zeros(segments.num_tokens).index_add(0, home, flat[paid])


def common_dtype(fields: Mapping[str, Tensor]) -> torch.dtype | None:
    """The one dtype of all token fields, None without any; two would round one side of a difference."""
    found = {name: values.dtype for name, values in fields.items()}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in found.items())
        raise SignalError(
            f"SignalBatch: fields differ in precision ({shown}), so one side of a difference is rounded. "
            "Give one dtype."
        )
    return next(iter(found.values()), None)


def check_sequences(fields: Mapping[str, Tensor | None], num_sequences: int) -> None:
    """One entry per sequence."""
    for name, values in fields.items():
        if values is not None and values.shape != (num_sequences,):
            raise SignalError(
                f"SignalBatch: {name} has shape {list(values.shape)} for {num_sequences} sequences. "
                "Give one entry per sequence."
            )


def check_ids(sequence_id: Tensor) -> None:
    """Every sequence has a name of its own."""
    if torch.unique(sequence_id).numel() != sequence_id.numel():
        raise SignalError(
            "SignalBatch: sequence_id names two sequences alike, so a random choice would couple them. Make ids unique."
        )


def check_values(
    fields: Mapping[str, Tensor], reward: Tensor, scored: Tensor, segments: Segments, facts: Array
) -> tuple[int, int]:
    """Every number is one that can be computed with. All that decides is read in one go, and `facts` with it."""
    if scored.shape != reward.shape:
        raise SignalError(f"SignalBatch: scored has shape {list(scored.shape)} for {reward.shape[0]} episodes.")
    for name, values in fields.items():
        check_floats("SignalBatch", name, values)
    wrong = (~(abs(host(reward)) <= LARGEST) & host(scored)).any()
    bounds = [bound for values in fields.values() if values.numel() for bound in torch.aminmax(values)]
    is_wrong, *numbers, num, lone = read_all([wrong, *bounds], facts)
    if is_wrong:
        _refuse_reward(reward, scored)
    filled = [name for name, values in fields.items() if values.numel()]
    for name, low, high in zip(filled, numbers[::2], numbers[1::2], strict=True):
        if not _are_possible(low, high, is_logp=name in LOGPS):
            check_tokens("SignalBatch", name, fields[name], segments, is_logp=name in LOGPS)
    return int(num), int(lone)


def _are_possible(low: float, high: float, *, is_logp: bool) -> bool:
    """Whether all numbers between these are; nan never is."""
    return low >= -LARGEST and high <= (LOGP_SLACK if is_logp else LARGEST)


def _refuse_reward(reward: Tensor, scored: Tensor) -> None:
    wrong = places(~(reward.abs() <= LARGEST) & scored)
    raise SignalError(
        f"SignalBatch: reward is {reward[wrong[0]].item()} at episode {wrong[0]} ({len(wrong)} in all), "
        "so every baseline it enters would be undefined. "
        "Mark failed rewards with scored=False, or repair the reward function."
    )


def check_floats(where: str, name: str, values: Tensor) -> None:
    """Floats of enough precision for differences of log-probs."""
    if values.dtype.is_floating_point and values.dtype.itemsize < 4:
        raise SignalError(
            f"{where}: {name} is {str(values.dtype).removeprefix('torch.')}, so differences of log-probs round "
            "away (to 0 or 0.06 near -8). Compute it in float32: logits.float().log_softmax(-1)."
        )
    if not values.dtype.is_floating_point:
        raise SignalError(f"{where}: {name} holds {values.dtype}, not floats. Give float32 or float64.")


def check_tokens(where: str, name: str, values: Tensor, segments: Segments, *, is_logp: bool) -> None:
    """Finite at every trainable token, and a log-prob never above 0."""
    if not values.numel():
        return
    low, high = cast("list[float]", torch.stack(torch.aminmax(values)).tolist())  # nan, if there is one
    if _are_possible(low, high, is_logp=is_logp):
        return
    bad = ~(values.abs() <= LARGEST)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise SignalError(
            f"{where}: {name} is {values[first].item()} at {int(bad.sum())} trainable tokens "
            f"(first: {_place(first, segments)}), so their gradient is undefined. "
            "Drop them with trainable, or repair what produced them."
        )
    if is_logp:
        first = int((values > LOGP_SLACK).nonzero()[0])
        raise SignalError(
            f"{where}: {name} is {values[first].item():.6g} at {_place(first, segments)}, "
            "and a log-prob is never above 0, so this is something else "
            "(a probability, a loss with its sign, an unnormalised logit). Give log-probs: logits.log_softmax(-1)."
        )


def _place(token: int, segments: Segments) -> str:
    sequence = int(segments.sequence_of_token[token])
    return f"token {token - int(segments.first_token[sequence])} of sequence {sequence}"
