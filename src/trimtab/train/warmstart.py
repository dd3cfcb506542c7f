"""The only place that trains on given answers: a few supervised steps, so that sampling finds a reward at all."""

import random
from collections.abc import Callable

import torch

from trimtab.rollout.assemble import Assembled, Episode, assemble
from trimtab.rollout.engine import Sample
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Problem, Task, draw
from trimtab.rollout.tokenizer import encode
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy

PROMPTS_PER_STEP = 128
"""Right answers behind one supervised step; 50 steps of these teach the shape of an answer and half of the task."""


def warm_start(
    policy: Policy, task: Task, *, steps: int, lr: float, seed: int, stopped: Callable[[], bool] = lambda: False
) -> float:
    """Cross entropy on right answers to training prompts; returns the last loss in nats a token."""
    stream = random.Random(stream_seed(seed, "warm start"))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=lr, weight_decay=0.0, fused=True)
    loss = torch.zeros(())
    for _ in range(steps):
        if stopped():
            break
        given = answered(policy, draw(task, stream, PROMPTS_PER_STEP, "train"))
        loss = -token_pass(policy.model, given.rows(range(len(given.ids))), temperature=1.0).logp.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def answered(policy: Policy, problems: list[Problem]) -> Assembled:
    """The problems with their right answers, in the layout that sampled ones have."""
    episodes: list[Episode] = []
    for index, problem in enumerate(problems):
        ids = (*encode(policy.tokenizer, problem.answer), policy.eos_id)
        given = Sample(
            prompt_ids=tuple(encode(policy.tokenizer, problem.prompt)),
            ids=ids,
            logp=torch.zeros(len(ids)),
            version=(0,) * len(ids),
            finish="eos",
        )
        episodes.append(Episode(sample=given, group=index, reward=1.0))
    return assemble(episodes, pad_id=policy.pad_id)
