"""`trimtab plan`: how many samplers per learner, which staleness, and where the time goes, before anything is run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from trimtab.cli.console import plain_console
from trimtab.config import load_run
from trimtab.errors import ConfigError
from trimtab.train.plan.choose import STALENESS, Candidate, Workload, candidate, candidates, choose
from trimtab.train.plan.recorded import Agreement, Recorded, compare, recorded
from trimtab.train.plan.simulate import simulate


@dataclass(frozen=True)
class Asked:
    """What the command line said."""

    target: Path | None
    overrides: tuple[str, ...]
    engine: float | None
    learner: float | None
    gpus: int
    answer_tokens: float | None
    publish_seconds: float | None


def run_plan(asked: Asked) -> int:
    """Plan from a run file and rates, or from a run that was recorded."""
    if asked.target is not None and asked.target.is_dir():
        return _from_run(asked, asked.target)
    if asked.engine is None or asked.learner is None:
        raise ConfigError(
            "plan: the rates of a sampler and of a learner are not known, so nothing can be timed. Give "
            "--engine-tokens-per-second and --learner-tokens-per-second, or the folder of a run, which has both."
        )
    settings = load_run(asked.target, list(asked.overrides)).train
    answer = asked.answer_tokens if asked.answer_tokens is not None else float(settings.max_new_tokens)
    work = Workload(
        settings.prompts_per_step,
        answer * settings.samples_per_prompt,
        asked.engine,
        asked.learner,
        asked.publish_seconds or 0.0,
    )
    return _show_plan(work, asked.gpus, settings.staleness)


def _from_run(asked: Asked, folder: Path) -> int:
    from trimtab.train.record.identity import read_json
    from trimtab.train.runtimes.schedule import read_schedule

    config: dict[str, Any] = read_json(folder / "config.json")
    run, groups = recorded(read_schedule(folder)), int(config["prompts_per_step"])
    staleness = int(config["staleness"])
    _show_agreement(replayed(run, groups, staleness), run, predicted(run, groups, staleness))
    loads = sorted(run.loads.values())
    publish = asked.publish_seconds if asked.publish_seconds is not None else loads[len(loads) // 2]
    work = Workload(
        groups, run.tokens_per_group, asked.engine or run.engine_rate, asked.learner or run.learner_rate, publish
    )
    return _show_plan(work, asked.gpus, staleness)


def replayed(run: Recorded, groups: int, staleness: int) -> Agreement:
    """The run once more, with its own durations."""
    course = simulate(
        run, steps=len(run.batches), groups_per_batch=groups, staleness=staleness, samplers=run.samplers,
        room=Workload.ahead * groups, slots=groups,
    )  # fmt: skip
    return compare(course, run)


def predicted(run: Recorded, groups: int, staleness: int) -> float:
    """Seconds per step that the run's own rates predict."""
    loads = sorted(run.loads.values())
    work = Workload(groups, run.tokens_per_group, run.engine_rate, run.learner_rate, loads[len(loads) // 2])
    return candidate(work, run.samplers, 1, staleness).step_seconds


def _show_agreement(found: Agreement, run: Recorded, step_seconds: float) -> None:
    console = plain_console()
    console.print(
        f"replayed {found.batches} batches with their recorded durations: {found.same_order} with the same prompts in "
        f"the same order, {found.same_staleness} with the same staleness, {found.seconds:.1f} s against "
        f"{found.recorded_seconds:.1f} s recorded ({found.ratio - 1:+.0%})",
        highlight=False,
    )
    console.print(
        f"measured {run.engine_rate:.0f} tokens per second for each of {run.samplers} samplers and "
        f"{run.learner_rate:.0f} for the learner; they predict {step_seconds:.3g} s per step against "
        f"{run.step_seconds:.3g} s recorded ({step_seconds / run.step_seconds - 1:+.0%})\n",
        highlight=False,
    )


def _show_plan(work: Workload, gpus: int, staleness: int) -> int:
    console = plain_console()
    if gpus < 2:
        tokens = work.groups_per_batch * work.tokens_per_group
        sample, learn = tokens / work.engine, tokens / work.learner
        console.print(
            f"One device samples and learns in turn: {sample:.3g} s + {learn:.3g} s per step, "
            f"{sample / (sample + learn):.0%} of it sampling. "
            ' Write runtime = "inline" and staleness = 0.',
            highlight=False,
        )
        return 0
    found = candidates(work, gpus, sorted({*STALENESS, staleness}))
    best = choose(found)
    table = Table("samplers", "learners", "staleness", "s per step", "tokens/s", "learner waits", "samplers idle",
                  "oldest token", box=None, pad_edge=False, header_style="bold")  # fmt: skip
    for one in _rows(found, best):
        table.add_row(*_cells(one, work), style="bold green" if one is best else "")
    console.print(table)
    console.print(_sentence(best, found, gpus, staleness), highlight=False)
    return 0


def _rows(found: list[Candidate], best: Candidate) -> list[Candidate]:
    """Each split at its best, and the best split with every staleness."""
    splits = sorted({one.samplers for one in found})
    at_best = [choose([one for one in found if one.samplers == samplers]) for samplers in splits]
    return [
        one
        for samplers, chosen in zip(splits, at_best, strict=True)
        for one in ([one for one in found if one.samplers == samplers] if samplers == best.samplers else [chosen])
    ]


def _cells(one: Candidate, work: Workload) -> list[str]:
    tokens = work.groups_per_batch * work.tokens_per_group
    return [
        str(one.samplers), str(one.learners), str(one.staleness), f"{one.step_seconds:.3g}",
        f"{tokens / one.step_seconds:.0f}", f"{one.learner_waits:.0%}", f"{one.sampler_waits:.0%}",
        f"{one.course.staleness:.1f} updates",
    ]  # fmt: skip


def _sentence(best: Candidate, found: list[Candidate], gpus: int, staleness: int) -> str:
    whose = (
        "the learner waits for samplers" if best.learner_waits > best.sampler_waits else "samplers wait for the learner"
    )
    fresh = min((one for one in found if one.staleness == 0), key=lambda one: one.step_seconds)
    gain = fresh.step_seconds / best.step_seconds
    said = (
        f"Of {gpus} devices give {best.samplers} to samplers and {best.learners} to the learner, with "
        f"train.staleness={best.staleness}: {best.step_seconds:.3g} s per step; what waits, waits because {whose}."
    )
    if best.staleness:
        said += f" That is {gain:.2g} times as fast as the best without staleness ({fresh.step_seconds:.3g} s)."
    if staleness not in {one.staleness for one in found if one is best}:
        said += f" The run file says {staleness}."
    return said
