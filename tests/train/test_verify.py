"""`trimtab check RUN`: real batches hold, and each planted bug is caught by the invariant that is there for it."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.train.conftest import SMALL
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.rollouts import STATUSES, Rollouts
from trimtab.train import train
from trimtab.train.record.replay import Dump, read_dump
from trimtab.train.record.verify import INVARIANTS, Verified, verify, verify_run
from trimtab.train.show.progress import Silent

ENDS = frozenset({1})
CALCULATOR = SMALL.model_copy(
    update={
        "task": TaskSettings(name="calculator", size=1),
        "max_new_tokens": 8,
        "warm_start_steps": 12,
        "steps": 3,
        "staleness": 0,
        "dump_batches": True,
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, undrawn: None) -> Path:
    folder = tmp_path_factory.mktemp("run") / "a"
    _ = train(CALCULATOR.model_copy(update={"run_dir": folder}), progress=Silent())
    return folder


@pytest.fixture(scope="module")
def dump(run: Path) -> Dump:
    return read_dump(run, 2)


def broken(dump: Dump, change: Callable[[Rollouts], Rollouts], *, sealed: bool = True) -> set[str]:
    """The invariants that a changed batch breaks."""
    rollouts = change(dump.rollouts)
    rollouts = rollouts if sealed else replace(rollouts, extra={})
    found: Verified = verify([replace(dump, rollouts=rollouts)], staleness=0, ends=ENDS)
    return {fault.invariant for fault in found.faults}


def multi_turn(rollouts: Rollouts) -> int:
    """A sequence with an observation between two turns."""
    turns = [int(rollouts.turn[a:b].max()) for a, b in pairwise(rollouts.first_token)]
    return turns.index(1)


def test_the_batches_of_a_run_hold(run: Path, dump: Dump) -> None:
    found = verify_run(run)
    assert (found.faults, found.skipped, found.steps) == ((), (), (0, 1, 2))
    assert found.sequences == 3 * 16
    assert int(dump.rollouts.turn.max()) == 1  # an environment replied


def swap(rollouts: Rollouts, row: int, off: int, on: int) -> Rollouts:
    """Train one token instead of another; the log-probs stay where they are."""
    trainable = rollouts.trainable.clone()
    start = int(rollouts.first_id[row])
    trainable[start + off], trainable[start + on] = False, True
    assert int(trainable.sum()) == int(rollouts.trainable.sum())
    return replace(rollouts, trainable=trainable)


def prompt_trains(rollouts: Rollouts) -> Rollouts:
    row = multi_turn(rollouts)
    length, prompt = int(rollouts.length[row]), int(rollouts.prompt_length[row])
    return swap(rollouts, row, length - 1, prompt - 1)


def observation_trains(rollouts: Rollouts) -> Rollouts:
    row = multi_turn(rollouts)
    start, length = int(rollouts.first_id[row]), int(rollouts.length[row])
    mask = rollouts.trainable[start : start + length]
    gap = next(place for place in range(int(rollouts.prompt_length[row]), length) if not bool(mask[place]))
    return swap(rollouts, row, length - 1, gap)


def shifted(rollouts: Rollouts) -> Rollouts:
    """Every sequence's log-probs stand one token too late, as after a forgotten shift."""
    first, logp = rollouts.first_token.tolist(), rollouts.logp_rollout.clone()
    for start, end in pairwise(first):
        logp[start:end] = rollouts.logp_rollout[start:end].roll(1)
    return replace(rollouts, logp_rollout=logp)


def versions_moved(by: int) -> Callable[[Rollouts], Rollouts]:
    return lambda rollouts: replace(rollouts, version=rollouts.version + by)


def other_prompt(rollouts: Rollouts) -> Rollouts:
    ids = rollouts.ids.clone()
    ids[0] = ids[0] + 1
    return replace(rollouts, ids=ids)


def paid_for_an_error(rollouts: Rollouts) -> Rollouts:
    status = rollouts.status.clone()
    status[0] = STATUSES.index("error")
    return replace(rollouts, status=status)


def goes_on_after_the_end(rollouts: Rollouts) -> Rollouts:
    ids = rollouts.ids.clone()
    row = multi_turn(rollouts)
    ids[int(rollouts.first_id[row]) + int(rollouts.prompt_length[row])] = 1
    return replace(rollouts, ids=ids)


@pytest.mark.parametrize(
    ("change", "sealed", "unsealed"),
    [
        (prompt_trains, {"exactly_once", "turns", "group_prompt"}, {"turns", "group_prompt"}),
        (observation_trains, {"exactly_once", "turns"}, {"turns"}),
        (shifted, {"exactly_once", "alignment"}, {"alignment"}),
        (versions_moved(1), {"exactly_once", "versions"}, {"versions"}),
        (versions_moved(-1), {"exactly_once", "versions"}, {"versions"}),
        (other_prompt, {"group_prompt"}, {"group_prompt"}),
        (paid_for_an_error, {"outcomes"}, {"outcomes"}),
        (goes_on_after_the_end, {"exactly_once", "turns"}, {"turns"}),
    ],
)
def test_a_planted_bug_is_caught(
    dump: Dump, change: Callable[[Rollouts], Rollouts], sealed: set[str], unsealed: set[str]
) -> None:
    assert broken(dump, change) >= sealed
    assert broken(dump, change, sealed=False) >= unsealed


def test_every_invariant_has_a_planted_bug() -> None:
    caught = {"exactly_once", "turns", "group_prompt", "alignment", "versions", "outcomes"}
    assert set(INVARIANTS) == caught


def test_one_changed_bit_of_a_log_prob_breaks_the_seal(dump: Dump) -> None:
    def nudged(rollouts: Rollouts) -> Rollouts:
        logp = rollouts.logp_rollout.clone()
        logp[5] = torch.nextafter(logp[5], torch.tensor(-9.0))
        return replace(rollouts, logp_rollout=logp)

    assert broken(dump, nudged) == {"exactly_once"}


def test_the_command_shows_and_counts(run: Path) -> None:
    said = CliRunner().invoke(app, ["check", str(run)])
    assert said.exit_code == 0
    assert "3 batches, 48 sequences" in said.stdout
    data = json.loads(CliRunner().invoke(app, ["check", str(run), "--format", "json"]).stdout)
    assert (data["steps"], data["faults"], data["skipped"]) == ([0, 1, 2], [], [])


def test_a_run_without_batches_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"holds no batches.*dump_batches=true"):
        verify_run(tmp_path)
