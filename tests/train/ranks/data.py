"""Rollouts to compare ranks on: sampled, of very different lengths; some batches train on a single sequence."""

from pathlib import Path

import torch
from tests.train.ranks.work import CASES, RECORDED, STEPS, policy_of, write

from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather, join
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.weights import digest
from trimtab.train.policy import frozen_copy, published


def record(folder: Path) -> None:
    """Write the rollouts of every step."""
    policy = policy_of(CASES[0])
    engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids, format="int8")
    state = published(policy.model)
    engine.load(state, 0, digest(state))
    for step in range(STEPS):
        write(folder, step, _sampled(engine, step))
    (folder / RECORDED).touch()


def _sampled(engine: Embedded, step: int) -> Rollouts:
    stream = torch.Generator().manual_seed(step)
    groups: list[Rollouts] = []
    for ticket in range(3):
        # every fifth batch: one answer of several that has a reward, so one sequence trains and one rank has none
        alone = step % 5 == 4
        width = int(torch.randint(1, 9, (1,), generator=stream))
        prompt = tuple(torch.randint(3, 13, (width,), generator=stream).tolist())
        requests = [Request(prompt, seed=100 * step + 10 * ticket + n) for n in range(4)]
        samples = engine.sample(requests, Sampling(max_new_tokens=3 + 9 * ticket, temperature=1.0))
        episodes = [
            Episode(
                ids=torch.tensor([*prompt, *sample.ids]),
                trainable=torch.tensor([False] * width + [True] * len(sample.ids)),
                logp=sample.logp,
                version=torch.tensor(sample.version),
                turn=torch.zeros(len(sample.ids), dtype=torch.int64),
                ended=sample.finish == "eos",
                reward=float(torch.rand(1, generator=stream)),
                status="error" if alone and (ticket, number) not in ((0, 0), (0, 1)) else "ok",
            )
            for number, sample in enumerate(samples)
        ]
        groups.append(gather(3 * step + ticket, "", episodes))
    return join(groups)
