"""A disk that refuses is one sentence with what to do; logs keep every line that can be read."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest
from tests.train.kill import in_child

from trimtab.config.train import TrainSettings
from trimtab.errors import DiskError
from trimtab.train import train
from trimtab.train.policy import Policy, save
from trimtab.train.record.disk import append_line, make_folder, restore_folder, whole_folder, write_whole
from trimtab.train.show.lines import cut_lines, has_trained
from trimtab.train.show.progress import Silent


def write_lines(path: Path, *lines: bytes) -> Path:
    _ = path.write_bytes(b"".join(lines))
    return path


def line(step: int, **more: object) -> bytes:
    return json.dumps({"step": step, **more}).encode() + b"\n"


def test_lines_of_earlier_steps_stay_and_a_torn_last_one_goes(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "m.jsonl", line(0), line(1), line(2), b'{"step": 3, "lo')
    assert cut_lines(log, before_step=2) == ""
    assert log.read_bytes() == line(0) + line(1)
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize("bad", [b"\xff\xfe\n", b"{}\n", b"[]\n", b'{"step": "x"}\n', b"\x00" * 40 + b"\n"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_line_costs_itself_and_the_file_is_kept(bad: bytes, place: int, tmp_path: Path) -> None:
    content = [line(0), line(1)]
    content.insert(place, bad)
    log = write_lines(tmp_path / "m.jsonl", *content)
    said = cut_lines(log, before_step=9)
    assert said.startswith(f"m.jsonl: line {place + 1} cannot be read, so the log lacks it.")
    assert log.read_bytes() == line(0) + line(1)
    assert (tmp_path / "m.jsonl.damaged-1").read_bytes() == b"".join(content)
    _ = write_lines(log, *content)
    assert "m.jsonl.damaged-2" in cut_lines(log, before_step=1)


def test_a_log_tells_whether_steps_were_trained(tmp_path: Path) -> None:
    assert not has_trained(tmp_path / "none.jsonl")
    assert not has_trained(write_lines(tmp_path / "a.jsonl", line(0, **{"eval/accuracy": 0.5})))
    assert has_trained(write_lines(tmp_path / "b.jsonl", line(0, **{"train/loss": 0.5})))
    assert has_trained(write_lines(tmp_path / "c.jsonl", b"\xff"))  # nobody knows, so it is not thrown away


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskError, match=r"metrics.jsonl cannot be written \(No space left on device\).*Make room"):
        append_line(tmp_path / "metrics.jsonl", {"step": 0})


def test_a_name_that_is_too_long_is_one_sentence(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"run_dir": tmp_path / ("x" * 300), "warm_start_steps": 0})
    with pytest.raises(DiskError, match=r"cannot be written \(File name too long\).*Give a shorter name"):
        _ = train(settings, "grpo", progress=Silent())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody may write to")
def test_a_folder_that_nobody_may_write_to_is_one_sentence() -> None:
    for write in (lambda path: write_whole(path, "x"), make_folder):
        with pytest.raises(DiskError, match=r"cannot be written"):
            write(Path("/proc/self/fdinfo/run"))


def test_every_saver_of_a_model_folder_gives_the_sentence(policy: Policy, tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk; safetensors and tokenizers write from Rust."""

    def work() -> None:
        _ = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit in (0, 600, 6000):  # the config, the tokenizer, the weights
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(DiskError, match="cannot be written"):
                save(policy, tmp_path / "model")
        assert os.listdir(tmp_path) in ([], [".model.draft"])

    assert in_child(work) == 0


def test_a_folder_replaced_half_way_is_put_back(tmp_path: Path) -> None:
    place = tmp_path / "best"
    with whole_folder(place) as draft:
        _ = (draft / "a").write_text("old")
    _ = place.rename(tmp_path / ".best.old")  # killed between the two renames
    (tmp_path / ".best.draft").mkdir()
    restore_folder(place)
    assert (place / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
