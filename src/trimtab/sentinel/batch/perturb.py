"""Cases made from cases: the same samples in another form, and corner cases of the input.

The only place that defines "the same batch, but …". An invariant picks one of these and states what may change.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.signal.layout import places

LOGPS = ("logp_current", "logp_old", "logp_rollout", "logp_ref")


def agreed(case: Case, *, on: str = "logp_rollout") -> Case:
    """The same case with the log-probs of one policy for all policies, and the values of one head for all heads."""
    tokens = {n: case.tokens[on] for n in LOGPS if n in case.tokens}
    return case.with_tokens(**tokens)


def paid_where_it_trains(case: Case) -> Case:
    """The same case, with rewards of tokens only where a token trains."""
    paid = torch.where(case.trainable, case.tokens["token_reward"], 0.0)
    return replace(case.with_tokens(token_reward=paid), quiet=case.quiet | {"token_reward"})


def untied(case: Case) -> Case:
    """The same case without equal numbers: each is moved by less than anybody would notice, each by another amount."""

    def moved(values: Tensor, place: int) -> Tensor:
        # Differences and sums of two fields must not be equal either.
        steps = torch.sin(torch.arange(values.shape[0], dtype=torch.float64) * (1.3 + 0.7 * place)) - 1
        return values + 1e-6 * steps.reshape(-1, *[1] * (values.ndim - 1))

    fields = {n: v for n, v in {**case.tokens, **case.sequences}.items() if v.dtype == torch.float64 and n != "length"}
    fresh = {n: moved(v, i) for i, (n, v) in enumerate(fields.items())}
    tokens = {n: v for n, v in fresh.items() if n in case.tokens}
    rows = {n: v for n, v in fresh.items() if n not in case.tokens}
    return case.with_tokens(**tokens).with_sequences(**rows)


def voting(case: Case) -> Case:
    """The same case, with nobody suppressed."""
    return case.with_sequences(votes=torch.ones(case.num_sequences, dtype=torch.bool))


def near(case: Case, reach: float = 10.0) -> Case:
    """The same policies, closer together: over a whole sequence, no two of them are more than `reach` apart."""
    names = [n for n in LOGPS if n in case.tokens]
    middle = torch.stack([case.tokens[n] for n in names]).mean(0)
    each = reach / 2 / max([row.count("a") for row in case.kinds], default=1) if case.kinds else reach
    return case.with_tokens(**{n: middle + (case.tokens[n] - middle).clamp(-each, each) for n in names})


def compacted(case: Case) -> Case:
    """Rows of equal length with only action tokens, so that every view is the memory of the leaf itself."""
    rows = [i for i in range(case.num_sequences) if "a" in case.kinds[i]]
    length = min((case.kinds[i].count("a") for i in rows), default=0)
    kept = [case.token_places([i])[:length] for i in rows]
    tokens = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.long)
    return replace(
        case,
        kinds=(("a",) * length,) * len(rows),
        tokens={name: values[case.trainable][tokens] for name, values in case.tokens.items()},
        sequences={name: values[torch.tensor(rows, dtype=torch.long)] for name, values in case.sequences.items()},
        origin=tuple(range(len(rows))),
    )


def without_tokens(case: Case, kinds: str) -> Case:
    """The same sequences without tokens of these kinds."""
    stays = torch.tensor([k not in kinds for row in case.kinds for k in row], dtype=torch.bool)
    return replace(
        case,
        kinds=tuple(tuple(k for k in row if k not in kinds) for row in case.kinds),
        tokens={name: values[stays] for name, values in case.tokens.items()},
    )


def without_token(case: Case, place: int) -> Case:
    """The same case without one token, counted over all tokens."""
    row = int(case.owner[place])
    within = place - int(case.cu_seqlens[row])
    rows = [list(kinds) for kinds in case.kinds]
    del rows[row][within]
    stays = torch.arange(case.trainable.numel()) != place
    return replace(
        case,
        kinds=tuple(tuple(kinds) for kinds in rows),
        tokens={name: values[stays] for name, values in case.tokens.items()},
    )


def silenced(case: Case, rows: list[int], *, keep: int = 0) -> Case:
    """Turn action tokens of some sequences into observations, except the first `keep`, so that they do not train."""
    kinds: list[tuple[str, ...]] = []
    for i, row in enumerate(case.kinds):
        seen = 0
        fresh: list[str] = []
        for kind in row:
            seen += kind == "a"
            fresh.append("o" if kind == "a" and i in rows and seen > keep else kind)
        kinds.append(tuple(fresh))
    return replace(case, kinds=tuple(kinds))


def groups_of(size: int) -> Callable[[Case], Case]:
    """The same sequences, `size` neighbours to a group, for a function that takes groups by position.

    Sequences that are left over are dropped. Where there are too few for two groups, they are repeated.
    """

    def grouped(case: Case) -> Case:
        count = case.num_sequences // size * size
        if case.within is not None:
            if not count:
                raise case.cannot(f"a part of {case.num_sequences} sequences holds no group of {size}")
            return case.taken(range(count), as_part=True).with_sequences(group=torch.arange(count) // size)
        if not case.num_sequences:
            raise case.cannot("there is no sequence")
        rows = [i % case.num_sequences for i in range(max(count, 2 * size))]
        own = torch.arange(len(rows))
        taken = replace(case.taken(rows, as_part=False), origin=tuple(range(len(rows))))
        return taken.with_sequences(group=own // size, episode=own)

    return grouped


def doubled(case: Case) -> Case:
    """Every sequence twice. The second copies form separate groups and episodes."""
    count = case.num_sequences
    twice = replace(case.taken([*range(count), *range(count)], as_part=False), origin=tuple(range(2 * count)))
    fresh: dict[str, Tensor] = {}
    for name in ("group", "episode"):
        if name in case.sequences:
            own = case.sequences[name]
            fresh[name] = torch.cat([own, own + int(own.max()) + 1]) if count else own
    return twice.with_sequences(**fresh)


def level(case: Case) -> Case:
    """All tokens equal: each field holds one number everywhere, so a mean over any tokens is that number."""
    first = int(case.trainable.nonzero()[0]) if bool(case.trainable.any()) else 0
    tokens = {
        n: values[first : first + 1].expand_as(values).clone()
        if values.dtype.is_floating_point or n == "token_id"
        else values
        for n, values in case.tokens.items()
    }
    return case.with_tokens(**tokens)


def lengthened(case: Case, by: int) -> Case:
    """Repeat the last action token of each sequence, `by` times the number of its action tokens."""
    kinds: list[tuple[str, ...]] = []
    picked: list[int] = []
    start = 0
    for row in case.kinds:
        actions = [start + t for t, kind in enumerate(row) if kind == "a"]
        more = [actions[-1]] * (by * len(actions)) if actions else []
        kinds.append((*row, *("a" for _ in more)))
        picked += [*range(start, start + len(row)), *more]
        start += len(row)
    index = torch.tensor(picked, dtype=torch.long)
    return replace(case, kinds=tuple(kinds), tokens={n: v[index] for n, v in case.tokens.items()})


def coded(case: Case) -> Case:
    """Position codes: every float field holds numbers that encode field, row and token, exact in float32 too."""
    within = torch.cat([torch.arange(len(kinds)) for kinds in case.kinds]) if case.kinds else torch.zeros(0)
    code = -(1.0 + case.owner.double() / 16 + within.double() / 1024)
    floats = [n for n, v in case.tokens.items() if v.dtype.is_floating_point and v.ndim == 1]
    tokens = {n: code - i * 2 for i, n in enumerate(floats)}
    rows = torch.arange(case.num_sequences).double()
    numbered = [n for n, v in case.sequences.items() if v.dtype.is_floating_point and n != "length"]
    return case.with_tokens(**tokens).with_sequences(**{n: 100.0 * (i + 1) + rows for i, n in enumerate(numbered)})


def changed(case: Case, rows: list[int], *, scale: float = -1.5, offset: float = 0.25) -> Case:
    """Change all numbers of some sequences. Log-probs stay below 0; shapes and flags stay the same."""
    chosen = torch.zeros(case.num_sequences, dtype=torch.bool)
    chosen[rows] = True
    inside = chosen[case.owner] & case.trainable
    tokens: dict[str, Tensor] = {}
    for n, v in case.tokens.items():
        if v.dtype.is_floating_point:
            # Each log-prob changes by a different amount, so that ratios change as well.
            other = (v - 0.5 - 0.1 * LOGPS.index(n) if n in LOGPS else v * scale + offset).detach()
            tokens[n] = torch.where(inside.reshape(-1, *[1] * (v.ndim - 1)), other, v)
    sequences = {
        n: torch.where(chosen, v * scale + offset, v)
        for n, v in case.sequences.items()
        if v.dtype.is_floating_point and n != "length"
    }
    return case.with_tokens(**tokens).with_sequences(**sequences)


def paid(case: Case, chosen: Tensor, reward: float) -> Case:
    """Set one reward for all chosen sequences, both per sequence and on their tokens."""
    own = case.sequences["reward"]
    other = case.with_sequences(reward=torch.where(chosen, torch.full_like(own, reward), own))
    if "token_reward" not in case.tokens:
        return other
    on_tokens = case.tokens["token_reward"]
    there = chosen[case.owner] & case.trainable
    return other.with_tokens(token_reward=torch.where(there, torch.full_like(on_tokens, reward), on_tokens))


def drifted(case: Case, amount: float) -> Case:
    """The current policy differs from all others by this log-prob at every token."""
    base = case.tokens["logp_rollout"].clamp(max=-1.0)
    others = {n: base - max(amount, 0.0) for n in LOGPS if n in case.tokens and n != "logp_current"}
    return case.with_tokens(logp_current=base - max(-amount, 0.0), **others)


def only_trained(case: Case, changed: Case) -> Case:
    """The changed case, with the log-probs of the first one at every token that does not train."""
    held = {n: torch.where(case.trainable, changed.tokens[n], case.tokens[n]) for n in LOGPS if n in case.tokens}
    return changed.with_tokens(**held)


def in_single(case: Case) -> Case:
    """The same numbers in single precision, as a trainer holds them."""
    tokens = {n: v.float() if v.dtype.is_floating_point else v for n, v in case.tokens.items()}
    sequences = {n: v.float() if v.dtype.is_floating_point else v for n, v in case.sequences.items()}
    return replace(case, tokens=tokens, sequences=sequences, mask_dtype=torch.float32)


def parts(case: Case, *, by_group: bool) -> list[list[list[int]]]:
    """Ways to split the sequences: into two parts, and into single sequences. Groups stay whole if needed."""
    count = case.num_sequences
    if by_group:
        groups = case.sequences["group"]
        names = sorted({int(g) for g in groups})
        units = [places(groups == g) for g in names]
    else:
        units = [[i] for i in range(count)]
    if len(units) < 2:
        return []
    half = max(len(units) // 2, 1)
    two = [[i for unit in units[:half] for i in unit], [i for unit in units[half:] for i in unit]]
    return [two] if len(units) == 2 else [two, units]


def louder(case: Case, factor: float) -> Case:
    """Every number further from 0 by a factor, and the policies further from the current one."""
    tokens = {n: v * factor for n, v in case.tokens.items() if v.dtype.is_floating_point and n not in LOGPS}
    if "logp_current" in case.tokens:
        base = case.tokens["logp_current"]
        tokens |= {n: base + factor * (case.tokens[n] - base) for n in LOGPS if n in case.tokens}
    rows = {n: v * factor for n, v in case.sequences.items() if v.dtype.is_floating_point and n != "length"}
    return case.with_tokens(**tokens).with_sequences(**rows)
