"""The sampler on other architectures than ours: what it says is what each model's own full forward pass says."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trimtab.errors import EngineError
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.weights import digest
from trimtab.train.policy import frozen_copy, published

SIZES = {"vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "mistral, window of 5": lambda: MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=5)),
    "qwen3, grouped heads": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, head_dim=8)),
    "qwen3, some windows": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, **HEADS, head_dim=8, sliding_window=4, use_sliding_window=True, max_window_layers=1)
    ),
}


def built(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():  # initial values give nearly uniform logits
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model


@pytest.mark.parametrize("max_rows", [0, 4])
@pytest.mark.parametrize("name", MODELS)
def test_logp_is_that_of_the_models_own_forward_pass(name: str, max_rows: int) -> None:
    model = built(name)
    engine = Embedded(frozen_copy(model), pad_id=0, eos_ids=(1,), max_rows=max_rows)
    state = published(model)
    engine.load(state, 0, digest(state))
    prompts = [(5, 6, 7), (8,), (9, 10, 11, 12, 13, 14, 15, 16), (5, 3)]
    asked = [Request(ids, 100 * row + copy) for row, ids in enumerate(prompts) for copy in range(6)]
    samples = engine.sample(asked, Sampling(max_new_tokens=14, temperature=1.2))
    assert len({len(sample.ids) for sample in samples}) > 2
    for request, sample in zip(asked, samples, strict=True):
        ids = torch.tensor([[*request.ids, *sample.ids]])
        with torch.no_grad():
            table = torch.log_softmax(model(ids).logits[0].float() / 1.2, -1)
        expected = table[len(request.ids) - 1 : -1].gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]
        torch.testing.assert_close(sample.logp, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama, tied", "gpt2"])
def test_a_state_dict_with_tied_names_loads_like_one_without(name: str) -> None:
    model = built(name)
    whole = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    assert len(whole) == len(published(model)) + 1
    engine = Embedded(frozen_copy(model), pad_id=0, eos_ids=(1,))
    engine.load(whole, 0, digest(whole))
    engine.load(published(model), 1, digest(published(model)))
    torn = {key: tensor.clone() for key, tensor in whole.items()}
    torn["lm_head.weight"][0, 0] += 1
    with pytest.raises(EngineError, match="are one parameter of the engine's model and differ in the state"):
        engine.load(torn, 2, digest(torn))


def test_a_model_that_remembers_more_than_keys_is_refused() -> None:
    model = built("qwen3, grouped heads")
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(EngineError, match=r"layers of kind \['linear_attention'\]"):
        _ = Embedded(model, pad_id=0, eos_ids=(1,))


def test_answers_longer_than_a_position_table_are_refused() -> None:
    model = built("gpt2")
    engine = Embedded(model, pad_id=0, eos_ids=(1,))
    state = {key: tensor.clone() for key, tensor in published(model).items()}
    engine.load(state, 0, digest(state))
    with pytest.raises(EngineError, match="need more than the 64 positions of the model"):
        _ = engine.sample([Request((5, 6), 0)], Sampling(max_new_tokens=63, temperature=1.0))


def test_rows_that_wait_to_leave_stay_inside_the_position_table() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=10, n_embd=32, n_layer=1, n_head=4, n_positions=12)).eval()
    engine = Embedded(frozen_copy(model), pad_id=0, eos_ids=(1,), max_rows=16)
    state = published(model)
    engine.load(state, 0, digest(state))
    samples = engine.sample([Request((5, 6, 7, 8), row) for row in range(300)], Sampling(8, 1.0))
    lengths = {len(sample.ids) for sample in samples}
    assert 8 in lengths
    assert len(lengths) > 4  # rows leave and enter at different times
