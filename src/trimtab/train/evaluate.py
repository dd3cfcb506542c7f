"""The only place that measures accuracy: answers to held-out problems, greedy or several sampled ones for each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from trimtab.rollout.collect import Collector
from trimtab.rollout.engine import Greedy, Sampling
from trimtab.rollout.play import Played
from trimtab.rollout.reward import Verdict
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Problem
from trimtab.train.policy import save
from trimtab.train.run import Lead, Run

RIGHT = 1.0
"""The least reward that counts as right. Partial credit below it counts as wrong: accuracy is a share of answers, not
a mean reward. A reward whose best value is below 1 therefore has accuracy 0; scale it."""


SHOWN_ANSWERS = 8
"""Held-out answers kept at each evaluation, for people to read."""


@dataclass(frozen=True)
class Answer:
    """What the policy wrote for one problem."""

    problem: Problem
    text: str
    is_right: bool


@dataclass(frozen=True)
class Evaluation:
    """Greedy answers to the problems, and the share of them that is right."""

    answers: tuple[Answer, ...]

    @property
    def accuracy(self) -> float:
        return sum(answer.is_right for answer in self.answers) / len(self.answers)


@dataclass(frozen=True)
class Repeated:
    """k sampled answers to each problem: their mean accuracy, and the share of problems with a right one."""

    avg_at_k: float
    pass_at_k: float
    k: int


def evaluate(collector: Collector, problems: Sequence[Problem], *, max_new_tokens: int) -> Evaluation:
    """Right means full reward. An answer without a reward is not right."""
    played = collector.play(problems, [0] * len(problems), Greedy(max_new_tokens))
    right = _judge(collector, played)
    return Evaluation(
        tuple(Answer(one.problem, "".join(one.answers), ok) for one, ok in zip(played, right, strict=True))
    )


def evaluate_repeated(collector: Collector, problems: Sequence[Problem], how: Sampling, *, k: int) -> Repeated:
    """Sample k answers per problem. The random streams are always the same, so that two policies are comparable."""
    seeds = [stream_seed("held out", place, number) for place in range(len(problems)) for number in range(k)]
    played = collector.play([problem for problem in problems for _ in range(k)], seeds, how)
    right = _judge(collector, played)
    counts = [sum(right[first : first + k]) for first in range(0, len(right), k)]
    return Repeated(sum(right) / len(right), sum(pass_at(k, k, count) for count in counts) / len(counts), k)


def pass_at(k: int, n: int, right: int) -> float:
    """The chance that one of k answers drawn from n without replacement is right (Chen et al. 2021, arXiv:2107.03374).

    >>> pass_at(1, 4, 1), pass_at(4, 4, 1), pass_at(4, 4, 0)
    (0.25, 1.0, 0.0)
    """
    return 1.0 - comb(n - right, k) / comb(n, k)


def _judge(collector: Collector, played: Sequence[Played]) -> list[bool]:
    whole = [one for one in played if one.status == "ok"]
    verdicts = dict(zip(map(id, whole), collector.scorer.score([one.attempt for one in whole]), strict=True))
    found = [verdicts.get(id(one), Verdict.failed(one.status, one.message)) for one in played]
    return [verdict.status == "ok" and verdict.reward >= RIGHT for verdict in found]


def evaluate_and_keep(run: Run) -> dict[str, object]:
    """Measure validation accuracy on rank 0; keep the best policy so far, and a few answers to the same prompts."""
    began = time.perf_counter()
    step = run.tally.steps
    accuracy = float(run.world.lead(lambda: {"accuracy": _evaluate(run, run.front)})["accuracy"])
    run.tally.evaluations.append((step, accuracy))
    if run.tally.best[0] == step:
        save(run.policy, run.folder / "best", run.world)
    return {"eval/accuracy": accuracy, "time/eval_seconds": time.perf_counter() - began}


def _evaluate(run: Run, lead: Lead) -> float:
    evaluation = answer_greedily(run, lead, run.task.held_out("validation", run.settings.eval_prompts))
    if not run.tally.shown:
        wrong_first = sorted(evaluation.answers, key=lambda answer: answer.is_right)
        run.tally.shown = [answer.problem.text for answer in wrong_first[:SHOWN_ANSWERS]]
    for answer in evaluation.answers:
        if answer.problem.text in run.tally.shown:
            line: dict[str, Any] = {"step": run.tally.steps, "prompt": answer.problem.text, "answer": answer.text}
            lead.record.append("samples.jsonl", {**line, "is_right": answer.is_right})
    return evaluation.accuracy


def answer_greedily(run: Run, lead: Lead, problems: Sequence[Problem]) -> Evaluation:
    """Load the published policy into the judge's engine, and let it answer greedily."""
    published = run.published
    if lead.judge.engine.version < published.version:
        lead.judge.load(published)
    return evaluate(lead.judge, problems, max_new_tokens=run.settings.max_new_tokens)
