"""The same samples, split or ordered differently."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import ordinary
from trimtab.sentinel.batch.perturb import parts, untied
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.calling import Seen, call_subject, run
from trimtab.sentinel.binding.sameness import same, same_gradient
from trimtab.sentinel.binding.settings import modes
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.apart import Match, apart, differing
from trimtab.sentinel.invariants.declare import Compared, Effect, Violation, invariant, numbers

ROUNDING = 1e-6
"""A relative difference below this is not reported: a stabiliser such as / (n + 1e-8) causes as much."""


@invariant(
    family="I07",
    statement="Parts add up to the whole: "
    "values and gradients do not depend on how the batch is split into micro-batches.",
    why="The micro-batch size is chosen for memory. With a mean of means, a token's weight depends on "
    "the other tokens in its micro-batch.",
    bug="verl #3741, SkyRL #925, prime-rl #583, open-instruct #1137 and five more: a token mean taken per micro-batch.",
    repair="Compute the weights once per optimiser step. Let the loss only sum.",
)
def split(subject: Subject, case: Case) -> Violation | None:
    if subject.couples == "batch" and not subject.reading("whole"):
        raise case.cannot("its samples may move one another across the batch, and it gets no counts of the whole batch")
    whole = run(subject, case)
    # The two answers of a pair are one example, whatever is known of the whole batch.
    by_group = subject.couples == "group" and (subject.role == "preference" or not subject.reading("whole"))
    cuts = parts(case, by_group=by_group)
    if not cuts:
        raise case.cannot("there is nothing to split")
    for groups in cuts:
        pieces = [case.taken(chosen, as_part=True) for chosen in groups]
        found = joined(subject, case, whole, groups, pieces, [run(subject, part) for part in pieces])
        if found:
            return found
    return None


def joined(
    subject: Subject, case: Case, whole: Seen, groups: list[list[int]], pieces: list[Case], seen: list[Seen]
) -> Violation | None:
    """Whether the results of the parts combine into the result of the whole, by the subject's own combine rule."""
    tolerance = 0.0 if subject.exact else ROUNDING
    what = f"splitting {case.num_sequences} sequences into {[len(g) for g in groups]}"
    order = [i for group in groups for i in group]
    leaves = _leaf_places(case, order)
    weaker: Violation | None = None
    for name, result in whole.results.items():
        if result.level == "scalar" and result.adds_up:
            found = _scalar(subject, whole, name, pieces, seen, leaves, what)
        elif result.level in ("token", "sequence"):
            index = case.token_places(order) if result.level == "token" else torch.tensor(order, dtype=torch.long)
            expected, together = whole.values[name][index], torch.cat([one.values[name] for one in seen])
            if not same(expected, together, tolerance=tolerance):
                return differing(f"{what} changes {name}", result, expected, together)
            found = _gradients(whole, name, seen, [1.0] * len(seen), leaves, what, tolerance)
        else:
            continue
        if found is not None and found.grade == "bug":
            return found
        weaker = weaker or found
    return weaker


def _scalar(
    subject: Subject, whole: Seen, name: str, pieces: list[Case], seen: list[Seen], leaves: Tensor, what: str
) -> Violation | None:
    """Value and gradient by the declared rule. An undeclared mean over the call is a convention, because the trainer
    may accumulate in a way that fits it."""
    result = whole.results[name]
    values = [one.values[name] for one in seen]
    first: Violation | None = None
    tolerance = 0.0 if subject.exact else ROUNDING
    for rule, total, factors in _rules(subject, values, pieces):
        expected = whole.values[name]
        if not same(expected, total, tolerance=1e-9 if subject.exact else ROUNDING):
            compared = Compared(name, None, pieces[0], None)
            found = differing(f"{what} changes {name}", result, expected, total, compared)
        else:
            found = _gradients(whole, name, seen, factors, leaves, what, tolerance)
        if found is None and rule:
            told = (
                f"a mean over the call: parts combine into the whole only if weighted by their {rule}. "
                "If your trainer sums or averages micro-batches without weights, declare combine='sum' or 'mean'"
            )
            return Violation(told, numbers(total), numbers(expected), grade="convention")
        if found is None:
            return None
        first = first or found
    return first


def _rules(subject: Subject, values: list[Tensor], pieces: list[Case]) -> Iterator[tuple[str, Tensor, list[float]]]:
    """Ways to combine parts: the declared one, or all known ones if none is declared."""
    yield "", *combined(subject, values, pieces)
    if subject.combine is not None or (subject.reading("whole") and not _counts_on_another_path(subject)):
        return
    counts = {
        "tokens": [float(p.segments.num_tokens) for p in pieces],
        "sequences": [float(p.num_sequences) for p in pieces],
        "sequences with a token": [float((p.segments.token_counts > 0).sum()) for p in pieces],
    }
    if subject.couples == "group":
        counts |= {
            "groups": [float(len({int(g) for g in p.sequences["group"]})) for p in pieces],
            "pairs": [float(len(p.pairs)) for p in pieces],
        }
    stacked = torch.stack([torch.nan_to_num(value.double()).reshape(()) for value in values])
    for name, count in counts.items():
        weight = torch.tensor(count, dtype=torch.float64) / max(sum(count), 1.0)
        yield name, (stacked * weight).sum().reshape(values[0].shape), [float(w) for w in weight]


