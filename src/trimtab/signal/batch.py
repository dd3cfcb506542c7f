"""The batch: one set of rollouts as flat trainable tokens with their levels. It knows no formula and no recipe.

Past the door every token is trainable, finite and has a place on every level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError, nearest
from trimtab.signal.cell import Cells, list_cells, packed_cells, padded_cells, token_cells
from trimtab.signal.door import (
    FLOATS,
    INTEGERS,
    Numbers,
    attention_of,
    check_floats,
    check_ids,
    check_sequences,
    check_values,
    common_dtype,
    ended_of,
    group_of,
    length_of,
    levels_of,
    moved_reward,
    observed_of,
    owners_of,
    refuse_layout,
    reward_of,
)
from trimtab.signal.episode_door import read_episodes
from trimtab.signal.group import group_index, known_company
from trimtab.signal.layout import (
    EpisodeFlag,
    EpisodeIndex,
    Levels,
    PerEpisode,
    PerKey,
    PerSequence,
    PerToken,
    ScoredKeys,
    Segments,
    SequenceFlag,
    SequenceIndex,
    TokenIndex,
)
from trimtab.signal.tensors import as_flags, as_integers, as_tensor

FIELDS = (
    *FLOATS, *INTEGERS, "token_reward", "value_after", "ended", "scored", "length", "sequence_id", "episode",
    "attention", "rewards", "rewards_scored", "baseline", "role", "source", "observed", "extra",
)  # fmt: skip
"""Every field a batch can be given besides trainable, reward and group."""
KNOWN = frozenset(FIELDS)


@dataclass(frozen=True)
class SignalBatch:
    """One batch of rollouts: trainable tokens only, flat, with their levels.

    Two answers of 2 and 3 trainable tokens to one prompt:
        levels.token_counts = [2, 3]        reward = [1., 0.]        levels.group_of_episode = [0, 0]
        logp_old = [-0.1, -0.7, -0.2, -1.2, -0.4]
    Build one with `from_padded`, `from_list`, `from_packed` or `from_tokens`; they gather, check and keep the way back
    in `cells`.
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
    value_old: PerToken | None = None
    """The critic's value of each token's state, before the first update."""
    value_after: PerSequence | None = None
    """Value of the state after the last token; read only where the sequence did not end."""
    observed: SequenceIndex | None = None
    """How many tokens of its environment each sequence holds. They are in no token field: a term on them gets their
    log-probs beside those of the trainable ones."""
    token_reward: PerToken | None = None
    position: TokenIndex | None = None
    turn: TokenIndex | None = None
    version: TokenIndex | None = None
    """Version of the parameters that sampled each token."""
    extra: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Token fields of your own, by name; a formula that names one as an argument gets it."""

    rewards: PerKey | None = None
    """Several rewards of each episode, one column per key, for formulas that read them. `reward` is still the one that
    is logged and filtered on."""
    rewards_scored: ScoredKeys | None = None
    """False where the reward function of a key failed or abstained; all true where the caller does not say."""
    baseline: PerEpisode | None = None
    """A number to compare each episode's reward with: for ReMax, the reward of the greedy answer."""
    role: EpisodeIndex | None = None
    """Who the policy was in each episode, a number from 0: for self-play, the player."""
    source: EpisodeIndex | None = None
    """Where each episode comes from, a number from 0: an environment, a data set. For metrics."""

    dtype: torch.dtype = torch.float32
    """Of every token field with fractions; rewards are held in float64, so that statistics do not round them."""

    @property
    def num_tokens(self) -> int:
        return self.levels.num_tokens

    @property
    def segments(self) -> Segments:
        return self.levels.segments

    @classmethod
    def from_padded(cls, trainable: Numbers, *, reward: Numbers, group: Numbers, **fields: Any) -> "SignalBatch":
        """From [rows, width] fields, padded on either side; `trainable` holds bools, or 0 and 1.

        Every field is a tensor, an array or a list. reward and group hold one entry per row; group names a prompt, by
        an integer or a text.
        """
        flags = as_flags(trainable, "SignalBatch: trainable")
        refuse_layout(flags.ndim != 2, f"trainable has shape {list(flags.shape)}", "[rows, width]")
        cells, segments = padded_cells(flags)
        return _build(cells, segments, flags.shape[1], reward, group, fields)

    @classmethod
    def from_list(cls, trainable: Numbers, *, reward: Numbers, group: Numbers, **fields: Any) -> "SignalBatch":
        """From one 1-D tensor, array or list per sequence."""
        listed = isinstance(trainable, Sequence) and not isinstance(trainable, str)
        refuse_layout(
            not listed,
            f"trainable is a {type(cast('object', trainable)).__name__}",
            "a list with one 1-D tensor per sequence",
        )
        rows = [
            as_flags(row, f"SignalBatch: trainable[{i}]") for i, row in enumerate(cast("Sequence[object]", trainable))
        ]
        for i, row in enumerate(rows):
            refuse_layout(row.ndim != 1, f"trainable[{i}] has shape {list(row.shape)}", "one 1-D tensor per sequence")
        cells, segments = list_cells(rows)
        return _build(cells, segments, None, reward, group, fields)

    @classmethod
    def from_tokens(cls, token_counts: Numbers, *, reward: Numbers, group: Numbers, **fields: Any) -> "SignalBatch":
        """From trainable tokens alone, sequence after sequence; `token_counts` says how many each sequence has."""
        counts = as_integers(token_counts, "SignalBatch: token_counts")
        refuse_layout(counts.ndim != 1, f"token_counts has shape {list(counts.shape)}", "one count per sequence")
        refuse_layout(bool((counts < 0).any()), f"token_counts is {counts.tolist()}", "counts of 0 or more")
        cells, segments = token_cells(counts)
        return _build(cells, segments, None, reward, group, fields)

    @classmethod
    def from_packed(
        cls, trainable: Numbers, cu_seqlens: Numbers, *, reward: Numbers, group: Numbers, **fields: Any
    ) -> "SignalBatch":
        """From one packed 1-D row and its boundaries [0, end of sequence 0, …]."""
        flags = as_flags(trainable, "SignalBatch: trainable")
        refuse_layout(flags.ndim != 1, f"trainable has shape {list(flags.shape)}", "[tokens]")
        ends = as_integers(cu_seqlens, "SignalBatch: cu_seqlens", flags.device)
        refuse_layout(ends.ndim != 1, f"cu_seqlens has shape {list(ends.shape)}", "[sequences + 1]")
        cells, segments = packed_cells(flags, ends)
        return _build(cells, segments, None, reward, group, fields)


