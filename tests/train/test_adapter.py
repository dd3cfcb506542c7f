"""Adapters: no change at the start, nothing else is trained, off is the model to the last bit, both folders load."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.config.train import LoraSettings, ModelSettings
from trimtab.errors import ConfigError
from trimtab.rollout.tokenizer import character_tokenizer
from trimtab.signal import recipe
from trimtab.train import TrainSettings, resume, train
from trimtab.train.adapter import adapter_of, adapter_off, adapter_size, add_adapter, has_adapter
from trimtab.train.checks.memory import estimate_memory, model_copies
from trimtab.train.policy import Policy, frozen_copy, load, make_policy, published, save
from trimtab.train.show.progress import Silent

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def moved(policy: Policy, settings: LoraSettings | None = None) -> Policy:
    """A policy whose adapter does something."""
    add_adapter(policy.model, settings or LoraSettings(rank=4), seed=0)
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=stream))
    return policy


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(policy: Policy) -> None:
    before, size = logits(policy.model), adapter_size(policy.model, LoraSettings(rank=4))
    whole = policy.num_parameters
    assert not has_adapter(policy.model)
    add_adapter(policy.model, LoraSettings(rank=4), seed=0)
    assert has_adapter(policy.model)
    assert torch.equal(logits(policy.model), before)
    assert policy.num_trained == size == policy.num_parameters - whole
    trained = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not any("lm_head" in name for name in trained)


def test_off_is_the_frozen_copy_to_the_last_bit_and_on_is_the_adapter_again(policy: Policy) -> None:
    frozen = frozen_copy(policy.model)
    _ = moved(policy)
    trained = logits(policy.model)
    assert not torch.allclose(trained, logits(frozen), atol=1e-3)
    with adapter_off(policy.model):
        assert torch.equal(logits(policy.model), logits(frozen))
    assert torch.equal(logits(policy.model), trained)
    assert all(p.requires_grad == (".lora_" in n) for n, p in policy.model.named_parameters())


def test_what_is_published_is_a_merged_copy_under_the_old_names(policy: Policy) -> None:
    frozen = frozen_copy(policy.model)
    names = list(published(frozen))
    _ = moved(policy)
    own = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    state = published(policy.model)
    assert list(state) == names
    frozen.load_state_dict(state)
    assert torch.allclose(logits(frozen), logits(policy.model), atol=1e-5)
    assert all(torch.equal(own[name], tensor) for name, tensor in policy.model.state_dict().items())


def test_an_adapter_apart_from_its_model_says_the_same_as_the_merged_copy(policy: Policy) -> None:
    base = published(frozen_copy(policy.model))
    assert adapter_of(policy.model) is None
    _ = moved(policy, LoraSettings(rank=2, alpha=3))
    apart = adapter_of(policy.model)
    assert apart is not None
    assert (apart.rank, apart.scaling) == (2, 1.5)
    for name, tensor in published(policy.model).items():
        torch.testing.assert_close(apart.merged(base)[name], tensor, atol=1e-7, rtol=0)


def test_tied_embeddings_are_published_and_saved_once_and_their_head_gets_no_adapter(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = character_tokenizer("0123456789")
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    built = make_policy(Qwen3ForCausalLM(config), tokenizer, None)
    names = list(published(built.model))
    with pytest.raises(ConfigError, match=r"'lm_head' is tied to the embeddings.*Leave it out"):
        add_adapter(built.model, LoraSettings(rank=2, targets=("lm_head",)), seed=0)
    _ = moved(built)
    assert list(published(built.model)) == names
    save(built, tmp_path / "model")
    assert torch.allclose(logits(load(tmp_path / "model").model), logits(built.model), atol=1e-5)


def test_peft_reads_the_adapter_and_transformers_the_merged_model(policy: Policy, tmp_path: Path) -> None:
    from peft import PeftModel

    base = frozen_copy(policy.model)
    _ = moved(policy, LoraSettings(rank=2, alpha=3, targets=("q_proj", "down_proj")))
    save(policy, tmp_path / "model")
    wanted = logits(policy.model)
    assert torch.allclose(logits(load(tmp_path / "model").model), wanted, atol=1e-5)
    again = PeftModel.from_pretrained(base, tmp_path / "model" / "adapter")
    assert torch.allclose(logits(again), wanted, atol=1e-6)
    described = json.loads((tmp_path / "model" / "adapter" / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (2, 3)
    assert {name.rpartition(".")[2] for name in described["target_modules"]} == {"q_proj", "down_proj"}


def test_a_layer_that_is_not_there_is_refused_by_name(policy: Policy) -> None:
    with pytest.raises(ConfigError, match=r"'query'.*q_proj"):
        add_adapter(policy.model, LoraSettings(targets=("query",)), seed=0)


def lora(small: TrainSettings, **changed: Any) -> TrainSettings:
    model = ModelSettings(**{**small.model.model_dump(), "lora": {"rank": 4}})
    return small.model_copy(update={"model": model, "lr": 2e-2, **changed})


def test_memory_counts_the_adapter_and_no_reference(policy: Policy, small: TrainSettings) -> None:
    ppo = recipe("ppo")
    full, thin = (estimate_memory(policy, settings, ppo) for settings in (small, lora(small)))
    assert "reference" in full
    assert "reference" not in thin
    assert "reference" not in model_copies(lora(small), ppo)
    assert thin["optimizer"] == 3 * thin["gradients"] < full["optimizer"]


@pytest.mark.usefixtures("undrawn_here")
def test_a_run_trains_the_adapter_alone_and_resumes_to_the_same_bits(small: TrainSettings, tmp_path: Path) -> None:
    """With a reference (ppo): the drift to it begins at 0 and grows."""
    whole = train(lora(small, run_dir=tmp_path / "whole"), "ppo", progress=Silent())
    _ = train(lora(small, run_dir=tmp_path / "cut", steps=3), "ppo", progress=Silent())
    again = resume(tmp_path / "cut", changes={"steps": 5}, progress=Silent())
    first, second = (load(one.run_dir / "model").model.state_dict() for one in (whole, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    found = [line["kl_ref/token_mean"] for line in map(json.loads, lines) if "kl_ref/token_mean" in line]
    assert found[0] == 0.0 < max(map(abs, found[1:]))
    assert whole.trained_parameters < whole.num_parameters / 2
