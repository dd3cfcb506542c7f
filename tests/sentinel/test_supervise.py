"""Examinations in children: what is told, what a dying child costs, how the report comes together."""

import subprocess
from pathlib import Path

import pytest

from trimtab.errors import AdapterError
from trimtab.sentinel.examination.changes import changed_lines
from trimtab.sentinel.examination.job import Job, locate, ready_name
from trimtab.sentinel.examination.supervise import Limits, run_job
from trimtab.sentinel.reports import exit_code

ONE = Limits(processes=1)

FILE = """
import os, sys, time
print("a target may print what it likes")

def fine(log_probs, advantages, mask):
    return (-advantages * log_probs)[mask.bool()].sum()

def dies(log_probs, advantages, mask):
    os._exit(3)

def sleeps(log_probs, advantages, mask):
    time.sleep(600)
"""


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    file = tmp_path / "losses_of_mine.py"
    file.write_text(FILE)
    return file


def test_a_child_that_dies_costs_one_function_and_not_the_report(losses: Path) -> None:
    job = Job(str(losses), examples=1, subjects=("fine", "dies"), invariants=("mask_content", "split"))
    report = run_job(job, limits=ONE)
    told = {v["subject"]: v["status"] for v in report["verdicts"]}
    assert told == {"fine": "holds", "dies": "could not run"}
    (lost,) = [v for v in report["verdicts"] if v["subject"] == "dies"]
    assert "its process ended with code" in lost["reason"]
    assert exit_code(report) == 2


@pytest.mark.slow
def test_a_function_that_does_not_end_is_given_up(losses: Path) -> None:
    job = Job(str(losses), examples=1, subjects=("sleeps",), invariants=("split",))
    # Far less than it takes to import torch: the time before the first word is not the function's.
    report = run_job(job, limits=Limits(processes=1, seconds=0.2))
    assert [v["status"] for v in report["verdicts"]] == ["could not run"]
    assert "no answer within 0.2 s: it may hang on some case" in report["verdicts"][0]["reason"]


@pytest.mark.slow
def test_a_target_that_cannot_be_loaded_is_one_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken_target.py"
    with pytest.raises(AdapterError, match="no such file"):
        run_job(Job(str(broken)), limits=ONE)


def test_ready_targets_are_known_by_either_spelling() -> None:
    assert ready_name("NeMo-RL") == "nemo_rl"
    assert ready_name("mypkg") is None
    with pytest.raises(AdapterError, match="no such folder"):
        locate("slime", path="/nowhere/at/all")


def test_changed_lines_are_those_of_the_newer_side(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q")
    git("config", "user.email", "a@b.c")
    git("config", "user.name", "a")
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\nthree\n")
    git("add", ".")
    git("commit", "-qm", "one")
    file.write_text("one\n2\n2.5\nthree\n")
    git("commit", "-qam", "two")
    assert changed_lines(str(tmp_path), "HEAD~1..HEAD") == {"a.py": [[2, 3]]}
    with pytest.raises(AdapterError, match=r"not a range of commits. Write BASE..HEAD"):
        changed_lines(str(tmp_path), "HEAD")
    with pytest.raises(AdapterError, match=r"--changed a\.\.b"):
        changed_lines(str(tmp_path), "a..b")
