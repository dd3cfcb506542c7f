"""Corner cases of the input: no result may explode there."""

from collections.abc import Iterator

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import drifted, silenced
from trimtab.sentinel.binding.subject import Seen, Subject, run
from trimtab.sentinel.invariants.declare import Compared, Effect, Violation, invariant, numbers
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
    base = run(subject, case)
    found = _unbounded(base, case, "every input is finite")
    for what, corner in _corners(case) if found is None else ():
        try:
            seen = run(subject, subject.adapt(corner))
        except Exception:  # it cannot represent this case or refuses it: neither is a wrong number
            continue
        found = _unbounded(seen, corner, what)
        if found is not None:
            return found
    return found


def _corners(case: Case) -> Iterator[tuple[str, Case]]:
    count = case.num_sequences
    everyone = list(range(count))
    reward = case.sequences["reward"]
    yield "every reward is the same", case.with_sequences(reward=torch.full_like(reward, 0.1))
    winner = torch.tensor([float(i == 0 or i == count - 1) for i in everyone], dtype=torch.float64)
    yield "one reward differs", case.with_sequences(reward=winner)
    yield "there is one sequence", case.taken([0], as_part=False)
    yield "there is one trainable token", silenced(case.taken([0], as_part=False), [0], keep=1)
    yield "sequence 0 has no trainable token", silenced(case, [0])
    yield "no token is trainable", silenced(case, everyone)
    for amount in (30.0, -30.0):
        yield f"the policies are {amount:g} apart in log-prob", drifted(case, amount)


def _unbounded(seen: Seen, case: Case, what: str) -> Violation | None:
    weaker: Violation | None = None
    what = what if bool(case.trainable.any()) else "no token is trainable"
    for name, result in seen.results.items():
        value = seen.values[name].double()
        if not bool(torch.isfinite(value).all()):
            where = tuple(places(~torch.isfinite(value))) if value.ndim == 1 else ()
            of_people = result.kind in ("metric", "statistic")
            found = Violation(
                f"{name} is not finite although {what}", numbers(value), "finite", where,
                grade="hygiene" if of_people and not bool(case.trainable.any()) else "bug",
                effect=Effect("metric" if of_people else "value", where, float("inf")),
                compared=Compared(name, None, case),
            )  # fmt: skip
            if found.grade == "bug":
                return found
            weaker = found
        for leaf, gradient in seen.gradients.get(name, {}).items():
            if not bool(torch.isfinite(gradient).all()):
                effect = Effect("gradient", (), float("inf"))
                return Violation(
                    f"d {name} / d {leaf} is not finite although {what}",
                    numbers(gradient),
                    "finite",
                    effect=effect,
                    compared=Compared(name, leaf, case),
                )
        size = _size(case)
        if result.kind in ("advantage", "reward") and value.numel() and float(value.abs().max()) > LARGEST * size:
            effect = Effect("value", (), float(value.abs().max()) / size)
            return Violation(
                f"{name} explodes although {what}", numbers(value), f"at most about {size:g}", effect=effect
            )
    return weaker


def _size(case: Case) -> float:
    numbers_in = [*case.tokens.values(), *case.sequences.values()]
    floats = [v.abs().max() for v in numbers_in if v.dtype.is_floating_point and v.numel()]
    return max([1.0, *[float(v) for v in floats]])
