"""Faults planted into the fast path alone: each shows against the formulas as they are written."""

import importlib
from dataclasses import replace
from functools import cache

import pytest
from mutants.edit import edited
from tests.signal.paths import Found, batch_of, on, recipes, run, worst_difference

FUSED, PER_SEQUENCE, PER_GROUP = "fast.fused", "fast.per_sequence", "fast.per_group"
FAULTS = [
    (FUSED, "clipped", "exceeds(bounded, free)", "exceeds(free, bounded)"),
    (FUSED, "clipped", "exceeds(bounded, free)", "bounded >= free"),
    (FUSED, "clipped", "exceeds(bounded, free)", "ratio.clamp(*band) != ratio"),
    (FUSED, "clipped", "zero_where(stopped, free, out=free)", "free"),
    (FUSED, "clipped", "zero_where(stopped, free, out=free)", "zero_where(stopped, free).neg_()"),
    (FUSED, "clipped", "zero_where(stopped, free, out=free)", "zero_where(stopped, given.pull)"),
    (FUSED, "clipped", "torch.maximum(free, bounded, out=bounded)", "torch.minimum(free, bounded, out=bounded)"),
    (FUSED, "dual_clipped", "zero_where(capped, slopes)", "slopes"),
    (FUSED, "dual_clipped", "(given.pull > 0) & ", ""),
    (FUSED, "covariance_clipped", "zero_where(selected, slopes)", "slopes"),
    (FUSED, "covariance_clipped", "zero_where(selected, inner)", "inner"),
    (FUSED, "clipped_importance", "slopes = bounded * given.pull", "slopes = ratio * given.pull"),
    (FUSED, "clipped_importance", '"clipped_tokens": bounded != ratio', '"clipped_tokens": bounded == ratio'),
    (FUSED, "soft_gated", "(1 - gate)", "(1 + gate)"),
    (FUSED, "soft_gated", "given.pull < 0", "given.pull > 0"),
    (FUSED, "reinforce", "given.pull.clone()", "2 * given.pull"),
    (FUSED, "policy_term", "slopes *= inside", "pass"),
    (FUSED, "policy_term", "and name not in OWN_SLOPE", ""),
    (FUSED, "policy_term", "losses.sum()", "losses.mean()"),
    (FUSED, "policy_term", "replace(given, pull=pull)", "given"),
    (FUSED, "zero_where", ".sub_(1)", ".neg_()"),
    (PER_SEQUENCE, "truncated", 'ratio.total if level == "sequence" else ratio.mean', "ratio.total"),
    (PER_SEQUENCE, "truncated", "over, under = factor > high, factor < low", "over, under = factor >= 1, factor < low"),
    (PER_SEQUENCE, "truncated", "between(factor, low, high)", "between(factor, 0.0, high)"),
    (PER_SEQUENCE, "truncated", "abs(exponent) > LOG_BOUND", "abs(exponent) > 0.1"),
    (PER_SEQUENCE, "_band", "over, under = (ratio > band[1])", "over, under = (ratio > 2 * band[1])"),
    (PER_SEQUENCE, "_band", "~(over | under)", "~over"),
    (PER_SEQUENCE, "product_band", "ratio.total", "ratio.mean"),
    (PER_SEQUENCE, "veto", "least, most = map(bounded_factor, ratio.extremes)",
        "most, least = map(bounded_factor, ratio.extremes)"),
    (PER_SEQUENCE, "veto", "(least < low)", "(most < low)"),
    (PER_SEQUENCE, "negative_drift", "< 0) & drifted", "<= 0) & drifted"),
    (PER_SEQUENCE, "negative_drift", "< 0) & drifted", "< 0) | drifted"),
    (PER_SEQUENCE, "token_mean", "segments.measures[:, 0] * keep", "segments.measures[:, 1] * keep"),
    (PER_SEQUENCE, "sequence_mean_token_mean", "tokens * _sequences", "_sequences"),
    (PER_SEQUENCE, "_sequences", 'if over == "kept"', 'if over == "all"'),
    (PER_SEQUENCE, "weights", "where(keep.values, values, 0.0)", "where(keep.values, values, values)"),
    (PER_GROUP, "mean_std", "voters - ddof", "voters - 1"),
    (PER_GROUP, "mean_std", "result / (spread + eps)", "result / spread"),
    (PER_GROUP, "mean_std", "if not votes.all()", "if False"),
    (PER_GROUP, "mean_std", "voters >= 2", "voters >= 3"),
    (PER_GROUP, "leave_one_out", "voters.voters - votes", "voters.voters"),
    (PER_GROUP, "leave_one_out", "values - others, 0.0", "values + others, 0.0"),
    ("ratio", "Ratio._walk", "_around_mean(exact, 1 + here / num)", "_around_mean(exact, 1.0)"),
    ("ratio", "_around_mean", "- count * mean * mean", "- count"),
    ("ratio", "Ratio._walk", "- num\n", "\n"),
    ("ratio", "Ratio._walk", "torch.abs(block, out=spare).sum(", "block.sum("),
    ("ratio", "Ratio._product", " or not self.is_within", ""),
    ("ratio", "Ratio._product", "held.value.mul_(second.value)", "held.value"),
    ("ratio", "Ratio._walk", " and is_one and self.is_within", ""),
    ("tally", "Tally._flagged", "self._row(flags.tally), self._row(among.values)", "self._row(flags.tally), 0"),
    ("tally", "Tally._flagged", "0 if among is None else self._row(among.values)", "0"),
    ("tally", "Tally.share", "among if of is None else of", "among"),
    ("tally", "Tally._products", "[(table * segments.measures[:, 0]) @ table.T", "[table @ table.T"),
    ("fields", "Field.sequences", "self.values & segments.filled", "self.values"),
]  # fmt: skip
STRESSED = batch_of(seed=1)
for earlier in ("logp_old", "logp_rollout"):
    STRESSED[earlier][::5] = -25.0