def _counts_on_another_path(subject: Subject) -> bool:
    """Whether counts of the whole batch are for another choice of its settings, and not for this one."""
    return not _follows_whole(subject) and any(_follows_whole(other) for _, other in modes(subject))


def _follows_whole(subject: Subject) -> bool:
    """Whether some part of an ordinary batch gives another result as a batch of its own."""
    for case in ordinary()[:3]:
        with suppress(Exception), torch.no_grad():  # a path that cannot be taken follows nothing
            own = subject.adapt(at_rest(case, subject.fields))
            half = range((own.num_sequences + 1) // 2)
            first, second = (call_subject(subject, own.taken(half, as_part=is_part)) for is_part in (True, False))
            if any(not same(one.value, second[name].value) for name, one in first.items()):
                return True
    return False


def combined(subject: Subject, values: list[Tensor], pieces: list[Case]) -> tuple[Tensor, list[float]]:
    """The value of the whole from those of the parts, and the weight of each part in it."""
    held = [value.detach().double().requires_grad_() for value in values]
    if callable(subject.combine):
        total = subject.combine(held, pieces)
    else:
        total = sum(held[1:], held[0])
        total = total if subject.combine in ("sum", None) else total / len(held)
    weights = torch.autograd.grad(total, held, allow_unused=True) if total.requires_grad else [None] * len(held)
    return total.detach(), [0.0 if weight is None else float(weight) for weight in weights]


def _gradients(
    whole: Seen, name: str, seen: list[Seen], factors: list[float], index: Tensor, what: str, tol: float
) -> Violation | None:
    result = whole.results[name]
    for leaf, gradient in whole.gradients.get(name, {}).items():
        if any(name in one.blocked for one in seen):
            return None
        if any(name not in one.gradients for one in seen):
            told = f"{what}: a part's {name} is not connected to its inputs"
            return Violation(told, "no gradient", "a gradient, if only zero", effect=Effect("gradient"))
        weighed = [f * one.gradients[name][leaf] if f else 0 * torch.nan_to_num(one.gradients[name][leaf])
                   for f, one in zip(factors, seen, strict=True)]  # fmt: skip
        found, expected = torch.cat(weighed), gradient[index]
        if not same_gradient(expected, found, result, tolerance=tol):
            compared = Compared(name, leaf, seen[0].case, None)
            return differing(f"{what} changes d {name} / d {leaf}", result, expected, found, compared)
    return None


@invariant(
    family="I17",
    statement="Reordering the sequences reorders the results and changes none of them.",
    why="The order of a batch carries no meaning. A result that depends on it mixes up samples.",
    bug="TRL 941fb332c: a filter kept rows [2, 0] and did not re-index the old and reference log-probs.",
    repair="Carry index maps with the data instead of relying on position.",
)
def permutation(subject: Subject, case: Case) -> Violation | None:
    found = _reordered(subject, case)
    if found is None or found.grade != "bug" or _reordered(subject, subject.adapt(untied(case))) is not None:
        return found
    return replace(found, what=f"{found.what}, where numbers are equal: ties are broken by position", grade="hygiene")


def _reordered(subject: Subject, case: Case) -> Violation | None:
    whole = run(subject, case)
    count = case.num_sequences
    if count < 2:
        raise case.cannot("there is one sequence")
    for order in _orders(count, subject.block):
        other = run(subject, case.taken(order, as_part=False))
        everything = slice_all(other.case)
        match = Match(
            tokens=(case.token_places(order), everything[0]),
            sequences=(torch.tensor(order, dtype=torch.long), everything[1]),
            leaves=(_leaf_places(case, order), everything[2]),
            only=lambda _, result: result.level != "cell",
        )
        found = apart(f"order {order}", whole, other, match)
        if found:
            return found
    return None


def _orders(count: int, block: int) -> Iterator[list[int]]:
    """Two other orders: blocks reversed, and either rotated by one sequence or reversed inside each block."""
    blocks = [list(range(start, min(start + block, count))) for start in range(0, count, block)]
    yield [i for one in reversed(blocks) for i in one]
    yield [*range(1, count), 0] if block == 1 else [i for one in blocks for i in reversed(one)]


def slice_all(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """All trainable tokens, all sequences and all tokens of a case, as indices."""
    return (
        torch.arange(case.segments.num_tokens),
        torch.arange(case.num_sequences),
        torch.arange(case.trainable.numel()),
    )


def _leaf_places(case: Case, order: list[int]) -> Tensor:
    starts = case.cu_seqlens
    found = [torch.arange(int(starts[i]), int(starts[i + 1])) for i in order]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)
