"""The gradient of a policy loss: on-policy, at the clip, and with its penalties."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed, silenced, voting
from trimtab.sentinel.binding.calling import TRAINED, Seen, of_kind, run
from trimtab.sentinel.binding.sameness import same, same_gradient
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers


@invariant(
    family="I12",
    statement="Where current, old and rollout log-probs agree, a policy loss has the gradient of REINFORCE: "
    "-A at every token.",
    why="On-policy, the gradient of every surrogate is the policy gradient. Otherwise it has another objective.",
    bug="slime e7a118711: the dual-clip bound was applied to positive advantages, "
    "so A = +1 at ratio 1 gave a loss of -3.",
    repair="Work out the derivative at ratio 1 by hand, for both signs of the advantage.",
)
def on_policy_identity(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("advantage", "outcome"):
        raise case.cannot("it reads no advantage")
    seen = run(subject, voting(agreed(case)), off(subject))
    for name, result in of_kind(seen.results, case, "term"):
        if name in seen.blocked:
            raise case.cannot(f"the backward pass of {name} raises")
        if name not in seen.gradients:
            return Violation(f"{name} is not connected to its inputs", "no gradient", "-A", effect=Effect("gradient"))
        gradient = seen.gradients[name]["logp_current"][case.trainable]
        expected, acts = -case.flat(_credit(subject)), _acting(subject, case)
        if not same_gradient(gradient[acts], expected[acts], result):
            what = f"d {name} / d logp_current is not -A on-policy"
            return Violation(what, numbers(gradient), numbers(expected), effect=Effect("gradient"))
        found = into_fixed(subject, seen, name)
        if found:
            return found
    return None


def off(subject: Subject) -> Mapping[str, Any]:
    """The subject's options with every penalty switched off."""
    return {**subject.options, **dict.fromkeys(subject.penalties, 0.0)}


def _credit(subject: Subject) -> str:
    return "advantage" if subject.reading("advantage") else "outcome"


def _acting(subject: Subject, case: Case) -> Tensor:
    """Tokens that must have the gradient of REINFORCE: all, unless the loss reads a decision that drops some."""
    everything = torch.ones(case.segments.num_tokens, dtype=torch.bool)
    if subject.reading("selected"):
        return case.flat("keep") & ~case.flat("selected")
    return case.flat("keep").bool() if subject.reading("keep") else everything


def into_fixed(subject: Subject, seen: Seen, name: str) -> Violation | None:
    """Gradient into an input that must stay fixed: an old policy, a reference, an advantage, a return.

    Only functions that promise this are checked: in a trainer's batch these inputs are data without gradient.
    """
    if subject.promises is None:
        return None
    for leaf, gradient in seen.gradients.get(name, {}).items():
        if leaf not in TRAINED and leaf != "token_loss" and bool((gradient != 0).any()):
            effect = Effect("gradient")
            return Violation(f"{name} sends gradient into {leaf}", numbers(gradient), 0.0, effect=effect)
    return None


