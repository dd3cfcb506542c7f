"""The only place that trains on given answers: a few supervised steps, so that sampling finds a reward at all."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch

from trimtab.rollout.chat import observed_ids
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather
from trimtab.rollout.loop import settled
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import cut, lay_out
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Environment, Problem, Task, open_task
from trimtab.rollout.tokenizer import encode, encode_prompt
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

SAY_SECONDS = 15.0
"""Between two words about how far a warm start is; a shorter one needs none."""
PROMPTS_PER_STEP = 128
"""Right answers in one supervised step. 50 such steps teach the format of an answer and about half of the task."""


def warm_start(
    policy: Policy,
    settings: "TrainSettings",
    *,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> float:
    """Cross entropy on right answers to training prompts; returns the last loss in nats per token.

    `say` hears how far it is, every SAY_SECONDS.
    """
    # A task of another seed: the run itself does not meet the same prompts in the same order again.
    task = open_task(settings.task, stream_seed(settings.seed, "warm start"))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=settings.warm_start_lr, weight_decay=0.0, fused=True)
    loss, said = 0.0, time.monotonic()
    for step in range(settings.warm_start_steps):
        if stopped():
            break
        problems = [task.train(step * PROMPTS_PER_STEP + number) for number in range(PROMPTS_PER_STEP)]
        given = demonstrations(policy, task, problems)
        optimizer.zero_grad()
        loss = _backward(policy, given, settings.max_tokens_per_micro_batch)
        optimizer.step()
        if time.monotonic() - said >= SAY_SECONDS:
            say(f"warm start: {step + 1} of {settings.warm_start_steps} supervised steps, {loss:.3f} nats per token")
            said = time.monotonic()
    return loss


def demonstrations(policy: Policy, task: Task, problems: Sequence[Problem]) -> Rollouts:
    """The problems with their right turns, as if they were sampled; one group, for nobody compares their rewards."""
    return gather(0, "demonstrations", [_shown(policy, task, one) for one in problems])


def _shown(policy: Policy, task: Task, problem: Problem) -> Episode:
    """The episode that a perfect policy would have: its turns train, the environment's words do not."""
    shown = task.demonstration(problem)
    environment = cast(Environment, task.environment(problem))
    ids = encode_prompt(policy.tokenizer, environment.reset(), problem.tools)
    trainable = [False] * len(ids)
    turns: list[int] = []
    for number, text in enumerate(shown):
        written = [*encode(policy.tokenizer, text), policy.eos_id]
        ids += written
        trainable += [True] * len(written)
        turns += [number] * len(written)
        reply = settled(environment.step(text, ended=True))
        if reply.done:
            break
        observed = observed_ids(policy.tokenizer, reply, problem.tools, end=str(policy.tokenizer.eos_token))
        ids += observed
        trainable += [False] * len(observed)
    return Episode(
        ids=ids,
        trainable=trainable,
        logp=torch.zeros(len(turns)),
        version=[0] * len(turns),
        turn=turns,
        ended=True,
        reward=1.0,
        status="ok",
    )


def _backward(policy: Policy, given: Rollouts, max_tokens: int) -> float:
    """Gradient of the mean over tokens, in portions that fit into memory."""
    total = 0.0
    for part in cut(given.length, torch.arange(given.num_sequences), most=max_tokens):
        rows = lay_out(given, part, pad_id=policy.pad_id)
        loss = -token_pass(policy.model, rows, temperature=1.0).logp.sum() / given.num_tokens
        loss.backward()
        total += float(loss.detach())
    return total
