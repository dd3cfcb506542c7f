"""Requirements on decisions (what to keep) and importances (off-policy factors), each at its own level."""

from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed, untied
from trimtab.sentinel.binding.calling import of_kind, run
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.settings import modes, settings_of
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers
from trimtab.signal.layout import places


@invariant(
    family="I24",
    statement="A decision about a sequence is the same at all its tokens. "
    "A decision about a token reads only that token. A decision about two policies reads only those two.",
    why="If a rejected sequence keeps some tokens, training continues on what was rejected.",
    bug="slime #1917: OPSM compared each token's advantage, "
    "so positive tokens of a rejected sequence kept their gradient.",
    repair="Reduce to the level of the decision, decide once, then broadcast.",
)
def decision_granularity(subject: Subject, case: Case) -> Violation | None:
    base = run(subject, case)
    owner = case.segments.sequence_of_token
    for name, result in of_kind(base.results, case, "keep"):
        keep = base.values[name]
        if bool(((keep != 0) & (keep != 1)).any()):
            return Violation(f"{name} is not a decision", numbers(keep), "0 or 1", effect=Effect("decision"))
        if result.level == "token" and result.scope == "sequence":
            decisions = [keep[owner == i].bool() for i in range(case.num_sequences)]
            mixed = [i for i, one in enumerate(decisions) if bool(one.any()) and not bool(one.all())]
            if mixed:
                inside = tuple(places((owner == mixed[0]) & keep.bool()))
                decided = numbers(decisions[mixed[0]].int())
                what = f"{name} is not one decision in sequence {mixed[0]}"
                return Violation(what, decided, "all equal", inside, effect=Effect("decision", inside))
        found = _of_other_policies(subject, case, name, result)
        if found:
            return found
        if result.scope in ("token", "sequence"):
            found = _reads_others(subject, case, name, result, by_sequence=result.scope == "sequence")
            if (
                found is not None
                and result.scope == "token"
                and not _reads_others(subject, case, name, result, by_sequence=True)
            ):
                told = f"{name} is a decision about sequences: declare scope='sequence'"
                return replace(found, what=told, grade="convention")
            if found is not None and result.scope == "token" and _is_even_handed(subject, untied(case), name):
                told = f"{name} chooses among all tokens of the batch, as a quantile or a budget does"
                return replace(found, what=told, grade="convention")
            if found:
                return found
    return None


def _is_even_handed(subject: Subject, case: Case, name: str) -> bool:
    """Whether a decision about all tokens is the same in another order of the sequences."""
    order = list(reversed(range(case.num_sequences)))
    decided = run(subject, subject.adapt(case)).values[name]
    turned = run(subject, subject.adapt(case.taken(order, as_part=False))).values[name]
    places_of = case.token_places(order) if len(decided) == case.segments.num_tokens else torch.tensor(order)
    return same(decided[places_of].double(), turned.double())


def _of_other_policies(subject: Subject, case: Case, name: str, base: Result) -> Violation | None:
    """A decision about the distance of two policies must not change with other log-probs."""
    if base.pair is None:
        return None
    for leaf in (n for n in LOGPS if n in case.tokens and n not in base.pair):
        for shift in (-0.5, 0.5):
            moved = (case.tokens[leaf] + shift).clamp(max=-1e-3)
            other = run(subject, case.with_tokens(**{leaf: moved})).values[name]
            if not same(base.value.detach().double(), other.double()):
                what = f"{leaf} changes {name}, which is about {base.pair[0]} and {base.pair[1]}"
                return Violation(what, numbers(other), numbers(base.value), effect=Effect("decision"))
    return None


def _reads_others(subject: Subject, case: Case, name: str, base: Result, *, by_sequence: bool) -> Violation | None:
    """Change everything about one token (or one sequence). The decisions about all others must not change."""
    tokens = torch.tensor(places(case.trainable), dtype=torch.long)
    owner = case.segments.sequence_of_token
    units = range(case.num_sequences) if by_sequence or base.level == "sequence" else range(len(tokens))
    kept = base.value.detach()
    for unit in units:
        inside = owner == unit if by_sequence else torch.arange(len(tokens)) == unit
        if not bool(inside.any()):
            continue
        moved = {
            n: v.clone().index_fill(0, tokens[inside], -3.0) for n, v in case.tokens.items() if v.dtype == torch.float64
        }
        other = run(subject, case.with_tokens(**moved)).values[name]
        stay = ~inside if base.level == "token" else torch.arange(case.num_sequences) != unit
        if not same(kept[stay].double(), other[stay].double()):
            what = "sequence" if by_sequence else "token"
            return Violation(
                f"changing {what} {unit} changes {name} elsewhere", numbers(other), numbers(kept),
                effect=Effect("decision"),
            )  # fmt: skip
    return None


