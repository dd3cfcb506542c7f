"""`trimtab serve`: what it would start, what it refuses, and what it never shows."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.cli import serve as command
from trimtab.errors import ConfigError
from trimtab.rollout.launch import without_critic


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "critic.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setenv("VLLM_ENV", str(tmp_path / "vllm"))
    monkeypatch.delenv("TRIMTAB_TOKEN", raising=False)
    return tmp_path / "vllm"


def serve(*words: str) -> str:
    result = CliRunner().invoke(app, ["serve", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_every_flag_has_its_reason_and_the_command_is_whole(model: Path) -> None:
    said = serve(str(model), "--slots", "7", "--max-length", "99", "--dry-run", "--", "--tensor-parallel-size", "2")
    (line,) = [line for line in said.splitlines() if line.startswith("command")]
    for words in (
        "VLLM_SERVER_DEV_MODE=1", "--logprobs-mode processed_logprobs", "--generation-config vllm",
        "--enable-scale-out", "--enable-prompt-tokens-details", "--enable-tokenizer-info-endpoint",
        "--host 127.0.0.1 --port 8000", "--max-num-seqs 7", "--max-model-len 99", "--tensor-parallel-size 2",
        "-m vllm.entrypoints.openai.api_server",
    ):  # fmt: skip
        assert words in line
    reasons = [line for line in said.splitlines() if line.startswith("  ")]
    assert len(reasons) >= 13
    assert all(len(line.strip().split("  ")[-1].split()) >= 3 for line in reasons)


def test_a_rank_opens_the_server_for_adapters(model: Path) -> None:
    plain, said = serve(str(model), "--dry-run"), serve(str(model), "--lora-rank", "12", "--dry-run")
    for words in ("VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", "--enable-lora", "--max-lora-rank 16", "--max-loras 1"):
        assert words in said
        assert words not in plain
    with pytest.raises(ConfigError, match=r"--lora-rank 600 is more than vLLM takes \(512\)"):
        serve(str(model), "--lora-rank", "600", "--dry-run")


def test_the_token_is_handed_over_in_the_environment_and_never_in_the_command(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(command.os, "execve", lambda _, words, given: started.append((words, given)))
    monkeypatch.setenv("TRIMTAB_TOKEN", "a-secret")
    said = serve(str(model))
    ((words, given),) = started
    assert given["VLLM_API_KEY"] == "a-secret"
    assert "a-secret" not in said + " ".join(words)
    monkeypatch.delenv("TRIMTAB_TOKEN")
    said = serve(str(model))
    assert f"export TRIMTAB_TOKEN={started[1][1]['VLLM_API_KEY']}" in said
    assert len(started[1][1]["VLLM_API_KEY"]) >= 32


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "gpu-box"])
def test_beyond_loopback_it_wants_a_token_and_says_what_stays_open(
    host: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"TRIMTAB_TOKEN is not set.*/collective_rpc, which is code execution"):
        serve(str(model), "--host", host, "--dry-run")
    monkeypatch.setenv("TRIMTAB_TOKEN", "a-secret")
    assert "warning  The token guards only the routes that answer" in serve(str(model), "--host", host, "--dry-run")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_it_warns_of_nothing(host: str, model: Path) -> None:
    assert "warning" not in serve(str(model), "--host", host, "--dry-run")


def test_what_is_missing_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no model folder.*hf download"):
        serve("Qwen/Qwen3-0.6B", "--dry-run")
    with pytest.raises(ConfigError, match="make vllm-env"):
        serve(str(model), "--env", str(tmp_path / "nowhere"), "--dry-run")


def test_a_critic_beside_the_model_is_left_out(model: Path) -> None:
    """vLLM reads every safetensors file of a folder, and ends at a parameter that the model does not have."""
    view = without_critic(model)
    assert {file.name for file in view.iterdir()} == {"config.json", "model.safetensors"}
    assert os.path.samefile(view / "config.json", model / "config.json")
    (model / "critic.safetensors").unlink()
    assert without_critic(model) == model