@invariant(
    family="I12",
    statement="A policy loss never pushes against its advantage. It clips only where this lowers the objective: "
    "not at ratios below 1 for A > 0, and not above 1 for A < 0 (except for a dual clip).",
    why="A clip on the wrong side removes the gradient exactly where the policy has moved in the wrong direction.",
    bug="slime e7a118711: the dual-clip bound, meant for negative advantages, also applied to positive ones.",
    repair="Plot the loss over the ratio for both signs of the advantage and compare with the figure in the paper.",
)
def clip_geometry(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("logp_current") or not subject.reading("advantage", "outcome"):
        raise case.cannot("it reads no log-probs with advantages")
    if not bool(case.trainable.any()):
        raise case.cannot("no token trains")
    weaker: Violation | None = None
    for sign in (1.0, -1.0):
        for ratio in (0.5, 0.9, 1.1, 1.5):
            found = _at(subject, case, sign, ratio)
            if found is not None and found.grade == "bug":
                return found
            weaker = weaker or found
    return weaker


DUAL = 1.2
"""Above some ratio, a dual clip bounds the loss of a negative advantage. Published caps are above this value."""


def _at(subject: Subject, case: Case, sign: float, ratio: float) -> Violation | None:
    base = case.tokens["logp_rollout"].clamp(max=-1.0)
    others = {n: base - math.log(ratio) for n in LOGPS if n in case.tokens and n != "logp_current"}
    others |= {"logp_ref": base} if "logp_ref" in case.tokens else {}  # a KL inside the loss is still there
    flags = {n: torch.full_like(case.tokens[n], n == "keep") for n in ("keep", "selected") if n in case.tokens}
    there = case.with_tokens(logp_current=base, **others, **flags, advantage=torch.full_like(base, sign))
    everyone = torch.ones(case.num_sequences, dtype=torch.bool)
    there = there.with_sequences(outcome=torch.full_like(case.sequences["outcome"], sign), votes=everyone)
    seen = run(subject, there, off(subject))
    for name, _ in of_kind(seen.results, case, "term", "loss"):
        if name not in seen.gradients or "logp_current" not in seen.gradients[name]:
            continue
        if not _follows(subject, there, name, seen):
            continue
        push = seen.gradients[name]["logp_current"][case.trainable] * sign
        where = f"at ratio {ratio:g} and A = {sign:+g}"
        if bool((push > 1e-9).any()) or bool((push == 0).all()):
            push = push - _without_credit(subject, there, name)[case.trainable] * sign
        if bool((push > 1e-9).any()):
            what = f"{name} pushes against its advantage {where}"
            return Violation(what, numbers(push * sign), f"sign {-sign:+g}", effect=Effect("gradient", (), 2.0))
        free = ratio < 1 if sign > 0 else 1 < ratio < DUAL
        if free and bool((push == 0).all()):
            if _drops(subject, there, name):
                told = f"{name} drops tokens {where}, whatever their advantage: a mask, not a clip"
                return Violation(told, 0.0, "a gradient", grade="convention")
            what = f"{name} is clipped {where}, where clipping cannot lower the objective"
            return Violation(what, 0.0, "a gradient", effect=Effect("gradient", (), 1.0))
    return None


def _without_credit(subject: Subject, there: Case, name: str) -> Tensor:
    """What pushes where every advantage is 0: a penalty that nobody declared."""
    idle = there.with_tokens(advantage=torch.zeros_like(there.tokens["advantage"]))
    idle = idle.with_sequences(outcome=torch.zeros_like(there.sequences["outcome"]))
    pushes = run(subject, idle, off(subject)).gradients.get(name, {}).get("logp_current")
    return torch.zeros_like(there.tokens["advantage"]) if pushes is None else pushes


def _follows(subject: Subject, there: Case, name: str, seen: Seen) -> bool:
    """Whether a result has anything to do with advantages. A joint loss also returns its value and entropy parts."""
    other = there.with_tokens(advantage=2 * there.tokens["advantage"])
    other = other.with_sequences(outcome=2 * there.sequences["outcome"])
    return not same(seen.values[name], run(subject, other, off(subject)).values[name], tolerance=1e-12)


def _drops(subject: Subject, there: Case, name: str) -> bool:
    """Whether tokens at this ratio add nothing: no value, and no gradient under either sign of the advantage."""
    other = there.with_tokens(advantage=-there.tokens["advantage"])
    other = other.with_sequences(outcome=-there.sequences["outcome"])
    seen = run(subject, other, off(subject))
    if not same(run(subject, there, off(subject)).values[name].double(), seen.values[name].double(), tolerance=1e-12):
        return False
    push = seen.gradients[name]["logp_current"] - _without_credit(subject, there, name)
    return bool((push[there.trainable] == 0).all())


@invariant(
    family="I13",
    statement="More KL to the reference means more loss or less reward, more entropy means less loss, "
    "and a coefficient of 0 removes the term.",
    why="A penalty with the wrong sign rewards the policy for moving away from the reference.",
    bug="verl 38ac52554: the KL loss was subtracted from the policy loss.",
    repair="Raise the KL by hand and look at the sign of the change. Then set the coefficient to 0.",
)
def penalty_direction(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("logp_ref", "kl", "entropy"):
        raise case.cannot("it reads no reference, KL or entropy")
    for option, about in subject.penalties.items():
        found = _stays(subject, case, option, about)
        if found:
            return found
    return _kl_costs(subject, case) or _entropy_pays(subject, case)


def _stays(subject: Subject, case: Case, option: str, about: str) -> Violation | None:
    if about not in case.tokens:
        return None
    none = {**subject.options, option: 0.0}
    moved = case.with_tokens(**{about: case.tokens[about] - 0.5})
    first, second = run(subject, case, none), run(subject, moved, none)
    for name, result in first.results.items():
        if result.kind in ("loss", "term", "advantage", "return", "reward") and not same(
            first.values[name], second.values[name]
        ):
            what = f"with {option} = 0, {about} still moves {name}"
            return Violation(what, numbers(second.values[name]), numbers(first.values[name]))
    return None


def _kl_costs(subject: Subject, case: Case) -> Violation | None:
    """Move the policy of one sequence away from the reference. Its loss must not fall; its reward must not rise."""
    even = agreed(case)
    if not subject.reading("logp_ref") and not subject.reading("kl"):
        return None
    even = even.with_tokens(kl=torch.zeros_like(even.tokens["kl"])) if "kl" in even.tokens else even
    base = run(subject, even)
    rows = [i for i in range(case.num_sequences) if "a" in case.kinds[i]]
    for row in rows[:2]:
        inside = (case.owner == row).double()
        away = even.with_tokens(logp_ref=even.tokens["logp_ref"] - inside)
        away = away.with_tokens(kl=inside) if "kl" in even.tokens else away
        other = run(subject, away)
        mine = case.segments.sequence_of_token == row
        for name, result in base.results.items():
            if not _has_direction(subject, result):
                continue
            cost = _cost(result, base.values[name], other.values[name], mine, row)
            if cost is not None and cost < -1e-9:
                what = f"KL in sequence {row} {'lowers' if result.kind in ('loss', 'term') else 'raises'} {name}"
                return Violation(what, cost, "a cost of 0 or more", effect=Effect("gradient", (), 2.0))
    return None


def _has_direction(subject: Subject, result: Result) -> bool:
    """Whether more KL must move a result in one direction.

    Whitening divides by a spread that the KL widens, so values below the mean may rise. A loss computed from rewards
    may fall or rise, depending on the log-probs that a lower advantage multiplies.
    """
    if result.kind in ("loss", "term"):
        return not subject.reading("reward", "token_reward")
    return subject.couples != "batch"


def _cost(result: Result, before: Tensor, after: Tensor, mine: Tensor, row: int) -> float | None:
    if result.kind not in ("loss", "term", "advantage", "return", "reward"):
        return None
    change = after.double() - before.double()
    if result.level == "token":
        change = change[mine]
    elif result.level == "sequence":
        change = change[row : row + 1]
    total = float(change.sum())
    return total if result.kind in ("loss", "term") else -total


def _entropy_pays(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("entropy"):
        return None
    seen = run(subject, case)
    for name, result in seen.results.items():
        if result.kind in ("loss", "term") and name in seen.gradients and "entropy" in seen.gradients[name]:
            slope = seen.gradients[name]["entropy"][case.trainable]
            if bool((slope > 1e-12).any()):
                return Violation(f"more entropy raises {name}", numbers(slope), "0 or less", effect=Effect("gradient"))
    return None


def _is_detached(subject: Subject, case: Case, name: str) -> bool:
    """Whether a term without advantages changes with the policy and trains nothing, where policies differ."""
    if subject.reading("advantage", "outcome") or not subject.reading("logp_current") or subject.stops_gradient:
        return False
    seen = run(subject, case)
    moved = run(subject, case.with_tokens(logp_current=case.tokens["logp_current"] - 0.25))
    pushes = [one.gradients.get(name, {}).get("logp_current") for one in (seen, moved)]
    if any(push is None or bool((push != 0).any()) for push in pushes):
        return False
    return not same(seen.values[name], moved.values[name])


@invariant(
    family="I15",
    statement="Every loss is connected to the policy: it has a gradient where an advantage is not 0. "
    "Where nothing trains, it is a zero that still has a graph.",
    why="A loss term without a gradient is logged like any other. A zero without a graph stops data-parallel training.",
    bug="open-instruct bdc47cd67: the gradients of all but the last micro-batch were discarded.",
    repair="Return sums over the graph, even when they are empty. Check requires_grad of each loss term.",
)
def connected(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("logp_current", "logits", "value", "token_loss"):
        raise case.cannot("it reads nothing that trains")
    with torch.enable_grad():
        seen = run(subject, voting(agreed(case)))
    for name, result in of_kind(seen.results, case, "loss", "term"):
        effect = Effect("gradient")
        if not result.value.requires_grad:
            what = f"{name} is not connected to its inputs"
            return Violation(what, "no gradient", "a gradient, if only zero", effect=effect)
        # Beside a loss that is given, the log-probs only weigh it.
        if not subject.reading("token_loss") and _is_detached(subject, case, name):
            what = f"{name} follows logp_current in value and sends no gradient into it"
            return Violation(what, 0.0, "a gradient", effect=effect)
        credit = case.flat(_credit(subject)) if subject.reading("advantage", "outcome") else None
        pushes = seen.gradients.get(name, {}).get("logp_current")
        if credit is not None and pushes is not None and subject.reading("logp_current"):
            acts = credit[_acting(subject, case)]
            stands_alone = not any(
                bool((g["logp_current"] != 0).any()) for g in seen.gradients.values() if "logp_current" in g
            )
            if bool((acts != 0).any()) and bool((pushes == 0).all()) and stands_alone:
                what = f"{name} has no gradient although advantages are not 0"
                return Violation(what, 0.0, "a gradient", effect=effect)
    try:
        silent = run(subject, silenced(case, list(range(case.num_sequences))))
    except Exception:  # raising on an empty batch is a valid answer
        return None
    for name, result in silent.results.items():
        if result.kind == "loss" and not result.value.requires_grad:
            what = f"where nothing trains, {name} is not connected to its inputs"
            return Violation(
                what, "no gradient", "a zero gradient", grade="latent", effect=Effect("gradient"),
                condition="a whole batch or micro-batch has no trainable token",
            )  # fmt: skip
    return None
