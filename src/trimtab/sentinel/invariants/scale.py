"""What a loss averages, and over how many."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import agreed, doubled, lengthened, level, silenced, voting
from trimtab.sentinel.binding.calling import Seen, of_kind, run
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers


@invariant(
    family="I09",
    statement="A loss is a mean or a sum. If the batch is repeated, the loss value stays the same (mean) or doubles "
    "(sum). The same holds if sequences of identical tokens become twice as long.",
    why="If the loss value grows or shrinks with the batch in another way, it silently changes the learning rate.",
    bug="ROLL 436a5275e: the token mean was divided by the length a second time.",
    repair="Divide once, by the count of what was summed. Then repeat the batch and compare.",
)
def mean_is_a_mean(subject: Subject, case: Case) -> Violation | None:
    if subject.couples == "batch":
        raise case.cannot("its samples may move one another across the batch")
    even = agreed(level(case))
    pairs = [("the same batch twice", case, doubled(case))]
    if not subject.reading("token_reward", "reward"):  # returns of rewards grow with what comes after them
        pairs.append(("sequences twice as long", even, lengthened(even, 1)))
    looked = False
    for what, first, second in pairs:
        before, after = run(subject, subject.adapt(first)), run(subject, subject.adapt(second))
        for name, result in of_kind(before.results, case, "loss"):
            if result.level != "scalar" or abs(float(before.values[name])) < 1e-6:
                continue
            if not math.isfinite(float(before.values[name])):
                continue
            looked = True
            factor = float(after.values[name]) / float(before.values[name])
            if not any(abs(factor - allowed) <= 1e-4 for allowed in (1.0, 2.0)):
                effect = Effect("value", (), abs(factor - 1))
                return Violation(f"{what} multiplies {name} by {factor:.4g}", factor, "1 or 2", effect=effect)
    if not looked:
        raise case.cannot("the loss is 0")
    return None


@invariant(
    family="I10",
    statement="A loss divides by the count of what it sums. "
    "So the shares of its tokens match one of the known averages, and the declared one if there is one.",
    why="If half of the tokens are masked, the relative weights of the others must stay the same, "
    "and the count must become smaller.",
    bug="prime-rl 6c55a9aab: a token sum was divided by the number of sequences.",
    repair="Compute numerator and denominator from one mask. Name the average, and test it with half of the tokens "
    "masked.",
)
def denominator(subject: Subject, case: Case) -> Violation | None:
    if subject.normalises:
        raise case.cannot("it normalises the advantages itself, so that no token has a share of its own")
    half = [i for i in range(case.num_sequences) if case.kinds[i].count("a") > 1][:1]
    variants = [case, silenced(case, half, keep=1), doubled(case)]
    fitting: dict[str, float] | None = None
    shares: list[Tensor] = []
    for variant in variants:
        found = token_shares(subject, variant)
        if found is None:
            raise case.cannot("it reads neither a per-token loss nor log-probs with advantages")
        name, share, where = found
        shares.append(share)
        fits = _fits(where, share)
        if fitting is None:
            fitting = fits
        fitting = {k: c for k, c in fitting.items() if k in fits and abs(fits[k] - c) <= 1e-4 * abs(c)}
        if not fitting:
            effect = Effect(
                "gradient", (), float(share.std(correction=0) / share.abs().max()) if share.numel() else None
            )
            return Violation(
                f"the share of each token in {name} is none of the known averages of trainable tokens",
                numbers(share), sorted(candidates(where)), effect=effect,
            )  # fmt: skip
    return _undeclared(subject, fitting or {}, shares[0])


def _undeclared(subject: Subject, fitting: dict[str, float], share: Tensor) -> Violation | None:
    declared = subject.conventions.get("denominator")
    if declared is None or declared in fitting or not fitting:
        return None
    what = f"declared as {declared}, but the shares are those of {' or '.join(sorted(fitting))}"
    return Violation(what, numbers(share), declared, effect=Effect("gradient", (), 1.0))


def token_shares(subject: Subject, case: Case) -> tuple[str, Tensor, Case] | None:
    """Each trainable token's share in the loss: d loss / d token loss, or d loss / d logp over -A on-policy."""
    if not bool(case.trainable.any()):
        raise case.cannot("no token trains")
    options = {**subject.options, **dict.fromkeys(subject.penalties, 0.0)}
    case = replace(voting(case), within=None if case.within is None else voting(case.within))
    if subject.reading("token_loss"):
        seen, divisor, leaf = run(subject, case, options), torch.ones(case.segments.num_tokens).double(), "token_loss"
    elif subject.reading("logp_current") and subject.reading("advantage", "outcome"):
        case, leaf = _plain(subject, case), "logp_current"
        seen = run(subject, case, options)
        divisor = -(case.flat("advantage") if subject.reading("advantage") else case.flat("outcome"))
    else:
        return None
    name = _scalar_loss(seen, case)
    if name not in seen.gradients:
        raise case.cannot(f"{name} has no gradient")
    return name, seen.gradients[name][leaf][case.trainable] / divisor, case


