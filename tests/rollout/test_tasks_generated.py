"""What each generated task asks and pays."""

import pytest

from trimtab.config.train import TaskSettings
from trimtab.rollout.task import Problem, Task, Turn, open_task
from trimtab.rollout.tasks import calculator, gsm8k


def opened(name: str, **settings: object) -> Task:
    return open_task(TaskSettings.model_validate({"name": name, **settings}), 0)


def test_reverse_asks_for_the_digits_backwards() -> None:
    problem = opened("reverse").train(0)
    assert problem.text == f"{problem.answer[::-1]}="
    assert len(problem.answer) == 5


def test_sort_asks_for_the_digits_in_order() -> None:
    for ticket in range(20):
        problem = opened("sort", size=4).train(ticket)
        assert problem.answer == "".join(sorted(problem.text[:-1]))
        assert len(problem.answer) == 4


def test_arithmetic_stays_below_ten_times_its_size() -> None:
    for ticket in range(200):
        problem = opened("arithmetic", size=2).train(ticket)
        sign = "+" if "+" in problem.text else "-"
        left, right = (int(part) for part in problem.text.rstrip("=").split(sign))
        assert 0 <= left < 20
        assert 0 <= right < 20
        assert int(problem.answer) == (left + right if sign == "+" else left - right)


@pytest.mark.parametrize(
    ("answer", "ended", "reward"),
    [("31285", True, 1.0), ("31285", False, 0.0), ("3128", True, 0.0), ("312855", True, 0.0), ("58213", True, 0.0)],
)
def test_reverse_pays_only_the_exact_and_closed_answer(answer: str, ended: bool, reward: float) -> None:
    assert opened("reverse").judge(Problem("58213=", "31285"), answer, ended=ended) == reward


# --------------------------------------------------------------------------------------------------------------- gsm8k


def test_the_steps_of_a_word_problem_are_true_and_lead_to_its_answer() -> None:
    for ticket in range(200):
        problem = opened("gsm8k").train(ticket)
        *steps, last = problem.answer.split("\n")
        for step in steps:
            asked, _, result = step.partition("=")
            assert calculator.evaluate(asked) == int(result)
        assert last == f"#### {steps[-1].partition('=')[2]}"
        assert problem.text.endswith("?\n")


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("48/2=24\n48+24=72\n#### 72", 1.0),
        ("whatever\n#### $72.00", 1.0),
        ("#### 71\n#### 72", 1.0),
        ("#### 1,072", 0.0),
        ("72", 0.0),
        ("#### ", 0.0),
        ("", 0.0),
        ("#### 72\n#### 7", 0.0),
    ],
)
def test_gsm8k_pays_the_number_behind_the_mark(answer: str, reward: float) -> None:
    problem = Problem("?", "48/2=24\n48+24=72\n#### 72")
    assert gsm8k.judge(problem, answer, ended=True) == reward
    assert gsm8k.judge(problem, answer, ended=False) == 0.0


# ---------------------------------------------------------------------------------------------------------- calculator


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("[7*8]", "56;"),
        ("[37*48+9]", "1785;"),
        ("[2+3*4-5]", "9;"),
        ("[(2+3)*-4]", "-20;"),
        ("[8/2/2]", "2;"),
        ("[7]", "7;"),
        ("[7/2]", "?;"),
        ("[1/0]", "?;"),
        ("[7*]", "?;"),
        ("[]", "?;"),
        ("[", "?;"),
        ("[7", "?;"),
        ("[7]]", "?;"),
        ("[7 8]", "?;"),
        ("[(7]", "?;"),
        ("[__import__('os')]", "?;"),
        ("[9**9]", "?;"),
        ("[²]", "?;"),
        ("[999999*999999*999999]", "?;"),
        ("[" + "9" * 40 + "]", "?;"),
        ("[" + "1+" * 500 + "1]", "?;"),
        ("[" + "(" * 40 + "1" + ")" * 20 + "]", "?;"),
        ("[" + "-" * 60 + "1]", "?;"),
    ],
)
def test_the_calculator_answers_arithmetic_and_nothing_else(call: str, said: str) -> None:
    assert calculator.answer_call(call) == said


def test_a_call_is_answered_and_the_next_turn_is_the_answer() -> None:
    task = opened("calculator")
    problem = Problem("7*8+5=", "61")
    environment = task.environment(problem)
    assert environment.reset() == "7*8+5="
    assert environment.step("[7*8+5]", ended=True) == Turn("61;", done=False)
    assert environment.step("61", ended=True) == Turn("", done=True)
    assert task.judge(problem, "61", ended=True) == 1.0
    assert task.demonstration(problem) == ("[7*8+5]", "61")


def test_an_answer_without_a_call_ends_the_episode() -> None:
    environment = opened("calculator").environment(Problem("7*8+5=", "61"))
    assert environment.step("61", ended=True).done


def test_a_turn_that_was_cut_off_is_the_last() -> None:
    environment = opened("calculator").environment(Problem("7*8+5=", "61"))
    assert environment.step("[7*8+5]", ended=False) == Turn("", done=True)


def test_calls_are_answered_until_the_last_turn_and_again_after_a_reset() -> None:
    environment = opened("calculator", max_turns=3).environment(Problem("7*8+5=", "61"))
    for _ in range(2):
        assert environment.reset() == "7*8+5="
        said = [environment.step("[1+1]", ended=True) for _ in range(3)]
        assert said == [Turn("2;", done=False), Turn("2;", done=False), Turn("", done=True)]
