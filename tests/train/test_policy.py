from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trimtab.config.train import ModelSettings
from trimtab.errors import ConfigError
from trimtab.train.policy import Policy, frozen_copy, load, new_policy, save


def test_the_default_policy_is_small() -> None:
    assert 0.12e6 < new_policy(ModelSettings(), "0123456789=", seed=0).num_parameters < 0.15e6


def test_parameters_follow_the_seed_and_leave_the_global_stream_alone() -> None:
    small = ModelSettings(hidden_size=16, num_layers=1, num_heads=2, mlp_size=16)
    state = torch.random.get_rng_state()
    first, again, other = (next(new_policy(small, "01", seed).model.parameters()) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_plain_transformers_loads_what_is_saved(policy: Policy, tmp_path: Path) -> None:
    save(policy, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path).encode("58213=", add_special_tokens=False)])
    assert type(model) is type(policy.model)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, policy.model(ids).logits)
    assert not [path for path in tmp_path.iterdir() if path.suffix not in {".json", ".safetensors"}]


def test_load_brings_back_model_and_critic(policy: Policy, tmp_path: Path) -> None:
    torch.nn.init.constant_(policy.critic.weight, 0.25)
    save(policy, tmp_path)
    again = load(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, policy.model(ids).logits)
    assert torch.equal(again.critic.weight, policy.critic.weight)
    assert (again.pad_id, again.eos_id) == (policy.pad_id, policy.eos_id)


def test_a_folder_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        _ = load(tmp_path)


def test_a_frozen_copy_does_not_follow(policy: Policy) -> None:
    copied = frozen_copy(policy.model)
    before = next(copied.parameters()).clone()
    with torch.no_grad():
        next(policy.model.parameters()).zero_()
    assert torch.equal(next(copied.parameters()), before)
    assert not any(parameter.requires_grad for parameter in copied.parameters())
