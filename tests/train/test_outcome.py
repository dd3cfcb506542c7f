"""How a run ends that did not learn: it says so, with the cause, and never `finished`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trimtab.config.train import TaskSettings, TrainSettings
from trimtab.errors import ConfigError, SignalError
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather, join
from trimtab.rollout.reward import Attempt, Here, numeric
from trimtab.rollout.task import Problem
from trimtab.signal import recipe
from trimtab.train import train
from trimtab.train.checks.cautions import cautions
from trimtab.train.folder import open_folder
from trimtab.train.learner import Learner
from trimtab.train.optimize import Stepped
from trimtab.train.policy import Policy, find_device, save
from trimtab.train.setup import new_buffer
from trimtab.train.show.progress import Silent

pytestmark = pytest.mark.usefixtures("undrawn_here")


def test_a_run_without_one_reward_has_learned_nothing(small: TrainSettings, tmp_path: Path) -> None:
    reward = tmp_path / "bad.py"
    _ = reward.write_text("def score(completions, **columns):\n    raise RuntimeError('no idea')\n")
    task = small.task.model_copy(update={"reward": f"{reward}:score"})
    changed = {"task": task, "run_dir": tmp_path / "run", "steps": 2, "eval_every": 2, "warm_start_steps": 0}
    settings = small.model_copy(update=changed)
    summary = train(settings, "grpo", progress=Silent())
    assert summary.outcome == "learned_nothing"
    assert summary.warnings[0].startswith("learned nothing: in 2 steps")
    assert "(error 32); the first said: RuntimeError: no idea" in summary.warnings[0]


def test_a_run_without_two_different_rewards_has_learned_nothing(small: TrainSettings, tmp_path: Path) -> None:
    changed = {"warm_start_steps": 0, "task": TaskSettings(name="reverse", size=8), "steps": 2}
    summary = train(small.model_copy(update={**changed, "run_dir": tmp_path / "run"}), "grpo", progress=Silent())
    assert summary.outcome == "learned_nothing"
    assert "no group had two different rewards" in summary.warnings[0]


def test_a_run_that_diverged_says_so_and_keeps_its_record(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"lr": 1e30, "run_dir": tmp_path / "run"})
    with pytest.raises(SignalError, match=r"parameters are not finite or their norm is more than 1000 times"):
        _ = train(settings, "grpo", progress=Silent())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "diverged"


def test_a_folder_with_nan_is_refused_by_the_name_of_the_tensor(policy: Policy, tmp_path: Path) -> None:
    name, broken = next(iter(policy.model.named_parameters()))
    with torch.no_grad():
        broken.view(-1)[3] = float("nan")
    save(policy, tmp_path / "model")
    with pytest.raises(ConfigError, match=rf"{name} holds 1 numbers that are not finite"):
        _ = open_folder(tmp_path / "model", None)


def test_a_setting_that_makes_every_reward_fail_is_not_swallowed() -> None:
    attempt = Attempt(Problem("1+1=", "two"), "2", "2", (1,), ended=True)
    with pytest.raises(ConfigError, match="holds no number"):
        _ = Here(numeric).score([attempt])


def episode(reward: float, *, ended: bool = True, logp: float = -1.0, status: str = "ok") -> Episode:
    return Episode(
        ids=torch.tensor([3, 4, 1]), trainable=torch.tensor([False, True, True]), logp=torch.tensor([logp, -0.5]),
        version=torch.tensor([0, 0]), turn=torch.tensor([0, 0]), ended=ended, reward=reward, status=status,  # type: ignore[arg-type]
    )  # fmt: skip


def test_one_nan_in_an_answer_without_reward_costs_that_answer_alone(policy: Policy) -> None:
    lost = episode(float("nan"), logp=float("nan"), status="error")
    # Another answer: two equal ones with opposite advantages cancel exactly, because they are computed once.
    batch = gather(0, "", [episode(1.0), lost, replace(episode(0.0), ids=torch.tensor([3, 5, 1]))])
    assert batch.token_counts.tolist() == [2, 0, 2]
    learned = Learner(policy, recipe("grpo"), TrainSettings()).learn(batch, version=0)
    assert learned.moved_updates == 1
    kept = replace(lost, status="ok", reward=1.0)  # with a reward it would train: the engine's fault is said
    with pytest.raises(SignalError, match="logp_rollout is nan"):
        _ = gather(0, "", [episode(1.0), kept]).batch()


def test_refused_steps_count_in_a_row_only_while_no_good_one_comes(
    policy: Policy, small: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[nan, ok] three times is never more than one in a row; what a batch ends with goes on in the next."""
    settings = small.model_copy(update={"updates_per_batch": 2})
    learner = Learner(policy, recipe("grpo"), settings)
    batch = join([gather(n, "", [episode(1.0), episode(0.0)]) for n in range(2)])
    taken = iter([False, True, False, True, True, False, False, False])
    monkeypatch.setattr(learner.optimizer, "step", lambda *_: Stepped(1.0, taken=next(taken)))
    assert [learner.learn(batch, version=0).nonfinite_in_row for _ in range(4)] == [0, 0, 1, 3]


def test_buffer_and_filter_agree_on_a_group_whose_voters_agree(small: TrainSettings) -> None:
    """Two ended answers are right; a cut-off one is wrong, but with `suppress` it has no vote."""
    group = gather(0, "", [episode(1.0), episode(1.0), episode(0.0, ended=False)])
    for not_ended, dropped in (("suppress", 1), ("train", 0)):
        settings = small.model_copy(update={"dynamic_sampling": 1})
        buffer = new_buffer(settings, recipe("grpo", not_ended=not_ended))
        _ = buffer.admit(0)
        buffer.put(group)
        assert sum(buffer.dropped.values()) == dropped


def test_the_seed_of_a_run_reaches_random_selection(policy: Policy, small: TrainSettings) -> None:
    """KL-Cov draws tokens at random where covariances tie: by the run's seed and the step, and by nothing else."""
    from trimtab.train import learner as learn

    given: list[int] = []
    true = learn.prepare

    def watched(*arguments, seed: int, **named):  # type: ignore[no-untyped-def]
        given.append(seed)
        return true(*arguments, seed=seed, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "prepare", watched)
        for seed, version in ((0, 0), (0, 0), (0, 1), (1, 0)):
            settings = small.model_copy(update={"seed": seed})
            batch = gather(0, "", [episode(1.0), episode(0.0)])
            _ = Learner(policy, recipe("grpo"), settings).learn(batch, version=version)
    assert given[0] == given[1]
    assert len(set(given)) == 3


@pytest.mark.parametrize(("name", "said"), [
    ("dapo", "begins at 16384 tokens (max_length 20480, buffer 4096) and an answer has at most 4, so it never acts"),
    ("dr_grpo", "divides by divisor=3000, 750 times the longest answer (4 tokens)"),
    ("grpo", ""),
])  # fmt: skip
def test_lengths_that_no_answer_reaches_are_cautioned_against(name: str, said: str, small: TrainSettings) -> None:
    text = " ".join(cautions(small, recipe(name)))
    assert said in text
    assert bool(said) == bool(text)
    assert not cautions(small.model_copy(update={"max_new_tokens": 20480}), recipe(name))


def test_mps_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="'mps' has no float64"):
        _ = find_device("mps")
