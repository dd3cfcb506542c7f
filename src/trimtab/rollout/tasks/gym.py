"""The only place that asks the problems of a reasoning-gym data set; its own score function judges them.

Training problems come from data sets seeded by the run, held-out ones from data sets seeded alike in every run.
"""

import dataclasses
import functools
import importlib
import importlib.util
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from trimtab.errors import ConfigError, MissingExtra, nearest
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import SPLIT_BUCKETS, Environment, OneTurn, Problem, Split, distinct, split_of, tries

if TYPE_CHECKING:
    from trimtab.config.train import TaskSettings

SIZE = 500
"""Problems behind one seed: the size that reasoning-gym's own data sets have, which all of them can make."""
LOOKED_AT = 64
"""Problems whose characters are added to the printable ones; a data set does not say which characters it uses."""
OURS = ("seed", "size")
"""Options that the run's seed decides."""


@dataclass(frozen=True)
class GymTask:
    """A `Task` over `reasoning_gym.NAME`. A problem is known by (data set seed, size, index)."""

    data: str
    options: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        return f"reasoning_gym.{self.data}"

    @property
    def alphabet(self) -> str:
        seen = [self._problem(stream_seed("alphabet"), index) for index in range(LOOKED_AT)]
        characters = set(string.printable).union(*(problem.text + problem.answer for problem in seen))
        return "".join(sorted(characters))

    def train(self, ticket: int) -> Problem:
        block, index = divmod(ticket, SIZE)
        for attempt in range(100 * SPLIT_BUCKETS):
            problem = self._problem(stream_seed(self.seed, "reasoning_gym", block, attempt), index)
            if split_of(problem.text) == "train":
                return problem
        raise ConfigError(f"task {self.name}: has no training problem for ticket {ticket}. Make its options wider.")

    def held_out(self, split: Split, count: int) -> list[Problem]:
        candidates = (
            self._problem(stream_seed("held out", split, "reasoning_gym", number // SIZE), number % SIZE)
            for number in range(tries(count))
        )
        return distinct(candidates, split, count, name=self.name, widen="widen train.task.options")

    def environment(self, problem: Problem) -> Environment:
        return OneTurn(problem)

    def demonstration(self, problem: Problem) -> tuple[str, ...]:
        if not problem.answer:
            raise ConfigError(
                f"task {self.name}: gives no right answer, only a judge, so the warm start has nothing to teach. "
                "Set train.warm_start_steps=0."
            )
        return (problem.answer,)

    def judge(self, problem: Problem, answer: str, *, ended: bool) -> float:
        """The score of reasoning-gym, which may be partial; 0 for an answer that was cut off."""
        seed, _, index = cast("list[int]", problem.columns["entry"])
        dataset = self._dataset(seed)
        return float(dataset.score_answer(answer, dataset[index])) if ended else 0.0

    def _problem(self, stream: int, index: int) -> Problem:
        seed = stream >> 31  # some data sets seed numpy, which takes 32 bits
        entry = self._dataset(seed)[index]
        columns = {"entry": [seed, SIZE, index]}
        return Problem(prompt=f"{entry['question']}\n", answer=str(entry["answer"] or ""), columns=columns)

    def _dataset(self, seed: int) -> Any:
        return _create_dataset(self.data, tuple(sorted(self.options.items())), seed)


@functools.lru_cache(maxsize=8)
def _create_dataset(data: str, options: tuple[tuple[str, Any], ...], seed: int) -> Any:
    return importlib.import_module("reasoning_gym").create_dataset(
        data, **{**dict(options), "seed": seed, "size": SIZE}
    )


def open_gym(settings: "TaskSettings", seed: int) -> GymTask:
    """The data set that `reasoning_gym.NAME` names, tried once, so that bad options are refused before the run."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtra(f'task {settings.name}: needs reasoning-gym: pip install "trimtab[gym]"')
    data = settings.name.removeprefix("reasoning_gym.")
    known: dict[str, Any] = importlib.import_module("reasoning_gym.factory").DATASETS
    if data not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"task: reasoning-gym has no data set {data!r}{nearest(data, known)}. There are: {names}.")
    _check_options(settings, known[data][1])
    task = GymTask(data, settings.options, seed)
    try:
        _ = task.train(0)
    except (AssertionError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"task {settings.name}: refuses its options {dict(settings.options)} ({error or type(error).__name__}). "
            "Read the data set's config in reasoning-gym."
        ) from error
    return task


def _check_options(settings: "TaskSettings", config: Any) -> None:
    fields = [field.name for field in dataclasses.fields(config) if field.name not in OURS]
    for option in settings.options:
        if option in OURS:
            raise ConfigError(f"task.options: {option} follows from train.seed and the ticket. Leave it out.")
        if option not in fields:
            raise ConfigError(
                f"task.options: {settings.name} has no option {option!r}{nearest(option, fields)}. "
                f"It takes: {', '.join(fields)}."
            )
