"""Data files: which row a ticket asks, what is held out, and what is refused."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.reward import Attempt, open_scorer
from trimtab.rollout.task import Task, open_task, split_of

ROWS = [{"prompt": f"{number}+{number}=", "answer": 2 * number, "level": number % 3} for number in range(100)]


def written(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def opened(file: Path, seed: int = 0, **settings: object) -> Task:
    return open_task(TaskSettings.model_validate({"name": "file", "file": file, **settings}), seed)


def test_every_epoch_asks_each_training_row_once_in_its_own_order(tmp_path: Path) -> None:
    task = opened(written(tmp_path / "a.jsonl", ROWS))
    size = sum(split_of(str(row["prompt"])) == "train" for row in ROWS)
    epochs = [[task.train(ticket).text for ticket in range(e * size, (e + 1) * size)] for e in range(3)]
    assert all(len(set(epoch)) == size for epoch in epochs)
    assert {split_of(text) for text in epochs[0]} == {"train"}
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_ticket_asks_the_same_row_whenever_it_is_asked(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", ROWS)
    tickets = [500, 3, 90, 3, 250]
    assert [opened(file).train(t) for t in tickets] == [opened(file).train(t) for t in tickets[::-1]][::-1]
    assert [opened(file, 1).train(t) for t in range(9)] != [opened(file).train(t) for t in range(9)]


def test_held_out_rows_do_not_depend_on_seed_or_on_the_order_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", ROWS)
    turned = written(tmp_path / "b.jsonl", [*ROWS[::-1], *ROWS])
    for split in ("validation", "test"):
        held = opened(file).held_out(split, 512)
        assert held == opened(turned, 3).held_out(split, 512)
        assert {split_of(problem.text) for problem in held} == {split}
        assert opened(file).held_out(split, 2) == held[:2]


def test_numbers_become_text_and_stay_numbers_for_a_reward(tmp_path: Path) -> None:
    task = opened(
        written(tmp_path / "a.jsonl", [{"prompt": f"p{n}", "answer": 2.0 if n % 2 else n} for n in range(99)])
    )
    problem = task.train(0)
    assert problem.answer == str(int(problem.columns["answer"]))  # type: ignore[call-overload]
    assert (
        opened(written(tmp_path / "b.jsonl", [{"prompt": f"{n}", "answer": 0.5} for n in range(99)])).train(0).answer
        == "0.5"
    )


def test_every_row_has_every_column(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "extra", "answer": "x", "hint": "look", "level": None}]
    task = opened(written(tmp_path / "a.jsonl", rows))
    assert all(set(task.train(t).columns) - {"answer"} == {"level", "hint"} for t in range(50))


def test_the_alphabet_is_the_files_characters(tmp_path: Path) -> None:
    rows = [{"prompt": f"ä{n}", "answer": "漢"} for n in range(99)]
    assert opened(written(tmp_path / "a.jsonl", rows)).alphabet == "0123456789ä漢"
    chat = [{"prompt": [{"role": "user", "content": f"{n}"}], "answer": "x"} for n in range(60)]
    assert set("user: 0123456789x\nassistant: ") == set(opened(written(tmp_path / "b.jsonl", chat)).alphabet)


def test_an_eval_file_is_held_out_whole_half_for_each_split(tmp_path: Path) -> None:
    file, held = written(tmp_path / "a.jsonl", ROWS[:80]), written(tmp_path / "b.jsonl", ROWS[80:99])
    task = opened(file, eval_file=held)
    assert {task.train(t).text for t in range(80)} == {row["prompt"] for row in ROWS[:80]}
    validation, test = ({p.text for p in task.held_out(split, 99)} for split in ("validation", "test"))
    assert (len(validation), len(test)) == (10, 9)
    assert validation | test == {row["prompt"] for row in ROWS[80:99]}


def test_a_prompt_in_both_files_is_a_leak(tmp_path: Path) -> None:
    file, held = written(tmp_path / "a.jsonl", ROWS[:80]), written(tmp_path / "b.jsonl", ROWS[78:90])
    with pytest.raises(ConfigError, match=r"b\.jsonl: 2 of its 12 prompts are in .*a\.jsonl too \(first: '7[89]\+"):
        _ = opened(file, eval_file=held)


def test_an_eval_file_of_one_prompt_is_refused(tmp_path: Path) -> None:
    file, held = written(tmp_path / "a.jsonl", ROWS[:80]), written(tmp_path / "b.jsonl", [ROWS[90], ROWS[90]])
    with pytest.raises(ConfigError, match="has 1 different prompt, so there is none left for the test"):
        _ = opened(file, eval_file=held)


def test_a_file_too_small_to_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of its 2 prompts falls into validation"):
        _ = opened(written(tmp_path / "a.jsonl", ROWS[:2]))


def test_columns_of_another_name_are_read_by_option(tmp_path: Path) -> None:
    rows = [{"question": row["prompt"], "solution": row["answer"]} for row in ROWS]
    options = {"prompt_column": "question", "answer_column": "solution"}
    task = opened(written(tmp_path / "a.jsonl", rows), options=options)
    assert task.train(5).text.endswith("=")
    with pytest.raises(ConfigError, match=r"'promt_column' is no option of a file \(did you mean 'prompt_column'\?\)"):
        _ = opened(tmp_path / "a.jsonl", options={"promt_column": "question"})


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    lines = "\r\n\r\n".join(json.dumps(row) for row in ROWS)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode() + b"\r\n")
    assert opened(tmp_path / "a.jsonl").held_out("test", 99) == opened(written(tmp_path / "b.jsonl", ROWS)).held_out(
        "test", 99
    )


def test_parquet_gives_the_same_problems_as_jsonl(tmp_path: Path) -> None:
    pyarrow, parquets = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
    parquets.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    jsonl, parquet = opened(written(tmp_path / "a.jsonl", rows)), opened(tmp_path / "a.parquet")
    assert [parquet.train(t) for t in range(30)] == [jsonl.train(t) for t in range(30)]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"pip install \"trimtab\[data\]\""):
        _ = opened(tmp_path / "a.parquet")


def test_the_file_is_only_read(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", ROWS)
    file.chmod(0o444)
    before = (file.read_bytes(), file.stat().st_mtime_ns)
    _ = opened(file).train(3)
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_numeric_judges_a_file(tmp_path: Path) -> None:
    settings = TaskSettings(name="file", file=written(tmp_path / "a.jsonl", ROWS), reward="numeric")
    task = open_task(settings, 0)
    problem = task.train(0)
    right = Attempt(problem, f"it is ${problem.answer}.00", "", (), ended=True)
    assert open_scorer(settings, task).score([right])[0].reward == 1.0


def test_a_file_without_answers_serves_a_reward_of_ones_own(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"]} for row in ROWS]
    task = opened(written(tmp_path / "a.jsonl", rows), reward="mine:score")
    with pytest.raises(ConfigError, match="has no answer, so the warm start has nothing to teach"):
        _ = task.demonstration(task.train(0))


BAD = {
    "not json": (b'{"prompt": "a", "answer": "b"}\n{"prompt": \n', "line 2: is not JSON .* Write one object per line"),
    "a list": (b"[1, 2]\n", r"line 1: is \[1, 2\] \(list\), not an object"),
    "blank": (b"\n \n", "is empty, so there is nothing to train on"),
    "empty": (b"", "is empty, so there is nothing to train on"),
    "no prompt": (b'{"question": "a", "answer": "b"}', r"line 1: has no 'prompt' \(it has: question, answer\)"),
    "null prompt": (b'{"prompt": null, "answer": "b"}', "line 1: has no 'prompt'"),
    "empty prompt": (b'{"prompt": "", "answer": "b"}', "line 1: 'prompt' is empty"),
    "number prompt": (b'{"prompt": 7, "answer": "b"}', r"line 1: 'prompt' is 7 \(int\), not a text or a list"),
    "no messages": (b'{"prompt": [], "answer": "b"}', r"line 1: 'prompt' is \[\] \(list\)"),
    "bare message": (b'{"prompt": ["hi"], "answer": "b"}', r"line 1: 'prompt'\[0\] is 'hi' \(str\), not a message"),
    "no role": (b'{"prompt": [{"content": "x"}], "answer": "b"}', r"'prompt'\[0\] has role = None"),
    "picture": (
        b'{"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "b"}',
        r"'prompt'\[0\] has content = \[\{'type': 'image'\}\] \(list\), not a text",
    ),
    "strange key": (
        b'{"prompt": [{"role": "a", "content": "b", "colour": "c"}], "answer": "b"}',
        "has 'colour', which no chat template reads",
    ),
    "tool calls": (
        b'{"prompt": [{"role": "a", "content": "b", "tool_calls": "c"}], "answer": "b"}',
        "has tool_calls = 'c' .str., not a list of calls",
    ),
    "tools": (
        b'{"prompt": [{"role": "a", "content": "b"}], "tools": ["add"], "answer": "b"}',
        "'tools' is .'add'. .list., not a list of tools.*tools_column",
    ),
    "tools text": (
        b'{"prompt": [{"role": "a", "content": "b"}], "tools": "add", "answer": "b"}',
        "'tools' is 'add' .str., which is not JSON",
    ),
    "no answer": (b'{"prompt": "a"}', "line 1: has no 'answer', so no answer could be right"),
    "list answer": (
        b'{"prompt": "a", "answer": ["b"]}',
        r"line 1: 'answer' is \['b'\] \(list\), not a text or a finite",
    ),
    "bool answer": (b'{"prompt": "a", "answer": true}', r"line 1: 'answer' is True \(bool\)"),
    "nan answer": (b'{"prompt": "a", "answer": NaN}', r"line 1: 'answer' is nan \(float\)"),
    "latin 1": (b'{"prompt": "a", "answer": "\xe9"}', "line 1: is not UTF-8"),
    "half a pair": (b'{"prompt": "\\ud800", "answer": "a"}', "'prompt' holds half a surrogate pair"),
    "deep": (b'{"prompt": ' + b"[" * 100_000, "line 1: is not JSON"),
    "huge number": (b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}", "line 1: is not JSON"),
    "reserved": (b'{"prompt": "a", "answer": "b", "completions": 1}', "the column 'completions' is an argument"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_with_its_line_and_value(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=f"a\\.jsonl: .*{message}|a\\.jsonl: {message}"):
        _ = opened(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("problem.jsonl", r"there is no such file \(did you mean 'problems\.jsonl'\?\)"),
        ("folder", "is a folder"),
        ("a.json", r"ends in '\.json', so its format is not known"),
        ("bare", "ends in 'nothing', so its format is not known"),
        ("torn.parquet", "is not a parquet file"),
        ("nowhere/x.jsonl", "there is no such file"),
    ],
)
def test_a_path_that_is_no_data_file_is_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").touch()
    (tmp_path / "folder").mkdir()
    for other in ("a.json", "bare", "torn.parquet"):
        (tmp_path / other).write_text("x")
    with pytest.raises(ConfigError, match=message):
        _ = opened(tmp_path / name)
