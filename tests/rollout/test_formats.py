import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.formats import GROUP_SIZE, Format, linear_weights, rounded
from trimtab.rollout.weights import digest
from trimtab.train.policy import Policy, frozen_copy, published

WHOLE: list[Format] = ["int8", "int4", "int3"]


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(7, 96, generator=torch.Generator().manual_seed(0))


def test_fp32_changes_nothing_and_bf16_what_bf16_does(weight: torch.Tensor) -> None:
    assert torch.equal(rounded(weight, "fp32"), weight)
    assert torch.equal(rounded(weight, "bf16"), weight.bfloat16().float())


def test_int8_by_hand() -> None:
    weight = torch.tensor([[1.27, -0.6449, 0.004, 0.006], [0.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[1.27, -0.64, 0.0, 0.01], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(rounded(weight, "int8"), expected, atol=1e-6, rtol=0)


def test_int3_by_hand() -> None:
    weight = torch.zeros(1, GROUP_SIZE)
    weight[0, :4] = torch.tensor([0.7, 0.34, 0.36, 0.04])  # eight levels from 0 to 0.7, a tenth apart
    torch.testing.assert_close(rounded(weight, "int3")[0, :5], torch.tensor([0.7, 0.3, 0.4, 0.0, 0.0]))


@pytest.mark.parametrize(("format", "levels"), [("int8", 255), ("int4", 16), ("int3", 8)])
def test_no_value_moves_by_more_than_half_a_step(weight: torch.Tensor, format: Format, levels: int) -> None:
    groups = weight if format == "int8" else weight.reshape(-1, GROUP_SIZE)
    span = 2 * groups.abs().amax(-1) if format == "int8" else groups.amax(-1) - groups.amin(-1)
    moved = (rounded(weight, format) - weight).reshape(groups.shape).abs().amax(-1)
    # The zero point is a whole number, too: the ends of a group may move by half a step more.
    assert bool((moved <= span / (levels - 1) * (0.5 if format == "int8" else 1.0) + 1e-6).all())
    kinds = max(len(row.unique()) for row in rounded(weight, format).reshape(groups.shape))
    assert kinds <= levels


@pytest.mark.parametrize("format", WHOLE)
def test_a_row_does_not_depend_on_the_others_and_a_width_may_be_odd(weight: torch.Tensor, format: Format) -> None:
    assert torch.equal(rounded(weight, format)[3:4], rounded(weight[3:4], format))
    narrow = weight[:, :41]
    assert rounded(narrow, format).shape == narrow.shape
    assert torch.equal(rounded(torch.zeros(2, 33), format), torch.zeros(2, 33))


@pytest.mark.parametrize("format", WHOLE)
def test_rounding_is_that_of_torchao(weight: torch.Tensor, format: Format) -> None:
    quant = pytest.importorskip("torchao.quantization.quant_primitives", reason="make test-all installs it")
    symmetric = format == "int8"
    mapping = quant.MappingType.SYMMETRIC if symmetric else quant.MappingType.ASYMMETRIC
    block = (1, weight.shape[1] if symmetric else GROUP_SIZE)
    codes, low, high = {
        "int8": (torch.int8, -127, 127),
        "int4": (torch.uint8, 0, 15),
        "int3": (torch.uint8, 0, 7),
    }[format]
    scale, zero = quant.choose_qparams_affine(weight, mapping, block, codes, low, high, eps=1e-30)
    packed = quant.quantize_affine(weight, block, scale, zero, codes, low, high)
    assert torch.equal(quant.dequantize_affine(packed, block, scale, zero, codes, low, high), rounded(weight, format))


def test_only_the_matrices_inside_are_rounded(policy: Policy) -> None:
    names = linear_weights(policy.model)
    assert all("layers" in name for name in names)
    assert len(names) == 2 * 7
    assert not any("embed" in name or "norm" in name or "lm_head" in name for name in names)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=32, n_layer=1, n_head=4, n_positions=64))
    assert linear_weights(gpt2) == {
        f"transformer.h.0.{part}.weight": True for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }


def test_a_transposed_matrix_is_rounded_along_its_inputs() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=64, n_layer=1, n_head=4, n_positions=64))
    engine = Embedded(frozen_copy(model), pad_id=0, eos_ids=(1,), format="int4")
    state = published(model)
    engine.load(state, 0, digest(state))
    name = "transformer.h.0.mlp.c_fc.weight"
    own = engine._model.state_dict()  # pyright: ignore[reportPrivateUsage]
    assert torch.equal(own[name], rounded(state[name].t(), "int4").t())
    assert torch.equal(own["transformer.wte.weight"], state["transformer.wte.weight"])


def test_coarser_formats_drift_further_and_load_is_pure(policy: Policy) -> None:
    """The mean |log-prob difference| to fp32 grows with every bit that is dropped; loading twice gives equal bits."""
    asked = [Request((3 + row % 9, 5, 6), row) for row in range(64)]
    how = Sampling(max_new_tokens=6, temperature=1.0)
    state = published(policy.model)
    drift: dict[str, float] = {}
    for format in ("fp32", "bf16", "int8", "int4", "int3"):
        engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids, format=format)
        engine.load(state, 0, digest(state))
        assert engine.dtype == format
        samples = engine.sample(asked, how)
        engine.load(state, 1, digest(state))
        again = engine.sample(asked, how)
        assert all(torch.equal(one.logp, two.logp) for one, two in zip(samples, again, strict=True))
        with torch.no_grad():
            differences = [
                sample.logp
                - torch.log_softmax(
                    policy.model(torch.tensor([[*request.ids, *sample.ids]])).logits[0, len(request.ids) - 1 : -1], -1
                ).gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]
                for request, sample in zip(asked, samples, strict=True)
            ]
        drift[format] = float(torch.cat(differences).abs().mean())
    assert drift["fp32"] < 1e-6
    assert drift["fp32"] < drift["bf16"] < drift["int4"] < drift["int3"]
    assert drift["int8"] < drift["int4"]
