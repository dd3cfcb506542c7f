"""Content that no function may read, and inputs that no function may write to."""

from dataclasses import replace

import torch

from trimtab.sentinel.batch.case import Case, Side
from trimtab.sentinel.batch.perturb import compacted, paid_where_it_trains
from trimtab.sentinel.binding.calling import Seen, call_subject, run
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.invariants.apart import Match, apart, differing, trainable_leaves
from trimtab.sentinel.invariants.declare import Check, Effect, Violation, invariant, numbers

_MASKING = ("keep", "weight", "mask")
"""Kinds that are masks themselves: their values at untrainable positions decide what trains."""


@invariant(
    family="I01",
    statement="Finite values at untrainable or padded positions change no result and no gradient, and receive no "
    "gradient. Results at these positions are 0. The dtype of the mask does not matter.",
    why="The policy did not choose padding or tool output. The values at these positions are an accident of the batch.",
    bug="SkyRL #1305: advantage normalisation takes its mean over padding, so a longer row changes every advantage.",
    repair="Gather the trainable tokens first, or apply the mask in both the numerator and the denominator.",
)
def mask_content(subject: Subject, case: Case) -> Violation | None:
    return unless_paid_elsewhere(subject, case, _content)


PAID_ELSEWHERE = "a reward on a token that does not train, or in padding"
"""Most trainers put rewards on trained tokens only, and then a plain sum over the row is right."""


def unless_paid_elsewhere(subject: Subject, case: Case, check: Check) -> Violation | None:
    """What a check finds; latent, if it vanishes where rewards of tokens that do not train are 0."""
    found = check(subject, case)
    if not isinstance(found, Violation) or found.grade != "bug" or not subject.reading("token_reward"):
        return found if isinstance(found, Violation) else None
    again = check(subject, subject.adapt(paid_where_it_trains(case)))
    if isinstance(again, Violation) and again.grade == "bug":
        return found
    return replace(found, grade="latent", condition=PAID_ELSEWHERE)


def _content(subject: Subject, case: Case) -> Violation | None:
    base = _finite(run(subject, case.refilled(0.0)))
    fillings: tuple[tuple[float, int, Side], ...] = ((-0.75, 0, "right"), (3.5, 2, "right"), (1.25, 1, "left"))
    weaker: Violation | None = None
    for content, columns, side in fillings:
        other = run(subject, case.refilled(content, extra_columns=columns, side=side))
        what = f"filling untrainable cells with {content} and {columns} more columns"
        found = _moved(case, base, other, what) or _outside(subject, other, what)
        if found is not None and found.grade == "bug":
            return found
        weaker = weaker or found
    return _other_masks(subject, case, base) or weaker


def _finite(seen: Seen) -> Seen:
    """Refuse results that are not finite before any change: degenerate_bounded reports those."""
    for name, value in seen.values.items():
        gradients = seen.gradients.get(name, {}).values()
        if not all(bool(torch.isfinite(one.double()).all()) for one in (value, *gradients)):
            raise seen.case.cannot(f"{name} is not finite even without a change: see degenerate_bounded")
    return seen


def _outside(subject: Subject, seen: Seen, what: str) -> Violation | None:
    """Values of a result at untrainable positions. They are harmless only if every reader masks them again."""
    for name, result in seen.results.items():
        outside = result.outside
        if outside is None or result.kind in ("carried", "count", "logp", "entropy", "value", "observation", "metric"):
            continue
        if bool((outside != 0).any()):
            # A function that is given the mask and returns advantages promises zeros to readers that do not mask again.
            promised = result.kind == "advantage" and subject.reading("trainable")
            grade = "bug" if result.kind in ("weight", "mask") else "latent" if promised else "hygiene"
            where = "decision" if result.kind in _MASKING else "value"
            return Violation(
                f"{name} is not 0 at untrainable cells ({what})",
                numbers(outside),
                0.0,
                grade=grade,
                effect=Effect(where),
                condition="a reader of this result that does not mask it again" if grade == "latent" else "",
            )
    return None


def _other_masks(subject: Subject, case: Case, base: Seen) -> Violation | None:
    """The same mask as booleans and as integers. An error for a dtype is fine; a different result is not."""
    for dtype in (torch.bool, torch.int64):
        try:
            other = run(subject, replace(case.refilled(-0.75), mask_dtype=dtype))
        except (RuntimeError, TypeError, IndexError):
            continue
        # An integer count is promoted to single precision. A spread of 0 then divides its rounding error.
        found = apart(f"passing the mask as {dtype}", base, other, tolerance=1e-4)
        if found is not None:
            return found
    return None


@invariant(
    family="I02",
    statement="NaN and infinity at untrainable or padded positions never reach a result or a gradient.",
    why="0 × NaN is NaN, so multiplying by a mask does not mask. One such token ends a run.",
    bug="verl 891c87382: masked_mean of [1, NaN] under the mask [1, 0] is NaN.",
    repair="Use torch.where on the inputs, before exp and before any product. Never use x * mask.",
)
def nonfinite_isolation(subject: Subject, case: Case) -> Violation | None:
    base = _finite(run(subject, case.refilled(0.0)))
    weaker: Violation | None = None
    for content in (float("nan"), float("inf"), float("-inf")):
        other = _without_carried(run(subject, case.refilled(content)))
        found = _moved(case, base, other, f"putting {content} into untrainable cells")
        if found:
            # An average is given numbers of any origin; log-probs and values come from the trainer's own forward pass.
            grade = "latent" if subject.reading("token_loss") else "hygiene"
            return replace(found, grade=grade, condition=_CONDITION)
        weaker = weaker or _unclean(subject, other, content)
    return weaker


