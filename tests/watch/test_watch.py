"""The watch: each finding has a planted fault and a healthy twin; ranks merge exactly; nothing waits for a device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench.counting import counted
from tests.watch.made import ROWS, SIZE, fields, play, watch_of

from trimtab.errors import ConfigError, SignalError
from trimtab.report import write_report
from trimtab.signal.metric_kind import Extremum, Mean, SampleSize, Spread, Sum
from trimtab.watch.folder import read_ranks


def names(folder: Path, *batches: dict[str, Any], **given: Any) -> set[str]:
    watch = watch_of(folder)
    for held in batches:
        play(watch, held, **given)
    assert watch.failures == []
    return {one.name for one in watch.findings}


def test_a_healthy_run_has_no_finding(tmp_path: Path):
    assert names(tmp_path, *(fields(seed) for seed in range(20))) == set()


def test_a_noisy_engine_and_accumulation_are_no_finding(tmp_path: Path):
    assert names(tmp_path, *(fields(seed, noise=0.05) for seed in range(20)), parts=4) == set()


@pytest.mark.parametrize("temperature", [0.5, 0.9, 1.1, 2.0])
def test_rollout_at_another_temperature(temperature: float, tmp_path: Path):
    assert names(tmp_path, fields(temperature=temperature)) == {"rollout_temperature"}


@pytest.mark.parametrize("shift", [-1, 1])
def test_rollout_shifted(shift: int, tmp_path: Path):
    assert names(tmp_path, fields(shift=shift)) == {"rollout_shifted"}


def test_old_shifted(tmp_path: Path):
    held = fields()
    held["logp_current"] = held["logp_old"]
    held["logp_old"] = held["logp_old"].roll(1, 1)
    del held["logp_rollout"]
    held["logp_rollout"] = held["logp_old"] + 1e-6
    assert "old_shifted" in names(tmp_path, held)


def test_old_is_rollout(tmp_path: Path):
    held = fields(noise=0.01)
    held["logp_current"] = held["logp_old"]
    held["logp_old"] = held["logp_rollout"]
    assert names(tmp_path, held) == {"old_is_rollout"}


def test_one_program_for_old_and_rollout_is_no_finding(tmp_path: Path):
    held = fields()
    held["logp_rollout"] = held["logp_current"] = held["logp_old"]
    assert names(tmp_path, held) == set()


def test_prompt_in_the_mask(tmp_path: Path):
    held = fields()
    held["ids"][:, 0] = torch.arange(ROWS) // SIZE
    assert names(tmp_path, held) == {"prompt_in_mask"}


def test_a_sure_first_token_is_no_finding(tmp_path: Path):
    held = fields()
    held["ids"][:, 0] = 3
    for name in ("logp_old", "logp_rollout"):
        held[name][:, 0] = -1e-4
    assert names(tmp_path, held) == set()


def test_gradient_outside_the_mask(tmp_path: Path):
    held = fields()
    held["mask_of_loss"] = torch.ones_like(held["mask"])
    assert names(tmp_path, held) == {"gradient_outside_mask"}


def test_advantage_scaled_twice(tmp_path: Path):
    held = fields()
    held["advantage"] = held["advantage"] / (held["spread"].float() + 1e-4)
    assert names(tmp_path, held) == {"advantage_scaled_twice"}


def test_advantage_scaled_twice_in_the_loss(tmp_path: Path):
    held = fields()
    held["advantage_of_loss"] = held["advantage"] / held["spread"].float()
    assert names(tmp_path, held) == {"advantage_scaled_twice"}


def test_advantage_times_a_constant(tmp_path: Path):
    held = fields()
    held["advantage"] = held["advantage"] * 1.3
    assert names(tmp_path, held) == {"advantage_scale"}


def test_loss_divided_twice(tmp_path: Path):
    assert names(tmp_path, fields(), parts=4, factor=0.25) == {"loss_divided_twice"}


def test_gradient_scale(tmp_path: Path):
    assert names(tmp_path, fields(), factor=3.0) == {"gradient_scale"}


def test_tokens_not_sampled(tmp_path: Path):
    held = fields()
    held["logp_rollout"][:, 2] = 0.0
    assert "tokens_not_sampled" in names(tmp_path, held)


def test_undefined_log_probs(tmp_path: Path):
    held = fields()
    held["logp_old"][0, 0] = float("nan")
    assert "undefined_logp_old" in names(tmp_path, held)


@pytest.mark.parametrize(("changes", "found"), [(False, {"inert_importance"}), (True, set[str]())])
def test_a_correction_that_does_nothing(changes: bool, found: set[str], tmp_path: Path):
    batches = [fields(seed, noise=0.02) for seed in range(20)]
    for held in batches:
        importance = (held["logp_old"] - held["logp_rollout"]).exp()
        held["importance"] = importance if changes else torch.ones_like(importance)
        held["advantage_of_loss"] = held["advantage"]
    assert names(tmp_path, *batches, corrections=("importance",)) == found


@pytest.mark.parametrize(("growth", "found"), [(0.02, {"engine_frozen"}), (0.0, set[str]())])
def test_a_sampler_that_is_never_updated(growth: float, found: set[str], tmp_path: Path):
    assert names(tmp_path, *(fields(seed, noise=0.005 + growth * seed) for seed in range(18))) == found


@pytest.mark.parametrize("age", [lambda step: step % 8, lambda step: min(step, 8)], ids=["renewed", "ramping up"])
def test_a_sampler_that_is_renewed_now_and_then_or_comes_to_rest_is_no_finding(
    age: Callable[[int], int], tmp_path: Path
):
    assert names(tmp_path, *(fields(step, noise=0.005 + 0.02 * age(step)) for step in range(24))) == set()


def test_rows_lost_and_duplicated(tmp_path: Path):
    watch = watch_of(tmp_path)
    held = fields()
    for _ in range(2):
        watch.batch(reward=held["reward"], group=held["group"], row=held["row"])
        watch.micro_batch(mask=held["mask"][1:], row=held["row"][1:], logp_current=held["logp_old"][1:])
        watch.micro_batch(mask=held["mask"][5:6], row=held["row"][5:6], logp_current=held["logp_old"][5:6])
        watch.step()
    watch.close()
    assert {one.name for one in watch.findings} == {"rows_lost", "rows_duplicated"}


def test_an_input_written_in_place(tmp_path: Path):
    watch = watch_of(tmp_path)
    held = fields()
    with watch.unwritten(held):
        held["advantage"].mul_(2)
    play(watch, held)
    assert "input_written" in {one.name for one in watch.findings}


def test_a_finding_is_said_once_with_its_step_and_reaches_the_page(tmp_path: Path):
    watch = watch_of(tmp_path)
    for seed in range(4):
        play(watch, fields(seed, shift=1 if seed > 1 else 0))
    watch.close()
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert [(line["name"], line["step"]) for line in lines] == [("rollout_shifted", 2)]
    assert "rollout_shifted" in write_report(tmp_path).read_text()
    assert json.loads((tmp_path / "summary.json").read_text())["watch"]["rate"] == 1.0


def test_strict_raises_and_otherwise_nothing_does(tmp_path: Path):
    with pytest.raises(SignalError, match="rollout_shifted"):
        play(watch_of(tmp_path / "a", strict=True), fields(shift=1))
    watch = watch_of(tmp_path / "b")
    watch.micro_batch(mask=torch.ones(3), logp_current=torch.zeros(2, 2))
    watch.step()
    assert len(watch.failures) == 1


def test_every_20th_step_and_the_first_powers_of_two_are_watched_whole(tmp_path: Path):
    watch = watch_of(tmp_path, every=20)
    for seed in range(41):
        play(watch, fields(seed))
    watch.close()
    lines = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [0, 1, 2, 4, 8, 16, 20, 40]
    with pytest.raises(ConfigError, match="every = 21"):
        watch_of(tmp_path, every=21)


def test_two_ranks_merge_to_one_process(tmp_path: Path):
    """Counts and extrema are equal, sums within 1e-12."""
    watches = [watch_of(tmp_path / "two", rank=rank, ranks=2) for rank in (0, 1)]
    whole = watch_of(tmp_path / "one", ranks=2)
    for seed in range(3):
        held = fields(seed, noise=0.03)
        for watch, parts in ((watches[0], (0,)), (watches[1], (1,)), (whole, (0, 1))):
            tokens = held["row"].chunk(2)
            rows = torch.cat([tokens[part] for part in parts])
            watch.batch(reward=held["reward"], group=held["group"], row=rows, advantage=held["advantage"][rows])
            for part in parts:
                named = {n: v[tokens[part]] for n, v in held.items() if n not in ("reward", "group", "spread")}
                watch.micro_batch(logp_current=held["logp_old"][tokens[part]] + 0.01, **named)
            watch.step()
    merged, alone = read_ranks(tmp_path / "two"), read_ranks(tmp_path / "one")
    assert list(merged) == list(alone) == [0, 1, 2]
    for step, metrics in merged.items():
        same_metrics(metrics, alone[step])


def same_metrics(ours: Any, theirs: Any) -> None:
    """The groups' first tokens are compared within a rank, so only one process sees all of a split group."""
    assert ours.entries.keys() == theirs.entries.keys()
    for name, one in ours.entries.items():
        other = theirs.entries[name]
        if isinstance(one, Extremum):
            assert one == other, name
        elif isinstance(one, Mean | Sum | Spread | SampleSize):
            np.testing.assert_allclose(list(one), list(other), rtol=1e-12, atol=1e-12, err_msg=name)
    for name, histogram in ours.histograms.items():
        assert torch.equal(histogram.counts, theirs.histograms[name].counts)


def test_taking_a_micro_batch_waits_for_no_device(tmp_path: Path):
    watch, held = watch_of(tmp_path), fields()

    def take() -> None:
        watch.batch(reward=held["reward"], group=held["group"], row=held["row"], advantage=held["advantage"])
        named = {n: v for n, v in held.items() if n not in ("reward", "group", "spread")}
        watch.micro_batch(logp_current=held["logp_old"], **named)

    assert counted(take).asks == 0


def test_a_dump_has_a_version_no_text_and_a_bound(tmp_path: Path):
    from safetensors.torch import load_file

    watch = watch_of(tmp_path, dump_every=2, dump_bytes=100_000)
    for seed in range(40):
        play(watch, fields(seed))
    watch.close()
    found = sorted((tmp_path / "watched").glob("*.safetensors"))
    assert 1 < len(found) < 20
    assert sum(path.stat().st_size for path in found) <= 100_000
    assert "ids" not in load_file(found[0])
    assert torch.equal(load_file(found[0])["logp_old"], fields(0)["logp_old"])
    assert json.loads(found[0].with_suffix(".json").read_text())["format_version"] == 1