@invariant(
    family="I25",
    statement="An importance (an off-policy factor) is detached. It is above zero or at its stated bound, it stays "
    "inside its band, it is 1 where the two policies agree, and it depends only on the two policies it names.",
    why="An importance with a gradient trains the ratio. One that is not 1 on-policy rescales a run that needs no "
    "correction. One of the wrong pair of policies corrects nothing.",
    bug="OpenRLHF seq-mask-tis: it documents a token-level truncation "
    "and applies the raw ratio, 54.6 where the bound is 2.",
    repair="Detach it and clamp after aggregation. Test with equal policies, and move each log-prob alone.",
)
def importance_contract(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    weaker: Violation | None = None
    for name, result in of_kind(seen.results, case, "importance"):
        value = seen.values[name]
        followed = seen.gradients.get(name, {})
        # Log-probs of a sampler are data. A gradient matters in the policy that trains, where there is one.
        followed = {n: g for n, g in followed.items() if n == "logp_current" or not subject.reading("logp_current")}
        followed = {n: g for n, g in followed.items() if n != "logp_rollout"}
        if any(bool((g != 0).any()) for g in followed.values()):
            return Violation(f"{name} carries gradient", "gradient", "detached", effect=Effect("gradient"))
        low, high = result.range or subject.options.get("band", (0.0, float("inf")))
        # Tokens masked out below a bound show as importance 0. That is allowed only where the binding declares it.
        clamps = low > 0 or (result.range is None and "band" in subject.options)
        if bool((value < 0).any()) or not bool(torch.isfinite(value).all()) or (clamps and bool((value == 0).any())):
            return Violation(
                f"{name} is not above zero and finite", numbers(value), "> 0: use a keep decision to drop a token"
            )
        if result.range is None and "band" not in subject.options and bool((value == 0).any()):
            weaker = weaker or Violation(
                f"{name} is 0 at some tokens: a decision to drop them is part of it", numbers(value),
                "> 0: use a keep decision to drop a token", grade="convention",
            )  # fmt: skip
        slack = 1e-12 if value.dtype == torch.float64 else 1e-5
        if bool((value < low - slack).any()) or bool((value > high + slack * max(high, 1)).any()):
            return Violation(f"{name} leaves its band", numbers(value), [low, high])
        one = run(subject, agreed(case)).values[name]
        owed = 1.0 if result.agreed is None else result.agreed
        if low <= owed <= high and not same(one, torch.full_like(one, owed)):
            return Violation(f"{name} is not {owed:g} where the policies agree", numbers(one), owed)
        found = _wrong_pair(subject, case, name, result) or _beyond_its_cap(subject, case, name)
        if found:
            return found
    return weaker


def _beyond_its_cap(subject: Subject, case: Case, name: str) -> Violation | None:
    """A setting that bounds an importance on one path through the body bounds it on every path."""
    paths = modes(subject)
    if not paths or not bool(case.trainable.any()):
        return None
    # Far enough for any cap, in the direction of each pair of policies.
    base = case.tokens["logp_rollout"].clamp(max=-1.0)
    far = [
        case.with_tokens(**{n: base - (HIGH_ABOVE if n in below else 0.0) for n in LOGPS if n in case.tokens})
        for below in (("logp_rollout",), ("logp_rollout", "logp_old"))
    ]

    def highest(of: Subject) -> float:
        return max(float(run(of, there).values[name].double().max()) for there in far)

    top = highest(subject)
    cap = next((number for number in settings_of(subject) if number > 1 and abs(top - number) < 1e-6 * number), None)
    if cap is None:
        return None
    for told, other in paths:
        try:
            reached = highest(other)
        except Exception:  # a path that it does not take on these inputs
            continue
        if reached > cap * (1 + 1e-6):
            what = f"{name} goes beyond {cap:g} {told}, and never otherwise"
            return Violation(what, reached, cap, grade="suspect", effect=Effect("value", (), reached / cap))
    return None


HIGH_ABOVE = 6.0
"""How far apart policies are, in log-prob, where a cap is looked for."""


def _wrong_pair(subject: Subject, case: Case, name: str, result: Result) -> Violation | None:
    """Start from agreement and move each policy alone. Only the two named ones may move the importance, each in its
    own direction."""
    if result.pair is None:
        return None
    even = agreed(case)
    base = run(subject, even).values[name]
    for leaf in LOGPS:
        if leaf not in case.tokens:
            continue
        other = run(subject, even.with_tokens(**{leaf: even.tokens[leaf] - 0.05})).values[name]
        owed = {result.pair[0]: -1, result.pair[1]: 1}.get(leaf, 0)
        found = _direction(base, other)
        low, high = result.range or (0.0, float("inf"))
        if owed and ((owed < 0 and low >= 1) or (owed > 0 and high <= 1)):
            continue
        if found != owed:
            words = {-1: "falls", 0: "stays", 1: "rises"}
            what = f"{name} {words[found]} when {leaf} falls, unlike {result.pair[0]} over {result.pair[1]}"
            return Violation(what, numbers(other), f"it {words[owed]}")
    return None


def _direction(base: Tensor, other: Tensor) -> int:
    if same(base, other):
        return 0
    return 1 if bool(((other - base) >= -1e-9).all()) else -1
