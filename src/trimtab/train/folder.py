"""The only place that reads a model folder that others may have written, and says what is wrong with it.

No code of the folder runs. It reads safetensors only: other weight files are pickles, and opening one runs whatever it
holds. A config that brings a module of its own is refused, and transformers is told never to import one.
"""

import json
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from trimtab.config.train import ModelSettings

INDEX_FILE = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<pad_token>", "<|finetune_right_pad_id|>", "<|pad_id|>", "<|padding|>")
"""What published tokenizers call a padding token that their settings forget to name."""
WEIGHT_KINDS = ("F32", "BF16", "F16", "F64")
OWN_PAD = "<|trimtab_pad|>"
HUB_NAME = re.compile(r"[\w.-]+/([\w.-]+)")
"""How a hub names a model: owner/name."""


def open_folder(folder: Path, settings: "ModelSettings | None") -> "tuple[PreTrainedModel, PreTrainedTokenizerFast]":
    """Model and tokenizer of a folder, after every check that a person would want before hours of training."""
    described = _config(folder)
    _refuse_code(folder, described)
    kinds = _check_weights(folder)
    model = _model(folder, described, kinds, torch.float32 if settings is None else getattr(torch, settings.dtype))
    tokenizer = _tokenizer(folder)
    rows = cast(nn.Embedding, model.get_input_embeddings()).weight.shape[0]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens and the model embeds {rows}, so the model does not "
            "know some of them. Save model and tokenizer together, after resizing the embeddings."
        )
    _check_end(folder, tokenizer)
    _give_padding(folder, tokenizer, rows)
    _check_head(folder, model)
    return model, tokenizer


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        name = HUB_NAME.fullmatch(str(folder))
        hint = (
            f" If it is a model of a hub, download it first: hf download {folder} --local-dir models/{name[1]}, then "
            f"train.model=models/{name[1]}."
            if name
            else ""
        )
        raise ConfigError(
            f"{folder}: is not a folder, so there is no model in it. Give the path of a model folder.{hint}"
        )
    if not path.is_file():
        raise ConfigError(
            f"{folder}: holds no config.json, so there is no policy in it. Give a model folder as transformers saves "
            "it, or the `model` folder of a run."
        )
    return _json(path)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{path}: is not JSON ({error}), so the model cannot be read. Copy the file again."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: holds {type(content).__name__} instead of settings, so the model cannot be read. "
            "Copy the file again."
        )
    return cast("dict[str, Any]", content)


def _refuse_code(folder: Path, described: dict[str, Any]) -> None:
    """Refuse a model or tokenizer that needs a module of the folder: that would run code of whoever wrote it."""
    from transformers import CONFIG_MAPPING

    kind = described.get("model_type")
    if described.get("auto_map") and kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"{folder}: config.json has model_type {kind!r}, which transformers does not know, and auto_map points at "
            f"code in the folder ({_modules(described['auto_map'])}). That code would run with your rights, so it is "
            "not imported. Use a model that transformers has itself."
        )
    path = folder / "tokenizer_config.json"
    own = (_json(path) if path.is_file() else {}).get("auto_map")
    if own and not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"{folder}: tokenizer_config.json points at code in the folder ({_modules(own)}), and there is no "
            "tokenizer.json. That code would run with your rights, so it is not imported. Save the tokenizer in the "
            "fast format (tokenizer.json) where you trust it."
        )


def _modules(named: object) -> str:
    values = cast("dict[str, object]", named).values() if isinstance(named, dict) else [named]
    return ", ".join(sorted({str(value) for value in values}))[:200]


def _check_weights(folder: Path) -> dict[str, str]:
    """Every weight file is there and whole, by its own table of contents: the kind of number of each tensor."""
    from safetensors import SafetensorError, safe_open

    index = folder / INDEX_FILE
    if index.is_file():
        paths = sorted({folder / str(name) for name in _json(index).get("weight_map", {}).values()})
    else:
        paths = [folder / "model.safetensors"]
    missing = [path.name for path in paths if not path.is_file()]
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if missing and pickles and not index.is_file():
        raise ConfigError(
            f"{folder}: holds {pickles[0]} and no safetensors; that file is a pickle, and opening it would run the "
            "code in it, so it is not read. Load it where you trust it, and save it with "
            "model.save_pretrained(folder, safe_serialization=True)."
        )
    if missing or not paths:
        raise ConfigError(
            f"{folder}: {', '.join(missing) or 'every weight file'} is missing, so the model has no "
            "parameters. Copy the folder again."
        )
    kinds: dict[str, str] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                held = {name: str(file.get_slice(name).get_dtype()) for name in _names(file)}
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{path}: is damaged or cut short ({error}), so the parameters in it are lost. Copy the file again."
            ) from error
        kinds |= held
    return kinds


def _model(folder: Path, described: dict[str, Any], kinds: dict[str, str], dtype: torch.dtype) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = cast("list[str]", described.get("architectures") or [])
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if described.get("is_encoder_decoder") or (named and not known & set(named)):
        raise ConfigError(
            f"{folder}: config.json names {', '.join(named) or described.get('model_type')}, which is not a causal "
            "language model that transformers knows, so it cannot be sampled token by token. Use a ...ForCausalLM."
        )
    try:
        with _silence_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,  # without this, transformers asks on the terminal
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
    except (ValueError, KeyError, OSError, RuntimeError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder}: transformers cannot build this model ({_first_line(error)}), so there is no policy. Look at "
            "its config.json."
        ) from error
    model, info = loaded
    _check_loaded(folder, model, info, kinds)
    return cast("PreTrainedModel", model)


