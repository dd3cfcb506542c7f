"""What decisions, importances and losses are, each at its own level."""

import torch

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.declare import Violation, invariant
from trimtab.sentinel.subject import Subject, run, same

_LOGPS = ("logp_current", "logp_old", "logp_rollout", "logp_ref")


@invariant(
    statement="A decision about a sequence is one decision, at every token of it; a decision about a token reads that token only.",
    why="A rejected sequence that keeps some of its tokens keeps training on what was rejected.",
    bug="slime #1917: OPSM compared each token's advantage, so positive tokens of a rejected sequence kept their gradient.",
    repair="Reduce to the decision's level first, decide once, then broadcast.",
)
def decision_granularity(subject: Subject, case: Case) -> Violation | None:
    base = run(subject, case)
    owner = case.segments.sequence_of_token
    for name, result in base.results.items():
        if result.kind != "keep":
            continue
        keep = base.values[name].bool()
        if result.scope == "sequence":
            for sequence in range(case.num_sequences):
                decided = keep[owner == sequence]
                if decided.numel() and bool(decided.any()) and not bool(decided.all()):
                    return Violation(
                        f"{name} is not one decision in sequence {sequence}",
                        decided.int().tolist(),
                        "all equal",
                        tuple(((owner == sequence) & keep).nonzero().squeeze(1).tolist()),
                    )
        if result.scope == "token":
            found = _reads_others(subject, case, name)
            if found:
                return found
    return None


def _reads_others(subject: Subject, case: Case, name: str) -> Violation | None:
    """Change one token's log-probs; the decisions about all others must stand."""
    base = run(subject, case).values[name]
    places = case.trainable.nonzero().squeeze(1).tolist()
    for index, place in enumerate(places):
        moved = {
            n: case.tokens[n].clone().index_fill(0, torch.tensor([place]), -3.0) for n in _LOGPS if n in case.tokens
        }
        other = run(subject, case.with_tokens(**moved)).values[name]
        others = torch.arange(len(places)) != index
        if not same(base[others], other[others]):
            return Violation(f"changing token {index} changes {name} elsewhere", other.tolist(), base.tolist())
    return None


@invariant(
    statement="An importance is detached, above zero or at its stated bound, 1 where the two policies agree, and inside its band.",
    why="An importance with gradient trains the ratio; one that is not 1 on-policy rescales a run that needs no correction.",
    bug="OpenRLHF seq-mask-tis: documents a token-level truncation and applies the raw ratio, 54.6 where 2 was the bound.",
    repair="detach, clamp after aggregation, and test with equal policies.",
)
def importance_contract(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    for name, result in seen.results.items():
        if result.kind != "importance":
            continue
        value = seen.values[name]
        if any(bool((g != 0).any()) for g in seen.gradients.get(name, {}).values()):
            return Violation(f"{name} carries gradient", "gradient", "detached")
        if bool((value < 0).any()) or not bool(torch.isfinite(value).all()):
            return Violation(f"{name} is negative or not finite", value.tolist(), ">= 0 and finite")
        low, high = subject.options.get("band", (0.0, float("inf")))
        if bool((value < low - 1e-12).any()) or bool((value > high + 1e-12).any()):
            return Violation(f"{name} leaves its band", value.tolist(), [low, high])
        agreed = case.with_tokens(**{n: case.tokens["logp_rollout"] for n in _LOGPS if n in case.tokens})
        on_policy = run(subject, agreed).values[name]
        if low <= 1 <= high and not same(on_policy, torch.ones_like(on_policy)):
            return Violation(f"{name} is not 1 where the policies agree", on_policy.tolist(), 1.0)
    return None


@invariant(
    statement="Where current, old and rollout agree, a policy loss has REINFORCE's gradient: -A at every token.",
    why="On-policy, every surrogate is the policy gradient; one that is not has another objective.",
    bug="slime e7a118711: the dual-clip bound was applied to positive advantages, so A = +1 at ratio 1 gave a loss of -3.",
    repair="Work out the derivative at ratio 1 by hand, for both signs of the advantage.",
)
def on_policy_identity(subject: Subject, case: Case) -> Violation | None:
    agreed = case.with_tokens(**{n: case.tokens["logp_rollout"] for n in _LOGPS if n in case.tokens})
    seen = run(subject, agreed)
    for name, result in seen.results.items():
        if result.kind != "term":
            continue
        gradient = seen.gradients[name]["logp_current"][case.trainable]
        expected = -case.flat("advantage")
        acts = case.flat("keep") & ~case.flat("selected") if "selected" in subject.inputs else case.flat("keep")
        if "keep" not in subject.inputs and "selected" not in subject.inputs:
            acts = torch.ones_like(acts)
        if not same(gradient[acts], expected[acts]):
            return Violation(f"d {name} / d logp_current is not -A on-policy", gradient.tolist(), expected.tolist())
        if "logp_anchor" in subject.inputs:
            for leaf in ("logp_old", "advantage"):
                if leaf == "logp_old" and bool((seen.gradients[name][leaf] != 0).any()):
                    return Violation(f"{name} sends gradient into {leaf}", seen.gradients[name][leaf].tolist(), 0.0)
    return None
