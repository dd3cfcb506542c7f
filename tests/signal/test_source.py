"""How sampler and trainer differ for each source, by hand: probabilities of tokens of three episodes."""

from math import exp, log

import pytest
import torch
from tests.golden.exact import log as logs

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, metric_spec, prepare, use_metrics
from trimtab.signal.source import MOST_SOURCES


def batch(source: object = None, **fields: object) -> SignalBatch:
    """Ratios 2, 1/2 and 1 in episode 0, 4 in episode 1, 1/4 in episode 2, which is not scored."""
    return SignalBatch.from_tokens(
        [2, 1, 1, 1], reward=[1.0, 0.0, 2.0], group=[0, 0, 0], episode=[0, 0, 1, 2], scored=[1, 1, 0], source=source,
        **{"logp_old": logs(0.5, 0.4, 0.2, 0.8, 0.1), "logp_rollout": logs(0.25, 0.8, 0.2, 0.2, 0.4), **fields},
    )  # fmt: skip


def numbers(given: SignalBatch) -> dict[str, float]:
    return prepare(given, "reinforce")[0].metrics.numbers()


def told(given: SignalBatch) -> dict[str, float]:
    return {name: number for name, number in numbers(given).items() if "source" in name}


def test_each_source_has_the_mismatch_of_its_own_tokens() -> None:
    found = numbers(batch([7, 3, 7]))
    expected = {
        "logratio_engine_source_7/token_abs_mean": (log(2) + log(2) + 0 + log(4)) / 4,
        "logratio_engine_source_3/token_abs_mean": log(4),
        "k3_engine_source_7/token_mean": (2 - 1 - log(2) + 0.5 - 1 + log(2) + 0 + 0.25 - 1 + log(4)) / 4,
        "k3_engine_source_3/token_mean": 4 - 1 - log(4),
    }
    assert told(batch([7, 3, 7])) == pytest.approx(expected, rel=1e-12)
    for name, short in (("logratio_engine", "token_abs_mean"), ("k3_engine", "token_mean")):
        parts = 4 * expected[f"{name}_source_7/{short}"] + expected[f"{name}_source_3/{short}"]
        assert found[f"{name}/{short}"] == pytest.approx(parts / 5, rel=1e-12)
        assert metric_spec(f"{name}_source_7/{short}").name == f"{name}_source_*/{short}"


def test_parts_of_a_batch_merge_to_what_the_whole_has() -> None:
    def part(places: list[int], source: list[int]) -> SignalBatch:
        given = {"logp_old": logs(0.5, 0.4, 0.2)[places], "logp_rollout": logs(0.25, 0.8, 0.8)[places]}
        return SignalBatch.from_tokens(
            [1] * len(places), reward=[0.0] * len(places), group=places, source=source, **given
        )

    whole = prepare(part([0, 1, 2], [1, 0, 1]), "reinforce")[0].metrics
    merged = prepare(part([0], [1]), "reinforce")[0].metrics.merge(
        prepare(part([1, 2], [0, 1]), "reinforce")[0].metrics
    )
    names = [name for name in whole.numbers() if "source" in name]
    assert len(names) == 4
    assert {n: merged.numbers()[n] for n in names} == pytest.approx({n: whole.numbers()[n] for n in names}, rel=1e-12)


def test_a_source_without_tokens_has_no_number() -> None:
    given = SignalBatch.from_tokens(
        [1, 0], reward=[1.0, 0.0], group=[0, 0], source=[0, 1], logp_old=logs(0.5), logp_rollout=logs(0.5)
    )
    assert told(given) == {"logratio_engine_source_0/token_abs_mean": 0.0, "k3_engine_source_0/token_mean": 0.0}


def test_nothing_is_measured_without_sources_or_without_both_policies() -> None:
    assert told(batch()) == {}
    with use_metrics("many"):
        assert told(batch()) == {}
    assert told(batch([0, 1, 2], logp_rollout=None)) == {}
    assert told(batch([0, 1, 2], logp_old=None)) == {}


def test_a_log_ratio_that_is_huge_stays_finite() -> None:
    far = {"logp_old": torch.full((5,), -1.0), "logp_rollout": torch.tensor([-101.0, -1.0, -1.0, -1.0, -1.0])}
    assert told(batch([0, 0, 0], **far))["k3_engine_source_0/token_mean"] == pytest.approx((exp(20) - 1 - 100) / 5)


def many(count: int) -> SignalBatch:
    ones = -torch.ones(count)
    return SignalBatch.from_tokens(
        [1] * count, reward=[0.0] * count, group=[0] * count, source=range(count), logp_old=ones, logp_rollout=ones
    )


def test_sources_are_counted() -> None:
    assert len(told(many(MOST_SOURCES))) == 2 * MOST_SOURCES
    with pytest.raises(
        SignalError, match="source names 65 different sources, and at most 64 have metrics of their own"
    ):
        prepare(many(65), "reinforce")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([0, 1], r"source has shape \[2\] for 3 episodes"),
        ([0, 1, -1], "source is -1 at episode 2, and a source is named by a number from 0"),
        (["math", "code", "math"], "source: cannot be read as numbers"),
    ],
)
def test_wrong_sources_are_refused(source: object, says: str) -> None:
    with pytest.raises(SignalError, match=says):
        batch(source)


def test_log_ratios_of_a_source_are_taken_in_double_precision() -> None:
    """In float32, -0.1 and a sampler's -1e-9 would be -0.1 apart."""
    old, rollout = torch.tensor([-0.1] * 5), torch.tensor([-1e-9] * 5)
    found = told(batch([7, 7, 7], logp_old=old, logp_rollout=rollout))
    expected = float(rollout[0].double() - old[0].double())
    assert found["logratio_engine_source_7/token_abs_mean"] == pytest.approx(expected, rel=1e-12)
