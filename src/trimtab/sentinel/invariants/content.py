"""Content nobody may read, and inputs nobody may write."""

import torch
from torch import Tensor

from trimtab.sentinel.case import Case, Side
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import Seen, Subject, called, run, same
from trimtab.signal.layout import places


@invariant(
    statement="Finite values at untrainable or padded positions change no result and no gradient, and get no gradient.",
    why="Padding and tool output are not the policy's choice: what stands there is an accident of the batch.",
    bug="SkyRL #1305: advantage normalisation takes its mean over padding, so a longer row changes every advantage.",
    repair="Gather the trainable tokens first, or reduce with the mask in numerator and denominator alike.",
)
def mask_content(subject: Subject, case: Case) -> Violation | None:
    base = run(subject, case.refilled(0.0))
    fillings: tuple[tuple[float, int, Side], ...] = ((-0.75, 0, "right"), (3.5, 2, "right"), (1.25, 1, "left"))
    for content, columns, side in fillings:
        other = case.refilled(content, extra_columns=columns, side=side)
        found = _moved(
            case, base, run(subject, other), f"filling untrainable cells with {content} and {columns} more columns"
        )
        if found:
            return found
    return None


@invariant(
    statement="NaN and infinity at untrainable or padded positions never reach a result or a gradient.",
    why="0 × NaN is NaN: multiplying by a mask is not masking, and one such token ends a run.",
    bug="verl 891c87382: masked_mean of [1, NaN] under the mask [1, 0] is NaN.",
    repair="torch.where on the way in, before exp and before any product; never x * mask.",
)
def nonfinite_isolation(subject: Subject, case: Case) -> Violation | None:
    base = run(subject, case.refilled(0.0))
    for name, value in base.values.items():
        if not bool(torch.isfinite(value.double()).all()):
            return Violation(f"{name} is not finite although every input is", numbers(value), "finite")
    for content in (float("nan"), float("inf"), float("-inf")):
        found = _moved(case, base, run(subject, case.refilled(content)), f"putting {content} into untrainable cells")
        if found:
            return found
    return None


def _moved(case: Case, base: Seen, other: Seen, what: str) -> Violation | None:
    for name, value in base.values.items():
        if not same(value, other.values[name]):
            return Violation(
                f"{what} changes {name}",
                numbers(other.values[name]),
                numbers(value),
                differing(value, other.values[name]),
            )
    for name, gradients in base.gradients.items():
        for leaf, gradient in gradients.items():
            seen = other.gradients[name][leaf]
            if not same(gradient[case.trainable], seen[case.trainable]):
                return Violation(f"{what} changes d {name} / d {leaf}", numbers(seen), numbers(gradient))
            if bool((seen[~case.trainable] != 0).any()):
                return Violation(f"{what}: d {name} / d {leaf} is not 0 at untrainable tokens", numbers(seen), 0.0)
    return None


def differing(first: Tensor, second: Tensor) -> tuple[int, ...]:
    """Positions at which two results differ."""
    if first.shape != second.shape or first.ndim != 1:
        return ()
    apart = ~torch.isclose(first.double(), second.double(), rtol=1e-9, atol=1e-9, equal_nan=True)
    return tuple(places(apart))


@invariant(
    statement="A call leaves its inputs as they were, also stride-0 views, and hands back no alias of them.",
    why="What is logged afterwards is read from the same tensors: "
    "an in-place write changes the record, not only the result.",
    bug="slime #2114: PPO reward shaping multiplied the stored KL by -kl_coef in place, "
    "so the logged KL was the shaped reward.",
    repair="Build results out of place; clone before writing.",
)
def no_aliasing(subject: Subject, case: Case) -> Violation | None:
    for one in (case, case.compacted()):
        found = _written(subject, one)
        if found:
            return found
    return _on_views(subject, case.compacted())


def _written(subject: Subject, case: Case) -> Violation | None:
    held = case.with_tokens(**{n: v.clone() for n, v in case.tokens.items()})
    held = held.with_sequences(**{n: v.clone() for n, v in case.sequences.items()})
    with torch.no_grad():
        out = called(subject, held)
    before, after = {**case.tokens, **case.sequences}, {**held.tokens, **held.sequences}
    for name, values in before.items():
        if not same(values, after[name], tolerance=0):
            return Violation(
                f"the call wrote to its input {name}",
                numbers(after[name]),
                numbers(values),
                differing(values, after[name]),
            )
    storages = {v.untyped_storage().data_ptr(): n for n, v in after.items() if v.numel()}
    for name, result in out.items():
        source = storages.get(result.value.untyped_storage().data_ptr()) if result.value.numel() else None
        if source:
            return Violation(f"{name} is an alias of the input {source}", "shared memory", "a tensor of its own")
    return None


def _on_views(subject: Subject, case: Case) -> Violation | None:
    """The same call on inputs whose elements all share one memory cell."""
    if not case.trainable.numel():
        return None
    constant = {n: v[:1].clone() for n, v in case.tokens.items()}
    views = case.with_tokens(**{n: v.expand(case.trainable.numel()) for n, v in constant.items()})
    plain = case.with_tokens(**{n: v.repeat(case.trainable.numel()) for n, v in constant.items()})
    with torch.no_grad():
        expected = called(subject, plain)
        try:
            found = called(subject, views)
        except RuntimeError as error:
            return Violation(
                "the call writes into an expanded view of its input", str(error).splitlines()[0], "no write"
            )
    for name, result in expected.items():
        if not same(result.value, found[name].value):
            return Violation(
                f"{name} differs when inputs are expanded views", numbers(found[name].value), numbers(result.value)
            )
    return None