_CONDITION = "padding or an untrainable token holds NaN or infinity"


_PASSED_ON = ("carried", "logp", "value", "entropy")
"""Kinds with one entry per cell that depends on this cell alone: a NaN and its gradient stay in their cell."""


def _without_carried(seen: Seen) -> Seen:
    gradients = {n: g for n, g in seen.gradients.items() if seen.results[n].kind not in _PASSED_ON}
    kept = {n: {k: v.where(seen.case.trainable.reshape(-1, *[1] * (v.ndim - 1)), 0.0) for k, v in g.items()}
            for n, g in seen.gradients.items() if n not in gradients}  # fmt: skip
    return replace(seen, gradients=gradients | kept)


def _unclean(subject: Subject, seen: Seen, content: float) -> Violation | None:
    masks_itself = subject.reading("trainable")
    for name, result in seen.results.items():
        passes_on = result.kind in _PASSED_ON
        if result.outside is not None and not passes_on and not bool(torch.isfinite(result.outside.double()).all()):
            return Violation(
                f"{name} is not finite at untrainable cells that held {content}", numbers(result.outside), 0.0,
                grade="latent" if result.kind in _MASKING or (result.kind == "kl" and masks_itself) else "hygiene",
                condition=_CONDITION,
            )  # fmt: skip
    return None


def _moved(case: Case, base: Seen, other: Seen, what: str) -> Violation | None:
    # A mask has one entry per cell, so other padding gives other cells. Its own invariants check it.
    match = Match(leaves=trainable_leaves(base.case, other.case), only=lambda _, result: result.level != "cell")
    found = apart(what, base, other, match)
    if found:
        return found
    for name, gradients in other.gradients.items():
        for leaf, gradient in gradients.items():
            if bool((gradient[~case.trainable] != 0).any()):
                return Violation(
                    f"{what}: d {name} / d {leaf} is not 0 at untrainable tokens", numbers(gradient), 0.0,
                    effect=Effect("gradient"),
                )  # fmt: skip
    return None


@invariant(
    family="I20",
    statement="A call does not change its inputs, including stride-0 views, and does not return an alias of an input.",
    why="Later code logs and reuses the same tensors. An in-place write therefore changes the record, "
    "not only the result.",
    bug="slime #2114: PPO reward shaping multiplied the stored KL by -kl_coef in place, "
    "so the logged KL was the shaped reward.",
    repair="Build results out of place. Clone before writing.",
    alone=True,
)
def no_aliasing(subject: Subject, case: Case) -> Violation | None:
    weaker: Violation | None = None
    for one in (case, compacted(case)):
        try:
            found = _written(subject, one)
        except Exception:  # a function that slices its prompt off gets nothing from rows without one
            if one is case:
                raise
            return weaker
        if found is not None and found.grade == "bug":
            return found
        weaker = weaker or found
    return _on_views(subject, compacted(case)) or weaker


def _written(subject: Subject, case: Case) -> Violation | None:
    held = case.with_tokens(**{n: v.clone() for n, v in case.tokens.items()})
    held = held.with_sequences(**{n: v.clone() for n, v in case.sequences.items()})
    written: set[str] = set()
    with torch.no_grad():
        out = call_subject(subject, replace(held, written=written))
    if written:
        name = min(written)
        return Violation(
            f"the call wrote into its argument {name}", "another content", "the same", effect=Effect("value")
        )
    before, after = {**case.tokens, **case.sequences}, {**held.tokens, **held.sequences}
    for name, values in before.items():
        if not same(values, after[name], tolerance=0):
            return differing(
                f"the call wrote to its input {name}", Result(values, "token", "advantage"), values, after[name]
            )
    storages = {v.untyped_storage().data_ptr(): n for n, v in after.items() if v.numel()}
    for name, result in out.items():
        if result.kind in ("carried", "value", "logp"):
            continue
        source = storages.get(result.value.untyped_storage().data_ptr()) if result.value.numel() else None
        if source:
            what = f"{name} is an alias of the input {source}"
            return Violation(what, "shared memory", "a separate tensor", grade="hygiene")
    return None


def _on_views(subject: Subject, case: Case) -> Violation | None:
    """The same call on inputs whose elements all share one memory cell."""
    count = case.trainable.numel()
    if not count:
        return None
    constant = {n: v[:1].clone() for n, v in case.tokens.items()}
    views = case.with_tokens(**{n: v.expand(count, *v.shape[1:]) for n, v in constant.items()})
    plain = case.with_tokens(**{n: v.expand(count, *v.shape[1:]).clone() for n, v in constant.items()})
    with torch.no_grad():
        expected = call_subject(subject, plain)
        try:
            found = call_subject(subject, views)
        except RuntimeError as error:
            if "memory location" not in str(error):
                return None  # it raises on expanded views for another reason, such as .view()
            return Violation(
                "the call writes into an expanded view of its input", str(error).splitlines()[0], "no write"
            )
    for name, result in expected.items():
        if not same(result.value, found[name].value):
            what = f"{name} differs when inputs are expanded views"
            return differing(what, result, result.value, found[name].value)
    return None
