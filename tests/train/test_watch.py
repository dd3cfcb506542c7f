"""The live guard in a real run: it sees what a formula does to the tensors it is given, and to the batch's split."""

import sys
from pathlib import Path

import pytest

from trimtab.config.train import TrainSettings
from trimtab.signal import Stage, part, recipe
from trimtab.train import train
from trimtab.train.show.progress import Silent
from trimtab.train.watch import stage_effects

pytestmark = pytest.mark.usefixtures("undrawn_here")


def warnings_of(small: TrainSettings, folder: Path, formula: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    is_early = formula == "halves_old"
    stage = Stage(part(f"writing_formulas.{formula}", stage="importance"), ratio="engine" if is_early else "total")
    chosen = recipe("grpo" if is_early else "reinforce_tis", correction=(stage,))
    settings = small.model_copy(update={"run_dir": folder / "run", "steps": 2, "prompts_per_step": 8})
    return "\n".join(train(settings, chosen, progress=Silent()).warnings)


@pytest.mark.parametrize(
    "formula", ["halves_old", pytest.param("halves_late", marks=pytest.mark.slow), "halves_in_decide"]
)
def test_a_formula_that_writes_in_place_raises_an_alarm(
    formula: str, small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "wrote to its input logp_" in warnings_of(small, tmp_path, formula, monkeypatch)


def test_a_formula_that_looks_across_sequences_raises_an_alarm(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "trimtab explain split" in warnings_of(small, tmp_path, "looks_around", monkeypatch)


def test_an_importance_on_every_token_counts_as_one_that_acts() -> None:
    fed = stage_effects({"keep.band/alone": 1.0, "importance.truncated/alone": 1.0, "keep.veto/alone": 0.0, "x": 2.0})
    assert fed == {"keep.band": 1.0, "importance.truncated": 0.5, "keep.veto": 0.0}
