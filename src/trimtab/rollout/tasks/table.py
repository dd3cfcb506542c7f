"""The only place that reads a data file: JSONL or parquet rows become problems, or a sentence that names the row."""

import datetime
import importlib
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from trimtab.errors import ConfigError, MissingExtra, nearest
from trimtab.rollout.task import Message, Problem, Prompt, Tool

RESERVED = ("prompts", "completions", "completion_ids", "ended")
"""Arguments of a reward function; a column of the same name would be confused with them."""
OPTIONS = ("prompt_column", "answer_column", "tools_column")
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""What chat templates read of a message."""

Row = dict[str, Any]


def read_problems(path: Path, options: Mapping[str, Any], *, needs_answer: bool) -> list[Problem]:
    """The rows of a file; every row gets every column, None where the file has no value.

    `options` may say what the three columns are called: `{"prompt_column": "question"}`.
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"task.options: {unknown[0]!r} is no option of a file{nearest(unknown[0], OPTIONS)}. "
            f"There are: {', '.join(OPTIONS)}."
        )
    prompt_column = str(options.get("prompt_column", "prompt"))
    answer_column = str(options.get("answer_column", "answer"))
    tools_column = str(options.get("tools_column", "tools"))
    rows = list(_rows(path))
    if not rows:
        raise ConfigError(f"{path}: is empty, so there is nothing to train on. Give one row for each problem.")
    names = list(dict.fromkeys(name for _, row in rows for name in row if name not in (prompt_column, answer_column)))
    taken = [name for name in names if name in RESERVED]
    if taken:
        raise ConfigError(f"{path}: the column {taken[0]!r} is an argument of every reward function. Rename it.")
    problems: list[Problem] = []
    for where, row in rows:
        columns = {name: _plain(where, name, row.get(name)) for name in names}
        answer = row.get(answer_column)
        if isinstance(answer, (int, float)) and not isinstance(answer, bool):
            columns["answer"] = answer  # a reward function gets the number, as the file has it
        problems.append(
            Problem(
                prompt=_prompt(where, prompt_column, row),
                answer=_answer(where, answer_column, answer, needs_answer=needs_answer),
                columns=columns,
                tools=_tools(where, tools_column, row),
            )
        )
    return problems


# --------------------------------------------------------------------------------------------------------------- cells


def _prompt(where: str, column: str, row: Row) -> Prompt:
    value = row.get(column)
    if value is None:
        known = [name for name in row if name != column]
        raise ConfigError(
            f"{where}: has no {column!r} (it has: {', '.join(known) or 'nothing'}), so there is nothing to ask. "
            "Add the column, or name it in train.task.options.prompt_column."
        )
    if isinstance(value, str):
        if not value:
            raise ConfigError(f"{where}: {column!r} is empty, so there is nothing to ask. Write a prompt, or drop it.")
        return _whole(where, column, value)
    if isinstance(value, list) and value:
        return tuple(
            _message(f"{where}: {column!r}[{index}]", item) for index, item in enumerate(cast("list[Any]", value))
        )
    raise ConfigError(f"{where}: {column!r} is {_shown(value)}, not a text or a list of messages.")


def _message(where: str, item: Any) -> Message:
    if not isinstance(item, dict):
        raise ConfigError(f"{where} is {_shown(item)}, not a message with role and content.")
    message = {str(key): value for key, value in cast("dict[Any, Any]", item).items() if value is not None}
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and calls):
        raise ConfigError(f"{where} has tool_calls = {_shown(calls)}, not a list of calls.")
    if calls:
        message.setdefault("content", "")  # a message may be calls alone
    for key in ("role", "content", *({"name", "tool_call_id"} & set(message))):
        if not isinstance(message.get(key), str):
            raise ConfigError(f"{where} has {key} = {_shown(message.get(key))}, not a text.")
    extra = sorted(set(message) - set(MESSAGE_KEYS))
    if extra:
        raise ConfigError(f"{where} has {extra[0]!r}, which no chat template reads. Keep {', '.join(MESSAGE_KEYS)}.")
    return {
        key: _plain(where, key, calls) if key == "tool_calls" else _whole(where, key, message[key])
        for key in MESSAGE_KEYS
        if key in message
    }


def _tools(where: str, column: str, row: Row) -> tuple[Tool, ...]:
    """A list of JSON schemas, or the text of one: columns of parquet cannot hold schemas of different shapes."""
    value = row.get(column)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(
                f"{where}: {column!r} is {_shown(value)}, which is not JSON ({error}). Write a list of tools."
            ) from error
    if not value:
        return ()
    tools = cast("list[Any]", value)
    if not isinstance(value, list) or not all(isinstance(one, dict) and one for one in tools):
        raise ConfigError(
            f"{where}: {column!r} is {_shown(value)}, not a list of tools (JSON schemas of functions, as chat "
            "templates take them). If it is a column of your own, name the one with tools, or any other, in "
            "train.task.options.tools_column."
        )
    return tuple(cast("Tool", _plain(where, column, one)) for one in tools)


def _answer(where: str, column: str, value: Any, *, needs_answer: bool) -> str:
    if value is None:
        if needs_answer:
            raise ConfigError(
                f"{where}: has no {column!r}, so no answer could be right. Add the column, or name it in "
                "train.task.options.answer_column, or judge with a reward of your own."
            )
        return ""
    if isinstance(value, str):
        return _whole(where, column, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        raise ConfigError(f"{where}: {column!r} is {_shown(value)}, not a text or a finite number.")
    return str(int(value)) if value.is_integer() else repr(value)


def _whole(where: str, column: str, text: str) -> str:
    """JSON can write half a character; no tokenizer can read one."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError(f"{where}: {column!r} holds half a surrogate pair, which is no character. Save it as UTF-8.")
    return text


def _plain(where: str, name: str, value: Any) -> Any:
    """A free column as plain data; dates become their ISO text."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    try:
        _ = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {name!r} is {_shown(value)}, which cannot be sent to a reward. Keep texts, numbers and lists."
        ) from error
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:60] + '…'} ({type(value).__name__})"


# ---------------------------------------------------------------------------------------------------------------- files


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row and what to call it in an error."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder. Name a file in it, .jsonl or .parquet.")
    if not path.exists():
        beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: there is no such file{nearest(path.name, beside)}. Name a .jsonl or .parquet file.")
    readers = {".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        raise ConfigError(
            f"{path}: ends in {path.suffix or 'nothing'!r}, so its format is not known. "
            "Give .jsonl (one JSON object per line) or .parquet."
        )
    return readers[path.suffix.lower()](path)


def _jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    # Not str.splitlines: it also breaks at characters that JSON allows inside a text.
    for number, line in enumerate(_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{path}: line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{where}: is not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8."
            ) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: is not JSON ({error}). Write one object per line.") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: is {_shown(row)}, not an object. Write one object per line.")
        yield where, cast(Row, row)


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra(
            f'{path}: reading parquet needs pyarrow: pip install "trimtab[data]", or save the rows as .jsonl.'
        )
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        rows: Sequence[Row] = parquet.read_table(path).to_pylist()
    except Exception as error:  # pyarrow's own errors share no class with a name that lasts
        raise ConfigError(f"{path}: is not a parquet file ({str(error).splitlines()[0]}).") from error
    for number, row in enumerate(rows):
        yield f"{path}: row {number}", row


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
