# ruff: noqa: E402
"""A real TRL run in seconds on a CPU: a small model from a config, a tokenizer of digits, five digits to sort.

`rollout` stands in for an engine: it samples with the model (or another one) and reports log-probs, through a function
that may spoil them.
"""

import copy
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
# tests/ is on the path, and TRL would take its folder `vllm` for the package.
sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parents[1]]

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<pad>", "<eos>", "=", *"0123456789"]


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def problems(count: int, seed: int, digits: int = 4) -> Dataset:
    draw = random.Random(seed)
    return Dataset.from_list(
        [{"prompt": "".join(draw.choice("0123456789") for _ in range(digits)) + "="} for _ in range(count)]
    )


def model(seed: int, warm: int = 30) -> Qwen3ForCausalLM:
    """A small model after a few supervised steps, so that it is neither random nor sure."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=16, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=12, max_position_embeddings=64, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    made = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-3)
    words, draw = tokenizer(), random.Random(seed)
    for _ in range(warm):
        asked = ["".join(draw.choice("0123456789") for _ in range(4)) for _ in range(64)]
        ids = torch.tensor([[*words(q + "=")["input_ids"], *words("".join(sorted(q)))["input_ids"], 1] for q in asked])
        labels = ids.clone()
        labels[:, :5] = -100
        loss = made(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made


def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """The share of places that hold the right digit."""
    return [
        sum(a == b for a, b in zip(text, sorted(asked.rstrip("=")), strict=False)) / 4
        for asked, text in zip(prompts, completions, strict=True)
    ]


Spoil = Callable[[list[int], list[int], list[float]], list[float]]


def rollout(
    engine: Any = None, spoil: Spoil | None = None, temperature: float = 1.0, noise: float = 0.0
) -> Callable[[list[str], Any], dict[str, Any]]:
    """A rollout function: samples from `engine` (by default the trainer's own model) and reports its log-probs."""

    def run(prompts: list[str], trainer: Any) -> dict[str, Any]:
        policy = trainer.model if engine is None else engine
        policy = trainer.accelerator.unwrap_model(policy)
        words, device = trainer.processing_class, trainer.accelerator.device
        asked = words(prompts, return_tensors="pt", padding=True, padding_side="left").to(device)
        was_training = policy.training
        policy.eval()
        with torch.no_grad():
            out = policy.generate(
                input_ids=asked["input_ids"], attention_mask=asked["attention_mask"], do_sample=True, top_k=0,
                max_new_tokens=trainer.max_completion_length, output_logits=True, return_dict_in_generate=True,
                temperature=trainer.args.temperature,
            )  # fmt: skip
        policy.train(was_training)
        width = asked["input_ids"].shape[1]
        said = out.sequences[:, width:]
        logits = torch.stack(out.logits, 1) / trainer.args.temperature
        logits = logits + noise * torch.randn_like(logits)
        logp = (logits / temperature).log_softmax(-1).gather(-1, said[..., None]).squeeze(-1)
        prompt_ids, completion_ids, logprobs = [], [], []
        for row in range(len(prompts)):
            ids = said[row].tolist()
            ids = ids[: ids.index(1) + 1] if 1 in ids else ids
            question = asked["input_ids"][row][asked["attention_mask"][row] == 1].tolist()
            told = logp[row, : len(ids)].tolist()
            prompt_ids.append(question)
            completion_ids.append(ids)
            logprobs.append(told if spoil is None else spoil(question, ids, told))
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}

    return run


def trainer(
    folder: Path, *, kind: type = GRPOTrainer, seed: int = 0, steps: int = 20, warm: int = 30, **given: Any
) -> Any:
    rollout_func = given.pop("rollout_func", None)
    policy = given.pop("policy", None)
    more = {"rollout_func": rollout_func} if rollout_func is not None else {}
    evaluated = given.pop("eval_dataset", None)
    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 6,
        "gradient_checkpointing": False, "report_to": [], "save_strategy": "no", "logging_steps": 5, "max_steps": steps,
        "learning_rate": 5e-4, "lr_scheduler_type": "constant", "use_cpu": True, "seed": seed, "bf16": False,
        "disable_tqdm": True, "temperature": 1.0, **given,
    }  # fmt: skip
    policy = model(seed, warm) if policy is None else policy
    policy.save_pretrained(folder / "start")  # a reference model is read from a folder
    policy.config._name_or_path = str(folder / "start")
    torch.manual_seed(seed)
    return kind(
        model=policy, reward_funcs=reward, args=GRPOConfig(**settings), train_dataset=problems(512, seed),
        processing_class=tokenizer(), eval_dataset=evaluated, **more,
    )  # fmt: skip


def frozen(policy: Any) -> Any:
    return copy.deepcopy(policy).eval()
