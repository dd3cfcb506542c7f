"""Corner cases of the input: no result may explode there."""

from collections.abc import Iterator

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, drifted, in_single, only_trained, silenced
from trimtab.sentinel.binding.calling import Seen, run
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import (
    GRADES,
    Compared,
    Effect,
    Grade,
    Violation,
    invariant,
    numbers,
)
from trimtab.signal.layout import places

LARGEST = 1e3
"""Largest allowed ratio of a normalised reward or an advantage to its inputs. A z-score stays below sqrt(count)."""


@invariant(
    family="I03",
    statement="Constant rewards, a single sample, one token, no token and huge log-ratios "
    "give finite values and gradients, and advantages of ordinary size.",
    why="These cases occur every few thousand steps, and a single one can ruin the parameters.",
    bug="NeMo-RL 74b9b1789: a leave-one-out spread of 0 divided an advantage of 1 by epsilon, giving 1000000.",
    repair="Define the result of each corner case (an advantage of 0, a loss of 0 with a graph). "
    "Select the valid entries before dividing.",
    alone=True,
)
def degenerate_bounded(subject: Subject, case: Case) -> Violation | None:
    worst: Violation | None = None
    for what, condition, corner in _corners(subject, case):
        try:
            seen = run(subject, corner if corner is case else subject.adapt(corner))
        except Exception:  # it cannot represent this case or refuses it: neither is a wrong number
            if corner is case:
                raise
            continue
        found = _unbounded(subject, seen, corner, what, condition)
        if found is not None and (worst is None or GRADES.index(found.grade) < GRADES.index(worst.grade)):
            worst = found
        if worst is not None and worst.grade == "bug":
            return worst
    return worst


EMPTY = "a whole batch or micro-batch has no trainable token"
EMPTY_ROW = "a sequence without a trainable token: an answer that is empty or masked as a whole"
FAR = 20.0
"""Policies that differ by more than this in the log-prob of one token are a broken run, or a broken sampler."""
APART = f"two policies are more than {FAR:g} apart in the log-prob of a token"
SINGLE_LIMIT = 88.0
"""Single precision has no exp of more than this."""
FAR_APART = f"two policies are more than {SINGLE_LIMIT:g} apart in the log-prob of a token, where exp overflows"
DISTANT = (APART, FAR_APART)
"""A loss that is infinite there is hygiene, since everybody sees it. A gradient alone is latent: nobody does. So is
NaN: it is 0 times infinity, at a token that should have no say."""


def _corners(subject: Subject, case: Case) -> Iterator[tuple[str, str, Case]]:
    """What is special, what a run must meet for it (nothing, for what every run meets), and the case.

    What the function does not read has no corners.
    """
    everyone = list(range(case.num_sequences))
    yield "every input is finite", "", case
    if subject.fields is None or "reward" in subject.fields:
        yield from _rewards(case)
    yield "there is one sequence", "", case.taken([0], as_part=False)
    yield "there is one trainable token", "", silenced(case.taken([0], as_part=False), [0], keep=1)
    yield "sequence 0 has no trainable token", EMPTY_ROW, silenced(case, [0])
    yield "no token is trainable", EMPTY, silenced(case, everyone)
    if subject.fields is not None and not subject.fields.intersection(LOGPS):
        return
    for amount in (30.0, -30.0):
        yield f"the policies are {amount:g} apart in log-prob", "", drifted(case, amount)
    for amount in (100.0, -100.0):
        there = in_single(only_trained(case, drifted(case, amount)))
        yield f"the policies are {amount:g} apart in log-prob, in single precision", "", there


def _rewards(case: Case) -> Iterator[tuple[str, str, Case]]:
    count = case.num_sequences
    same = torch.full_like(case.sequences["reward"], 0.1)
    yield "every reward is the same", "", case.with_sequences(reward=same)
    almost = torch.tensor([1.0 + 1e-4 * (i % 2) for i in range(count)], dtype=torch.float64)
    yield "rewards almost agree", "", case.with_sequences(reward=almost)
    winner = torch.tensor([float(i in (0, count - 1)) for i in range(count)], dtype=torch.float64)
    yield "one reward differs", "", case.with_sequences(reward=winner)


