"""Model folders that others wrote: what is read of them, and what is refused with the reason. No code of them runs."""

import io
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from trimtab.config.train import ModelSettings
from trimtab.errors import ConfigError
from trimtab.rollout.tokenizer import encode_prompt
from trimtab.train.policy import Policy, load, published, save


def words(*specials: str, eos: str | None = "</s>", **settings: str) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([*specials, *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=settings.get("unk_token", specials[0])))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, **settings)


def llama(folder: Path, tokenizer: PreTrainedTokenizerFast, rows: int = 16, **saving: object) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder, **saving)  # type: ignore[arg-type]
    _ = tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return llama(tmp_path / "llama", words("<s>", "</s>", "<unk>", "<pad>", pad_token="<pad>", unk_token="<unk>"))


def test_a_folder_of_others_is_loaded_and_saved_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    policy = load(folder)
    ids = torch.tensor([[4, 5, 6]])
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(policy.model(ids).logits, theirs(ids).logits)
    assert "lm_head.weight" not in published(policy.model)  # tied: once
    save(policy, tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(again(ids).logits, theirs(ids).logits)


def test_sharded_safetensors_are_read(tmp_path: Path) -> None:
    folder = llama(tmp_path / "shards", words("<s>", "</s>", "<pad>", pad_token="<pad>"), max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    whole = llama(tmp_path / "whole", words("<s>", "</s>", "<pad>", pad_token="<pad>"))
    for name, tensor in load(folder).model.state_dict().items():
        assert torch.equal(tensor, load(whole).model.state_dict()[name])
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ConfigError, match=f"{lost.name} is missing"):
        _ = load(folder)


def test_settings_choose_format_and_checkpointing(folder: Path) -> None:
    policy = load(folder, ModelSettings(path=folder, dtype="bfloat16", gradient_checkpointing=True))
    assert policy.dtype == "bfloat16"
    assert policy.critic.weight.dtype == torch.float32
    plain = load(folder, ModelSettings(path=folder))
    kept = load(folder, ModelSettings(path=folder, gradient_checkpointing=True))
    ids = torch.tensor([[4, 5, 6, 7]])
    gradients = [
        torch.autograd.grad(one.model(ids).logits.square().sum(), list(one.model.parameters())) for one in (plain, kept)
    ]
    assert all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))


def test_nothing_is_dropped_out_even_while_checkpointing(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=64))
    model.save_pretrained(tmp_path / "gpt2")
    _ = words("<s>", "</s>", "<pad>", pad_token="<pad>").save_pretrained(tmp_path / "gpt2")
    policy = load(tmp_path / "gpt2", ModelSettings(path=tmp_path / "gpt2", gradient_checkpointing=True))
    ids = torch.tensor([[4, 5, 6, 7]])
    assert policy.model.training
    first, second = (policy.model(ids).logits for _ in range(2))
    assert torch.equal(first, second)
    save(policy, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["attn_pdrop"] == 0.1  # theirs, untouched


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    for device in ("cuda:7", "tpu", "cuda:seven"):
        with pytest.raises(ConfigError, match=rf"model\.device: '{device}' is not on this machine.* There is: cpu"):
            _ = load(folder, ModelSettings(path=folder, device=device))


@pytest.mark.parametrize(
    ("specials", "settings", "rows", "expected"),
    [
        (("<s>", "</s>", "<pad>"), {"pad_token": "<pad>"}, 16, "<pad>"),
        (("<s>", "</s>", "<pad>"), {}, 16, "<pad>"),  # there, but not named
        (("<s>", "</s>", "<pad>"), {"pad_token": "</s>"}, 16, "<pad>"),  # named as the end token
        (("<s>", "</s>", "<unk>"), {"unk_token": "<unk>"}, 16, "<unk>"),
        (("<s>", "</s>"), {}, 16, "<|trimtab_pad|>"),  # a row that no token uses
    ],
)
def test_padding_is_a_token_of_its_own(
    tmp_path: Path, specials: tuple[str, ...], settings: dict[str, str], rows: int, expected: str
) -> None:
    policy = load(llama(tmp_path / "model", words(*specials, **settings), rows))
    assert policy.tokenizer.pad_token == expected
    assert policy.pad_id != policy.eos_id
    assert policy.pad_id < rows
    save(policy, tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path / "again").pad_id == policy.pad_id


def test_padding_that_must_be_the_end_token_is_said_aloud(tmp_path: Path) -> None:
    folder = llama(tmp_path / "model", words("<s>", "</s>"), rows=10)
    with pytest.warns(UserWarning, match="its end token '</s>' pads too"):
        assert load(folder).pad_id == 1


def test_chat_messages_need_a_template(folder: Path) -> None:
    policy = load(folder)
    messages = ({"role": "user", "content": "a b"},)
    assert encode_prompt(policy.tokenizer, "a b") == [4, 5]
    with pytest.raises(ConfigError, match="no chat template"):
        _ = encode_prompt(policy.tokenizer, messages)
    policy.tokenizer.chat_template = (
        "{% for m in messages %}g {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}h{% endif %}"
    )
    assert encode_prompt(policy.tokenizer, messages) == [10, 4, 5, 11]


def broken(folder: Path, change: str) -> None:
    """One thing that is wrong with a model folder."""
    weights, config = folder / "model.safetensors", folder / "config.json"
    described = json.loads(config.read_text())
    if change == "no folder":
        shutil.rmtree(folder)
    elif change == "no config":
        config.unlink()
    elif change == "config is no JSON":
        config.write_text("{")
    elif change == "config is a list":
        config.write_text("[]")
    elif change == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif change == "header damaged":
        weights.write_bytes(b"\xff" * 64 + weights.read_bytes()[64:])
    elif change == "empty file":
        weights.write_bytes(b"")
    elif change == "pickle only":
        weights.rename(folder / "pytorch_model.bin")
    elif change == "no weights":
        weights.unlink()
    elif change == "a parameter lacks":
        save_file({k: v for k, v in load_file(weights).items() if "layers.1.mlp.up" not in k}, weights)
    elif change == "another size":
        config.write_text(json.dumps({**described, "intermediate_size": 32}))
    elif change == "an encoder":
        config.write_text(json.dumps({**described, "architectures": ["BertForMaskedLM"], "model_type": "bert"}))
    elif change == "unknown type":
        config.write_text(json.dumps({**described, "architectures": None, "model_type": "wobble"}))
    elif change == "no tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()
    elif change == "tokenizer damaged":
        (folder / "tokenizer.json").write_text('{"model": 3}')
    elif change == "no end token":
        _ = words("<s>", "</s>", eos=None).save_pretrained(folder)
    elif change == "more tokens than rows":
        _ = words("<s>", "</s>", *"ijklmnop").save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no folder", "is not a folder"),
        ("no config", r"holds no config\.json"),
        ("config is no JSON", r"config\.json: is not JSON"),
        ("config is a list", r"config\.json: holds list instead of settings"),
        ("truncated", r"model\.safetensors: is damaged or cut short"),
        ("header damaged", r"model\.safetensors: is damaged or cut short"),
        ("empty file", r"model\.safetensors: is damaged or cut short"),
        ("pickle only", r"holds pytorch_model\.bin and no safetensors; that file is a pickle"),
        ("no weights", r"model\.safetensors is missing"),
        ("a parameter lacks", r"lack 1 parameters \(first: model\.layers\.1\.mlp\.up_proj\.weight\)"),
        ("another size", r"has shape \(16, 16\) in the weight files and \(16, 32\) by config\.json"),
        ("an encoder", "BertForMaskedLM, which is not a causal language model"),
        ("unknown type", "transformers cannot build this model"),
        ("no tokenizer", "holds no tokenizer"),
        ("tokenizer damaged", "cannot read the tokenizer"),
        ("no end token", "names no end token"),
        ("more tokens than rows", "the tokenizer has 18 tokens and the model embeds 16"),
    ],
)
def test_a_folder_that_cannot_serve_is_refused_with_the_reason(folder: Path, change: str, message: str) -> None:
    broken(folder, change)
    with pytest.raises(ConfigError, match=message):
        _ = load(folder)


