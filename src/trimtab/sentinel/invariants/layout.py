"""The same samples, cut or ordered otherwise."""

from itertools import pairwise

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.content import differing
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import Seen, Subject, run, same


@invariant(
    statement="Parts add up to the whole: "
    "values and gradients do not depend on how the batch is cut into micro-batches.",
    why="Micro-batches are a matter of memory. A mean of means weighs a token by the company it happens to keep.",
    bug="verl #3741, SkyRL #925, prime-rl #583, open-instruct #1137 and five more: a token mean taken per micro-batch.",
    repair="Compute weights once over the optimiser step; let the loss only sum.",
)
def split(subject: Subject, case: Case) -> Violation | None:
    whole = run(subject, case)
    for name, result in whole.results.items():
        if result.kind in ("loss", "term") and not result.value.requires_grad:
            return Violation(f"{name} is not connected to its inputs", "no gradient", "a gradient, if only zero")
    count = case.num_sequences
    for cuts in ((0, count // 2, count), tuple(range(count + 1))):
        groups = [list(range(a, b)) for a, b in pairwise(cuts) if b > a]
        if len(groups) < 2:
            continue
        parts = [case.taken(chosen, as_part=True) for chosen in groups]
        found = _joined(subject, case, whole, groups, parts, [run(subject, part) for part in parts])
        if found:
            return found
    return None


def _joined(
    subject: Subject, case: Case, whole: Seen, groups: list[list[int]], parts: list[Case], seen: list[Seen]
) -> Violation | None:
    tolerance = 0.0 if subject.exact else 1e-9
    what = f"cutting {case.num_sequences} sequences into {[len(g) for g in groups]}"
    for name, result in whole.results.items():
        pieces = [one.values[name] for one in seen]
        if result.level == "scalar" and not result.adds_up:
            continue
        if result.level == "scalar":
            total = sum(pieces[1:], pieces[0]) if subject.combine == "sum" else subject.combine(pieces, parts)
            if not same(whole.values[name], total):
                return Violation(f"{what} changes {name}", numbers(total), numbers(whole.values[name]))
        elif not same(whole.values[name], torch.cat(pieces), tolerance=tolerance):
            joined = torch.cat(pieces)
            return Violation(
                f"{what} changes {name}",
                numbers(joined),
                numbers(whole.values[name]),
                differing(whole.values[name], joined),
            )
    for name, gradients in whole.gradients.items():
        for leaf, gradient in gradients.items():
            if any(name not in one.gradients for one in seen):
                return Violation(
                    f"{what}: a part's {name} is not connected to its inputs", "no gradient", "a gradient, if only zero"
                )
            joined = torch.cat([one.gradients[name][leaf] for one in seen])
            if not same(gradient, joined, tolerance=tolerance):
                return Violation(
                    f"{what} changes d {name} / d {leaf}",
                    numbers(joined),
                    numbers(gradient),
                    differing(gradient, joined),
                )
    return None


@invariant(
    statement="Reordering the sequences reorders the results and changes none of them.",
    why="The order of a batch carries no meaning; a result that depends on it mixes samples up.",
    bug="TRL 941fb332c: a filter kept rows [2, 0] and did not re-index the old and reference log-probs.",
    repair="Carry index maps with the data instead of relying on position.",
)
def permutation(subject: Subject, case: Case) -> Violation | None:
    whole = run(subject, case)
    count = case.num_sequences
    for order in (list(reversed(range(count))), [*range(1, count), 0]):
        other = run(subject, case.taken(order, as_part=False))
        places = case.token_places(order)
        leaves = _leaf_places(case, order)
        for name, result in whole.results.items():
            expected = _reordered(whole.values[name], result.level, places, order)
            if not same(expected, other.values[name]):
                return Violation(
                    f"order {order} changes {name}",
                    numbers(other.values[name]),
                    numbers(expected),
                    differing(expected, other.values[name]),
                )
        for name, gradients in whole.gradients.items():
            for leaf, gradient in gradients.items():
                if not same(gradient[leaves], other.gradients[name][leaf]):
                    return Violation(
                        f"order {order} changes d {name} / d {leaf}",
                        numbers(other.gradients[name][leaf]),
                        numbers(gradient[leaves]),
                    )
    return None


def _reordered(values: Tensor, level: str, places: Tensor, order: list[int]) -> Tensor:
    if level == "scalar":
        return values
    return values[places] if level == "token" else values[torch.tensor(order, dtype=torch.long)]


def _leaf_places(case: Case, order: list[int]) -> Tensor:
    starts = case.cu_seqlens
    places = [torch.arange(int(starts[i]), int(starts[i + 1])) for i in order]
    return torch.cat(places) if places else torch.zeros(0, dtype=torch.long)
