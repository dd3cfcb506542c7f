"""How sampler and trainer differ, by hand: probabilities of three tokens in two sequences of 2 and 1."""

import json
from math import exp, inf, log, sqrt

import pytest
import torch

from trimtab.signal import Metrics, SignalBatch, Stage, part, prepare, recipe, use_metrics
from trimtab.signal.agreement import Agreement, Quotient
from trimtab.signal.layout import Segments
from trimtab.signal.metric_names import metric_spec
from trimtab.signal.metrics import as_data, from_data
from trimtab.signal.mismatch import mismatch

OLD, ROLLOUT = [0.5, 0.4, 0.2], [0.25, 0.8, 0.2]
RATIO = [2.0, 0.5, 1.0]


def logs(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def batch(**fields: object) -> SignalBatch:
    return SignalBatch.from_tokens(
        [2, 0, 1], reward=[1.0, 0.0, 0.0], group=[0, 0, 0], logp_old=logs(OLD), logp_rollout=logs(ROLLOUT), **fields
    )


def numbers(given: SignalBatch, name: str = "start_engine_mismatch", **changes: object) -> dict[str, float]:
    with use_metrics("many"):
        return prepare(given, recipe(name, **changes))[0].metrics.numbers()


def test_every_number_is_what_its_name_says() -> None:
    found = numbers(batch())
    k3 = [r - 1 - log(r) for r in RATIO]
    back = [1 / r - 1 + log(r) for r in RATIO]
    middle = [(p + q) / 2 for p, q in zip(OLD, ROLLOUT, strict=True)]
    js = [
        sum(x / m - 1 - log(x / m) for x in (p, q)) / 2 for p, q, m in zip(OLD, ROLLOUT, middle, strict=True)
    ]  # fmt: skip
    expected = {
        "chi2_engine/token_mean": (4 + 0.25 + 1) / 3 - 1,
        "chi2_engine/sequence_mean": 0.0,  # the products are 2 * 0.5 and 1
        "fold_engine/token_mean": (2 + 2 + 1) / 3,
        "k3_reverse_engine/token_mean": sum(back) / 3,
        "js_engine/token_mean": sum(js) / 3,
        "probability_gap_engine/token_mean": 0.65 / 3,  # 0.25, 0.4, 0
        "probability_gap_engine/token_max": 0.4,
        "probability_gap_engine/token_std": sqrt((0.0625 + 0.16) / 3 - (0.65 / 3) ** 2),
        "probability_engine/token_correlation": _pearson(OLD, ROLLOUT),
        "perplexity_old/sequence_mean": (1 / sqrt(0.5 * 0.4) + 5) / 2,
        "perplexity_rollout/sequence_mean": (1 / sqrt(0.25 * 0.8) + 5) / 2,
        "perplexity_ratio/sequence_mean": 1.0,
        "k3_engine_kept/token_mean": sum(k3) / 3,
        "k3_engine_per_entropy/token": sum(k3) / -sum(map(log, ROLLOUT)),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-14), name
        assert metric_spec(name).name == name
    assert "k3_engine_rejected/token_mean" not in found  # nothing was rejected


def _pearson(x: list[float], y: list[float]) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    joint = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return joint / sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def test_mismatch_of_rejected_tokens_is_apart_from_that_of_kept_ones() -> None:
    band = Stage(part("keep.token_band", band=(0.6, 3.0)), ratio="engine")
    found = numbers(batch(), correction=(band,))
    assert found["k3_engine_rejected/token_mean"] == pytest.approx(0.5 - 1 + log(2))
    assert found["k3_engine_kept/token_mean"] == pytest.approx((2 - 1 - log(2)) / 2)


def test_none_of_them_is_computed_unless_it_is_asked_for() -> None:
    plain = prepare(batch(), recipe("start_engine_mismatch"))[0].metrics.numbers()
    assert not [name for name in plain if name.startswith(("chi2", "fold", "js", "perplexity", "probability"))]
    assert numbers(batch()).items() >= plain.items()


def test_what_the_critic_explains() -> None:
    # returns 2, 0 and 1 (one token per sequence, no discount), values 1, 1, 1 and 2, 0, 1 and 0, 2, 1
    for values, expected in (([1.0, 1.0, 1.0], 0.0), ([2.0, 0.0, 1.0], 1.0), ([0.0, 2.0, 1.0], -3.0)):
        value = torch.tensor(values, dtype=torch.float64)
        given = SignalBatch.from_tokens(
            [1, 1, 1], reward=[2.0, 0.0, 1.0], group=[0, 0, 0], logp_old=logs(OLD), logp_ref=logs(OLD),
            value_old=value, ended=[True] * 3,
        )  # fmt: skip
        assert numbers(given, "ppo")["value_old/explained_variance"] == pytest.approx(expected)


def test_constant_groups_are_all_right_or_all_wrong() -> None:
    # four groups: 1 1, 0 0, 0 1, -1 -1
    given = SignalBatch.from_tokens([1] * 8, reward=[1, 1, 0, 0, 0, 1, -1, -1], group=[0, 0, 1, 1, 2, 2, 3, 3])
    found = prepare(given, recipe("reinforce"))[0].metrics.numbers()
    assert found["constant_groups/group_fraction"] == 0.75
    assert found["constant_groups/all_right_group_fraction"] == 0.25
    assert found["constant_groups/all_wrong_group_fraction"] == 0.5


@pytest.mark.parametrize("reads", ["correlation", "explained"])
def test_agreement_merges_to_what_the_whole_has(reads: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, dtype=torch.float64)
    y = x + torch.randn(9, dtype=torch.float64)
    whole, chosen = Agreement.of(x, y, reads), torch.arange(9) < 4
    parts = Agreement.of(x, y, reads, chosen).merge(Agreement.of(x, y, reads, ~chosen))
    assert float(parts.value()[0]) == pytest.approx(float(whole.value()[0]), rel=1e-12)
    nothing = Agreement.of(x[:0], y[:0], reads)
    assert float(nothing.merge(whole).value()[0]) == pytest.approx(float(whole.value()[0]), rel=1e-12)
    kept = from_data(json.loads(json.dumps(as_data(Metrics({"a": parts}, {})))))
    assert kept.numbers()["a"] == pytest.approx(float(whole.value()[0]), rel=1e-12)


def test_without_variance_there_is_no_agreement_to_report() -> None:
    one, two = torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    entries = {
        "a": Agreement.of(one, two, "correlation"),
        "b": Agreement.of(one, two, "explained"),
        "c": Quotient.of(two, one * 0),
    }
    assert Metrics(entries, {}).numbers() == {}
    assert Metrics({"c": Quotient.of(two, one).merge(Quotient.of(two, one))}, {}).numbers() == {"c": 2.0}


def test_a_log_ratio_that_is_huge_stays_finite() -> None:
    given = SignalBatch.from_tokens(
        [1, 1], reward=[1.0, 0.0], group=[0, 0], logp_old=torch.tensor([-100.0, -1e-6]),
        logp_rollout=torch.tensor([-1e-6, -100.0]),
    )  # fmt: skip
    found = numbers(given)
    assert all(abs(value) < inf for value in found.values())
    assert found["fold_engine/token_mean"] == pytest.approx(exp(20))


@pytest.mark.parametrize("chosen", [None, torch.tensor([True] * 4)])
def test_an_agreement_of_float32_numbers_is_taken_in_float64(chosen: torch.Tensor | None) -> None:
    """Squares of 4097 and 4099 need 25 bits; in float32 the spread of numbers this large would be rounded away."""
    x = torch.tensor([4097.0, -4097.0, 4099.0, -4099.0]) + 2.0**20
    found = Agreement.of(x, x.flip(0), "explained", chosen)
    exact = [float(one) for one in x]
    mean = sum(exact) / 4
    assert found.m2_x.item() == sum((one - mean) ** 2 for one in exact)
    assert found.joint.item() == sum((a - mean) * (b - mean) for a, b in zip(exact, exact[::-1], strict=True))


def test_a_quotient_of_float32_numbers_is_summed_in_float64() -> None:
    many = torch.tensor([2.0**24, 1.0, 1.0])
    assert Quotient.of(many, torch.ones(1)).total.item() == 2**24 + 2
    assert Quotient.of(torch.ones(1), many).over.item() == 2**24 + 2


def test_a_single_token_tells_the_two_directions_apart() -> None:
    # p = 1/2, q = 1/4: ratio 2, and back 1/2 - 1 + log 2; the middle is 3/8, so p / m = 4/3 and q / m = 2/3
    found = mismatch(logs([0.5]), logs([0.25]), Segments.from_counts(torch.tensor([1]), 1), torch.tensor([True]))
    numbers = Metrics(found, {}).numbers()
    assert numbers["k3_reverse_engine/token_mean"] == pytest.approx(log(2) - 0.5)
    assert numbers["k3_engine_kept/token_mean"] == pytest.approx(1 - log(2))
    assert numbers["js_engine/token_mean"] == pytest.approx((4 / 3 - 1 - log(4 / 3) + 2 / 3 - 1 - log(2 / 3)) / 2)
    assert numbers["perplexity_ratio/sequence_mean"] == pytest.approx(0.5)
    # k3 = 1 - log 2 over -log q = 2 log 2
    assert numbers["k3_engine_per_entropy/token"] == pytest.approx((1 - log(2)) / (2 * log(2)))


def test_float32_log_probs_are_compared_in_float64() -> None:
    torch.manual_seed(0)
    old, rollout = -torch.rand(50) * 5, -torch.rand(50) * 5
    who = (Segments.from_counts(torch.tensor([20, 30]), 50), torch.arange(50) % 3 > 0)
    narrow, wide = mismatch(old, rollout, *who), mismatch(old.double(), rollout.double(), *who)
    assert Metrics(narrow, {}).numbers() == pytest.approx(Metrics(wide, {}).numbers(), rel=1e-12)
