"""Samplers on nodes that own a vLLM server each: versions travel to a folder of the node, and are proven there.

About 3 minutes, nearly all of it the server's. It needs `make vllm-env` as well as Ray, and runs in `make test-vllm`.
"""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.cluster.conftest import Nodes, each_once, marked, nothing_left, start
from tests.vllm.test_vllm import VLLM

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not (VLLM / "bin" / "python").is_file(), reason="make vllm-env builds the environment"),
]
STEPS = 6


def test_a_sampler_with_a_server_trains_and_a_killed_server_is_replaced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENV", str(VLLM.resolve()))
    changed = {
        "train.model.num_heads": 1, "train.engine.name": "vllm", "train.engine.format": "fp32", "train.steps": STEPS,
        "train.eval_every": STEPS, "train.engine.processes": 1,
    }  # fmt: skip
    driver = start(nodes, "served", changed)
    driver.wait_for(lambda: any(line["step"] >= 2 for line in driver.lines()), 400)
    for pid in servers(nodes.mark):
        os.kill(pid, signal.SIGKILL)
    said = driver.end(400)
    assert driver.process.returncode == 0, said
    assert "ended with exit code -9" in driver.events() + said
    assert each_once(driver.run, STEPS)
    proofs = [json.loads(line) for line in (driver.run / "proofs.jsonl").read_text().splitlines()]
    assert {proof["verdict"] for proof in proofs} == {"proven"}
    assert max(proof["version"] for proof in proofs) >= 2
    assert not nothing_left(nodes)
    assert not [title for title in marked(nodes.mark) if "vllm" in title]


def servers(mark: str) -> list[int]:
    """The processes of servers that were started on the nodes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title, own = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        if b"vllm" in title and b"api_server" in title and mark.encode() in own:
            found.append(int(place.name))
    return found
