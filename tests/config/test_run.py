"""Run files and overrides: what is read, and that everything else is one sentence."""

import os
from pathlib import Path

import pytest

from trimtab.config import load_run, parse_run
from trimtab.config.study import load_study
from trimtab.errors import ConfigError, TrimtabError

DEEP = 3000


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.lr=true", "train.lr = True is not possible: true is not a number"),
        ("train.steps=true", "train.steps = True is not possible: true is not a number"),
        ("train.early_stop.accuracy=true", "true is not a number"),
        ("train.model.hidden_size=false", "false is not a number"),
        ("train.weight_decay=inf", "train.weight_decay = inf is not possible: input should be a finite number"),
        ("train.max_minutes=nan", "train.max_minutes = nan is not possible: input should be a finite number"),
        ("train.engine.top_p=nan", "train.engine.top_p = nan is not possible: input should be a finite number"),
        ("train.threads=100000", "train.threads = 100000 is not possible: input should be less than or equal to 1024"),
        ("train.task.size=100000", "train.task.size = 100000 is not possible: input should be less than or equal to"),
        ("train.steps=3000000000", "input should be less than or equal to 2147483647"),
        ("train.seed=99999999999999999999", "is a number of 67 bits; 64 are read"),
        ("train.steps=5\ntrain.lr=1", "has more than one line, so it is not clear what belongs to the value"),
        ("train.steps", "is not key=value. Write for instance train.steps=50"),
        ("train..steps=5", "is not key=value"),
        ("train.=5", "is not key=value"),
        ("recipe.x=5", "recipe = {'x': 5} is not possible"),
        ("int=5", "there is no key 'int'"),
        ("train.bool=5", "there is no key 'train.bool'"),
        ("train.none=5", "there is no key 'train.none'"),
        ("train.task.name=a\udcffb", "holds a character that is not text"),
        ('train.run_dir="a\\u0000b"', "holds a character that is not text"),
        ("train.run_dir=" + "x" * 5000, "train.run_dir = 'xxx"),
        ("train.task.file=" + "x/" * 3000, "has at most 255 bytes between two slashes"),
        ("train.steps=" + "9" * 5000, "holds a number that cannot be read"),
        ("train.steps=0x" + "f" * 5000, "is a number of 20000 bits"),
        ("train.steps=" + "[" * DEEP + "]" * DEEP, "more than 32 deep. No setting needs that"),
        ("train.steps=" + "[" * 40 + "]" * 40, "more than 32 deep"),
        ("train.log_to=[1,2]", "train.log_to.0 = 1 is not possible: input should be a valid string"),
        ("x" * 5000 + "=1", "… (5000 characters)"),
    ],
)
def test_an_override_that_means_nothing_is_one_short_sentence(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        _ = load_run(None, [override])
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 1200  # a list of the known keys may be in it


def test_a_table_of_overrides_that_is_too_deep_is_refused() -> None:
    for before in ("", "signal.loss.", "train.task.options."):
        with pytest.raises(ConfigError, match="more than 32 deep"):
            _ = load_run(None, [f"{before}{'.'.join('a' * DEEP)}=1"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * DEEP + "]" * DEEP, "more than 32 deep"),
        ("a = " + "{a=" * DEEP + "1" + "}" * DEEP, "more than 32 deep"),
        ("[" + ".".join("a" * DEEP) + "]", "more than 32 deep"),
        ("train.seed = " + "9" * 5000, "holds a number that cannot be read"),
        ("train = 3", "train = 3 is not a table of keys"),
        ("train = [[1]]", r"train = \[\[1\]\] is not a table of keys"),
        ("recipe = 1979-05-27", "recipe = datetime.date"),
        ("=", r"is not TOML \(Invalid statement"),
        ("\udcff", "byte 0 is not UTF-8"),
    ],
)
def test_a_run_file_that_means_nothing_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    _ = path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=said):
        _ = load_run(path)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    long = tmp_path / "long.toml"
    _ = long.write_bytes(b"#" * (5 << 20))
    for path, said in [
        (loop, "cannot be read"),
        (Path("x" * 5000), "cannot be read"),
        (Path("a\0b.toml"), "is not a file name"),
        (tmp_path, "cannot be read"),
        (tmp_path / "none.toml", "there is no such file"),
        (Path(os.devnull) / "x", "cannot be read"),
        (Path("/dev/zero"), "is longer than 4 MiB"),
        (long, "is longer than 4 MiB"),
    ]:
        with pytest.raises(ConfigError, match=said):
            _ = load_run(path)
        with pytest.raises(ConfigError, match=said):
            _ = load_study(path)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    _ = path.write_bytes(b"\xef\xbb\xbftrain.steps = 7\n")
    assert load_run(path).train.steps == 7


def test_one_value_is_a_list_of_one(tmp_path: Path) -> None:
    assert load_run(None, ["train.log_to=wandb"]).train.log_to == ("wandb",)
    assert parse_run({"train": {"log_to": "trackio"}}) == parse_run({"train": {"log_to": ["trackio"]}})
    study = 'title = "t"\nquestion = "q"\nchosen = "c"\nseeds = 3\narms.a = {}\nexpect = { arm = "a", at_least = 1 }\n'
    _ = (tmp_path / "study.toml").write_text(study)
    read = load_study(tmp_path / "study.toml").study
    assert (read.seeds, [one.arm for one in read.expect]) == ((3,), ["a"])


def test_a_formula_whose_module_breaks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ = (tmp_path / "breaks_on_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrimtabError, match="division by zero"):
        _ = load_run(None, ["signal.loss.formula=breaks_on_import.loss"])
