"""The only place that turns tickets into rollouts: prompts, turns with the engine and the environment, rewards.

It does not know batches, staleness or the learner; it runs beside the learner or in a process of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from trimtab.rollout.engine import Engine, Greedy, Request, Sample, Sampling
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather_groups
from trimtab.rollout.reward import Attempt, Scorer, Verdict
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Environment, Problem, Prompt, Task
from trimtab.rollout.tokenizer import decode, encode, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass
class Played:
    """One attempt while it is being made: everything read and written so far."""

    problem: Problem
    environment: Environment
    seed: int
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    ids: list[int]
    trainable: list[bool]
    samples: list[Sample] = field(default_factory=list[Sample])
    answers: list[str] = field(default_factory=list[str])
    is_done: bool = False

    @property
    def ended(self) -> bool:
        return self.samples[-1].finish == "eos"

    @property
    def attempt(self) -> Attempt:
        """What a reward function sees of it."""
        written = tuple(token for sample in self.samples for token in sample.ids)
        return Attempt(self.problem, self.answers[-1], "".join(self.answers), written, self.ended)


@dataclass(frozen=True)
class Collector:
    """Tickets in, rollouts out. `seed` is the run's; every answer draws from (seed, ticket, sample, turn)."""

    task: Task
    scorer: Scorer
    engine: Engine
    tokenizer: "PreTrainedTokenizerFast"
    how: Sampling
    samples_per_prompt: int
    max_turns: int
    seed: int

    def collect(self, tickets: Sequence[int]) -> Rollouts:
        """One group for each ticket, in their order, all sampled with the engine's current version."""
        problems = [self.task.train(ticket) for ticket in tickets]
        numbers = range(self.samples_per_prompt)
        played = self.play(
            [problem for problem in problems for _ in numbers],
            [stream_seed(self.seed, "rollout", ticket, number) for ticket in tickets for number in numbers],
            self.how,
        )
        verdicts = self.scorer.score([one.attempt for one in played])
        episodes = [_episode(one, verdict) for one, verdict in zip(played, verdicts, strict=True)]
        return gather_groups(tickets, [problem.text for problem in problems], episodes)

    def play(self, problems: Sequence[Problem], seeds: Sequence[int], how: Sampling | Greedy) -> list[Played]:
        """One attempt at each problem, turn after turn, all attempts side by side."""
        played: list[Played] = []
        for problem, seed in zip(problems, seeds, strict=True):
            played.append(self._open(problem, seed, played[-1] if played else None))
        for turn in range(self.max_turns):
            going = [one for one in played if not one.is_done]
            if not going:
                break
            requests = [Request(tuple(one.ids), stream_seed(one.seed, turn)) for one in going]
            for one, sample in zip(going, self.engine.sample(requests, how), strict=True):
                self._move(one, sample, is_last=turn + 1 == self.max_turns)
        return played

    def _open(self, problem: Problem, seed: int, before: Played | None) -> Played:
        """Open a new attempt. The samples of one prompt follow each other, so the prompt is encoded once."""
        environment = self.task.environment(problem)
        prompt = environment.reset()
        ids = before.prompt_ids if before is not None and prompt == before.prompt else None
        ids = tuple(encode_prompt(self.tokenizer, prompt)) if ids is None else ids
        return Played(problem, environment, seed, prompt, ids, list(ids), [False] * len(ids))

    def _move(self, one: Played, sample: Sample, *, is_last: bool) -> None:
        """Add the policy's turn, and the environment's reply if the episode continues."""
        ended = sample.finish == "eos"
        answer = decode(self.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
        one.ids += sample.ids
        one.trainable += [True] * len(sample.ids)
        one.samples.append(sample)
        one.answers.append(answer)
        reply = one.environment.step(answer, ended=ended)
        one.is_done = reply.done or is_last
        if not one.is_done:
            observed = encode(self.tokenizer, reply.observation)
            one.ids += observed
            one.trainable += [False] * len(observed)


def _episode(one: Played, verdict: Verdict) -> Episode:
    samples = one.samples
    return Episode(
        ids=one.ids,
        trainable=one.trainable,
        logp=samples[0].logp if len(samples) == 1 else torch.cat([sample.logp for sample in samples]),
        version=[version for sample in samples for version in sample.version],
        turn=[number for number, sample in enumerate(samples) for _ in sample.ids],
        ended=one.ended,
        reward=verdict.reward,
        status=verdict.status,
        message=verdict.message,
        support=_support(samples),
    )


def _support(samples: Sequence[Sample]) -> tuple[list[int], list[int]] | None:
    if any(sample.support is None for sample in samples):
        return None
    tokens = [ids for sample in samples for ids in sample.support or ()]
    return [token for ids in tokens for token in ids], [len(ids) for ids in tokens]
