"""reasoning-gym by name."""

import pytest

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.reward import Attempt, open_scorer
from trimtab.rollout.task import Task, open_task, split_of

_ = pytest.importorskip("reasoning_gym", reason="make test-all installs it")
SHORT = {"min_word_len": 3, "max_word_len": 5}


def opened(name: str, seed: int = 0, **options: object) -> Task:
    return open_task(TaskSettings.model_validate({"name": f"reasoning_gym.{name}", "options": options}), seed)


def test_a_ticket_asks_the_same_problem_whenever_it_is_asked() -> None:
    tickets = [700, 3, 0, 3]
    first = [opened("chain_sum").train(t) for t in tickets]
    assert first == [opened("chain_sum").train(t) for t in tickets[::-1]][::-1]
    assert len({problem.text for problem in first}) == 3
    assert {split_of(opened("chain_sum").train(t).text) for t in range(50)} == {"train"}
    assert opened("chain_sum", 1).train(3) != first[1]


def test_held_out_problems_are_different_and_the_same_for_every_seed() -> None:
    held = opened("chain_sum").held_out("test", 60)
    assert held == opened("chain_sum", 5).held_out("test", 60)
    assert len({problem.text for problem in held}) == 60
    assert {split_of(problem.text) for problem in held} == {"test"}


def test_options_reach_the_data_set() -> None:
    task = opened("spell_backward", **SHORT)
    assert {3 <= len(task.train(t).answer) <= 5 for t in range(50)} == {True}
    assert set(task.train(0).text) <= set(task.alphabet)


def test_its_own_score_judges_with_partial_credit_in_a_worker_as_here() -> None:
    settings = TaskSettings(name="reasoning_gym.basic_arithmetic", reward_seconds=20)
    task = open_task(settings, 0)
    problem = task.train(0)
    answers = [(problem.answer, True), (f"x{problem.answer}", True), ("x", True), (problem.answer, False)]
    scorer = open_scorer(settings, task)
    verdicts = scorer.score([Attempt(problem, text, text, (), ended=ended) for text, ended in answers])
    scorer.close()
    assert [v.reward for v in verdicts] == [task.judge(problem, text, ended=ended) for text, ended in answers]
    assert verdicts[0].reward == 1.0
    assert 0 < verdicts[1].reward < 1
    assert verdicts[3].reward == 0.0


def test_a_data_set_without_right_answers_has_no_demonstration() -> None:
    task = opened("rush_hour")
    with pytest.raises(ConfigError, match="gives no right answer, only a judge"):
        _ = task.demonstration(task.train(0))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("spel_backward", {}, r"has no data set 'spel_backward' \(did you mean 'spell_backward'\?\)"),
        ("spell_backward", {"min_len": 3}, r"has no option 'min_len' \(did you mean 'min_word_len'\?\)"),
        ("spell_backward", {"min_word_len": 9, "max_word_len": 3}, "max_word_len must be >= min_word_len"),
        ("spell_backward", {"min_word_len": "a"}, "refuses its options"),
        ("spell_backward", {"size": 3}, "size follows from train.seed"),
        ("composite", {}, "Must specify at least one dataset"),
    ],
)
def test_a_bad_name_or_option_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = opened(name, **options)


def test_a_data_set_too_small_for_the_request_is_refused() -> None:
    narrow = opened("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    with pytest.raises(ConfigError, match=r"has \d+ test problems and 40 were asked for"):
        _ = narrow.held_out("test", 40)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install \"trimtab\[gym\]\""):
        _ = opened("spell_backward")
