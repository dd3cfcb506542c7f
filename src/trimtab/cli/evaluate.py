"""`trimtab eval`: how good a policy is on prompts it has not learned from."""

from pathlib import Path
from typing import Any, cast, get_args

from trimtab.config import load_run
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, unknown_name
from trimtab.rollout.task import Split

KINDS = ("model", "best")


def run_evaluation(
    folder: Path,
    overrides: list[str],
    which: str,
    split: str,
    prompts: int | None,
    samples: int,
    show: int,
    *,
    trust: bool = False,
) -> None:
    """Load, answer, count, print."""
    import torch

    from trimtab.rollout.engine import Sampling
    from trimtab.rollout.publication import Publication
    from trimtab.train.evaluate import evaluate, evaluate_repeated
    from trimtab.train.policy import load, published
    from trimtab.train.setup import new_collector, new_engine

    settings, model = _read(folder, overrides, which, trust=trust)
    if split not in get_args(Split)[1:]:
        raise ConfigError(unknown_name("--split", split, list(get_args(Split)[1:])))
    torch.set_num_threads(settings.threads)
    policy = load(model, settings.model)
    collector = new_collector(policy, settings, engine=new_engine(policy, settings, exact=True))
    try:
        collector.load(Publication(0, published(policy.model)))
        problems = collector.task.held_out(cast(Any, split), prompts or settings.eval_prompts)
        found = evaluate(collector, problems, max_new_tokens=settings.max_new_tokens)
        print(f"model     {model} ({policy.num_parameters:,} parameters)")
        print(f"accuracy  {found.accuracy:.4f}  greedy, {len(problems)} {split} prompts of task {settings.task.name}")
        if samples:
            how = Sampling(settings.max_new_tokens, settings.temperature)
            repeated = evaluate_repeated(collector, problems, how, k=samples)
            print(f"avg@{samples:<5} {repeated.avg_at_k:.4f}  sampled at temperature {settings.temperature:g}")
            print(f"pass@{samples:<4} {repeated.pass_at_k:.4f}")
        for answer in sorted(found.answers, key=lambda answer: answer.is_right)[:show]:
            sign = "right" if answer.is_right else "wrong"
            print(f"  {sign}  {answer.problem.text!r} -> {answer.text!r} (expected {answer.problem.answer!r})")
    finally:
        collector.close()


def _read(folder: Path, overrides: list[str], which: str, *, trust: bool) -> tuple[TrainSettings, Path]:
    """The settings that a run had, or those given for a bare model folder. Code that only the run names is refused."""
    from trimtab.train.opening import read_settings
    from trimtab.train.record.identity import read_json
    from trimtab.train.record.inputs import named_code, refuse_code

    if which not in KINDS:
        raise ConfigError(unknown_name("--which", which, list(KINDS)))
    config = folder / "config.json"
    is_run = (folder / "metrics.jsonl").is_file() or (folder / "checkpoints").is_dir()
    if not is_run:
        if not any(text.startswith("train.task") for text in overrides):
            raise ConfigError(
                f"eval: {folder} is not a run folder, so it does not say what to ask. Name the task: train.task=sort, "
                "or train.task.name=file train.task.file=problems.jsonl."
            )
        return load_run(None, overrides).train, folder
    model = folder / which
    if not model.is_dir():
        raise ConfigError(
            f"eval: {model} is not there; the run has not come that far. Resume it: trimtab train --resume {folder}"
        )
    settings = read_settings(read_json(config), folder)
    if overrides:
        given = load_run(None, overrides).train
        settings = settings.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})
    # A task given here replaces the run's own as a whole: then the command line, not the folder, names the code.
    is_given = any(text.startswith("train.task") for text in overrides)
    if not trust and not is_given:
        refuse_code(named_code(settings, None), "eval", folder)
    return settings, model
