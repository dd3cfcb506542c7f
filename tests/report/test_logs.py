"""Logs of other frameworks: read through the lexicon, and what is not in them is said."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.errors import ConfigError
from trimtab.report import write_log_report
from trimtab.report.logs import read_log

STEPS = 40


def trl(step: int) -> dict[str, float]:
    return {
        "reward": 0.2 + step / 100, "frac_reward_zero_std": 0.25, "completions/clipped_ratio": 0.1, "grad_norm": 0.5,
        "sampling/sampling_logp_difference/mean": 0.2, "entropy": 1.0, "kl": 0.01, "my/own": 3.0,
        "trimtab/ess_total/token": 0.9,
    }  # fmt: skip


def verl(step: int) -> dict[str, float]:
    return {"critic/score/mean": step / 100, "rollout_corr/rollout_rs_masked_fraction": 0.25, "foo/bar": 1.0}


def as_lines(path: Path) -> Path:
    rows = [json.dumps({"step": step, **trl(step)}) for step in range(STEPS)]
    _ = path.with_suffix(".jsonl").write_text("\n".join([*rows, '{"step": 40, "rew']))  # a torn last line
    return path.with_suffix(".jsonl")


def as_state(path: Path) -> Path:
    held = {"log_history": [{"step": step, **trl(step)} for step in range(STEPS)], "global_step": STEPS}
    _ = path.with_suffix(".json").write_text(json.dumps(held))
    return path.with_suffix(".json")


def as_csv(path: Path) -> Path:
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["Step", *(f"run one - train/{name}" for name in trl(0))])
        writer.writeheader()
        for step in range(STEPS):
            writer.writerow({"Step": step, **{f"run one - train/{name}": value for name, value in trl(step).items()}})
    return path.with_suffix(".csv")


def as_tensorboard(path: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(log_dir=str(path))
    for step in range(STEPS):
        for name, value in trl(step).items():
            writer.add_scalar(f"train/{name}", value, step)
    writer.close()
    return path


@pytest.mark.parametrize("write", [as_lines, as_state, as_csv, as_tensorboard])
def test_every_format_gives_the_same_numbers(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    run = read_log(write(tmp_path / "log"), "trl")
    assert run.num_steps == STEPS
    assert run.series("reward/episode_mean").values == pytest.approx([0.2 + step / 100 for step in range(STEPS)])
    assert run.series("ended/sequence_fraction").values == pytest.approx([0.9] * STEPS)
    assert run.series("drift/engine_abs_mean").last == pytest.approx(0.2)
    assert run.series("ess_total/token").last == pytest.approx(0.9)
    assert not run.series("kl_ref/token_mean")
    log = run.config["log"]
    assert [name.removeprefix("train/") for name in log["unclear"]] == ["kl"]
    assert [name.removeprefix("train/") for name in log["unknown"]] == ["my/own"]


def test_the_page_says_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    path, told = write_log_report(as_lines(tmp_path / "log"), "trl")
    assert told[0].startswith("Is the signal at fault? Probably: engine drift 0.2")
    assert any("two meanings in TRL: kl" in text for text in told)
    assert any("Not in the log" in text and "kept tokens" in text and "engine drift" not in text for text in told)
    text = path.read_text()
    assert "What does this log hold?" in text
    assert "trimtab report --from trl" in text
    assert "<script" not in text


def test_verls_file_logger_nests_and_its_shares_are_turned_round(tmp_path: Path) -> None:
    rows = [json.dumps({"step": step, "data": verl(step)}) for step in range(STEPS)]
    _ = (tmp_path / "v.jsonl").write_text("\n".join(rows))
    run = read_log(tmp_path / "v.jsonl", "verl")
    assert run.series("kept/token_fraction").last == pytest.approx(0.75)
    assert run.series("rollout/reward_mean").values[-1] == pytest.approx(0.39)
    assert run.config["recipe"]["parts"], "rejection is logged, so the run corrects"


def test_what_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    _ = (tmp_path / "a.jsonl").write_text('{"step": 1, "x": 2}\n')
    with pytest.raises(ConfigError, match="none of it is a name that TRL logs"):
        _ = read_log(tmp_path / "a.jsonl", "trl")
    _ = (tmp_path / "b.jsonl").write_text('{"reward": 2}\n')
    with pytest.raises(ConfigError, match="no line has a step"):
        _ = read_log(tmp_path / "b.jsonl", "trl")
    _ = (tmp_path / "c.log").write_bytes(b"\x80\x04abc")
    with pytest.raises(ConfigError, match=r"is a pickle(.|\n)*save_file"):
        _ = read_log(tmp_path / "c.log", "trl")
    with pytest.raises(ConfigError, match="There are trl, verl"):
        _ = read_log(tmp_path / "a.jsonl", "slime")
    with pytest.raises(ConfigError, match="without TensorBoard files"):
        _ = read_log(tmp_path, "trl")
