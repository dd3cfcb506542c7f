"""What decisions, importances and losses are, each at its own level."""

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import Subject, of_kind, run, same
from trimtab.signal.layout import places

_LOGPS = ("logp_current", "logp_old", "logp_rollout", "logp_ref")


@invariant(
    statement="A decision about a sequence is one decision, at every token of it; "
    "a decision about a token reads that token only.",
    why="A rejected sequence that keeps some of its tokens keeps training on what was rejected.",
    bug="slime #1917: OPSM compared each token's advantage, "
    "so positive tokens of a rejected sequence kept their gradient.",
    repair="Reduce to the decision's level first, decide once, then broadcast.",
)
def decision_granularity(subject: Subject, case: Case) -> Violation | None:
    base = run(subject, case)
    owner = case.segments.sequence_of_token
    for name, result in of_kind(base.results, case, "keep"):
        keep = base.values[name].bool()
        if result.scope == "sequence":
            for sequence in range(case.num_sequences):
                decided = keep[owner == sequence]
                if decided.numel() and bool(decided.any()) and not bool(decided.all()):
                    return Violation(
                        f"{name} is not one decision in sequence {sequence}",
                        numbers(decided.int()),
                        "all equal",
                        tuple(places((owner == sequence) & keep)),
                    )
        if result.scope == "token":
            found = _reads_others(subject, case, name)
            if found:
                return found
    return None


def _reads_others(subject: Subject, case: Case, name: str) -> Violation | None:
    """Change one token's log-probs; the decisions about all others must stand."""
    base = run(subject, case).values[name]
    tokens = places(case.trainable)
    for index, place in enumerate(tokens):
        moved = {
            n: case.tokens[n].clone().index_fill(0, torch.tensor([place]), -3.0) for n in _LOGPS if n in case.tokens
        }
        other = run(subject, case.with_tokens(**moved)).values[name]
        others = torch.arange(len(tokens)) != index
        if not same(base[others], other[others]):
            return Violation(f"changing token {index} changes {name} elsewhere", numbers(other), numbers(base))
    return None


@invariant(
    statement="An importance is detached, above zero or at its stated bound, "
    "1 where the two policies agree, and inside its band.",
    why="An importance with gradient trains the ratio; "
    "one that is not 1 on-policy rescales a run that needs no correction.",
    bug="OpenRLHF seq-mask-tis: documents a token-level truncation "
    "and applies the raw ratio, 54.6 where 2 was the bound.",
    repair="detach, clamp after aggregation, and test with equal policies.",
)
def importance_contract(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    for name, _ in of_kind(seen.results, case, "importance"):
        value = seen.values[name]
        if any(bool((g != 0).any()) for g in seen.gradients.get(name, {}).values()):
            return Violation(f"{name} carries gradient", "gradient", "detached")
        if bool((value < 0).any()) or not bool(torch.isfinite(value).all()):
            return Violation(f"{name} is negative or not finite", numbers(value), ">= 0 and finite")
        low, high = subject.options.get("band", (0.0, float("inf")))
        if bool((value < low - 1e-12).any()) or bool((value > high + 1e-12).any()):
            return Violation(f"{name} leaves its band", numbers(value), [low, high])
        on_policy = run(subject, _agreed(case)).values[name]
        if low <= 1 <= high and not same(on_policy, torch.ones_like(on_policy)):
            return Violation(f"{name} is not 1 where the policies agree", numbers(on_policy), 1.0)
    return None


def _agreed(case: Case) -> Case:
    """The same case, had every policy given the rollout's log-probs."""
    return case.with_tokens(**{n: case.tokens["logp_rollout"] for n in _LOGPS if n in case.tokens})


@invariant(
    statement="Where current, old and rollout agree, a policy loss has REINFORCE's gradient: -A at every token.",
    why="On-policy, every surrogate is the policy gradient; one that is not has another objective.",
    bug="slime e7a118711: the dual-clip bound was applied to positive advantages, "
    "so A = +1 at ratio 1 gave a loss of -3.",
    repair="Work out the derivative at ratio 1 by hand, for both signs of the advantage.",
)
def on_policy_identity(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, _agreed(case))
    for name, _ in of_kind(seen.results, case, "term"):
        gradient = seen.gradients[name]["logp_current"][case.trainable]
        expected, acts = -case.flat("advantage"), _acting(subject, case)
        if not same(gradient[acts], expected[acts]):
            return Violation(f"d {name} / d logp_current is not -A on-policy", numbers(gradient), numbers(expected))
        if "logp_anchor" in subject.inputs:
            into_old = seen.gradients[name]["logp_old"]
            if bool((into_old != 0).any()):
                return Violation(f"{name} sends gradient into logp_old", numbers(into_old), 0.0)
    return None


def _acting(subject: Subject, case: Case) -> Tensor:
    """Tokens that owe REINFORCE's gradient: all, unless the loss reads a decision that takes some out."""
    if "selected" in subject.inputs:
        return case.flat("keep") & ~case.flat("selected")
    keep = case.flat("keep")
    return keep if "keep" in subject.inputs else torch.ones_like(keep)
