"""The share of bugs with a ready folder on a small file of three bugs, as docs/sentinel.md states it."""

from pathlib import Path

import pytest

from trimtab.cli.check import Asked, run_check
from trimtab.sentinel.findings import rows

HERE = Path(__file__).parent / "three_bugs"


@pytest.mark.slow
def test_every_bug_of_a_small_file_gets_a_ready_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(HERE)
    assert run_check(Asked("losses.py", findings=tmp_path / "findings", fixed="repaired")) == 1
    assert "4 of 4 bugs have a folder that is ready" in " ".join(capfd.readouterr().err.split())
    found = rows(tmp_path / "findings")
    assert {row.boundary.partition(":")[2] for row in found} == {"masked_mean", "kl_penalty", "group_advantages"}
    for row in found:
        lines = (tmp_path / "findings" / row.folder / "run_validation.py").read_text().splitlines()
        assert len(lines) < 170, (row.folder, len(lines))
