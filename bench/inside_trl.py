"""Does a correction help inside TRL? Its own GRPO trainer under a stale int4 sampler, corrected beside uncorrected.

    python -m bench.inside_trl                    three arms, three seeds; about eight minutes
    python -m bench.inside_trl --seeds 0 --steps 40
    python -m bench.inside_trl --write            and put the table into docs/integrations/trl.md

The sampler is a copy of the model with weights rounded to int4, renewed every eight steps. TRL gets its tokens and its
log-probs through `rollout_func`. The arms differ in the loss alone; "own sampler" is TRL without such a copy. Every run
is watched; its page is FOLDER/ARM_SEED/trimtab/report.html. Start, prompts and judge are those of `bench.trainer`.
"""

import argparse
import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.beside.case import ANSWERS, CASES, PROMPTS, Case, accuracy, write_start
from bench.beside.theirs import rewards
from trimtab.integrations import trl as ours
from trimtab.rollout.formats import linear_weights, rounded_state
from trimtab.train.study.table import half_width

PAGE = Path(__file__).parents[1] / "docs" / "integrations" / "trl.md"
MARK = "<!-- bench.inside_trl -->"
RENEWED = 8
"""Steps after which the sampler gets the trainer's parameters."""
ARMS = {
    "own sampler, TRL's loss": (False, None),
    "stale int4 sampler, TRL's loss": (True, None),
    'stale int4 sampler, `corrected(GRPOTrainer, "start_async")`': (True, "start_async"),
    'stale int4 sampler, `corrected(GRPOTrainer, "tis")`': (True, "tis"),
}


class Stale:
    """An int4 copy of the model, as old as the last renewal."""

    def __init__(self) -> None:
        self._copy: Any = None
        self._made_at: int = -RENEWED

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        if trainer.state.global_step - self._made_at >= RENEWED:
            self._renew(trainer)
        words, most = trainer.processing_class, trainer.max_completion_length
        asked = words(prompts, return_tensors="pt", padding=True, padding_side="left")
        with torch.inference_mode():
            out = self._copy.generate(
                **asked, do_sample=True, top_k=0, max_new_tokens=most, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
            said = out.sequences[:, asked["input_ids"].shape[1] :]
            logp = torch.stack(out.logits, 1).log_softmax(-1).gather(-1, said[..., None]).squeeze(-1)
        lengths = [_length(ids, words.eos_token_id) for ids in said.tolist()]
        return {
            "prompt_ids": [
                row[kept == 1].tolist() for row, kept in zip(asked["input_ids"], asked["attention_mask"], strict=True)
            ],
            "completion_ids": [ids[:n].tolist() for ids, n in zip(said, lengths, strict=True)],
            "logprobs": [values[:n].tolist() for values, n in zip(logp, lengths, strict=True)],
        }

    def _renew(self, trainer: Any) -> None:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        self._made_at = trainer.state.global_step
        if self._copy is None:  # from the config: TRL ties the forward pass of its model to that model, also in a copy
            self._copy = AutoModelForCausalLM.from_config(policy.config).float().eval()
        _ = self._copy.load_state_dict(rounded_state(policy.state_dict(), linear_weights(policy), "int4"))


def _length(ids: list[int], end: int) -> int:
    return ids.index(end) + 1 if end in ids else len(ids)


def trained(case: Case, start: Path, out: Path, steps: int, arm: str) -> float:
    """Held-out accuracy of one run."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    is_stale, recipe = ARMS[arm]
    tokenizer: Any = AutoTokenizer.from_pretrained(start)
    task = case.open_task()
    rows = [{"prompt": task.train(ticket).prompt, "ticket": ticket} for ticket in range(PROMPTS * steps)]
    config: Any = GRPOConfig(
        output_dir=str(out), max_steps=steps, seed=case.seed, shuffle_dataset=False, use_cpu=True, bf16=False,
        per_device_train_batch_size=PROMPTS * ANSWERS, num_generations=ANSWERS, temperature=1.0, top_p=1.0, top_k=0,
        max_completion_length=case.max_new_tokens, learning_rate=case.lr, lr_scheduler_type="constant",
        optim="adamw_torch_fused", weight_decay=0.0, gradient_checkpointing=False, logging_steps=20, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    kind: Any = GRPOTrainer if recipe is None else ours.corrected(GRPOTrainer, recipe)
    made = kind(
        model=AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32), processing_class=tokenizer, args=config,
        reward_funcs=rewards(case, tokenizer.eos_token_id), train_dataset=Dataset.from_list(rows),
        **({"rollout_func": Stale()} if is_stale else {}),
    )  # fmt: skip
    _ = ours.attach(made, every=4)
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    made.model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    return accuracy(case, out / "model")


def table(found: dict[str, dict[int, float]], starts: dict[int, float], steps: int) -> list[str]:
    seeds = ", ".join(str(seed) for seed in starts)
    lines = [f"| {steps} steps | held-out accuracy | seeds {seeds} |", "|---|--:|---|"]
    for name, by_seed in {"start": starts, **found}.items():
        values = [*by_seed.values()]
        width = half_width(values)
        told = f"{mean(values):.3f}" + (f" ± {width:.3f}" if width is not None else "")
        lines.append(f"| {name} | {told} | {', '.join(f'{value:.3f}' for value in values)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    _ = parser.add_argument("--steps", type=int, default=100)
    _ = parser.add_argument("--folder", type=Path, default=Path("runs/inside_trl"))
    _ = parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = cast(Path, asked.folder)
    found: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
    starts: dict[int, float] = {}
    for seed in cast("list[int]", asked.seeds):
        case = replace(CASES["small"], seed=seed)
        start = folder / f"start_{seed}"
        write_start(case, start)
        starts[seed] = accuracy(case, start)
        for number, arm in enumerate(ARMS):
            found[arm][seed] = trained(case, start, folder / f"arm{number}_{seed}", asked.steps, arm)
            print(f"seed {seed}: {arm}: {starts[seed]:.3f} -> {found[arm][seed]:.3f}", flush=True)
    lines = table(found, starts, asked.steps)
    print("\n".join(lines))
    _ = (folder / "found.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if asked.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
        after = rest.partition(MARK)[2]
        _ = PAGE.write_text("\n".join([before.rstrip("\n") + "\n", MARK, *lines, MARK]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
