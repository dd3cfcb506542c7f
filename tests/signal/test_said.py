"""What is said and measured along the way: warnings come when they are true, metrics count what their name says."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.golden.exact import assert_is, flags, lengths, log, tokens

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import KL, SignalBatch, SignalState, Stage, Term, decide, part, prepare, recipe, step, token_loss
from trimtab.signal.diagnostics import Population, stage_metrics
from trimtab.signal.fields import Field
from trimtab.signal.metric_kind import Extremum, Mean, SampleSize, Spread, Sum
from trimtab.signal.metrics import Metrics
from trimtab.signal.stages import Decisions
from trimtab.signal.tally import Tally


def said(effects: list[float], name: str = "keep.token_band/alone", window: int = 3) -> list[tuple[str, ...]]:
    state, found = SignalState(window=window), []
    for effect in effects:
        state, words = state.observe({name: effect})
        found.append(words)
    return found


def test_a_stage_that_rejects_everything_over_a_whole_window_is_named() -> None:
    words = said([1.0, 1.0, 1.0, 1.0])
    assert words[:2] == [(), ()]
    for at in (2, 3):
        assert len(words[at]) == 1
        assert words[at][0].startswith("keep.token_band: rejects everything: its effect was exactly 1 in the last 3")


def test_a_stage_that_rejects_almost_everything_is_not() -> None:
    assert said([1.0, 1.0, 0.999]) == [(), (), ()]
    assert said([0.5, 1.0, 1.0]) == [(), (), ()]
    assert said([0.0, 1.0, 0.0, 1.0]) == [(), (), (), ()]


def test_only_a_stage_that_rejects_can_reject_everything() -> None:
    assert said([1.0, 1.0, 1.0], "importance.truncated/alone") == [(), (), ()]
    assert said([1.0, 1.0, 1.0], "reward.soft_overlong/effect") == [(), (), ()]
    assert said([1.0, 1.0, 1.0], "kept/token_fraction") == [(), (), ()]


def test_the_window_is_twenty_batches_and_forgets_what_lies_before() -> None:
    assert SignalState().window == 20
    words = said([0.3, *[0.0] * 20], window=20)
    assert [bool(one) for one in words] == [False] * 20 + [True]


def test_drift_is_worth_a_warning_above_one_percent() -> None:
    """And only where no part of the recipe accounts for it."""
    gap = {"logratio_total/token_abs_mean": 0.01}
    assert SignalState().observe(gap, recipe("start_on_policy"))[1] == ()
    gap = {"logratio_total/token_abs_mean": 0.0101}
    assert "0.0101 per token" in SignalState().observe(gap, recipe("start_on_policy"))[1][0]
    assert SignalState().observe(gap)[1] == ()
    assert SignalState().observe(gap, recipe("reinforce_tis"))[1] == ()
    assert SignalState().observe(gap | {"logratio_update/token_abs_mean": 0.0}, recipe("grpo"))[1] == ()


@contextmanager
def heard() -> Iterator[list[str]]:
    words: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield words
    words += [str(one.message) for one in caught]


ROWS = {"reward": [1.0, 0.0], "group": [0, 0]}


def test_a_policy_without_gradient_is_named_unless_gradients_are_off() -> None:
    logp, mask = torch.full((2, 2), -1.0), [[1, 1], [1, 1]]
    with heard() as words:
        trimtab.loss(logp, recipe="start_on_policy", mask=mask, **ROWS)
    assert words == ["loss: logp carries no gradient, so nothing will train. Do not detach it."]
    with heard() as words, torch.no_grad():
        trimtab.loss(logp, recipe="start_on_policy", mask=mask, **ROWS)
    assert words == []
    with heard() as words:
        trimtab.loss(logp.requires_grad_(), recipe="start_on_policy", mask=mask, **ROWS)
    assert words == []


def test_a_step_without_tokens_is_named() -> None:
    logp = torch.full((2, 2), -1.0, requires_grad=True)
    with heard() as words:
        loss, _ = trimtab.loss(logp, recipe="start_on_policy", mask=torch.zeros(2, 2), **ROWS)
    assert words == ["loss: no token is trainable in a sequence that trains, so the loss is 0."]
    assert float(loss) == 0


def test_on_top_counts_only_tokens_that_nothing_else_rejected_before() -> None:
    # Four tokens. `before` has dropped the first, `a` rejects the first two, `b` the second and the third.
    segments = lengths(2, 2)

    def held(values: torch.Tensor) -> Field:
        return Field(values, segments)

    keeps = {"a": held(flags(0, 0, 1, 1)), "b": held(flags(1, 0, 0, 1))}
    tally, trains = Tally(segments), Population(held(flags(1, 1, 1, 1)), held(tokens(1.0, -1.0, -1.0, 1.0)))
    decisions = Decisions(keeps, {"w": held(tokens(3.0, 1.5, 1.0, 2.0))}, {})
    stage_metrics(tally, decisions, trains, before=held(flags(0, 1, 1, 1)))
    numbers = Metrics(tally.entries(), {}).numbers()
    assert (numbers["a/alone"], numbers["b/alone"]) == (0.5, 0.5)
    # `a` on top: its first token was gone before, its second is b's too; `b` on top: the third token
    assert (numbers["a/on_top"], numbers["b/on_top"]) == (0.0, 0.25)
    assert (numbers["a/rejected_positive_tokens"], numbers["a/rejected_negative_tokens"]) == (0.5, 0.5)
    # sequence 0 loses both tokens to `a`; `b` leaves one in each
    assert (numbers["a/rejected_sequences"], numbers["b/rejected_sequences"]) == (0.5, 0.0)
    # importance 3, 1.5, 1, 2: mean distance to 1 is 3.5 / 4; of what is left (the last token) it is 1
    assert (numbers["w/alone"], numbers["w/on_top"], numbers["w/importance_mean"]) == (0.875, 1.0, 1.875)


def test_metrics_of_float32_are_summed_in_float64() -> None:
    """In float32, 16777216 + 1 is 16777216 again."""
    values = torch.tensor([16777216.0, 1.0, 1.0])
    numbers = Metrics({"sum": Sum.of(values), "mean": Mean.of(values)}, {}).numbers()
    assert numbers == {"sum": 16777218.0, "mean": 5592406.0}
    thousandth = torch.full((3,), 1e-3)
    joined = Sum.of(torch.tensor([16777216.0])).merge(Sum.of(thousandth))
    assert Metrics({"sum": joined}, {}).numbers()["sum"] == pytest.approx(16777216.003, abs=1e-6)
    for metric in (Mean.of(values), Spread.of(values), SampleSize.of(values), Sum.of(values), Extremum.of(values, 1)):
        assert metric.value()[0].dtype == torch.float64


def test_kl_and_entropy_keep_their_own_metrics_coefficients_and_signs() -> None:
    batch = SignalBatch.from_padded(
        [[1, 1]], reward=[0.0], group=[0], logp_old=log(0.5, 0.5)[None], logp_ref=log(0.25, 0.5)[None]
    )
    chosen = recipe("reinforce", kl=KL(part("kl.k1"), 0.5, "loss"), entropy=Term(0.25), nll=Term(2.0))
    prepared, _ = prepare(batch, chosen)
    (micro,) = decide(next(prepared.updates(1))).split(num=1)
    logp = log(0.5, 0.5).requires_grad_()
    result = step([token_loss(micro, logp, entropy=tokens(3.0, 5.0))])
    numbers = result.metrics.numbers()
    ln2 = float(log(2.0))
    # one sequence, tokens add up: KL log 2 + 0, entropy 8 (a bonus), nll 2 log 2
    assert numbers["kl_ref/token_mean"] == pytest.approx(ln2 / 2)
    assert numbers["entropy/token_mean"] == 4.0
    assert numbers["loss/kl"] == pytest.approx(0.5 * ln2)
    assert numbers["loss/entropy"] == pytest.approx(-0.25 * 8)
    assert numbers["loss/nll"] == pytest.approx(2 * 2 * ln2)
    assert numbers["loss/policy"] == 0.0
    assert float(result.loss) == pytest.approx(0.5 * ln2 - 2 + 4 * ln2)


@pytest.mark.parametrize("ends", [[], [1, 4], [0, 3], [0, 5], [0, 3, 2, 4]])
def test_boundaries_that_do_not_cover_the_packed_row_are_refused(ends: list[int]) -> None:
    with pytest.raises(SignalError, match="cu_seqlens"):
        SignalBatch.from_packed([1, 1, 1, 1], torch.tensor(ends, dtype=torch.long), reward=[1.0], group=[0])


def test_boundaries_may_hold_empty_sequences() -> None:
    batch = SignalBatch.from_packed([1, 0, 1, 1], [0, 0, 2, 4, 4], reward=[0.0] * 4, group=[0] * 4)
    assert_is(batch.segments.token_counts, 0, 1, 2, 0)
    nothing = SignalBatch.from_packed(torch.zeros(0), [0], reward=[], group=[])
    assert (nothing.levels.num_sequences, nothing.num_tokens) == (0, 0)


def test_a_correction_inside_the_recipe_is_what_silences_drift() -> None:
    band = Stage(part("keep.token_band", band=(0.5, 2.0)), ratio="update")
    gap = {"logratio_total/token_abs_mean": 0.5}
    assert SignalState().observe(gap, recipe("reinforce", correction=(band,), old="recompute"))[1] != ()
