"""Sampler tokens per second for each format, compared with `generate` of transformers on this machine.

    python -m bench.engine [--rounds 15] [--threads 1]

Every round runs every contender once, so that other load slows all of them. The best time per token
of each counts. Only kept tokens count, up to and including the end token.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sample, Sampling
from trimtab.rollout.task import open_task
from trimtab.rollout.tokenizer import encode_prompt
from trimtab.rollout.weights import digest
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy, frozen_copy, new_policy, published
from trimtab.train.warmstart import warm_start

FORMATS = ("fp32", "bf16", "int8", "int4", "int3")


@dataclass(frozen=True)
class Setting:
    """One measurement: a model and its task."""

    name: str
    model: ModelSettings
    prompts: int
    copies: int
    max_new_tokens: int
    warm_start_steps: int


SETTINGS = (
    Setting("tiny: 0.13M parameters, 32 x 8 answers of up to 8 tokens", ModelSettings(), 32, 8, 8, 50),
    Setting(
        "small: 27M parameters, 4 x 4 answers of up to 64 tokens",
        ModelSettings(hidden_size=512, num_layers=8, num_heads=8, mlp_size=1536), 4, 4, 64, 0,
    ),
)  # fmt: skip


def measured(setting: Setting, rounds: int) -> None:
    settings = TrainSettings(model=setting.model, warm_start_steps=setting.warm_start_steps)
    task = open_task(settings.task, settings.seed)
    policy = new_policy(settings.model, task.alphabet, settings.seed)
    if setting.warm_start_steps:
        _ = warm_start(policy, settings)
    prompts = [tuple(encode_prompt(policy.tokenizer, task.train(ticket).prompt)) for ticket in range(setting.prompts)]
    asked = [Request(ids, row) for row, ids in enumerate(ids for ids in prompts for _ in range(setting.copies))]
    how = Sampling(setting.max_new_tokens, 1.0)
    print(f"\n{setting.name} ({policy.num_parameters / 1e6:.2f}M)")
    engines = {format: _engine(policy, format) for format in FORMATS}
    runs: dict[str, Callable[[], int]] = {
        name: lambda engine=engine: sum(len(sample.ids) for sample in engine.sample(asked, how))
        for name, (engine, _) in engines.items()
    }
    runs["generate"] = lambda: _generated(policy, prompts, setting)
    best = {name: (float("inf"), 1) for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            tokens = run()
            spent = time.perf_counter() - began
            best[name] = min(best[name], (spent, tokens), key=lambda one: one[0] / max(one[1], 1))
    print(f"  {'':10} {'tokens/s':>10} {'ms':>9} {'/ generate':>11} {'load ms':>9} {'|dlogp|':>10}")
    per_token = {name: seconds / tokens for name, (seconds, tokens) in best.items()}
    for name, (seconds, _) in best.items():
        extra = ""
        if name in engines:
            engine, load_seconds = engines[name]
            extra = f"{load_seconds * 1e3:9.2f} {_drift(policy, asked, engine.sample(asked, how)):10.2e}"
        ratio = per_token["generate"] / per_token[name]
        print(f"  {name:10} {1 / per_token[name]:10.0f} {seconds * 1e3:9.2f} {ratio:10.2f}x {extra}")


def _engine(policy: Policy, format: str) -> tuple[Embedded, float]:
    """A loaded engine, and the best time of ten loads without the publisher's checksum."""
    engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids, format=format)
    state = published(policy.model)
    named = digest(state)
    times: list[float] = []
    for version in range(10):
        began = time.perf_counter()
        engine.load(state, version, named)
        times.append(time.perf_counter() - began)
    return engine, min(times)


def _generated(policy: Policy, prompts: Sequence[tuple[int, ...]], setting: Setting) -> int:
    """The same work by transformers: all rows at once, left-padded, sampled at temperature 1."""
    rows = [ids for ids in prompts for _ in range(setting.copies)]
    width = max(map(len, rows))
    ids = torch.tensor([[policy.pad_id] * (width - len(row)) + list(row) for row in rows])
    attends = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    model: Any = policy.model
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=attends, do_sample=True, top_k=0, temperature=1.0,
            max_new_tokens=setting.max_new_tokens, pad_token_id=policy.pad_id, eos_token_id=policy.eos_id,
        )  # fmt: skip
    answers = out[:, width:].tolist()
    return sum(row.index(policy.eos_id) + 1 if policy.eos_id in row else len(row) for row in answers)


def _drift(policy: Policy, asked: Sequence[Request], samples: Sequence[Sample]) -> float:
    """Mean |log-prob difference| per token between the sampler and the trainer's float32 model."""
    from trimtab.rollout.rows import Rows

    rows = [torch.tensor([*request.ids, *sample.ids]) for request, sample in zip(asked, samples, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=policy.pad_id)
    row = torch.tensor([index for index, sample in enumerate(samples) for _ in sample.ids])
    column = torch.tensor(
        [
            len(request.ids) + place
            for request, sample in zip(asked, samples, strict=True)
            for place in range(len(sample.ids))
        ]
    )
    with torch.no_grad():
        passed = token_pass(
            policy.model, Rows(ids, row, column, torch.tensor([len(row) - 1 for row in rows])), temperature=1.0
        )
    return float((passed.logp - torch.cat([sample.logp for sample in samples])).abs().mean())


def checksum_speed() -> None:
    state = {str(index): torch.randn(1024, 1024) for index in range(32)}
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        _ = digest(state)
        times.append(time.perf_counter() - began)
    print(f"checksum: {32 * 4 / 1024 * 2**30 / 1e9 / min(times):.2f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    _ = parser.add_argument("--rounds", type=int, default=15)
    _ = parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    checksum_speed()
    for setting in SETTINGS:
        measured(setting, options.rounds)


if __name__ == "__main__":
    main()