def _check_loaded(folder: Path, model: Any, info: dict[str, Any], kinds: dict[str, str]) -> None:
    """Names, shapes and kinds of number in the weight files are those of the model, and all are finite."""
    broken = [name for name, values in model.named_parameters() if not bool(values.isfinite().all())]
    if broken:
        values = model.get_parameter(broken[0])
        raise ConfigError(
            f"{folder}: {broken[0]} holds {int((~values.isfinite()).sum())} numbers that are not finite, of "
            f"{values.numel()} ({len(broken)} such parameters in all), so the model cannot answer. Use a folder "
            "that was saved before the training broke, or copy it again."
        )
    lost = sorted(info["missing_keys"])
    if lost:
        raise ConfigError(
            f"{folder}: the weight files lack {len(lost)} parameters (first: {lost[0]}), so they would be random. "
            "Copy the folder again, or take the weights that belong to this config.json."
        )
    if info["mismatched_keys"]:
        name, stored, wanted = min(info["mismatched_keys"])
        raise ConfigError(
            f"{folder}: {name} has shape {tuple(stored)} in the weight files and {tuple(wanted)} by config.json, so "
            "they belong to different models. Take the config.json that was saved with these weights."
        )
    # Masks and positions, which some models save, are no parameters and may be integers.
    buffers = [f".{name}" for name, _ in model.named_buffers()]
    for name, kind in kinds.items():
        is_used = name not in info["unexpected_keys"] and not any(one.endswith(f".{name}") for one in buffers)
        if kind not in WEIGHT_KINDS and is_used:
            raise ConfigError(
                f"{folder}: {name} holds {kind} in the weight files, and parameters are {', '.join(WEIGHT_KINDS)}, so "
                "its numbers would mean something else (a damaged header, or quantised weights). Save the model in "
                "bfloat16 or float32."
            )


@contextmanager
def _silence_transformers() -> Generator[None]:
    """Stop the progress bar and the table that transformers prints. What matters of it is checked here."""
    from transformers.utils import logging

    verbosity, shows_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bar:
            logging.enable_progress_bar()


def _names(file: Any) -> list[str]:
    return list(file.keys())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def _tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    if not any(folder.glob("*token*")) and not any(folder.glob("vocab*")):
        raise ConfigError(
            f"{folder}: holds no tokenizer, so the model's ids have no text. Save one beside the model: "
            "tokenizer.save_pretrained(folder)."
        )
    try:
        read = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return cast("PreTrainedTokenizerFast", read)
    except Exception as error:  # the readers of tokenizer files raise bare Exception, too
        raise ConfigError(
            f"{folder}: transformers cannot read the tokenizer ({_first_line(error)}), so the ids have no text. "
            "Copy the tokenizer files again."
        ) from error


def _check_end(folder: Path, tokenizer: "PreTrainedTokenizerFast") -> None:
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"{folder}: the tokenizer names no end token, so no answer could ever end. Set eos_token in "
            "tokenizer_config.json."
        )


def _give_padding(folder: Path, tokenizer: "PreTrainedTokenizerFast", rows: int) -> None:
    """A padding token that is not the end token: one the tokenizer has, its unknown token, or a row nobody uses.

    Padding is hidden from every real token here, so any id gives the same numbers. But other tools hide an end token
    that equals the padding, and then the policy never learns to end.
    """
    if tokenizer.pad_token_id not in (None, tokenizer.eos_token_id):
        return
    vocabulary = tokenizer.get_vocab()
    names = [name for name in PAD_NAMES if vocabulary.get(name, rows) < rows]
    names += [str(tokenizer.unk_token)] if tokenizer.unk_token_id not in (None, tokenizer.eos_token_id) else []
    if names:
        tokenizer.pad_token = names[0]
    elif len(tokenizer) < rows:
        _ = tokenizer.add_special_tokens({"pad_token": OWN_PAD})
    else:
        tokenizer.pad_token = tokenizer.eos_token
        warnings.warn(
            f"{folder}: the tokenizer has no padding token, no unknown token and no free row, so its end token "
            f"{tokenizer.eos_token!r} pads too. That is safe here, but a tool that hides padding by id hides the end.",
            stacklevel=2,
        )


def _check_head(folder: Path, model: "PreTrainedModel") -> None:
    """The trainer takes logits as the output head of the last hidden state; some models do more to them."""
    head = cast(nn.Linear, model.get_output_embeddings())
    ids = torch.arange(min(4, head.weight.shape[0]))[None]
    with torch.no_grad():
        logits = cast(torch.Tensor, model(input_ids=ids, use_cache=False).logits)
        own = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    if not torch.allclose(logits.float(), own.float(), atol=1e-4, rtol=1e-3):
        raise ConfigError(
            f"{folder}: {type(model).__name__} changes its logits after the output head (a scale or a soft cap), so "
            "log-probs of the trainer would be wrong. Use a model without it."
        )