def _plain(subject: Subject, case: Case) -> Case:
    """On-policy, all tokens kept, one advantage per sequence, none near zero: then the loss is -A times a share."""
    own = case.tokens["advantage"]
    # A loss that uses the mean advantage of a sequence averages its tokens in the same way.
    own = torch.stack([own[case.owner == row].mean() for row in range(case.num_sequences)])[case.owner]
    away = torch.where(own >= 0, 0.5, -0.5).double() + own
    outcome = torch.where(case.sequences["outcome"] >= 0, 0.5, -0.5).double() + case.sequences["outcome"]
    flags = {n: torch.full_like(case.tokens[n], n == "keep") for n in ("keep", "selected") if n in case.tokens}
    everyone = torch.ones(case.num_sequences, dtype=torch.bool)
    plain = agreed(case).with_tokens(advantage=away, **flags).with_sequences(outcome=outcome, votes=everyone)
    return subject.adapt(replace(plain, within=None if case.within is None else voting(case.within)))


def _scalar_loss(seen: Seen, case: Case) -> str:
    for name, result in of_kind(seen.results, case, "loss"):
        if result.level == "scalar":
            return name
    raise case.cannot("no scalar loss")


def candidates(case: Case) -> dict[str, Tensor]:
    """The shares of every known average, one entry per trainable token."""
    counts, owner = case.segments.token_counts.double(), case.segments.sequence_of_token
    whole = case.whole
    total, rows = float(whole.segments.num_tokens), float(whole.num_sequences)
    filled = float((whole.segments.token_counts > 0).sum())
    groups = case.sequences["group"]
    in_group = torch.stack([counts[groups == g].sum() for g in groups]) if len(groups) else counts
    num_groups = float(len({int(g) for g in groups}))
    one = torch.ones(case.segments.num_tokens, dtype=torch.float64)
    return {
        "token_sum": one,
        "token_mean": one / total,
        "sequence_mean_token_mean": 1 / (filled * counts[owner]),
        "sequence_mean_token_mean over all rows": 1 / (rows * counts[owner]),
        "sequence_mean_token_sum": one / filled,
        "sequence_mean_token_sum over all rows": one / rows,
        "sequence_sum_token_mean": 1 / counts[owner],
        "group_mean_token_mean": 1 / (num_groups * in_group[owner]),
    }


def _fits(case: Case, share: Tensor) -> dict[str, float]:
    """The averages that give these shares up to one common factor, with the factor."""
    found: dict[str, float] = {}
    for name, expected in candidates(case).items():
        factor = share / expected
        if (
            bool(torch.isclose(factor, factor[0].expand_as(factor), rtol=1e-5, atol=1e-9).all())
            and float(factor[0]) > 0
        ):
            found[name] = float(factor[0])
    return found


def known_average(subject: Subject, case: Case) -> str | None:
    """The name of the average that a loss uses; None where it is ambiguous or unknown."""
    found = token_shares(subject, case)
    doubled_up = token_shares(subject, doubled(case))
    if found is None or doubled_up is None:
        return None
    first, second = _fits(found[2], found[1]), _fits(doubled_up[2], doubled_up[1])
    both = [k for k, c in first.items() if k in second and abs(second[k] - c) <= 1e-4 * abs(c)]
    exact = [k for k in both if abs(first[k] - 1) <= 1e-4]
    return (exact or both)[0] if both else None