"""Some ratios beyond the bound."""
FAR, NEAR = batch_of(seed=2), batch_of(seed=2)
for name, far, near in (("logp_rollout", -30.0, -15.0), ("logp_old", -15.0, -25.0), ("logp_current", -0.5, -1.0)):
    FAR[name][::5], NEAR[name][::5] = far, near
"""ratio_total beyond the bound and its factors not; a factor beyond the bound and ratio_total not."""
RUNS = [(one, batch_of()) for one in recipes()] + [(one, STRESSED) for one in recipes()[:9]]
RUNS += [(replace(one, correction=()), STRESSED) for one in recipes()[:7]]  # nothing far is rejected
RUNS += [(recipes()[2], FAR), (recipes()[2], NEAR)]


@cache
def truth() -> list[Found]:
    with on("reference"):
        return [run(one, given) for one, given in RUNS]


def worst() -> float:
    """The largest distance from the formulas as written, over every kind of recipe; the first large one is enough."""
    error = 0.0
    with on("fast"):
        for (one, given), expected in zip(RUNS, truth(), strict=True):
            error = max(error, worst_difference(run(one, given), expected))
            if error > 1e-6:
                break
    return error


def test_without_a_fault_there_is_no_difference() -> None:
    assert worst() < 1e-12


def plant(monkeypatch: pytest.MonkeyPatch, module: str, place: str, old: str, new: str) -> None:
    home = importlib.import_module(f"trimtab.signal.{module}")
    *outer, name = place.split(".")
    owner = getattr(home, outer[0]) if outer else home
    was = vars(owner)[name]
    if isinstance(was, property):
        monkeypatch.setattr(owner, name, property(edited(was.fget, old, new)))
        return
    now = edited(was, old, new)
    monkeypatch.setattr(owner, name, now)
    for table in ("FUSED", "STAGES", "WEIGHTINGS", "PER_GROUP"):
        for key, known in list(getattr(home, table, {}).items()):
            if known is was:
                monkeypatch.setitem(getattr(home, table), key, now)
    loss_term = importlib.import_module("trimtab.signal.loss_term")
    decision = importlib.import_module("trimtab.signal.decision")
    for other, known in ((loss_term, name), (decision, "per_sequence_weights" if name == "weights" else name)):
        if vars(other).get(known) is was:
            monkeypatch.setattr(other, known, now)


@pytest.mark.parametrize(
    ("module", "place", "old", "new"),
    [
        pytest.param(*fault, id=f"{fault[1]}-{number}", marks=pytest.mark.slow if number % 3 else ())
        for number, fault in enumerate(FAULTS)
    ],
)
def test_a_fault_shows(module: str, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _ = truth()  # before the fault
    plant(monkeypatch, module, place, old, new)
    try:
        error = worst()
    except (RuntimeError, ValueError, TypeError, ArithmeticError):
        return  # an error aloud
    assert error > 1e-9
