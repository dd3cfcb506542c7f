"""Results against the long way round, and metrics against what they are called."""

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.content import differing
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import Out, Subject, of_kind, run, same


@invariant(
    statement="A named formula equals its definition, worked out token by token in plain arithmetic, in every mode.",
    why="One word has many formulas; the code must be the one its name and source say.",
    bug="verl 7fc8330d9: the aggregation called seq-mean-token-sum returned the token mean.",
    repair="Compare with a ten-line loop on small inputs, for every option.",
)
def equals_definition(subject: Subject, case: Case) -> Violation | None:
    if subject.definition is None:
        raise case.cannot("there is no definition to compare with")
    seen, expected = run(subject, case), subject.definition(case, subject.options)
    for name, result in expected.items():
        if result.kind == "observation":
            continue
        value = seen.values[name]
        if not same(as_numbers(value), result.value, tolerance=1e-8):
            return Violation(
                f"{name} is not what its definition gives",
                numbers(value),
                numbers(result.value),
                differing(value, result.value),
            )
    return None


@invariant(
    statement="A metric or observation equals its recomputation, stays inside its range, "
    "and is told apart by sequence or token.",
    why="People steer by these numbers; "
    "one that cannot move, or shows something else than its name, hides the failure.",
    bug="TRL 488025cd8: the clip fraction counted ratios outside the band even where min() does not clip.",
    repair="Recompute it from raw trainable tokens; craft an input that must give 0 and one that must give 1.",
)
def metric_truth(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    expected: Out = subject.definition(case, subject.options) if subject.definition is not None else {}
    for name, result in of_kind(seen.results, case, "metric", "observation"):
        value = seen.values[name]
        size = {"token": case.segments.num_tokens, "sequence": case.num_sequences}.get(result.level)
        if size is not None and value.shape != (size,):
            return Violation(f"{name} has shape {list(value.shape)}", list(value.shape), [size])
        if result.kind == "observation" and value.dtype != torch.bool:
            return Violation(f"{name} is no flag, so its fraction can leave [0, 1]", str(value.dtype), "bool")
        if name in expected and not same(as_numbers(value), as_numbers(expected[name].value), tolerance=1e-8):
            return Violation(
                f"{name} is not what its name says",
                numbers(value),
                numbers(expected[name].value),
                differing(value, expected[name].value),
            )
    return None


def as_numbers(values: Tensor) -> Tensor:
    """Flags as 0 and 1; numbers as they are."""
    return values if values.dtype.is_floating_point else values.double()
