"""The script for people with a GPU runs without one, and says what is missing."""

import json
import sys
from pathlib import Path

import pytest
import torch
from bench import gpu
from bench.gpu_cases import CASES, QUICK


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    assert "sees no GPU, so there is nothing to time" in capsys.readouterr().err


def test_quick_cases_on_a_cpu_agree_with_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--device", "cpu", "--quick", "--rounds", "1", "--out", str(out)])
    gpu.main()
    told = json.loads(out.read_text())
    assert told["torch"] == torch.__version__
    assert {one["stage"] for one in told["checks"]} == {case.stage for case in CASES}
    assert [(one["stage"], one["size"]) for one in told["results"]] == [(case.stage, case.size) for case in QUICK]
    assert all(one["ok"] and one["relative_error"] < 1e-4 for one in told["checks"])
    assert all(one["kernels_at_least"] > 0 for one in told["results"])


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(one for one in QUICK if one.stage == "logits")
    assert gpu.check(case, "cpu")["ok"]
    from trimtab.signal import scores

    honest = scores._forward
    # Both sides run the same code here, so the fault is planted into one precision alone.
    monkeypatch.setattr(
        scores, "_forward", lambda x, *more: honest(x * (1 + 1e-3) if x.dtype == torch.float32 else x, *more)
    )
    assert not gpu.check(case, "cpu")["ok"]


def test_logits_are_cut_into_few_pieces_off_the_processor() -> None:
    logits = next(one for one in CASES if one.stage == "logits")
    assert gpu.counted(logits.build("meta", torch.float32)).kernels < 100
