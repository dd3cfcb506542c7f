"""The gradient of a sampled loss, averaged exactly over a small set of actions."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.calling import call_subject, of_kind, run
from trimtab.sentinel.binding.sameness import same, same_gradient
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers
from trimtab.sentinel.known.said import ESTIMATES

ACTIONS = torch.tensor([0.3, -0.2, 0.6], dtype=torch.float64)
CREDIT = (1.0, -0.5, 0.25)
REFERENCE = (0.2, 0.5, 0.3)


@invariant(
    family="I14",
    statement="The gradient of the sampled loss, averaged exactly over a small set of actions, "
    "equals the gradient of its objective: expected advantage, and KL to the reference.",
    why="With a stop-gradient in the wrong place, the loss value is right but the expected gradient is zero or biased.",
    bug="NeMo-RL 2369c0aec: the sampled KL loss had no score term, so its expected gradient was 0.",
    repair="Enumerate three actions, weight each by its probability, and compare autograd with the exact gradient.",
)
def expected_gradient(subject: Subject, case: Case) -> Violation | None:
    if subject.couples not in ("token", "sequence") or not subject.reading("logp_current"):
        raise case.cannot("it reads no current log-probs, or couples samples")
    if case.num_sequences < 1:
        raise case.cannot("there is no sequence")
    of_kind(call_subject(subject, case), case, "loss", "term")
    if subject.reading("value"):
        found = _through_the_baseline(subject, case)
        if found:
            return found
    if subject.reading("advantage", "outcome"):
        found = _objective(subject, case, CREDIT, None) or _off_policy(subject, case)
        if found:
            return found
    return _objective(subject, case, (0.0,) * 3, REFERENCE) if subject.reading("logp_ref") else None


def _through_the_baseline(subject: Subject, case: Case) -> Violation | None:
    """What pushes the values must not depend on the policy: a baseline is data."""
    base = run(subject, case)
    moved = run(subject, case.with_tokens(logp_current=case.tokens["logp_current"] - 0.25))
    for name, _ in of_kind(base.results, case, "loss", "term"):
        first, second = (seen.gradients.get(name, {}).get("value") for seen in (base, moved))
        if first is not None and second is not None and not same_gradient(first, second, base.results[name]):
            what = f"d {name} / d value changes with logp_current: the policy gradient trains its own baseline"
            return Violation(what, numbers(second), numbers(first), effect=Effect("gradient", (), 1.0))
    return None


def _objective(
    subject: Subject, case: Case, credit: tuple[float, ...], reference: tuple[float, ...] | None
) -> Violation | None:
    theta = ACTIONS.clone().requires_grad_()
    logp = torch.log_softmax(theta, 0)
    ref = torch.tensor(reference, dtype=torch.float64).log() if reference else logp.detach()
    sampled = torch.zeros((), dtype=torch.float64)
    for action in range(3):
        out = call_subject(subject, subject.adapt(_one_choice(case, logp[action], ref[action], credit[action])))
        found = [r.value.double().sum() for r in out.values() if r.kind in ("loss", "term")]
        if reference is not None and not found[0].requires_grad:
            return None
        sampled = sampled + logp[action].detach().exp() * found[0]
    if not sampled.requires_grad:
        return Violation("the loss is not connected to the policy", "no gradient", "a gradient")
    (gradient,) = torch.autograd.grad(sampled, theta, retain_graph=True)
    if reference is None:
        (exact,) = torch.autograd.grad(-(logp.exp() * torch.tensor(credit, dtype=torch.float64)).sum(), theta)
        return _aligned(gradient, exact, "expected advantage", {})
    pi = logp.exp()
    (reverse,) = torch.autograd.grad((pi * (logp - ref)).sum(), theta, retain_graph=True)
    (forward,) = torch.autograd.grad((ref.exp() * (ref - logp)).sum(), theta, retain_graph=True)
    moved = _reads_reference(subject, case)
    if not moved:
        return None
    if subject.guessed and _chooses_an_estimate(subject) and float(gradient.abs().max()) < 1e-9:
        told = "k1 has no expected gradient; it is one of several estimates to choose from, and nobody said which"
        return Violation(told, numbers(gradient), numbers(reverse), grade="convention")
    return _aligned(gradient, reverse, "KL(policy || reference)", {"KL(reference || policy), as k3 gives": forward})


def _chooses_an_estimate(subject: Subject) -> bool:
    return any(value in ESTIMATES for values in subject.choices.values() for value in values if isinstance(value, str))


NUDGE = (0.02, -0.015, 0.01)
"""How far the policy that sampled is from the current one, in logits: closer than any clip or cap."""


def _off_policy(subject: Subject, case: Case) -> Violation | None:
    """A slightly different policy sampled. A ratio makes up for that, in value and in gradient."""
    behind = [name for name in ("logp_old", "logp_rollout") if subject.reading(name)]
    if not behind:
        return None
    theta = ACTIONS.clone().requires_grad_()
    logp = torch.log_softmax(theta, 0)
    sampler = torch.log_softmax(ACTIONS + torch.tensor(NUDGE, dtype=torch.float64), 0)
    options = {**subject.options, **dict.fromkeys(subject.penalties, 0.0)}
    sampled = torch.zeros((), dtype=torch.float64)
    for action in range(3):
        one = _one_choice(case, logp[action], logp[action].detach(), CREDIT[action])
        away = torch.stack([torch.zeros_like(sampler[0]), sampler[action]])
        there = one.with_tokens(**dict.fromkeys(behind, away))
        out = call_subject(subject, subject.adapt(there), options)
        sampled = sampled + sampler[action].exp() * next(
            r.value.double().sum() for r in out.values() if r.kind in _LOSS
        )
    if not sampled.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(sampled, theta, retain_graph=True)
    (exact,) = torch.autograd.grad(-(logp.exp() * torch.tensor(CREDIT, dtype=torch.float64)).sum(), theta)
    factor = float((gradient * exact).sum() / (exact * exact).sum())
    if abs(factor - 2) < TWICE and 2.0 not in subject.options.values():
        told = "the expected gradient is twice that of expected advantage: a weight that is not detached adds its own"
        return Violation(told, numbers(gradient), numbers(exact), grade="suspect", effect=Effect("gradient", (), 1.0))
    # Without any correction the gradient is off by about as much as the policies are apart. That is a choice.
    if factor > 0 and float((gradient - factor * exact).abs().max()) <= MISSED * float((factor * exact).abs().max()):
        return None
    what = "where another policy sampled, the expected gradient is not that of expected advantage"
    return Violation(what, numbers(gradient), numbers(exact), effect=Effect("gradient", (), 1.0))


_LOSS = ("loss", "term")
TWICE = 0.05
MISSED = 0.1
"""Share of the gradient that a missing correction may cost at that distance."""


def _reads_reference(subject: Subject, case: Case) -> bool:
    """Whether the reference changes the loss value at all; with a coefficient of 0 it does not."""
    moved = case.with_tokens(logp_ref=case.tokens["logp_ref"] - 0.5)
    first, second = call_subject(subject, subject.adapt(case)), call_subject(subject, subject.adapt(moved))
    return any(r.kind in ("loss", "term") and not same(r.value, second[n].value) for n, r in first.items())


def _one_choice(case: Case, logp: Tensor, ref: Tensor, credit: float) -> Case:
    """One sequence, one prompt token, one chosen token: the smallest sampled decision."""
    base = case.taken([0], as_part=False)
    tokens: dict[str, Tensor] = {}
    for name, values in base.tokens.items():
        pair = values[:1].repeat(2, *[1] * (values.ndim - 1)).detach()
        tokens[name] = pair.zero_() if values.dtype.is_floating_point else pair
    pad = torch.zeros(1, dtype=torch.float64)
    current = torch.cat([pad, logp.reshape(1)])
    fixed = current.detach()
    tokens |= {"logp_current": current, "logp_old": fixed.clone(), "logp_rollout": fixed.clone()}
    tokens |= {"logp_ref": torch.cat([pad, ref.reshape(1)]), "advantage": torch.tensor([0.0, credit]).double()}
    tokens |= {"keep": torch.tensor([True, True]), "selected": torch.tensor([False, False])}
    one = replace(base, kinds=(("p", "a"),), tokens=tokens, origin=(0,))
    return one.with_sequences(outcome=torch.full((1,), credit, dtype=torch.float64), votes=torch.ones(1).bool())


def _aligned(gradient: Tensor, exact: Tensor, what: str, known: Mapping[str, Tensor]) -> Violation | None:
    if _along(gradient, exact):
        return None
    for name, other in known.items():
        if _along(gradient, other):
            told = f"the expected gradient is that of {name}, not of {what}"
            return Violation(told, numbers(gradient), numbers(exact), grade="convention")
    return Violation(
        f"the expected gradient is not that of {what}", numbers(gradient), numbers(exact),
        effect=Effect("gradient", (), 1.0),
    )  # fmt: skip


def _along(gradient: Tensor, exact: Tensor) -> bool:
    """Whether two gradients have the same direction: equal up to one positive factor, such as a coefficient."""
    factor = float((gradient * exact).sum() / (exact * exact).sum())
    return factor > 0 and bool(torch.allclose(gradient, factor * exact, rtol=1e-4, atol=1e-7))
