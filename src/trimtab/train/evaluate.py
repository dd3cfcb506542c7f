"""The only place that measures accuracy: greedy answers to held-out prompts, through the engine that samples."""

from dataclasses import dataclass

from trimtab.rollout.engine import Engine, Greedy
from trimtab.rollout.task import Problem, Task
from trimtab.rollout.tokenizer import decode, encode
from trimtab.train.policy import Policy


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


def evaluate(engine: Engine, policy: Policy, task: Task, problems: list[Problem], *, max_new_tokens: int) -> Evaluation:
    """Right means full reward, so an answer must also end."""
    prompts = [encode(policy.tokenizer, problem.prompt) for problem in problems]
    answers: list[Answer] = []
    for problem, sample in zip(problems, engine.sample(prompts, Greedy(max_new_tokens)), strict=True):
        ended = sample.finish == "eos"
        text = decode(policy.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
        answers.append(Answer(problem, text, task.reward(problem, text, ended=ended) == 1.0))
    return Evaluation(tuple(answers))
