import random

import pytest

from trimtab.errors import ConfigError
from trimtab.rollout.task import Problem, Reverse, draw, split_of, task


def test_reverse_asks_for_the_digits_backwards() -> None:
    problem = Reverse(5).problem(random.Random(0))
    assert problem.prompt == f"{problem.answer[::-1]}="
    assert len(problem.answer) == 5
    assert set(problem.prompt + problem.answer) <= set(Reverse().alphabet)


@pytest.mark.parametrize(
    ("answer", "ended", "reward"),
    [("31285", True, 1.0), ("31285", False, 0.0), ("3128", True, 0.0), ("312855", True, 0.0), ("58213", True, 0.0)],
)
def test_reverse_pays_only_the_exact_and_closed_answer(answer: str, ended: bool, reward: float) -> None:
    assert Reverse().reward(Problem("58213=", "31285"), answer, ended=ended) == reward


def test_splits_are_disjoint_and_hold_a_tenth_each() -> None:
    stream = random.Random(1)
    drawn = {
        split: {p.prompt for p in draw(Reverse(), stream, 600, split)} for split in ("train", "validation", "test")
    }
    assert not drawn["train"] & drawn["validation"]
    assert not drawn["train"] & drawn["test"]
    assert not drawn["validation"] & drawn["test"]
    found = [split_of(f"{number:05d}=") for number in range(20_000)]
    for split in ("validation", "test"):
        assert found.count(split) / len(found) == pytest.approx(0.1, abs=0.01)


def test_the_split_of_a_prompt_never_moves() -> None:
    # Written down once: were the hash to change, runs before and after could not be compared.
    assert [split_of(f"{number:05d}=") for number in (0, 27, 18)] == ["train", "validation", "test"]


def test_held_out_prompts_are_all_different() -> None:
    prompts = [problem.prompt for problem in draw(Reverse(), random.Random(0), 2000, "test")]
    assert len(set(prompts)) == len(prompts)


def test_a_task_too_small_for_the_request_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"draw: \d+ draws gave \d of 50 test problems"):
        _ = draw(Reverse(num_digits=1), random.Random(0), 50, "test")


def test_an_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"task: no entry is called 'revers'; did you mean 'reverse'\?"):
        _ = task("revers")
