"""The ready targets of verl, SkyRL, AReaL, OpenRLHF and TRL: well-formed, and seen on released wheels."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.wheels import WheelError, locked, wheel
from trimtab.sentinel.loading import Tree
from trimtab.sentinel.search import examine
from trimtab.sentinel.targets.target import Target, Unbound, bound

NAMES = ("verl", "skyrl", "areal", "openrlhf", "trl")


def target(name: str) -> Target:
    found = import_module(f"trimtab.sentinel.targets.{name}").TARGET
    assert isinstance(found, Target)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_binding_names_a_place_once(name: str) -> None:
    own = target(name)
    assert own.name == own.wheel == name
    assert own.wheel in locked()
    assert own.repository.count("/") == 1
    labels = [binding.name for binding in own.bindings]
    assert len(set(labels)) == len(labels) >= 8
    for binding in own.bindings:
        assert binding.places
        assert callable(binding.make)
        assert all(spec.file.endswith(".py") and not spec.file.startswith("/") for spec in binding.places)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_there_is_told_with_what_was_looked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = list(target(name).subjects(Tree.folder(tmp_path / "empty")))
    assert len(found) == len(target(name).bindings)
    for binding, one in zip(target(name).bindings, found, strict=True):
        assert isinstance(one, Unbound)
        assert one.binding == binding.name
        assert binding.places[0].file in one.looked_for
        assert "no such file" in one.reason


def test_a_function_that_changed_is_told_with_what_it_takes(tmp_path: Path) -> None:
    file = tmp_path / "openrlhf" / "models" / "loss.py"
    file.parent.mkdir(parents=True)
    text = "class PolicyLoss:\n    def __init__(self, other):\n        self.other = other\n\n"
    file.write_text(text + "    def forward(self, x):\n        return x\n")
    (one,) = target("openrlhf").subjects(Tree.folder(tmp_path), only=("PolicyLoss.forward",))
    assert isinstance(one, Unbound)
    assert "takes no clip_eps_high" in one.reason
    assert "it takes other" in one.reason


def released(name: str) -> Tree:
    try:
        return Tree.folder(wheel(name).folder)
    except WheelError as error:
        if os.environ.get("TRIMTAB_OFFLINE") == "1":
            pytest.skip(str(error))
        pytest.fail(str(error), pytrace=False)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_binding_binds_the_release(name: str) -> None:
    found = list(target(name).subjects(released(name)))
    assert [one for one in found if isinstance(one, Unbound)] == []


def verdicts(name: str, binding: str, invariant: str) -> list[str]:
    """The verdicts of one invariant on every subject of one binding of a release."""
    own = next(one for one in target(name).bindings if one.name == binding)
    subjects = [one for one in bound(own, released(name)) if isinstance(one, Subject)]
    return [verdict.status for one in subjects for verdict in examine(one, only=(invariant,))]


SHOWN = [
    ("areal", "_compute_advantages", "suppressed_do_not_vote", "bug"),
    ("areal", "Normalization", "group_isolation", "bug"),
    ("areal", "ppo_critic_loss_fn", "split", "bug"),
    ("verl", "compute_policy_loss_geo_mean", "split", "bug"),
    ("verl", "agg_loss", "nonfinite_isolation", "bug"),
    ("skyrl", "_normalize_advantages", "mask_content", "bug"),
    ("skyrl", "compute_reinforce_plus_plus_outcome_advantage", "credit_over_trainable", "bug"),
    ("openrlhf", "RemoteExperienceMaker.get_advantages_and_returns", "credit_over_trainable", "bug"),
]


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(("name", "binding", "invariant", "status"), SHOWN)
def test_the_search_shows_it_on_the_release(name: str, binding: str, invariant: str, status: str) -> None:
    assert status in verdicts(name, binding, invariant)


QUIET = [
    ("verl", "compute_policy_loss_vanilla", "equals_definition"),
    ("verl", "compute_gae_advantage_return", "credit_over_trainable"),
    ("skyrl", "ppo_policy_loss", "split"),
    ("areal", "apply_rejection_sampling", "decision_granularity"),
    ("openrlhf", "PolicyLoss.forward", "metric_truth"),
    ("trl", "GRPOTrainer advantages", "suppressed_do_not_vote"),
]


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(("name", "binding", "invariant"), QUIET)
def test_what_is_right_stays_quiet(name: str, binding: str, invariant: str) -> None:
    assert set(verdicts(name, binding, invariant)) - {"could not exercise"} == {"holds"}
