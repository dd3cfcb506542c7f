"""What decisions, importances and losses are, each at its own level."""

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import TRAINED, Seen, Subject, of_kind, run, same, same_gradient
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
        keep = base.values[name]
        if bool(((keep != 0) & (keep != 1)).any()):
            return Violation(f"{name} is no decision", numbers(keep), "0 or 1")
        decisions = [keep[owner == i].bool() for i in range(case.num_sequences)]
        split = [i for i, one in enumerate(decisions) if bool(one.any()) and not bool(one.all())]
        if result.scope == "sequence" and split:
            inside = (owner == split[0]) & keep.bool()
            decided = numbers(decisions[split[0]].int())
            return Violation(
                f"{name} is not one decision in sequence {split[0]}", decided, "all equal", tuple(places(inside))
            )
        if result.scope in ("token", "sequence"):
            found = _reads_others(subject, case, name, base.values[name], by_sequence=result.scope == "sequence")
            if found:
                return found
    return None


def _reads_others(subject: Subject, case: Case, name: str, base: Tensor, *, by_sequence: bool) -> Violation | None:
    """Change everything about one token (one sequence); the decisions about all others must stand."""
    tokens = torch.tensor(places(case.trainable), dtype=torch.long)
    owner = case.segments.sequence_of_token
    units = range(case.num_sequences) if by_sequence else range(len(tokens))
    for unit in units:
        inside = owner == unit if by_sequence else torch.arange(len(tokens)) == unit
        if not bool(inside.any()):
            continue
        moved = {
            n: v.clone().index_fill(0, tokens[inside], -3.0) for n, v in case.tokens.items() if v.dtype == torch.float64
        }
        other = run(subject, case.with_tokens(**moved)).values[name]
        if not same(base[~inside].double(), other[~inside].double()):
            what = "sequence" if by_sequence else "token"
            return Violation(f"changing {what} {unit} changes {name} elsewhere", numbers(other), numbers(base))
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
        if bool((value <= 0).any()) or not bool(torch.isfinite(value).all()):
            return Violation(f"{name} is not above zero and finite", numbers(value), "> 0: dropping a token is a keep")
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
    for name, result in of_kind(seen.results, case, "term"):
        if name not in seen.gradients:
            return Violation(f"{name} is not connected to its inputs", "no gradient", "-A")
        gradient = seen.gradients[name]["logp_current"][case.trainable]
        expected, acts = -case.flat("advantage"), _acting(subject, case)
        if not same_gradient(gradient[acts], expected[acts], result):
            return Violation(f"d {name} / d logp_current is not -A on-policy", numbers(gradient), numbers(expected))
        found = into_fixed(seen, name)
        if found:
            return found
    return None


def _acting(subject: Subject, case: Case) -> Tensor:
    """Tokens that owe REINFORCE's gradient: all, unless the loss reads a decision that takes some out."""
    if "selected" in subject.inputs:
        return case.flat("keep") & ~case.flat("selected")
    keep = case.flat("keep")
    return keep if "keep" in subject.inputs else torch.ones_like(keep)


def into_fixed(seen: Seen, name: str) -> Violation | None:
    """Gradient into an input that a loss holds fixed: an old policy, a reference, an advantage, a return."""
    for leaf, gradient in seen.gradients.get(name, {}).items():
        if leaf not in TRAINED and bool((gradient != 0).any()):
            return Violation(f"{name} sends gradient into {leaf}", numbers(gradient), 0.0)
    return None
