"""TRL's side: `python -m bench.beside.theirs CASE START OUT STEPS THREADS`, its GRPO trainer with the recipe that
learns this task, and a callback that stops at the gate."""

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from bench.beside.case import ANSWERS, CASES, PROMPTS, Case
from bench.beside.gate import Gate

CHUNK = 256
"""Answers in one forward and backward pass: the whole batch, as TRL does by default."""


class AtGate(TrainerCallback):  # pyright: ignore[reportMissingSuperCall]
    """Called when a step is done."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._gate.ready()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._gate.passed()


def rewards(case: Case, eos_id: int) -> Any:
    """The task's own judge, as TRL calls a reward."""
    task = case.open_task()
    problems: dict[str, Any] = {}

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], ticket: list[int], **_: Any
    ) -> list[float]:
        for number in set(ticket) - set(problems):
            problems[number] = task.train(number)
        return [
            task.judge(problems[number], text, ended=bool(ids) and ids[-1] == eos_id)
            for number, text, ids in zip(ticket, completions, completion_ids, strict=True)
        ]

    return reward


def trainer(case: Case, start: str, out: str, steps: int, gate: Gate) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer: Any = AutoTokenizer.from_pretrained(start)
    model: Any = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    task = case.open_task()
    rows = [{"prompt": task.train(ticket).prompt, "ticket": ticket} for ticket in range(PROMPTS * steps)]
    config: Any = GRPOConfig(
        output_dir=out, max_steps=steps, seed=case.seed, shuffle_dataset=False, use_cpu=True, bf16=False,
        per_device_train_batch_size=CHUNK, gradient_accumulation_steps=PROMPTS * ANSWERS // CHUNK,
        num_generations=ANSWERS, max_completion_length=case.max_new_tokens, temperature=1.0, top_p=1.0, top_k=0,
        loss_type="dapo", scale_rewards="group", beta=0.0, num_iterations=1, mask_truncated_completions=False,
        learning_rate=case.lr, lr_scheduler_type="constant", optim="adamw_torch_fused", adam_beta1=0.9,
        adam_beta2=0.999, weight_decay=0.0, max_grad_norm=1.0, warmup_steps=0, gradient_checkpointing=False,
        disable_dropout=True, logging_steps=20, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=rewards(case, tokenizer.eos_token_id), args=config,
        train_dataset=Dataset.from_list(rows), callbacks=[AtGate(gate)],
    )  # fmt: skip


def main() -> None:
    case, start, out, steps, threads = sys.argv[1:]
    gate = Gate()
    torch.set_num_threads(int(threads))
    made = trainer(CASES[case], start, out, int(steps), gate)
    _ = made.train()
    made.model.save_pretrained(f"{out}/model")
    made.processing_class.save_pretrained(f"{out}/model")


if __name__ == "__main__":
    main()
