"""Two ranks against one process, on the same recorded rollouts: numbers, decisions, and checkpoints both ways."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.ranks.data import record
from tests.train.ranks.work import (
    CASES,
    HALF,
    STEPS,
    Comparison,
    middle_of,
    policy_of,
    restore,
    settings_of,
    train_all,
)  # fmt: skip
from tests.train.ranks.work import read as read_rollouts
from torch import Tensor

from trimtab.train.learner import Learner
from trimtab.train.world import alone

ROOT = Path(__file__).resolve().parents[2]
CLOSE = {"float32": 1e-6, "float64": 1e-12}
LONGEST = 21
"""Tokens of the longest answer: a sequence's log-ratio is the sum of as many rounded numbers."""
ALWAYS = ("sequence mean float32", "clip-cov float64", "ppo with critic float64")
"""Both precisions, both ways to weigh tokens, tokens chosen across ranks, several updates, and a critic."""
each_case = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in ALWAYS else pytest.mark.slow, id=case.name) for case in CASES],
)


@pytest.fixture(scope="module")
def outs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this process and two ranks made of the same rollouts, side by side: the cases asked for in one launch."""
    folder = tmp_path_factory.mktemp("ranks")
    items: list[Any] = [item for item in request.session.items if hasattr(item, "callspec")]
    given = [item.callspec.params.get("case") for item in items]
    names = sorted({*ALWAYS, *(case.name for case in given if isinstance(case, Comparison))})
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.train.ranks.work"]
    two = subprocess.Popen(
        [sys.executable, "-m", *torchrun, str(folder), *names],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        torch.set_num_threads(1)
        record(folder)  # while the ranks start
        train_all(folder, names, alone)
        said, _ = two.communicate(timeout=240)
    finally:
        if two.poll() is None:
            os.killpg(two.pid, signal.SIGKILL)
    assert two.returncode == 0, said[-3000:]
    return folder


def read(outs: Path, ranks: int, case: Comparison) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    number = CASES.index(case)
    place = outs / f"out_{ranks}"
    return load_file(place / f"{number}.safetensors"), json.loads((place / f"{number}.json").read_text())


@each_case
def test_two_ranks_have_the_gradients_of_one_process(case: Comparison, outs: Path) -> None:
    one, two = read(outs, 1, case)[0], read(outs, 2, case)[0]
    assert one.keys() == two.keys()
    grads = [name for name in one if name.startswith("grad/")]
    assert {name.split("/")[1] for name in grads} >= {"4", "9", "19"}  # 4, 9, …: a rank without sequences
    for name in grads:
        step = name.split("/")[1]
        largest = max(float(v.abs().max()) for n, v in one.items() if n.startswith(f"grad/{step}/"))
        error = float((one[name].double() - two[name].double()).abs().max())
        assert error <= CLOSE[case.dtype] * largest, (name, error / largest)


@each_case
def test_two_ranks_report_what_one_process_does(case: Comparison, outs: Path) -> None:
    one, two = read(outs, 1, case)[1], read(outs, 2, case)[1]
    assert len(one) == len(two) == STEPS
    for mine, theirs in zip(one, two, strict=True):
        assert mine.keys() == theirs.keys()
        assert len(mine) > 30
        for name, value in mine.items():
            if math.isnan(value) and math.isnan(theirs[name]):
                continue
            scale = max(1.0, abs(value)) * (LONGEST if "sequence" in name else 1)
            assert abs(value - theirs[name]) <= CLOSE[case.dtype] * scale, name


@each_case
def test_two_ranks_decide_what_one_process_does(case: Comparison, outs: Path) -> None:
    """The same sequences in the same updates; the same tokens are kept, chosen and clipped."""
    (one, metrics), (two, others) = read(outs, 1, case), read(outs, 2, case)
    for step in range(STEPS):
        assert torch.equal(one[f"said/{step}/update"], two[f"said/{step}/update"])
        assert torch.equal(one[f"said/{step}/logp_current"].isnan(), two[f"said/{step}/logp_current"].isnan())
        counted = [name for name in metrics[step] if name.endswith(("_fraction", "_tokens", "_sequences", "updates"))]
        assert len(counted) > 4
        assert {n: metrics[step][n] for n in counted} == pytest.approx({n: others[step][n] for n in counted}, abs=1e-9)


@each_case
def test_the_data_have_an_empty_rank_and_uneven_shards(case: Comparison, outs: Path) -> None:
    one, metrics = read(outs, 1, case)
    trained = [int((one[f"said/{step}/update"] >= 0).sum()) for step in range(STEPS)]
    assert min(trained) <= 2 < max(trained)
    assert all(line["train/updates"] > 0 for line in metrics)


def test_the_data_have_tokens_to_choose(outs: Path) -> None:
    chosen = [
        line
        for line in read(outs, 1, next(c for c in CASES if c.name == "clip-cov float64"))[1]
        if line.get("policy_loss.covariance_clipped/selected_tokens")
    ]
    assert chosen


def test_one_process_goes_on_from_the_checkpoint_of_two_ranks(outs: Path) -> None:
    case = CASES[-1]
    torch.set_num_threads(1)
    learner = Learner(policy_of(case), case.build(), settings_of(case))
    restore(learner, load_file(middle_of(case, outs, 2)))
    expected = read(outs, 1, case)[1]
    for step in range(HALF + 1, STEPS):
        learned = learner.learn(read_rollouts(outs, step), version=step)
        assert learned.metrics["train/loss"] == pytest.approx(expected[step]["train/loss"], abs=1e-12)
        assert learned.metrics["train/grad_norm"] == pytest.approx(expected[step]["train/grad_norm"], rel=1e-10)
