import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.signal import recipe
from trimtab.train.checks.memory import estimate_memory
from trimtab.train.policy import Policy, make_policy, new_policy

SETTINGS = TrainSettings(
    model=ModelSettings(hidden_size=128, num_layers=3, num_heads=4, mlp_size=512),
    max_new_tokens=48,
    prompts_per_step=2,
    samples_per_prompt=4,
)


def kept(model: PreTrainedModel, ids: torch.Tensor) -> int:
    """Bytes that autograd really keeps for the backward pass."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _ = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return sum(tensor.untyped_storage().nbytes() for place, tensor in seen.items() if place not in own)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
def test_activations_are_estimated_within_a_factor_of_one_and_a_half(kind: str) -> None:
    policy = new_policy(SETTINGS.model, "0123456789=", seed=0)
    if kind == "llama":
        config = LlamaConfig(
            vocab_size=14, hidden_size=128, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4
        )
        policy = make_policy(LlamaForCausalLM(config), policy.tokenizer, None)
    if kind == "gpt2":
        config = GPT2Config(vocab_size=14, n_embd=128, n_layer=3, n_head=4)
        policy = make_policy(GPT2LMHeadModel(config), policy.tokenizer, None)
    real = kept(policy.model, torch.randint(0, 14, (8, 64)))
    estimated = estimate_memory(policy, SETTINGS, recipe("grpo"), prompt_tokens=16)["activations"]
    assert real / 1.5 < estimated < 1.5 * real


def test_every_setting_moves_what_it_should() -> None:
    policy: Policy = new_policy(SETTINGS.model, "0123456789=", seed=0)

    def sizes(**changed: object) -> dict[str, int]:
        return estimate_memory(policy, SETTINGS.model_copy(update=changed), recipe("grpo"))

    plain = sizes()
    assert plain["parameters"] == plain["gradients"] == 4 * policy.num_parameters
    assert plain["optimizer"] == 3 * plain["parameters"]
    assert sizes(runtime="processes")["engines"] > plain["engines"]
    assert sizes(max_tokens_per_micro_batch=96)["activations"] * 3.9 < plain["activations"]
    checkpointed = SETTINGS.model.model_copy(update={"gradient_checkpointing": True})
    assert sizes(model=checkpointed)["activations"] * 2 < plain["activations"]
    assert sizes(max_new_tokens=480)["cache"] > 4 * plain["cache"]
