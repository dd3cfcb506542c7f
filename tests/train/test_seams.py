"""Parts of a user's own, named as `module:name`: none of them touches a file of ours."""

import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError
from trimtab.signal import recipe
from trimtab.train import train
from trimtab.train.record.inputs import named_code
from trimtab.train.show.progress import Silent

PARTS = '''
import json

import torch
import trimtab
from trimtab.rollout import Sample
from trimtab.rollout.embedded import Embedded


class Counting:
    """An engine of somebody else's: it counts, and says another number format."""

    dtype = "counted"

    def __init__(self, model, tokenizer, settings):
        self.inner = Embedded(model, pad_id=tokenizer.pad_token_id, eos_ids=(tokenizer.eos_token_id,))
        self.answers = 0

    @property
    def version(self):
        return self.inner.version

    def load(self, state, version, digest):
        self.inner.load(state, version, digest)

    def sample(self, requests, how):
        self.answers += len(requests)
        open("answers.txt", "w").write(str(self.answers))
        return self.inner.sample(requests, how)


class Lines:
    """A logger of somebody else's."""

    def __init__(self, folder, config):
        self.file = open(folder / "mine.jsonl", "a")
        print(json.dumps({"steps": config["steps"]}), file=self.file)

    def log(self, step, metrics):
        print(json.dumps({"step": step, "loss": metrics.get("train/loss")}), file=self.file)

    def close(self):
        self.file.close()


def broken(*given):
    raise RuntimeError("no licence")


def nothing(*given):
    return object()


@trimtab.formula(stage="policy_loss", scope="token", source="a test", promises=("split",))
def half(logp_current, advantage):
    """Half of it."""
    return -0.5 * logp_current * advantage, {}
'''


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    _ = (tmp_path / "their_parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "their_parts"  # type: ignore[misc]
    _ = sys.modules.pop("their_parts", None)


def changed(settings: TrainSettings, **changes: object) -> TrainSettings:
    return TrainSettings.model_validate({**settings.model_dump(), **changes})


@pytest.mark.usefixtures("undrawn_here")
def test_an_engine_a_logger_and_a_formula_from_outside(parts: str, small: TrainSettings, tmp_path: Path) -> None:
    settings = changed(
        small, engine={"name": f"{parts}:Counting"}, log_to=(f"{parts}:Lines",), run_dir=tmp_path / "run", steps=3
    )
    summary = train(settings, recipe("reinforce", loss=f"{parts}:half"), progress=Silent())
    assert summary.steps == 3
    asked = (3 + settings.staleness) * settings.prompts_per_step * settings.samples_per_prompt
    assert int((tmp_path / "answers.txt").read_text()) == asked
    told = [json.loads(line) for line in (tmp_path / "run" / "mine.jsonl").read_text().splitlines()]
    assert told[0] == {"steps": 3}
    assert [line["step"] for line in told[1:]] == [0, 1, 2]
    assert all(isinstance(line["loss"], float) for line in told[1:])


@pytest.mark.parametrize(("changes", "said"), [
    ({"engine": {"name": "sglang"}}, "engine.name: no entry is called 'sglang'"),
    ({"engine": {"name": "their_parts:broken"}}, "engine: their_parts:broken raised RuntimeError: no licence"),
    ({"engine": {"name": "their_parts:nothing"}}, "without version, dtype, load, sample, so it is not an engine"),
    ({"log_to": ("their_parts:nothing",)}, "without log, close, so it is not a logger"),
    ({"log_to": ("tensorbord",)}, "did you mean 'tensorboard'"),
])  # fmt: skip
@pytest.mark.usefixtures("undrawn_here")
def test_what_is_no_engine_and_no_logger_is_refused(
    changes: dict[str, object], said: str, parts: str, small: TrainSettings, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ValidationError)) as caught:
        _ = train(changed(small, **changes, run_dir=tmp_path / "run"), "grpo", progress=Silent())
    assert said in str(caught.value)


def test_code_that_a_run_names_is_known_before_it_is_imported(small: TrainSettings) -> None:
    """A run folder from elsewhere may name any of them: they are all looked at before anything is imported."""
    settings = changed(small, engine={"name": "a:b"}, log_to=("c:d", "tensorboard"))
    named = named_code(settings, {"signal": {"loss": {"formula": "e:f"}}})
    assert sorted(named.values()) == ["a:b", "c:d", "e:f"]
