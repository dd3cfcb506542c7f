"""Each way in which a run goes wrong is named, and a healthy run is left in peace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.made import RECIPE, config, write_run

from trimtab.report import course, drift, fault, verdict, work
from trimtab.report.compare import comparison
from trimtab.report.data import RunData, Series, read_run


def run_with(tmp_path: Path, kind: str = "healthy", values: dict[str, Any] | None = None, **changed: Any) -> RunData:
    """A made run with some metrics replaced: by a constant, or by a function of the step."""
    run = read_run(write_run(tmp_path / "run", kind, **changed))
    given = {
        name: value if callable(value) else (lambda _, value=value: value) for name, value in (values or {}).items()
    }
    lines = tuple(line | {name: of(line["step"]) for name, of in given.items()} for line in run.metrics)
    return replace(run, metrics=lines)


def status(run: RunData) -> dict[str, str]:
    return {check.anchor: check.status for check in verdict.checks(run) if check.status not in ("fine", "unknown")}


def test_a_healthy_run_has_nothing_against_it(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    assert status(run) == {}
    assert verdict.answer(run) == ("fine", "No fault found: 11 checks of the signal, all inside their bounds.")
    assert fault.changes(run) == []


def test_what_a_watch_found_is_the_verdict(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    found = replace(run, findings=({"name": "rollout_shifted", "step": 7, "text": "…"},))
    assert verdict.answer(found) == ("fault", "Probably: the watch found rollout_shifted. The run still learned.")
    inert = replace(run, findings=({"name": "inert_importance", "step": 16, "text": "…"},))
    assert verdict.answer(inert)[0] == "watch"


def test_a_drift_that_nobody_split_is_judged_as_a_whole(tmp_path: Path) -> None:
    run = run_with(tmp_path, values={"logratio_engine/token_abs_mean": 0.2})
    names = ("drift/engine_abs_mean", "drift/staleness_abs_mean")
    bare = [{name: value for name, value in line.items() if not name.startswith("drift/")} for line in run.metrics]
    whole = replace(run, metrics=tuple(bare), config={"recipe": "a plain one"})
    assert verdict.answer(whole)[0] == "fault"
    assert "drift from the sampler 0.2 at the end" in verdict.answer(whole)[1]
    assert all(run.series(name) for name in names)
    assert verdict.checks(run)[0].name == "engine drift"  # split, it is not judged twice


def test_a_stale_collapse_is_named_with_its_first_cause(tmp_path: Path) -> None:
    run = run_with(tmp_path, "collapsing")
    worst, said = verdict.answer(run)
    assert worst == "fault"
    assert said.startswith("Probably: effective sample size")
    assert "Staleness drift came first" in said
    assert fault.since(run, fault.changes(run)).startswith("Since step 31: these metrics left their early range")
    assert [name for name, _, _ in fault.changes(run)][:2] == ["drift/staleness_abs_mean", "ess_total/sequence"]
    assert "eval/accuracy" not in {name for name, _, _ in fault.changes(run)[:2]}


@pytest.mark.parametrize(
    ("metric", "value", "anchor", "expected"),
    [
        ("drift/engine_abs_mean", 0.05, "drift-engine", "corrected"),
        ("ess_total/sequence", 0.2, "ess-near-zero", "watch"),
        ("ess_total/sequence", 0.05, "ess-near-zero", "fault"),
        ("kept/token_fraction", 0.3, "everything-rejected", "watch"),
        ("kept/token_fraction", 0.0, "everything-rejected", "fault"),
        ("rollout/ended_fraction", 0.7, "answers-cut-off", "watch"),
        ("reward/error", 256, "reward-errors", "fault"),
        ("train/nonfinite", lambda step: float(step == 50), "non-finite", "watch"),
        ("train/grad_norm", lambda step: 50.0 if step == 7 else 0.5, "gradient-spikes", "watch"),
    ],
)
def test_each_symptom_is_named(tmp_path: Path, metric: str, value: Any, anchor: str, expected: str) -> None:
    assert status(run_with(tmp_path, values={metric: value})) == {anchor: expected}


def test_drift_is_a_fault_only_where_nothing_corrects_it(tmp_path: Path) -> None:
    large = {"drift/staleness_abs_mean": 0.5}
    assert status(run_with(tmp_path / "a", values=large)) == {"drift-staleness": "corrected"}
    parts = [part for part in RECIPE["parts"] if part["does"] != "correct"]
    plain = config(0) | {"recipe": RECIPE | {"parts": parts}}
    assert status(run_with(tmp_path / "b", values=large, config=plain)) == {"drift-staleness": "fault"}


def test_a_sampler_that_differs_and_is_corrected_is_no_fault(tmp_path: Path) -> None:
    """The showcase: drift is there, the recipe corrects for it, and the run learned."""
    differs = {"drift/staleness_abs_mean": 0.5, "drift/engine_abs_mean": 0.02}
    assert verdict.answer(run_with(tmp_path / "a", values=differs)) == (
        "corrected",
        "No: the sampler differs (engine drift and staleness drift), the recipe corrects for it, and the run learned.",
    )
    start = {"start_accuracy": 0.97}
    still = verdict.answer(run_with(tmp_path / "b", values=differs, summary_changes=start))[1]
    assert still.startswith("No fault was found: the sampler differs (engine drift and staleness drift), the recipe")
    worse = {"held_out_accuracy": 0.2, "validation_accuracy": 0.2}
    assert status(run_with(tmp_path / "c", values=differs, summary_changes=worse))["drift-staleness"] == "watch"
    page = fault.is_the_signal_at_fault(run_with(tmp_path / "d", values=differs))
    assert page.count('class="check corrected"') == 2
    assert 'class="check watch"' not in page


def test_a_tick_says_why_it_stands_beside_a_bad_number(tmp_path: Path) -> None:
    brief = {"ess_total/sequence": lambda step: 0.021 if step in (17, 18, 40) else 0.9}
    check = next(c for c in verdict.checks(run_with(tmp_path, values=brief)) if c.anchor == "ess-near-zero")
    assert check.status == "fine"
    assert check.said == (
        "effective sample size 90.0\u00a0% at the end, 2.1\u00a0% at worst "
        "(below 30.0\u00a0% at 3 of 100 steps, which is too few to count)"
    )


def test_the_end_is_the_same_number_all_over_a_page(tmp_path: Path) -> None:
    """The median of the last five values, whatever the last one happens to be."""
    last = {"effective_batch/token_fraction": lambda step: 0.341 if step == 99 else 0.5}
    run = run_with(tmp_path, values=last)
    check = next(c for c in verdict.checks(run) if c.name == "tokens with a gradient")
    assert check.said.startswith("tokens with a gradient 50.0\u00a0% at the end")
    assert work.used(run).startswith(
        "At the end 50.0\u00a0% of the tokens carried a gradient, 50.0\u00a0% at the start"
    )


def test_rounding_is_neither_drawn_nor_a_change(tmp_path: Path) -> None:
    tiny = lambda step: 3e-7 * (1 + step / 10)  # noqa: E731
    names = (
        "logratio_total/token_abs_mean",
        "drift/engine_abs_mean",
        "drift/staleness_abs_mean",
        "drift/total_abs_mean",
    )
    run = run_with(tmp_path, values=dict.fromkeys(names, tiny))
    assert "which is rounding" in drift.agreement(run)
    assert "<svg" not in drift.agreement(run)
    assert not [name for name, _, _ in fault.changes(run) if "drift" in name or "logratio" in name]
    both = comparison([run, run], ["a", "b"])
    assert "Not at all: mean |log-ratio| per token a" in both


def test_low_entropy_is_a_fault_only_before_the_task_is_solved(tmp_path: Path) -> None:
    falling = {"entropy/token_mean": lambda step: 0.5 if step < 20 else 0.01}
    assert status(run_with(tmp_path / "a", values=falling)) == {}
    poor = {"held_out_accuracy": 0.6, "validation_accuracy": 0.6}
    run = run_with(tmp_path / "b", values=falling, summary_changes=poor)
    assert status(run)["entropy-collapse"] == "fault"
    assert next(check.since for check in verdict.checks(run) if check.anchor == "entropy-collapse") == 20


def test_reward_that_rises_alone_is_named(tmp_path: Path) -> None:
    cheated = {"rollout/reward_mean": lambda step: step / 100}
    falls = {"eval/accuracy": lambda step: 0.6 - 0.003 * step if step % 10 == 0 else None}
    stays = {"eval/accuracy": lambda step: 0.6 if step % 10 == 0 else None}
    lost = {"held_out_accuracy": 0.3, "validation_accuracy": 0.3}
    kept = {"held_out_accuracy": 0.6, "validation_accuracy": 0.6}
    anchor = "reward-without-held-out"
    assert status(run_with(tmp_path / "a", values=cheated | falls, summary_changes=lost))[anchor] == "fault"
    assert status(run_with(tmp_path / "b", values=cheated | stays, summary_changes=kept))[anchor] == "watch"


def test_a_run_that_measured_nothing_is_not_judged(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", metrics=[{"step": 0}], diagnostics=None, summary=None))
    assert verdict.answer(run) == ("unknown", "Not known: the run has no metric that would show it.")
    assert course.learned(run) == "Not known: no evaluation was written."


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (0.9, "Yes: from 50.0\u00a0%"),
        (0.52, "It did not move beyond the noise"),
        (0.2, "No, it got worse: from 50.0\u00a0%"),
    ],
)
def test_the_verdict_on_learning_knows_the_noise(tmp_path: Path, end: float, told: str) -> None:
    assert course.learned(run_with(tmp_path, summary_changes={"held_out_accuracy": end})).startswith(told)


def test_zero_and_hundred_percent_are_not_certain() -> None:
    """All 20 right before, 19 right after: nothing is known."""
    before, after = (course.Accuracy(right / 20, 20, "test") for right in (20, 19))
    assert course.compared(before, after) == "same"
    assert course.compared(course.Accuracy(1.0, 2000, "test"), course.Accuracy(0.95, 2000, "test")) == "worse"


@pytest.mark.parametrize(
    ("twin", "told"),
    [
        (0.50, "With correction it is 47.1\u00a0points better, more than the ± "),
        (0.96, "The difference of 1.1\u00a0points is within the noise of ± 2.4\u00a0points, so no claim is made."),
        (1.00, "With correction it is 2.9\u00a0points worse"),
    ],
)
def test_the_twin_is_compared_without_favour(tmp_path: Path, twin: float, told: str) -> None:
    folder = write_run(tmp_path / "run")
    _ = write_run(folder / "twin", summary_changes={"held_out_accuracy": twin})
    said = course.beside_twin(read_run(folder))
    assert told in said
    assert "one pair of runs with one seed" in said


def test_a_twin_that_was_cut_off_is_said_to_be(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    _ = write_run(folder / "twin", "interrupted", steps=50)
    assert "after 50 steps against 100 (validation against test prompts)" in course.beside_twin(read_run(folder))


@pytest.mark.parametrize(("mean", "told"), [(2e-7, "Yes: "), (2e-3, "Nearly: "), (0.2, "No: "), (None, "Not measured")])
def test_the_verdict_on_agreement_is_computed(tmp_path: Path, mean: float | None, told: str) -> None:
    line = {"step": 0, "logratio_engine/token_abs_mean": mean}
    assert drift.agreed(read_run(write_run(tmp_path / "run", metrics=[line]))).startswith(told)


def test_time_of_two_processes_is_told_apart(tmp_path: Path) -> None:
    """100 steps: 40 s sampling beside 30 s learning in 50 s: at least 20 s were spent on both at once."""
    values = {"time/sample_seconds": 0.4, "time/learn_seconds": 0.3, "time/wait_seconds": 0.1, "time/eval_seconds": 0.0}
    both = run_with(tmp_path / "a", values=values, summary_changes={"runtime": "processes", "seconds": 50.0})
    assert "for at least 20.0\u00a0s (40.0\u00a0%) both worked at once" in work.timed(both)
    assert work.spent(both) == pytest.approx(
        {"learning": 30.0, "waiting for rollouts": 10.0, "start-up, warm start, evaluation": 10.0}
    )
    one = run_with(tmp_path / "b", values=values, summary_changes={"runtime": "inline", "seconds": 100.0})
    assert work.spent(one)["sampling"] == pytest.approx(40.0)
    assert "at once" not in work.timed(one)


def test_a_stage_that_only_sees_rounding_does_not_act(tmp_path: Path) -> None:
    tiny = {f"importance.truncated/{what}": 1e-6 for what in ("alone", "on_top")}
    run = run_with(tmp_path, values=tiny)
    assert fault.acting(run) == ""
    assert "importance.truncated corrected only rounding." in fault.which_stage(run)


def test_the_sample_size_is_read_at_the_level_of_the_correction(tmp_path: Path) -> None:
    tokens = [part | {"settings": {"level": "token"}} for part in RECIPE["parts"]]
    values = {"ess_total/token": 0.9, "ess_total/sequence": 0.2}
    by_token = run_with(tmp_path / "a", values=values, config=config(0) | {"recipe": RECIPE | {"parts": tokens}})
    by_sequence = run_with(tmp_path / "b", values=values)
    assert (verdict.effective(by_token).mean, verdict.effective(by_sequence).mean) == pytest.approx((0.9, 0.2))


def test_a_short_bad_spell_is_no_verdict() -> None:
    values = [0.9] * 95 + [0.05] * 3 + [0.9] * 10
    check = verdict.judged(verdict.ESS, Series(tuple(range(108)), tuple(values)))
    assert check.status == "fine"


def at_sampler(tmp_path: Path, **values: Any) -> RunData:
    """A run whose only correction is a loss that clips at the sampler."""
    parts = [
        {"does": "policy loss", "formula": "policy_loss.geometric_clipped", "settings": {}, "how": "against rollout"}
    ]
    metrics = [{"step": step, "policy_loss.geometric_clipped/clipped_tokens": 0.12, **values} for step in range(20)]
    return read_run(
        write_run(tmp_path / "run", metrics=metrics, config=config(0) | {"recipe": RECIPE | {"parts": parts}})
    )


def test_a_loss_that_clips_at_the_sampler_is_a_correction(tmp_path: Path) -> None:
    run = at_sampler(tmp_path, **{"drift/staleness_abs_mean": 0.5, "ess_total/sequence": 0.01})
    assert fault.acting(run) == "policy_loss.geometric_clipped"
    assert "policy_loss.geometric_clipped acts: on average it clips 12.0\u00a0% of the tokens." in fault.which_stage(
        run
    )
    assert "nothing to clip" not in fault.which_stage(run)
    assert status(run) == {"drift-staleness": "corrected", "ess-near-zero": "corrected"}


def test_drift_by_age_is_read_over_all_evaluations(tmp_path: Path) -> None:
    """A steady run has one age an evaluation: 0 at first, 8 later. Tokens weigh."""
    rows = [(0, 0.01, 100), (8, 0.2, 100), (8, 0.5, 200)]
    lines = [
        {"step": i, "drift_by_age": [{"age": age, "abs_mean": mean, "tokens": tokens}]}
        for i, (age, mean, tokens) in enumerate(rows)
    ]
    page = drift.by_age(read_run(write_run(tmp_path / "run", steps=20, diagnostics=lines)))
    assert "Yes: 0.01 per token at age 0, 0.4 at age 8." in page
