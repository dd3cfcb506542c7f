"""What every task promises, and the splits."""

import sys
from pathlib import Path

import pytest

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.task import OneTurn, Problem, Task, Turn, open_task, split_of
from trimtab.rollout.tasks import GENERATED

NAMES = sorted(GENERATED)


def opened(name: str, seed: int = 0, **settings: object) -> Task:
    return open_task(TaskSettings.model_validate({"name": name, **settings}), seed)


@pytest.mark.parametrize("name", NAMES)
def test_a_training_problem_is_a_function_of_seed_and_ticket(name: str) -> None:
    tickets = [5, 0, 19, 5]
    first = [opened(name).train(ticket) for ticket in tickets]
    again = [opened(name).train(ticket) for ticket in reversed(tickets)]
    assert first == again[::-1]
    assert first[0] == first[3]
    assert [opened(name, seed=1).train(ticket) for ticket in range(20)] != [opened(name).train(t) for t in range(20)]
    assert len({opened(name).train(ticket).text for ticket in range(50)}) > 40


@pytest.mark.parametrize("name", NAMES)
def test_held_out_problems_never_train_and_are_the_same_for_every_seed(name: str) -> None:
    held = {split: opened(name).held_out(split, 100) for split in ("validation", "test")}
    for split, problems in held.items():
        assert problems == opened(name, seed=7).held_out(split, 100)
        assert len({problem.text for problem in problems}) == 100
        assert {split_of(problem.text) for problem in problems} == {split}
    assert {split_of(opened(name).train(ticket).text) for ticket in range(200)} == {"train"}


@pytest.mark.parametrize("name", NAMES)
def test_the_alphabet_holds_every_character_there_is(name: str) -> None:
    task = opened(name)
    for ticket in range(300):
        problem = task.train(ticket)
        turns = task.demonstration(problem)
        environment = task.environment(problem)
        written = f"{environment.reset()}{''.join(turns)}"
        written += "".join(environment.step(turn, ended=True).observation for turn in turns)
        assert set(written) <= set(task.alphabet)


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_is_right_by_the_tasks_own_judge(name: str) -> None:
    task = opened(name)
    for ticket in range(100):
        problem = task.train(ticket)
        environment = task.environment(problem)
        assert environment.reset() == problem.prompt
        said = [environment.step(turn, ended=True) for turn in task.demonstration(problem)]
        assert [turn.done for turn in said] == [False] * (len(said) - 1) + [True]
        right = task.demonstration(problem)[-1]
        assert task.judge(problem, right, ended=True) == 1.0
        assert task.judge(problem, right, ended=False) == 0.0
        assert task.judge(problem, right[:-1], ended=True) == 0.0


def test_a_task_with_one_turn_is_over_after_it() -> None:
    environment = OneTurn(Problem("1=", "1"))
    assert environment.reset() == "1="
    assert environment.step("2", ended=False) == Turn("", done=True)


def test_a_tenth_of_the_prompts_is_in_each_held_out_split() -> None:
    found = [split_of(f"{number:05d}=") for number in range(20_000)]
    for split in ("validation", "test"):
        assert found.count(split) / len(found) == pytest.approx(0.1, abs=0.01)


def test_the_split_of_a_prompt_never_moves() -> None:
    # Written down once: were the hash to change, runs before and after could not be compared.
    assert [split_of(f"{number:05d}=") for number in (0, 27, 18)] == ["train", "validation", "test"]


def test_the_problems_of_a_seed_never_move() -> None:
    assert [opened("sort").train(ticket).text for ticket in (0, 1, 2)] == ["89610=", "90762=", "59533="]
    assert opened("sort").held_out("test", 2)[0].text == "90255="


def test_a_task_too_small_for_the_request_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task reverse: has \d test problems and 50 were asked for"):
        _ = opened("reverse", size=1).held_out("test", 50)


def test_an_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"task: no entry is called 'revers'; did you mean 'reverse'\? .*module:factory"
    ):
        _ = opened("revers")


def test_a_chat_prompt_reads_as_one_text() -> None:
    chat = ({"role": "system", "content": "add"}, {"role": "user", "content": "1+2"})
    assert Problem(chat, "3").text == "system: add\nuser: 1+2"


OWN = """
from trimtab.rollout.task import Problem
from trimtab.rollout.tasks import Generated, Kind
def doubled(settings, seed):
    def problem(stream):
        digit = str(stream.randrange(10 ** settings.size))
        return Problem(digit + "=", digit * 2)
    return Generated(Kind("doubled", "0123456789=", problem), seed)
def half(settings, seed):
    return object()
number = 3
"""


def test_a_task_of_ones_own_is_opened_by_file_and_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_task_a.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    by_module = opened("own_task_a:doubled", size=3).train(4)
    assert by_module == opened(f"{tmp_path}/own_task_a.py:doubled", size=3).train(4)
    assert by_module.answer * 1 == by_module.text[:-1] * 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_x:f", "task: no_such_module_x:f: there is no module 'no_such_module_x'"),
        ("gone.py:f", "task: gone.py:f: there is no file gone.py"),
        ("own_task_b.py:doubeld", "has no 'doubeld'. It has: Generated, Kind, Problem, doubled, half"),
        ("own_task_b.py:number", "number has type int, so it is not a function"),
        ("own_task_b.py:half", "returned an object of type object without name, alphabet, train"),
    ],
)
def test_a_task_of_ones_own_that_is_none_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_task_b.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        _ = opened(name)