def _condition(case: Case, said: str) -> str:
    if not bool(case.trainable.any()):
        return EMPTY
    policies = torch.stack([case.tokens[n][case.trainable].double() for n in LOGPS if n in case.tokens])
    apart = float((policies.max(0).values - policies.min(0).values).max())
    if apart > FAR:
        return APART if apart <= SINGLE_LIMIT else FAR_APART
    if any("a" not in row for row in case.kinds):
        return EMPTY_ROW
    return said


def _unbounded(subject: Subject, seen: Seen, case: Case, what: str, said: str) -> Violation | None:
    what = what if bool(case.trainable.any()) else "no token is trainable"
    condition = _condition(case, said)
    grade: Grade = "latent" if condition else "bug"
    weaker: Violation | None = None
    for name, result in seen.results.items():
        value = seen.values[name].double()
        if not bool(torch.isfinite(value).all()):
            where = tuple(places(~torch.isfinite(value))) if value.ndim == 1 else ()
            of_people = result.kind in ("metric", "statistic")
            infinite = condition in DISTANT and not (bool(value.isnan().any()) and _all_credited(case))
            of_any = subject.reading("token_loss") or subject.role == "statistic"
            tokens = int(case.trainable.sum())
            alone = of_people and (tokens == 1 or (tokens > 0 and case.num_sequences == 1))  # a spread of one number
            loud = infinite or alone or (condition == EMPTY and (result.kind == "metric" or not of_any))
            found = Violation(
                f"{name} is not finite when {what}", numbers(value), "finite", where,
                grade="hygiene" if loud else grade,
                effect=Effect("metric" if of_people else "value", where, float("inf")),
                compared=Compared(name, None, case), condition=condition,
            )  # fmt: skip
            if found.grade == grade:
                return found
            weaker = found
            continue
        for leaf, gradient in seen.gradients.get(name, {}).items():
            if not bool(torch.isfinite(gradient).all()):
                shows = condition in DISTANT and _shows_otherwise(subject, case, name)
                return Violation(
                    f"d {name} / d {leaf} is not finite when {what}", numbers(gradient), "finite",
                    grade="hygiene" if shows else grade,
                    effect=Effect("gradient", (), float("inf")), compared=Compared(name, leaf, case),
                    condition=condition,
                )  # fmt: skip
        size = _size(case)
        if result.kind in ("advantage", "reward") and value.numel() and float(value.abs().max()) > LARGEST * size:
            effect = Effect("value", (), float(value.abs().max()) / size)
            return Violation(
                f"{name} explodes although {what}", numbers(value), f"at most about {size:g}", grade=grade,
                effect=effect, condition=condition,
            )  # fmt: skip
    return weaker


def _shows_otherwise(subject: Subject, case: Case, name: str) -> bool:
    """Whether the value itself is infinite under the other sign of the advantage, so that everybody would see it."""
    other = case.with_tokens(advantage=-case.tokens["advantage"]).with_sequences(outcome=-case.sequences["outcome"])
    return not bool(torch.isfinite(run(subject, other).values[name].double()).all())


def _all_credited(case: Case) -> bool:
    """Whether no advantage is 0: then 0 times infinity comes from a token that a decision dropped."""
    return all(
        bool((case.tokens[n][case.trainable] != 0).all()) for n in ("advantage", "returns") if n in case.tokens
    ) and bool((case.sequences["outcome"] != 0).all())


def _size(case: Case) -> float:
    numbers_in = [*case.tokens.values(), *case.sequences.values()]
    floats = [v.abs().max() for v in numbers_in if v.dtype.is_floating_point and v.numel()]
    return max([1.0, *[float(v) for v in floats]])