EVIL = "import pathlib\npathlib.Path({!r}).write_text('ran')\nclass Evil: pass\n"


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_in_a_model_folder_never_runs_whatever_is_typed(
    where: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would ask on the terminal, and `y` would do."""
    witness = tmp_path / "witness"
    _ = (folder / "evil.py").write_text(EVIL.format(str(witness)))
    content = json.loads((folder / where).read_text())
    autos = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    content |= {"auto_map": autos, "model_type": "evil", "tokenizer_class": "Evil"}
    _ = (folder / where).write_text(json.dumps(content))
    if where == "tokenizer_config.json":
        (folder / "tokenizer.json").unlink()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ConfigError, match=r"code in the folder \(evil.Evil|evil.Evil.*with your rights"):
        _ = load(folder)
    assert not witness.exists()


def test_a_known_model_with_a_module_beside_it_is_loaded_without_the_module(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    _ = (folder / "evil.py").write_text(EVIL.format(str(witness)))
    for where, name in (("config.json", "AutoModelForCausalLM"), ("tokenizer_config.json", "AutoTokenizer")):
        content = json.loads((folder / where).read_text())
        _ = (folder / where).write_text(json.dumps({**content, "auto_map": {name: "evil.Evil"}}))
    assert load(folder).num_parameters > 0
    assert not witness.exists()


def relabel(path: Path, tensor: str, kind: str) -> None:
    """Change what a safetensors header says of one tensor, and nothing of its bytes."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header[tensor]["dtype"] = kind
    text = json.dumps(header).encode()
    _ = path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize("kind", ["I32", "U32"])
def test_integers_in_place_of_weights_are_refused_by_name(kind: str, folder: Path) -> None:
    name = next(name for name in load_file(folder / "model.safetensors") if name.endswith("weight"))
    relabel(folder / "model.safetensors", name, kind)
    with pytest.raises(ConfigError, match=rf"{name} holds {kind} in the weight files, and parameters are F32"):
        _ = load(folder)


def test_integers_in_place_of_the_critic_are_refused_by_name(policy: Policy, tmp_path: Path) -> None:
    save(policy, tmp_path / "model")
    relabel(tmp_path / "model" / "critic.safetensors", "weight", "I32")
    with pytest.raises(ConfigError, match=r"critic.safetensors: weight is .*int32.* and this model's critic has"):
        _ = load(tmp_path / "model")
