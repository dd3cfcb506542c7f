"""A dumped batch, ours or another framework's, through a recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.watch.made import fields, play, watch_of
from typer.testing import CliRunner

import trimtab
from trimtab.cli import app
from trimtab.errors import ConfigError
from trimtab.watch.dump import dumped_files, read_dumped

RENAMED = {"logp_current": "log_prob", "logp_old": "old_log_probs", "logp_rollout": "rollout_log_probs",
           "mask": "response_mask", "advantage": "advantages"}  # fmt: skip


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    held = fields(3)
    watch = watch_of(tmp_path / "run", dump_every=1)
    play(watch, held, parts=3)
    watch.close()
    return tmp_path / "run", held


def test_the_parts_of_a_step_give_the_batch_back(watched: tuple[Path, dict[str, Any]]) -> None:
    run, held = watched
    files = dumped_files(run, 0)
    assert len(files) == 3
    found = read_dumped(files).fields
    for name in ("mask", "logp_old", "logp_rollout", "advantage", "reward", "group"):
        torch.testing.assert_close(found[name], held[name], rtol=0, atol=0, check_dtype=False)
    assert "ids" not in found


def test_a_recipe_on_it_is_the_signal_on_the_same_batch(watched: tuple[Path, dict[str, Any]]) -> None:
    run, held = watched
    said = CliRunner().invoke(app, ["replay", str(run), "--recipe", "tis", "--recipe", "dapo"], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    assert "3 micro-batches, 64 rows" in said.output
    loss, _ = trimtab.loss(
        (held["logp_old"] + 1e-7).double(), recipe=trimtab.recipe("tis").with_given_advantage, mask=held["mask"],
        advantage=held["advantage"], logp_old=held["logp_old"].double(), logp_rollout=held["logp_rollout"].double(),
        grad_scale=None,
    )  # fmt: skip
    row = next(line for line in said.output.splitlines() if line.startswith("loss "))
    assert float(row.split()[1]) == pytest.approx(loss.item(), rel=1e-4)


def test_names_of_another_framework_are_read(watched: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run, _ = watched
    held = load_file(dumped_files(run, 0)[0])
    save_file({RENAMED[name]: held[name] for name in RENAMED}, tmp_path / "theirs.safetensors")
    found = read_dumped([tmp_path / "theirs.safetensors"], "verl")
    assert set(found.fields) == set(RENAMED)
    assert "log_prob is read as logp_current" in found.notes
    with pytest.raises(ConfigError, match="holds no logp_current and no mask"):
        _ = read_dumped([tmp_path / "theirs.safetensors"])
    with pytest.raises(ConfigError, match="--from nobody is not known"):
        _ = read_dumped([tmp_path / "theirs.safetensors"], "nobody")


def test_what_cannot_be_replayed_is_refused(watched: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run, _ = watched
    with pytest.raises(ConfigError, match=r"no dumped batch of step 7\. There are 0"):
        _ = dumped_files(run, 7)
    said = CliRunner().invoke(app, ["replay", str(run), "--recipe", "grpo"])
    assert "needs logp_ref" in str(said.exception)
    assert "dapo" in str(said.exception)
    assert "Name one or more" in str(CliRunner().invoke(app, ["replay", str(run)]).exception)
    torch.save({"a": torch.ones(2)}, tmp_path / "batch.pt")
    with pytest.raises(ConfigError, match=r"is a pickle(.|\n)*torch.load\(\"batch.pt\""):
        _ = read_dumped([tmp_path / "batch.pt"])
    about = dumped_files(run, 0)[0].with_suffix(".json")
    _ = about.write_text(json.dumps({**json.loads(about.read_text()), "format_version": 2}))
    with pytest.raises(ConfigError, match="has format version 2, and this trimtab reads 1"):
        _ = read_dumped(dumped_files(run, 0))
    save_file({"mask": torch.ones(2, 3), "logp_current": torch.ones(2, 4)}, tmp_path / "odd.safetensors")
    with pytest.raises(ConfigError, match=r"logp_current has shape \[2, 4\] beside a mask of \[2, 3\]"):
        _ = read_dumped([tmp_path / "odd.safetensors"])
