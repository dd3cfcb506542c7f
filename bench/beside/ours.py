"""Trimtab's side: `python -m bench.beside.ours CASE START OUT STEPS RUNTIME THREADS STALENESS`, a real run with a
logger that stops at the gate."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.beside.case import ANSWERS, CASES, PROMPTS, RECIPE
from bench.beside.gate import Gate
from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.train import train


class AtGate:
    """A logger: it is called when a step is done and written down."""

    def __init__(self) -> None:
        self._gate: Gate = Gate()
        self._gate.ready()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        del step, metrics
        self._gate.passed()

    def close(self) -> None:
        """The run has ended."""


def at_gate(folder: Path, settings: Mapping[str, object]) -> AtGate:
    del folder, settings
    return AtGate()


def settings_of(
    case_name: str, start: Path, out: Path, steps: int, runtime: str, threads: int, staleness: int
) -> TrainSettings:
    case = CASES[case_name]
    return TrainSettings(
        seed=case.seed, run_dir=out, task=case.task, model=ModelSettings(path=start), runtime=runtime,  # pyright: ignore[reportArgumentType]
        staleness=staleness, steps=steps, prompts_per_step=PROMPTS, samples_per_prompt=ANSWERS,
        max_new_tokens=case.max_new_tokens, lr=case.lr, threads=threads, eval_every=steps, eval_prompts=8,
        early_stop="never", checkpoint_every=0, log_to=("bench.beside.ours:at_gate",),
    )  # fmt: skip


def main() -> None:
    case, start, out, steps, runtime, threads, staleness = sys.argv[1:]
    folder = Path(out)
    made = settings_of(case, Path(start), folder / "run", int(steps), runtime, int(threads), int(staleness))
    _ = train(made, RECIPE, quiet=True)
    _ = shutil.copytree(folder / "run" / "model", folder / "model")


if __name__ == "__main__":
    main()
