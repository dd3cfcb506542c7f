import io
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.train import TrainSettings, train
from trimtab.train.show.progress import Lines, Live, OneLine, sparks, terminal_progress


def test_without_a_terminal_lines_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert type(terminal_progress(quiet=False)) is Lines
    assert type(terminal_progress(quiet=True)) is OneLine
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_live_view_leaves_the_result_behind(small: TrainSettings, tmp_path: Path) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    summary = train(small.model_copy(update={"run_dir": tmp_path / "run"}), progress=Live(terminal))
    assert isinstance(terminal.file, io.StringIO)
    said = terminal.file.getvalue()
    assert "step 5/5" in said
    assert f"held-out accuracy {summary.held_out_accuracy:.3f} after 5 steps" in said
    assert said.rstrip().endswith("report.html")


def test_sparks_span_their_range() -> None:
    assert sparks([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparks([]) == ""
