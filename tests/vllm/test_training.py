"""Training against a real vLLM server reaches what training with our own sampler reaches.

About 5 minutes on two quiet cores, nearly all of it the server's.
"""

import json
from pathlib import Path

import pytest
import torch
from tests.vllm.test_vllm import TOKEN, VLLM, Process

from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.train import train
from trimtab.train.policy import save
from trimtab.train.setup import task_and_policy
from trimtab.train.show.progress import Silent
from trimtab.train.warmstart import warm_start

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not (VLLM / "bin" / "python").is_file(), reason="make vllm-env builds the environment"),
]
START = TrainSettings(model=ModelSettings(num_heads=2), warm_start_steps=60)
"""vLLM on the CPU computes heads of 32 numbers, not of 16."""
STEPS, NOISE = 60, 0.06
"""Three standard errors of an accuracy near 0.8 on 512 prompts are 0.05."""


def test_the_default_task_is_learnt_as_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("TRIMTAB_TOKEN", TOKEN)
    _, policy = task_and_policy(START)
    _ = warm_start(policy, START, stopped=lambda: False)
    save(policy, tmp_path / "model")
    common = {
        "model": ModelSettings(path=tmp_path / "model"), "staleness": 2, "lr": 3e-4, "schedule": "linear",
        "steps": STEPS, "early_stop": "never",
    }  # fmt: skip
    inline = train(TrainSettings(**common, run_dir=tmp_path / "inline"), "start_async", progress=Silent())
    server = Process(tmp_path / "model", tmp_path / "server.log")
    try:
        engine = {"name": "vllm", "servers": [server.url], "max_rows": 32}
        settings = TrainSettings(**common, runtime="processes", engine=engine, run_dir=tmp_path / "served")
        served = train(settings, "start_async", progress=Silent())
    finally:
        server.kill()
    assert served.start_accuracy == inline.start_accuracy
    assert inline.held_out_accuracy > inline.start_accuracy + 0.03
    assert served.held_out_accuracy > inline.held_out_accuracy - NOISE
    proofs = [json.loads(line) for line in (tmp_path / "served" / "proofs.jsonl").read_text().splitlines()]
    assert {proof["verdict"] for proof in proofs} == {"proven"}
