"""One run over several nodes that share no disk gives what one process gives, while nodes come and go."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.conftest import MARK, SMALL, Nodes, command, each_once, nothing_left, start
from tests.train.conftest import timeless

pytestmark = pytest.mark.cluster


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "summary.json").read_text())


def inline(nodes: Nodes, run: str, overrides: dict[str, object]) -> Path:
    """The same settings in one process, without a cluster."""
    settings = [f"{key}={value}" for key, value in {**SMALL, **overrides}.items()]
    words = [sys.executable, "-m", "trimtab", "train", *settings, "--run-dir", str(nodes.folder / run), "--quiet"]
    _ = subprocess.run(words, cwd=nodes.folder, check=True)
    return nodes.folder / run


def test_one_sampler_without_staleness_gives_the_bits_of_inline(nodes: Nodes) -> None:
    """Every metric that does not depend on the clock, and the parameters; the sampler is on another node."""
    changed = {"train.staleness": 0, "train.steps": 30}
    driver = start(nodes, "equal", changed)
    said = driver.end()
    assert driver.process.returncode == 0, said
    alone = inline(nodes, "equal_inline", changed)
    assert timeless(driver.run) == timeless(alone)
    assert len({line["train/loss"] for line in driver.lines() if "train/loss" in line}) > 20
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (driver.run, alone)]
    assert weights[0] == weights[1]
    placed = summary(driver.run)["placement"]
    assert isinstance(placed, dict)
    assert placed["rank 0"].split()[1] != placed["sampler 0"].split()[1]
    assert not nothing_left(nodes)


def test_the_nodes_cannot_see_the_drivers_files(nodes: Nodes) -> None:
    """What the other tests rest on: data, reward and model reach the nodes although the folder is hidden there."""
    if not nodes.is_hidden:
        pytest.skip("this system does not let us hide a folder (unshare --mount)")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "level": a} for a in range(10) for b in range(10)]
    _ = (nodes.folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _ = (nodes.folder / "judge.py").write_text(
        "import os\n"
        f"assert not os.path.exists({str(nodes.folder / 'sums.jsonl')!r}) or not os.environ.get('RAY_JOB_ID')\n"
        "def score(prompts, completions, answer, level, **_):\n"
        "    return [float(said == right) for said, right in zip(completions, answer)]\n"
    )
    changed = {
        "train.task.name": "file", "train.task.file": "sums.jsonl", "train.task.reward": "judge.py:score",
        "train.eval_prompts": 5, "train.steps": 6, "train.checkpoint_every": 0,
    }  # fmt: skip
    driver = start(nodes, "hidden", changed, "--ranks", "2")
    said = driver.end()
    assert driver.process.returncode in (0, 3), said  # six steps need not teach anything
    assert each_once(driver.run, 6)
    listed = {path.name for path in (driver.run / "logs").iterdir()}
    assert {"cluster.log", "rank_0.log"} <= listed
    assert not nothing_left(nodes)


def test_nodes_come_and_go_and_the_run_learns_as_much(nodes: Nodes) -> None:
    nodes.add("leaves", CPU=1, seat=1)
    nodes.add("stays", CPU=1, seat=1)
    changed = {
        "train.cluster.sampler": "{CPU = 0.5, seat = 1}", "train.engine.processes": 2, "train.steps": 600,
        "train.eval_every": 100, "train.warm_start_steps": 35,
    }  # fmt: skip
    driver = start(nodes, "moves", changed)
    driver.wait_for(lambda: driver.events().count("samples, first with") == 2)
    driver.wait_for_step(20)
    nodes.remove("leaves")
    driver.wait_for(lambda: "is lost" in driver.events())
    nodes.add("comes", CPU=1, seat=1)
    driver.wait_for(lambda: driver.events().count("samples, first with") == 3)
    said = driver.end()
    assert driver.process.returncode == 0, said
    assert each_once(driver.run, 600)
    assert not nothing_left(nodes)
    nodes.remove("stays")
    nodes.remove("comes")
    alone = inline(nodes, "moves_inline", changed)
    accuracy = [float(str(summary(run)["held_out_accuracy"])) for run in (driver.run, alone)]
    start_at = float(str(summary(alone)["start_accuracy"]))
    assert min(accuracy) > start_at + 0.1
    assert abs(accuracy[0] - accuracy[1]) < 0.2  # 40 prompts: a standard error of 0.07 each


def test_two_ranks_and_two_samplers_learn_the_default_task(nodes: Nodes) -> None:
    """Sorting five digits, every setting at its default, staleness 2."""
    resources = {key: SMALL[key] for key in SMALL if key.startswith("train.cluster.")}
    settings = [f"{key}={value}" for key, value in resources.items()]
    run = nodes.folder / "default"
    words = ["train.staleness=2", "train.engine.processes=2", "--ranks", "2", "--run-dir", str(run)]
    process = command(nodes, "train", *settings, *words)
    said, _ = process.communicate(timeout=550)
    assert process.returncode == 0, said
    told = summary(run)
    assert float(str(told["held_out_accuracy"])) > 0.9
    assert float(str(told["start_accuracy"])) < 0.8
    placed = told["placement"]
    assert isinstance(placed, dict)
    assert {"rank 0", "rank 1", "sampler 0", "sampler 1"} <= set(placed)
    assert not nothing_left(nodes)


PROTOCOL = """
title = "Two arms"
question = "Do they come back?"
chosen = "Nothing was."
metric = "held_out_accuracy"
seeds = [0]
jobs = 2

[base]
recipe = "start_async"

[base.train]
task = { name = "reverse", size = 3 }
model = { hidden_size = 32, num_layers = 1, num_heads = 2, mlp_size = 64 }
warm_start_steps = 20
steps = 4
prompts_per_step = 4
samples_per_prompt = 4
max_new_tokens = 5
eval_prompts = 20
early_stop = "never"

[arms.fresh]
means = "No staleness"

[arms.stale]
means = "Two updates"
train.staleness = 2
"""


def test_runs_of_a_study_are_placed_and_their_folders_come_back(nodes: Nodes) -> None:
    _ = (nodes.folder / "study.toml").write_text(PROTOCOL)
    process = command(nodes, "study", "study.toml", "--out", "study")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    told = json.loads((nodes.folder / "study" / "study.json").read_text())
    assert [[cell["value"] is not None for cell in arm["cells"]] for arm in told["arms"]] == [[True], [True]]
    assert all((nodes.folder / "study" / arm / "seed0" / "report.html").is_file() for arm in ("fresh", "stale"))
    assert not nothing_left(nodes)


def test_subjects_of_a_check_are_placed_and_give_the_same_verdicts(nodes: Nodes) -> None:
    reports: list[dict[str, object]] = []
    for number, where in enumerate((nodes, None)):
        out = nodes.folder / f"check_{number}.json"
        words = ["check", "policy_loss.clipped", "--examples", "2", "--format", "json", "--out", str(out)]
        if where is not None:
            process = command(where, *words)
        else:
            process = subprocess.Popen([sys.executable, "-m", "trimtab", *words], env={**os.environ, MARK: ""})
        _ = process.communicate(timeout=300)
        assert process.returncode == 0
        reports.append(json.loads(out.read_text()))
    told = [[(one["subject"], one["invariant"], one["status"]) for one in report["verdicts"]] for report in reports]
    assert told[0] == told[1]
    assert len(told[0]) > 5
    assert not nothing_left(nodes)
