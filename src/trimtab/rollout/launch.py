"""The only place that knows how a vLLM server is started: its flags, its environment, and why each is there."""

import ipaddress
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from trimtab.errors import ConfigError

TOKEN, ENVIRONMENT, FOLDER = "TRIMTAB_TOKEN", "VLLM_ENV", ".vllm-env"
MODULE = "vllm.entrypoints.openai.api_server"
"""Started as a module: the CPU build's `vllm serve` looks for a package of another name and ends."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM 0.32 takes for --max-lora-rank."""
UNGUARDED = (
    "The token guards only the routes that answer: whoever reaches this port can pause the server and call "
    "/collective_rpc, which is code execution. Keep it on loopback; beyond one host put a proxy before it that asks "
    "for a token on every route and lets through only the routes in docs/engines.md."
)


HEAD_UNIT = 32
CACHE, CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE", 2
"""vLLM's setting for the CPU; set it yourself for long answers or many slots."""


@dataclass(frozen=True)
class Part:
    """Words of the command or of its environment, and the reason for them."""

    words: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Launch:
    """A server as it will be started."""

    python: Path
    flags: tuple[Part, ...]
    settings: tuple[Part, ...]
    """Of the environment, as NAME=VALUE. The token is not among them, so that no list of processes shows it."""
    token: str
    is_new_token: bool
    url: str
    warning: str

    @property
    def command(self) -> list[str]:
        return [str(self.python), "-m", MODULE, *(word for flag in self.flags for word in flag.words)]

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        own = dict(part.words[0].split("=", 1) for part in self.settings)
        return {**given, **own, "VLLM_API_KEY": self.token}


def plan(
    model: Path,
    *,
    host: str,
    port: int,
    slots: int,
    dtype: str,
    max_length: int,
    lora_rank: int = 0,
    environment: Path | None,
    more: Sequence[str],
    given: Mapping[str, str],
) -> Launch:
    """The command for a model folder; refuses what would not start, or would be open to others."""
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"serve: {model} is no model folder (it holds no config.json), so there is nothing to serve. Give a folder "
            "as transformers saves it, or the `model` folder of a run; one from a hub is downloaded first: hf download "
            "ORGANISATION/NAME --local-dir FOLDER."
        )
    _refuse_heads(model)
    token = given.get(TOKEN, "")
    is_local = _is_loopback(host)
    if not is_local and not token:
        raise ConfigError(
            f"serve: --host {host} is reachable from other machines and {TOKEN} is not set, so anybody there could use "
            f"the server. Set {TOKEN} here and for the trainer, or leave --host out. {UNGUARDED}"
        )
    given_by_you = [Part(tuple(more), "given by you")] if more else []
    address = f"[{host}]" if ":" in host else host
    return Launch(
        python=_python(environment, given),
        flags=(*_flags(model, host, port, slots, dtype, max_length), *_adapter_flags(lora_rank), *given_by_you),
        settings=_settings(given, lora_rank),
        token=token or secrets.token_urlsafe(24),
        is_new_token=not token,
        url=f"http://{address}:{port}",
        warning="" if is_local else UNGUARDED,
    )


def _refuse_heads(model: Path) -> None:
    """vLLM on the CPU starts with any heads, and ends at the first token if it cannot compute theirs."""
    config = cast("dict[str, int | None]", json.loads((model / "config.json").read_text(encoding="utf-8")))
    heads = config.get("num_attention_heads") or 1
    size = config.get("head_dim") or (config.get("hidden_size") or 0) // heads
    if size % HEAD_UNIT and shutil.which("nvidia-smi") is None:
        raise ConfigError(
            f"serve: {model} has attention heads of {size} numbers, and vLLM on the CPU computes multiples of "
            f"{HEAD_UNIT}, so it would end at the first token. Use fewer heads (model.num_heads) or a wider model."
        )


def _flags(model: Path, host: str, port: int, slots: int, dtype: str, max_length: int) -> list[Part]:
    flags = [
        Part(("--model", str(model)), "the parameters it starts with; the trainer loads its own at once"),
        Part(("--host", host, "--port", str(port)), "where it listens; vLLM's own default is every network interface"),
        Part(("--max-num-seqs", str(slots)), "requests that it computes at once; the trainer sends no more"),
        Part(("--dtype", dtype), "the number format of its parameters"),
        Part(
            ("--logprobs-mode", "processed_logprobs"), "log-probs after temperature and cuts: of what was sampled from"
        ),
        Part(("--generation-config", "vllm"), "sampling defaults of the model folder must not act"),
        Part(("--enable-scale-out",), "the route for token ids, which names the parameters behind every token"),
        Part(("--enable-prompt-tokens-details",), "says what came from the prefix cache, so that its reset is checked"),
        Part(("--enable-tokenizer-info-endpoint",), "says its chat template, so that it is compared with ours"),
        Part(("--disable-uvicorn-access-log",), "a line for every request would bury the others"),
    ]
    if max_length:
        flags.append(Part(("--max-model-len", str(max_length)), "the longest sequence, prompt included"))
    if shutil.which("nvidia-smi") is None:
        flags.append(Part(("--enforce-eager",), "there is no GPU: compiling would take longer than it saves"))
    return flags


def _adapter_flags(rank: int) -> list[Part]:
    if not rank:
        return []
    allowed = next((one for one in LORA_RANKS if one >= rank), None)
    if allowed is None:
        raise ConfigError(
            f"serve: --lora-rank {rank} is more than vLLM takes ({LORA_RANKS[-1]}), so it would not start. Leave it "
            "out; then whole parameters are published, with the adapter merged into a copy."
        )
    return [
        Part(("--enable-lora",), "takes adapters, so that a version is an adapter alone"),
        Part(("--max-lora-rank", str(allowed)), f"the smallest that vLLM knows for rank {rank}"),
        Part(("--max-loras", "1", "--max-cpu-loras", "2"), "one adapter answers; the next one is read beside it"),
    ]


def _settings(given: Mapping[str, str], lora_rank: int) -> tuple[Part, ...]:
    settings = [
        Part(("VLLM_SERVER_DEV_MODE=1",), "opens the routes that change parameters"),
        Part(("VLLM_NO_USAGE_STATS=1",), "no report to anybody about what runs here"),
    ]
    if shutil.which("nvidia-smi") is None and CACHE not in given:
        why = "GiB of memory for keys and values; without it vLLM wants 92 % of all there is, or does not start"
        settings.append(Part((f"{CACHE}={CACHE_GIB}",), why))
    if lora_rank:
        settings.append(Part(("VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",), "opens the routes that load adapters"))
    return tuple(settings)


def _python(environment: Path | None, given: Mapping[str, str]) -> Path:
    folder = environment or Path(given.get(ENVIRONMENT, FOLDER))
    python = folder / "bin" / "python"
    if not python.is_file():
        raise ConfigError(
            f"serve: {folder} holds no Python, so there is no vLLM to start; it has an environment of its own because "
            f"it needs other versions than Trimtab. Run `make vllm-env`, or name yours: --env FOLDER or {ENVIRONMENT}."
        )
    return python


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_critic(model: Path) -> Path:
    """The folder, or one that links to all of it but the critic: vLLM reads every safetensors file as the model's."""
    if not (model / "critic.safetensors").is_file():
        return model
    view = Path(tempfile.mkdtemp(prefix="trimtab-serve-"))
    for file in model.absolute().iterdir():
        if file.name != "critic.safetensors":
            os.symlink(file, view / file.name)
    return view
