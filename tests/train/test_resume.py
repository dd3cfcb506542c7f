"""A run that was killed and resumed is, bit for bit, the run that was never killed."""

import json
import random
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.train.conftest import lines, timeless
from tests.train.kill import count_writes, go_on, in_child, killed_after, killed_at, random_phase, uninterrupted

from trimtab.config.train import TaskSettings, TrainSettings
from trimtab.errors import CheckpointError, ConfigError
from trimtab.signal import recipe
from trimtab.train import resume, train
from trimtab.train.record.checkpoint import newest_checkpoint
from trimtab.train.record.record import Summary
from trimtab.train.show.progress import Silent

pytestmark = pytest.mark.usefixtures("undrawn")
TIMES = ("seconds", "tokens_per_second", "run_dir", "resumed")
RECIPE = "ppo"
"""It has all that there is to lose: a critic, a reference, running statistics; with a stale int4 sampler besides."""


@pytest.fixture(scope="module")
def whole(undrawn: None, small: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    uninterrupted(small, folder, RECIPE)
    return folder


def assert_equal_runs(folder: Path, whole: Path, *, but: tuple[str, ...] = ()) -> None:
    """Equal in all but times, and `but` of the summary."""
    for model in ("model", "best"):
        for file in ("model.safetensors", "critic.safetensors"):
            assert (folder / model / file).read_bytes() == (whole / model / file).read_bytes(), (model, file)
    assert timeless(folder) == timeless(whole)
    for name in ("samples.jsonl", "transcripts.jsonl", "diagnostics.jsonl"):
        assert lines(folder, name) == lines(whole, name), name
    ended, expected = (json.loads((path / "summary.json").read_text()) for path in (folder, whole))
    left_out = (*TIMES, *but)
    assert {k: v for k, v in ended.items() if k not in left_out} == {
        k: v for k, v in expected.items() if k not in left_out
    }


KILLS = [
    pytest.param("file .manifest.json.draft", 0, "half", id="while the run is opened", marks=pytest.mark.slow),
    pytest.param("line metrics.jsonl", 3, "half", id="inside a line of metrics", marks=pytest.mark.slow),
    pytest.param("file .optimizer.safetensors.draft", 1, "half", id="inside a checkpoint's file"),
    pytest.param("rename step_000002", 0, "before", id="before a checkpoint's rename", marks=pytest.mark.slow),
    pytest.param("remove .step_000000.old", 0, "half", id="while an old checkpoint is removed", marks=pytest.mark.slow),
    pytest.param("rename best", 1, "before", id="while the best policy is replaced", marks=pytest.mark.slow),
    pytest.param("file .summary.json.draft", 0, "half", id="inside the summary", marks=pytest.mark.slow),
    pytest.param("rename summary.json", 0, "after", id="between summary and report"),
]


@pytest.fixture(scope="module")
def writes(undrawn: None, small: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every write of the run, in order, where only one checkpoint is kept."""
    folder = tmp_path_factory.mktemp("writes")
    kept = small.model_copy(update={"keep_checkpoints": 1})
    return count_writes(partial(uninterrupted, kept, folder / "run", RECIPE), folder / "note")


def assert_can_go_on(folder: Path) -> None:
    """As soon as there is a log, there is a complete checkpoint."""
    run_id = json.loads((folder / "manifest.json").read_text())["run_id"]
    if (folder / "metrics.jsonl").is_file():
        assert newest_checkpoint(folder / "checkpoints", run_id) is not None


@pytest.mark.parametrize(("what", "nth", "phase"), KILLS)
def test_killed_inside_a_write_and_resumed(
    what: str, nth: int, phase: str, whole: Path, writes: list[str], small: TrainSettings, tmp_path: Path
) -> None:
    places = [place for place, name in enumerate(writes) if name == what]
    assert len(places) > nth, f"{what} is among {sorted(set(writes))}"
    folder = tmp_path / "run"
    work = partial(uninterrupted, small.model_copy(update={"keep_checkpoints": 1}), folder, RECIPE)
    assert in_child(killed_at(work, places[nth], phase)) == -signal.SIGKILL  # type: ignore[arg-type]
    if not (folder / "manifest.json").is_file():
        with pytest.raises(ConfigError, match=r"manifest.json is missing, so .* is not the folder of a run"):
            go_on(folder)
        shutil.rmtree(folder)
        uninterrupted(small, folder, RECIPE)
    else:
        assert_can_go_on(folder)
        go_on(folder)
    assert (folder / "report.html").is_file()
    assert [path.name for path in folder.rglob(".*") if path.name != ".lock"] == []
    assert_equal_runs(folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_killed_anywhere_again_and_again(
    seed: int, whole: Path, writes: list[str], small: TrainSettings, tmp_path: Path
) -> None:
    """Two kills per run: one inside a random write, one at a random time of the resumed run."""
    stream = random.Random(seed)
    folder = tmp_path / "run"
    first = writes.index("file .manifest.json.draft") + 2
    place = stream.randrange(first, len(writes))
    kept = small.model_copy(update={"keep_checkpoints": stream.choice((1, 2))})
    work = partial(uninterrupted, kept, folder, RECIPE)
    _ = in_child(killed_at(work, place, random_phase(stream)))
    assert_can_go_on(folder)
    _ = killed_after(partial(go_on, folder), stream.uniform(0.0, 1.5))
    assert_can_go_on(folder)
    if not (folder / "report.html").is_file():  # the second kill came before the end
        go_on(folder)
    assert_equal_runs(folder, whole)


@pytest.mark.slow
def test_a_sampler_beside_the_learner_is_killed_with_it_and_the_run_goes_on(
    writes: list[str], small: TrainSettings, tmp_path: Path
) -> None:
    """Without staleness two processes give the numbers of one, so a kill must leave no trace there either."""
    synchronous = small.model_copy(update={"staleness": 0})
    uninterrupted(synchronous, tmp_path / "whole", RECIPE)
    beside = synchronous.model_copy(update={"runtime": "processes"})
    work = partial(uninterrupted, beside, tmp_path / "run", RECIPE)
    place = writes.index("rename step_000002")  # of the same run, inline; the sampler's folder adds writes before it
    assert in_child(killed_at(work, place, "after")) == -signal.SIGKILL
    assert (tmp_path / "run" / ".sampler").is_dir()
    go_on(tmp_path / "run")
    assert not (tmp_path / "run" / ".sampler").exists()
    assert_equal_runs(tmp_path / "run", tmp_path / "whole", but=("runtime",))


@pytest.mark.slow
def test_an_asynchronous_run_that_was_killed_goes_on_within_its_limit(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"runtime": "processes", "steps": 8})
    folder = tmp_path / "run"
    note = count_writes(partial(uninterrupted, settings, tmp_path / "counted", RECIPE), tmp_path / "note")
    place = len(note) - 1 - note[::-1].index("line metrics.jsonl") - 3
    assert in_child(killed_at(partial(uninterrupted, settings, folder, RECIPE), place, "after")) == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    summary = resume(folder, progress=Silent())
    assert (summary.steps, summary.resumed) == (8, 1)
    trained = [line for line in lines(folder) if "train/loss" in line]
    assert [line["step"] for line in trained] == list(range(8))
    assert max(line["staleness/max"] for line in trained) <= small.staleness


def test_a_resumed_run_may_get_more_steps_and_equals_one_that_had_them(
    small: TrainSettings, whole: Path, tmp_path: Path
) -> None:
    short = small.model_copy(update={"steps": 3, "run_dir": tmp_path / "run"})
    _ = train(short, RECIPE, progress=Silent())
    summary = resume(tmp_path / "run", changes={"steps": 5}, progress=Silent())
    assert (summary.steps, summary.resumed) == (5, 1)
    assert timeless(tmp_path / "run") == timeless(whole)


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run as it was when it had two checkpoints and no summary."""
    folder = tmp_path / "copy"
    _ = shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    return folder


def test_a_damaged_checkpoint_is_refused_with_the_reason_and_the_last_good_one_taken_on_request(
    stopped: Path, whole: Path
) -> None:
    file = stopped / "checkpoints" / "step_000005" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    _ = file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"optimizer.safetensors has sha256 .* not what was written.*--last-good"):
        _ = resume(stopped, progress=Silent())
    _ = resume(stopped, last_good=True, progress=Silent())
    assert_equal_runs(stopped, whole)


def test_a_checkpoint_that_lacks_a_file_is_refused(stopped: Path) -> None:
    (stopped / "checkpoints" / "step_000005" / "buffer.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"buffer.safetensors is missing, so step_000005 is not whole"):
        _ = resume(stopped, progress=Silent())


def test_what_would_change_the_meaning_of_a_run_is_refused(stopped: Path) -> None:
    with pytest.raises(ConfigError, match=r"lr cannot change in the middle of a run"):
        _ = resume(stopped, changes={"lr": 1.0}, progress=Silent())
    with pytest.raises(CheckpointError, match=r"was started with recipe 'ppo', and 'dapo' as it is now"):
        _ = resume(stopped, recipe("dapo"), progress=Silent())


def test_a_finished_run_says_so_and_how_to_get_more(whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"is finished \(all 5 steps are done\).*train.steps=10"):
        _ = resume(whole, progress=Silent())


def test_a_run_killed_after_its_summary_gets_its_report_and_loses_its_model_copy(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    _ = shutil.copytree(whole, folder)
    (folder / "report.html").unlink()
    (folder / ".sampler").mkdir()
    summary = resume(folder, progress=Silent())
    assert summary.to_json() == json.loads((whole / "summary.json").read_text())
    assert (folder / "report.html").is_file()
    assert not (folder / ".sampler").exists()
    with pytest.raises(ConfigError, match="is finished"):
        _ = resume(folder, progress=Silent())


def test_a_run_that_lost_its_checkpoints_never_loses_its_logs(stopped: Path, whole: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    before = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"holds no checkpoint although metrics.jsonl tells .* add --start-over"):
        _ = resume(stopped, progress=Silent())
    assert (stopped / "metrics.jsonl").read_bytes() == before
    _ = resume(stopped, start_over=True, progress=Silent())
    assert (stopped / "set_aside_1" / "metrics.jsonl").read_bytes() == before
    assert_equal_runs(stopped, whole)


def test_damaged_lines_are_kept_beside_and_told(stopped: Path, whole: Path) -> None:
    """A bad byte in the middle costs one line, and the file as it was stays."""
    log = stopped / "metrics.jsonl"
    content = log.read_bytes().splitlines(keepends=True)
    content[1] = b"\xff" + content[1]
    _ = log.write_bytes(b"".join(content))
    summary = resume(stopped, progress=Silent())
    assert any("metrics.jsonl: line 2 cannot be read" in text for text in summary.warnings)
    assert (stopped / "metrics.jsonl.damaged-1").read_bytes() == b"".join(content)
    assert [line["step"] for line in lines(stopped)] == [0, 2, 3, 4, 5]


def test_two_processes_cannot_train_in_one_folder(stopped: Path) -> None:
    import fcntl

    with (stopped / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is training in"):
            _ = resume(stopped, progress=Silent())


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.json is missing, so .* is not the folder of a run"):
        _ = resume(tmp_path, progress=Silent())


def test_a_run_of_a_recipe_of_ones_own_asks_for_it(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"run_dir": tmp_path / "run", "steps": 1})
    own = recipe("grpo", not_ended="suppress")
    _ = train(settings, own, progress=Silent())
    with pytest.raises(ConfigError, match=r"started from Python with a recipe of its own"):
        _ = resume(tmp_path / "run", changes={"steps": 2}, progress=Silent())
    assert resume(tmp_path / "run", own, changes={"steps": 2}, progress=Silent()).steps == 2


@pytest.mark.slow
def test_two_turns_and_refills_resume_bit_for_bit_too(small: TrainSettings, tmp_path: Path) -> None:
    """Observations, turns and a buffer that has dropped groups all pass through a checkpoint."""
    settings = small.model_copy(
        update={"task": TaskSettings(name="calculator", size=3), "dynamic_sampling": 2, "max_new_tokens": 6, "steps": 4}
    )
    folders = [tmp_path / "whole", tmp_path / "cut"]
    _ = train(settings.model_copy(update={"run_dir": folders[0]}), "start_async", progress=Silent())
    _ = train(settings.model_copy(update={"run_dir": folders[1], "steps": 2}), "start_async", progress=Silent())
    _ = resume(folders[1], changes={"steps": 4}, progress=Silent())
    assert timeless(folders[1]) == timeless(folders[0])


def test_resuming_is_counted(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints" / "step_000005")
    summary: Summary = resume(stopped, progress=Silent())
    assert summary.resumed == 1
