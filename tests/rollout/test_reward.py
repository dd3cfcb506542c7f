"""Judges that run in this process, and the choice of one."""

import math
from fractions import Fraction
from pathlib import Path

import pytest

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.numeric import number_in
from trimtab.rollout.reward import Attempt, Here, Verdict, open_scorer
from trimtab.rollout.task import Problem, open_task


def attempt(answer: str, right: str = "72", *, ended: bool = True) -> Attempt:
    return Attempt(Problem("?", right), answer, answer, (1, 2), ended)


def scored(reward: str, *attempts: Attempt) -> list[Verdict]:
    settings = TaskSettings(name="sort", reward=reward)
    scorer = open_scorer(settings, open_task(settings, 0))
    try:
        return scorer.score(attempts)
    finally:
        scorer.close()


@pytest.mark.parametrize("reward", ["task", "exact"])
def test_the_exact_text_is_paid_if_the_policy_closed_it(reward: str) -> None:
    verdicts = scored(reward, attempt("72"), attempt("72 "), attempt("72", ended=False))
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0]
    assert {verdict.status for verdict in verdicts} == {"ok"}


def test_numeric_pays_the_number_however_it_is_written() -> None:
    texts = ["72", "so 5+67 = $72.", "#### 72\n", "72.0", "144/2", "7,2", "-72", "", "the 72nd of 3"]
    verdicts = scored("numeric", *(attempt(text) for text in texts))
    assert [verdict.reward for verdict in verdicts] == [1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert scored("numeric", attempt("72", ended=False))[0].reward == 0.0


def test_numeric_says_so_when_the_right_answer_is_no_number() -> None:
    with pytest.raises(ConfigError, match="the right answer 'Paris' holds no number"):
        _ = scored("numeric", attempt("72", right="Paris"))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### -$5", -5),
        ("a -3 b", -3),
        ("3-2", 2),
        ("x=-1/2", Fraction(-1, 2)),
        ("$1,234", 1234),
        ("12,345,678.5", Fraction(24691357, 2)),
        ("1,2,3", 3),
        ("1e5", 100_000),
        ("1e999999999", None),
        ("3/0", None),
        ("72.", 72),
        ("#### 7 eggs 8", 7),
        ("5 ####", None),
        ("no", None),
        ("9" * 10_000, None),
    ],
)
def test_the_number_in_a_text(text: str, number: int | Fraction | None) -> None:
    assert number_in(text) == number


def test_a_judge_that_raises_costs_its_own_answer() -> None:
    def picky(one: Attempt) -> float | None:
        return {"raise": None, "none": None}.get(one.answer, 1.0) if one.answer != "raise" else 1 / 0

    verdicts = Here(picky).score([attempt("a"), attempt("raise"), attempt("none")])
    assert [verdict.status for verdict in verdicts] == ["ok", "error", "abstain"]
    assert verdicts[1].message == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_an_error(value: float) -> None:
    verdict = Verdict.of(value)
    assert (verdict.status, math.isnan(verdict.reward)) == ("error", True)


def test_an_unknown_reward_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"reward: no entry is called 'numerc'; did you mean 'numeric'\?"):
        _ = scored("numerc")


def test_math_verify_finds_equal_mathematics(tmp_path: Path) -> None:
    del tmp_path
    right = [r"so $\frac{1}{2}$", r"\boxed{0.5}", "1/2", "2"]
    verdicts = scored(
        "math_verify",
        *(attempt(text, r"$\frac{2}{4}$") for text in right),
        attempt("1/2", r"$\frac{2}{4}$", ended=False),
        attempt("x", "no mathematics at all, sorry"),
    )
    assert [verdict.reward for verdict in verdicts[:5]] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert verdicts[5].status == "abstain"


def test_math_verify_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install \"trimtab\[math\]\""):
        _ = scored("math_verify")
