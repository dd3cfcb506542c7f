"""The only place that ends a run: the last measurements, the policy, the summary, the report."""

from trimtab.rollout.engine import Sampling
from trimtab.signal.fast import shortcuts_of
from trimtab.train.checks.cautions import cautions
from trimtab.train.evaluate import Repeated, answer_greedily, evaluate_and_keep, evaluate_repeated
from trimtab.train.policy import save
from trimtab.train.record.record import Outcome, Summary
from trimtab.train.record.snapshot import checkpoint
from trimtab.train.record.steps import keep_line
from trimtab.train.run import Lead, Run
from trimtab.train.stops import why_nothing


def finish(run: Run, outcome: Outcome, stopped_by: str = "") -> Summary:
    """Checkpoint first, so that nothing is lost; then measure once on test prompts, and write what people read."""
    if run.lead is not None:
        run.lead.progress.stage("measuring on test prompts and writing the report")
    if run.tally.warm_started:
        checkpoint(run)
    tally = run.tally
    if not tally.evaluations or tally.evaluations[-1][0] != tally.steps:
        keep_line(run, {"step": tally.steps, "version": tally.steps, **evaluate_and_keep(run)})
    save(run.policy, run.folder / "model", run.world)
    return Summary.from_json(run.world.lead(lambda: _summarise(run, run.front, outcome, stopped_by).to_json()))


def _summarise(run: Run, lead: Lead, outcome: Outcome, stopped_by: str) -> Summary:
    settings, tally = run.settings, run.tally
    test = run.task.held_out("test", settings.eval_prompts)
    accuracy = answer_greedily(run, lead, test).accuracy
    repeated = _evaluate_repeated(run, lead) if settings.eval_samples else None
    best_step, best_accuracy = tally.best
    summary = Summary(
        held_out_accuracy=accuracy,
        seconds=run.elapsed,
        tokens_per_second=tally.tokens / tally.step_seconds if tally.step_seconds else 0.0,
        warnings=(
            *((why_nothing(run),) if outcome == "learned_nothing" else ()),
            *(f"{text} ({count} of {tally.steps} steps)" for text, count in tally.warnings),
            *cautions(settings, run.learner.recipe),
            *run.notes,
            *lead.sinks.said,
        ),
        steps=tally.steps,
        seed=settings.seed,
        outcome=outcome,
        start_accuracy=tally.evaluations[0][1],
        validation_accuracy=tally.evaluations[-1][1],
        tokens=tally.tokens,
        skipped_updates=tally.skipped_updates,
        num_parameters=run.policy.num_parameters,
        trained_parameters=run.policy.num_trained,
        recipe=run.learner.recipe.name,
        task=run.task.name,
        run_dir=run.folder,
        runtime=settings.runtime,
        format=settings.engine.format,
        best_step=best_step,
        best_accuracy=best_accuracy,
        reward_status=tally.statuses,
        staleness={"mean": tally.staleness_total / max(1, tally.tokens), "max": tally.staleness_max},
        nonfinite=tally.nonfinite,
        resumed=tally.resumed,
        eval_samples=settings.eval_samples,
        avg_at_k=None if repeated is None else repeated.avg_at_k,
        pass_at_k=None if repeated is None else repeated.pass_at_k,
        decode=lead.runtime.decode,
        learn=run.learner.actor.path,
        placement=lead.runtime.placement,
        signal=shortcuts_of(run.learner.recipe),
        stopped_by=stopped_by if outcome == "interrupted" else "",
    )
    lead.record.write_json("summary.json", summary.to_json())
    return summary


def _evaluate_repeated(run: Run, lead: Lead) -> Repeated:
    settings = run.settings
    how = Sampling(settings.max_new_tokens, settings.temperature, settings.engine.top_p, settings.engine.top_k)
    problems = run.task.held_out("test", settings.eval_prompts)
    return evaluate_repeated(lead.judge, problems, how, k=settings.eval_samples)
