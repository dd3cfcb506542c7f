"""One run that is no toy: a folder of 100M parameters, a vocabulary of 32k, chat data, answers of 512 tokens.

Run it alone to see its table: `pytest -m slow tests/train/test_nontoy.py -s`.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trimtab.config.train import EngineSettings, ModelSettings, TaskSettings, TrainSettings
from trimtab.rollout.tokenizer import encode_prompt
from trimtab.signal import recipe
from trimtab.train.checks.memory import estimate_memory
from trimtab.train.policy import load

VOCABULARY = 32_768
STEPS = 5
SPECIALS = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
REWARD = '''
def variety(prompts, completions, completion_ids, **columns):
    """The share of an answer's tokens that differ: an untrained policy earns more or less of it by chance."""
    return [len(set(ids)) / len(ids) for ids in completion_ids]
'''


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained here on words made of syllables: enough of them for every merge that is wanted."""
    stream = random.Random(0)
    syllables = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "r", "s")]
    words = ["".join(stream.choices(syllables, k=stream.randint(1, 4))) for _ in range(120_000)]
    text = [" ".join(stream.choices(words, k=40)) for _ in range(12_000)]
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token=SPECIALS[0], eos_token=SPECIALS[1], chat_template=TEMPLATE
    )


def written(folder: Path) -> TrainSettings:
    """Model folder, data file, reward and run file, as a user would bring them."""
    words = tokenizer()
    assert len(words) >= VOCABULARY
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=1024, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    _ = words.save_pretrained(folder / "model")
    stream = random.Random(1)
    with (folder / "problems.jsonl").open("w") as file:
        for _ in range(200):
            left, right = stream.randint(10, 99), stream.randint(10, 99)
            messages = [{"role": "user", "content": f"How much is {left} plus {right}? Think first."}]
            print(json.dumps({"prompt": messages, "answer": str(left + right)}), file=file)
    (folder / "reward.py").write_text(REWARD)
    settings = TrainSettings(
        task=TaskSettings(name="file", file=folder / "problems.jsonl", reward=f"{folder / 'reward.py'}:variety"),
        model=ModelSettings(path=folder / "model"),
        engine=EngineSettings(format="int8"),
        staleness=1,
        warm_start_steps=0,
        steps=STEPS,
        prompts_per_step=2,
        samples_per_prompt=4,
        max_new_tokens=512,
        max_tokens_per_micro_batch=1024,
        lr=1e-5,
        eval_every=STEPS,
        eval_prompts=2,
        early_stop="never",
        checkpoint_every=0,
        threads=2,
        run_dir=folder / "run",
    )
    (folder / "settings.json").write_text(settings.model_dump_json())
    return settings


def measured(folder: Path) -> float:
    """The run in a process of its own; returns the most memory it held, in GiB."""
    code = (
        "import sys, pathlib; from trimtab.train import TrainSettings, train; "
        "train(TrainSettings.model_validate_json(pathlib.Path(sys.argv[1]).read_text()), quiet=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder / "settings.json")])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 2**20


@pytest.mark.slow
def test_a_hundred_million_parameters_learn_from_chat_data(tmp_path: Path) -> None:
    settings = written(tmp_path)
    peak = measured(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    policy = load(tmp_path / "model")
    messages = json.loads((tmp_path / "problems.jsonl").read_text().splitlines()[0])["prompt"]
    asked = encode_prompt(policy.tokenizer, tuple(messages))
    sizes = estimate_memory(policy, settings, recipe("start_async"), prompt_tokens=len(asked))
    seconds = {
        name: sum(line.get(f"time/{name}_seconds") or 0.0 for line in lines) for name in ("sample", "learn", "eval")
    }
    estimate = sum(sizes.values()) / 2**30
    print(f"\n{policy.num_parameters / 1e6:.0f}M parameters, vocabulary {len(policy.tokenizer)}, int8 sampler")
    print(f"tokens a step {steps[-1]['rollout/tokens']}, seconds in {len(steps)} steps: {seconds}")
    print(f"peak memory {peak:.2f} GiB, estimated {estimate:.2f} GiB: {sizes}")
    assert policy.num_parameters >= 100e6
    assert len(steps) == STEPS
    assert all(line["train/updates"] == 1 for line in steps)
    assert 0 < steps[0]["drift/engine_abs_mean"] < 0.1
    assert steps[-1]["staleness/max"] == 1
    assert steps[0]["rollout/tokens"] == 8 * 512
    assert peak < 16
    assert peak / 1.5 < estimate < 1.5 * peak
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    moved = [
        not torch.equal(new, old) for new, old in zip(trained.parameters(), policy.model.parameters(), strict=True)
    ]
    assert all(moved)