def _build(
    cells: Cells, segments: Segments, width: int | None, rewards: Numbers, groups: Numbers, given: dict[str, Any]
) -> SignalBatch:
    """Gather, check, and only then make the batch."""
    _refuse_unknown(given)
    device = cells.device
    precision = _precision(given)
    attention = attention_of(given.get("attention"), cells)
    reward = reward_of(rewards, device)
    group = group_of(groups, reward)
    owner = owners_of(segments, given.get("episode"), reward.shape[0])
    scored = given.get("scored")
    scored = (
        torch.ones_like(reward, dtype=torch.bool) if scored is None else as_flags(scored, "SignalBatch: scored", device)
    )
    floats = {n: cells.gather(given[n], n, precision).detach() for n in FLOATS if given.get(n) is not None}
    integers = {n: _integer_tokens(cells, n, given[n]) for n in INTEGERS if given.get(n) is not None}
    extra = {n: cells.gather(v, n, precision).detach() for n, v in _extra(given.get("extra")).items()}
    paid = moved_reward(given.get("token_reward"), attention, cells, segments, precision)
    fractions = {**floats, **{n: v for n, v in extra.items() if v.dtype.is_floating_point}}
    fractions |= {} if paid is None else {"token_reward": paid}
    index, facts = group_index(group)
    num_groups, lone = check_values(fractions, reward, scored, segments, facts)
    sequences = _sequence_fields(segments, width, given, attention, precision)
    check_sequences(sequences, segments.num_sequences)
    if given.get("sequence_id") is not None:
        check_ids(sequences["sequence_id"])
    after = sequences["value_after"]
    dtype = common_dtype({**fractions, **({} if after is None else {"value_after": after})})
    return SignalBatch(
        levels=levels_of(segments, owner, known_company(index, lone), num_groups),
        cells=cells,
        reward=reward,
        group=group,
        scored=scored,
        token_reward=paid,
        extra=extra,
        **read_episodes(given, scored),
        dtype=dtype or torch.get_default_dtype(),
        **sequences,
        **floats,
        **integers,
    )


def _refuse_unknown(given: dict[str, Any]) -> None:
    unknown, known = sorted(given.keys() - KNOWN), (*FIELDS, "trainable", "reward", "group")
    if unknown:
        raise SignalError(
            f"SignalBatch: has no field {unknown[0]!r}{nearest(unknown[0], known)}; "
            f"it has {', '.join(FIELDS)}, and other token fields go into extra={{name: tensor}}."
        )


def _precision(given: dict[str, Any]) -> torch.dtype | None:
    """What plain Python numbers are read in: the precision of the tensors and arrays beside them."""
    for name in FLOATS:
        field = given.get(name)
        row = field[0] if isinstance(field, list | tuple) and field else field  # pyright: ignore[reportUnknownVariableType]
        dtype = str(getattr(row, "dtype", "")).removeprefix("torch.")  # pyright: ignore[reportUnknownArgumentType]
        if dtype in ("float32", "float64"):
            return getattr(torch, dtype)
    return torch.get_default_dtype()


def _integer_tokens(cells: Cells, name: str, values: Numbers) -> TokenIndex:
    return as_integers(cells.gather(values, name), f"SignalBatch: {name}")


def _extra(given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and name.isidentifier() for name in cast("Mapping[object, Any]", given)
    ):
        raise SignalError(
            "SignalBatch: extra is not a mapping of names to token fields. Write extra={'name': tensor}; a formula "
            "takes the field as an argument of that name."
        )
    return dict(cast("Mapping[str, Any]", given))


def _sequence_fields(
    segments: Segments, width: int | None, given: dict[str, Any], attention: Tensor | None, dtype: torch.dtype | None
) -> dict[str, Any]:
    counts = segments.token_counts
    ids, after = given.get("sequence_id"), given.get("value_after")
    value_after = None
    if after is not None:
        value_after = as_tensor(after, "SignalBatch: value_after", dtype=dtype).detach().to(counts.device, copy=True)
        check_floats("SignalBatch", "value_after", value_after)
    return {
        "sequence_id": segments.everyone
        if ids is None
        else as_integers(ids, "SignalBatch: sequence_id", counts.device),
        "length": length_of(given.get("length"), counts),
        "ended": ended_of(given.get("ended"), attention, width, counts.device),
        "value_after": value_after,
        "observed": observed_of(given.get("observed"), counts),
    }
