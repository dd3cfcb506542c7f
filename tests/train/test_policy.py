from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

from trimtab.config.train import ModelSettings
from trimtab.errors import DiskError
from trimtab.train.policy import Policy, frozen_copy, load, new_policy, save

SMALL = ModelSettings(hidden_size=16, num_layers=1, num_heads=2, mlp_size=16)


def test_the_default_policy_is_small() -> None:
    policy = new_policy(ModelSettings(), "0123456789=", seed=0)
    assert 0.12e6 < policy.num_parameters < 0.15e6
    assert policy.parameter_bytes == 4 * policy.num_parameters


def test_parameters_follow_the_seed_and_leave_the_global_stream_alone() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (next(new_policy(SMALL, "01", seed).model.parameters()) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_plain_transformers_loads_what_is_saved(policy: Policy, tmp_path: Path) -> None:
    save(policy, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = torch.tensor([tokenizer.encode("58213=", add_special_tokens=False)])
    assert type(model) is type(policy.model)
    assert {name: tensor.tolist() for name, tensor in model.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in policy.model.state_dict().items()
    }
    with torch.no_grad():
        assert torch.equal(model(ids).logits, policy.model(ids).logits)
    assert tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors", ".jinja"}


def test_a_folder_is_saved_whole_or_not_at_all(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(policy, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}

    def full_disk(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("trimtab.train.policy._save_file", full_disk)
    with pytest.raises(DiskError, match=r"cannot be written .no space left"):
        save(policy, tmp_path / "model")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    with pytest.raises(DiskError, match=r"cannot be written .no space left"):
        save(policy, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_load_brings_back_model_and_critic(policy: Policy, tmp_path: Path) -> None:
    torch.nn.init.constant_(policy.critic.weight, 0.25)
    save(policy, tmp_path / "model")
    again = load(tmp_path / "model")
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, policy.model(ids).logits)
    assert torch.equal(again.critic.weight, policy.critic.weight)
    assert (again.pad_id, again.eos_id) == (policy.pad_id, policy.eos_id)


def test_a_frozen_copy_does_not_follow(policy: Policy) -> None:
    copied = frozen_copy(policy.model)
    before = next(copied.parameters()).clone()
    with torch.no_grad():
        next(policy.model.parameters()).zero_()
    assert torch.equal(next(copied.parameters()), before)
    assert not any(parameter.requires_grad for parameter in copied.parameters())
