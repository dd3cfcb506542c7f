"""Choices that several correct functions make differently. They are detected on benign cases and named.

A convention is not a finding. A declared convention that does not fit is one. A convention is reported only if it fits
on every benign case.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import benign, build
from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.calling import call_subject, resolve_inputs, run
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant
from trimtab.sentinel.invariants.scale import known_average
from trimtab.sentinel.invariants.surrogate import off

EPSILONS = (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)


def detected(subject: Subject) -> dict[str, str]:
    """Every convention that could be identified, by name."""
    whole = subject.adapt(benign())
    crowd = subject.adapt(benign().taken(range(6), as_part=False))
    case = crowd
    for one in (crowd, whole):
        with suppress(Exception):  # many correct functions refuse a single sample
            subject = resolve_inputs(subject, one)
            call_subject(subject, one)
            case = one
    found: dict[str, str] = {}
    for name, detect in (
        ("denominator", known_average), ("kl", _estimator), ("normalisation", _normalisation), ("lone", _lone),
        ("band", _band),
    ):  # fmt: skip
        with suppress(Exception):
            told = detect(subject, case)
            if told:
                found[name] = told
    return found


@invariant(
    family="I21",
    statement="A declared convention (denominator, ddof, estimator, band, rule for groups of one) is the one in use.",
    why="Every correct function makes such choices. The expensive bug is to rely on a different choice than the "
    "code makes.",
    bug="TRL 705306d78: scale_rewards='group' scaled nothing and 'none' scaled by the group.",
    repair="Document the convention next to the option, and test it on three numbers.",
)
def declared_conventions(subject: Subject, case: Case) -> Violation | None:
    if not subject.conventions:
        raise case.cannot("its binding declares no convention")
    found = detected(subject)
    for name, declared in subject.conventions.items():
        if name in found and declared not in found[name].split(" or "):
            return Violation(f"{name} is {found[name]}", found[name], declared, effect=Effect("value", (), 1.0))
    return None


def _result(subject: Subject, case: Case, *kinds: str) -> tuple[str, Result] | None:
    return next(((n, r) for n, r in call_subject(subject, case).items() if r.kind in kinds), None)


def _estimator(subject: Subject, case: Case) -> str | None:
    """The estimator (k1, k2, k3 or |k1|) and its two log-probs."""
    found = _result(subject, case, "kl")
    if found is None or found[1].level != "token":
        return None
    value = found[1].value.detach().double()
    for first in LOGPS:
        for second in LOGPS:
            if first == second or not subject.reading(first) or not subject.reading(second):
                continue
            gap = case.flat(first) - case.flat(second)
            known = {"k1": gap, "k2": gap**2 / 2, "k3": torch.exp(-gap) + gap - 1, "|k1|": gap.abs(), "squared": gap**2}
            for name, expected in known.items():
                if same(expected, value, tolerance=1e-6):
                    return f"{name} of {first} against {second}"
    return None


def _per_sequence(case: Case, result: Result) -> Tensor:
    value = result.value.detach().double()
    if result.level == "sequence":
        return value
    firsts = case.segments.first_token[: case.num_sequences]
    return value[firsts]


def _normalisation(subject: Subject, case: Case) -> str | None:
    """The centre and the spread used to normalise rewards."""
    found = _result(subject, case, "advantage", "reward", "return")
    if found is None or not subject.reading("reward", "token_reward"):
        return None
    value = _per_sequence(case, found[1])[:6]
    reward = case.sequences["reward"]
    if not subject.reading("reward"):
        return None
    for name, expected in _normalised(reward):
        if same(expected[:6], value, tolerance=1e-10):
            return name
    return None


def _normalised(reward: Tensor) -> Iterator[tuple[str, Tensor]]:
    groups = [slice(0, 3), slice(3, 6), slice(6, 7)][: 2 + (len(reward) > 6)]

    def by_group(one: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([one(reward[g]).expand(len(reward[g])) for g in groups])

    centres = {
        "no mean": torch.zeros_like(reward),
        "group mean": by_group(lambda r: r.mean()),
        "batch mean": reward.mean().expand_as(reward),
        "leave-one-out mean": torch.cat([(r.sum() - r) / max(len(r) - 1, 1) for r in (reward[g] for g in groups)]),
    }
    for centre, mean in centres.items():
        yield centre, reward - mean
        for ddof in (0, 1):
            spreads = {
                "group": by_group(lambda r, d=ddof: r.std(correction=d) if len(r) > d else r.mean() * 0 + 1),
                "batch": reward.std(correction=ddof).expand_as(reward),
            }
            for over, spread in spreads.items():
                for eps in EPSILONS:
                    yield f"{centre} / ({over} std, ddof {ddof}, + {eps:g})", (reward - mean) / (spread + eps)


def _lone(subject: Subject, case: Case) -> str | None:
    """The advantage of the sample in a group of one."""
    found = _result(subject, case, "advantage")
    if found is None or not subject.reading("group") or not subject.reading("reward") or case.num_sequences < 7:
        return None
    value, reward = float(_per_sequence(case, found[1])[6]), case.sequences["reward"]
    known = {
        "0": 0.0,
        "its reward": float(reward[6]),
        "its reward less the batch mean": float(reward[6] - reward.mean()),
    }
    near = [name for name, number in known.items() if math.isclose(value, number, abs_tol=1e-6)]
    return near[0] if near else f"{value:.4g}"


def _band(subject: Subject, case: Case) -> str | None:
    """The range of ratios in which a positive advantage has a gradient, and the same for a negative one."""
    if not subject.reading("logp_current") or not subject.reading("advantage", "outcome"):
        return None
    ratios = torch.arange(0.5, 2.001, 0.01, dtype=torch.float64)
    kinds = tuple(("p", "a") for _ in ratios)
    base = torch.full((2 * len(ratios),), -2.0, dtype=torch.float64)
    shift = torch.stack([torch.zeros_like(ratios), ratios.log()], 1).reshape(-1)
    ends: dict[float, list[float]] = {}
    for sign in (1.0, -1.0):
        tokens = {n: base.clone() for n in LOGPS} | {"logp_current": base + shift}
        tokens |= {"advantage": torch.full_like(base, sign), "keep": torch.ones(len(base)).bool()}
        rows = {"outcome": torch.full((len(ratios),), sign, dtype=torch.float64)}
        probe = build(kinds, group=list(range(len(ratios))), tokens=tokens, sequences=rows)
        seen = run(subject, subject.adapt(probe), off(subject))
        name = next((n for n, r in seen.results.items() if r.kind in ("loss", "term")), None)
        if name is None or name not in seen.gradients:
            return None
        moving = ratios[seen.gradients[name]["logp_current"][probe.trainable] != 0]
        if not len(moving):
            return None
        ends[sign] = [float(moving[0]), float(moving[-1])]
    high = f"{ends[1.0][1] + 0.005:.2f}" if ends[1.0][1] < 1.99 else "none"
    low = f"{ends[-1.0][0] - 0.005:.2f}" if ends[-1.0][0] > 0.51 else "none"
    return f"{low} to {high}" if (low, high) != ("none", "none") else None
