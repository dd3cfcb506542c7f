"""The table of contracts: it holds for the locked wheels, its lines can run, and a changed hook is named."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.peers.padded import assert_agree, padded
from typer.testing import CliRunner

import trimtab
from trimtab.cli import app
from trimtab.errors import AdapterError
from trimtab.integrations import areal, nemo_rl, openrlhf, skyrl, slime, tinker, verl
from trimtab.integrations.contracts import CONTRACTS, broken, contract
from trimtab.integrations.hook import Hook, fitting
from trimtab.sentinel.examination.wheels import WheelError, locked, unpack
from trimtab.signal import part, recipe

ROOT = Path(__file__).parents[2]
PAGES = [*CONTRACTS.values()]


@pytest.mark.parametrize("name", ["verl", "skyrl", "openrlhf", "areal"])
def test_the_locked_wheel_keeps_the_contract(name: str) -> None:
    try:
        folder = unpack(locked()[name])
    except WheelError as reason:
        pytest.skip(f"{reason}")
    assert broken(contract(name), folder) == []


def test_a_changed_hook_is_named(tmp_path: Path) -> None:
    try:
        folder = unpack(locked()["verl"])
    except WheelError as reason:
        pytest.skip(f"{reason}")
    below = Path("verl/trainer/ppo")
    shutil.copytree(folder / below, tmp_path / below, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / below / "core_algos.py"
    path.write_text(path.read_text().replace("rollout_is_weights:", "rollout_weights:"))
    (tmp_path / below / "rollout_corr_helper.py").unlink()
    first, second = broken(contract("verl"), tmp_path)
    assert "compute_policy_loss_vanilla no longer takes rollout_is_weights; it takes old_log_prob" in first
    assert "the module verl.trainer.ppo.rollout_corr_helper is not there" in second


def test_the_command_lists_prints_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["integrate", *words])
        return result.exit_code, result.output

    assert all(name in said()[1] for name in CONTRACTS)
    assert "trimtab.integrations.prime_rl.loss" in said("prime-rl")[1]
    code, text = said("slime", "--verify")
    assert (code, "slime is not installed here" in text) == (2, True)
    (tmp_path / "slime").mkdir()
    (tmp_path / "slime" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, text = said("slime", "--verify")
    assert (code, "the module slime.utils.ppo_utils is not there" in text) == (1, True)


def test_an_unknown_framework_is_refused_with_the_choices() -> None:
    with pytest.raises(AdapterError, match="verl"):
        _ = contract("verll")


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_the_page_shows_the_tables_lines(one: Any) -> None:
    page = (ROOT / one.page).read_text()
    assert one.tested in page
    for line in (*one.watch.splitlines(), *one.correct.splitlines()):
        assert line in page


@pytest.mark.parametrize(
    ("hook", "name", "weighting"),
    [(verl.HOOK, "cispo", "token_mean"), (openrlhf.HOOK, "tis", "token_mean"), (nemo_rl.HOOK, "tis", "token_mean"),
     (areal.HOOK, "decoupled_ppo", "token_mean")],
    ids=lambda given: getattr(given, "framework", given),
)  # fmt: skip
def test_the_recipe_in_the_line_can_act(hook: Hook, name: str, weighting: str) -> None:
    assert fitting(hook, name, part(f"weighting.{weighting}"), "…").name == name


def test_recipes_of_skyrl_and_slime_become_sums() -> None:
    config = SimpleNamespace(loss_reduction="token_mean")
    assert skyrl._fitted("tis", config).weighting == skyrl.SUM
    assert slime._summed("tis", True).weighting == slime.MEANS[True]


@pytest.mark.parametrize("what", [{"over": "kept"}, None])
def test_what_needs_the_whole_step_is_refused(what: dict[str, str] | None) -> None:
    mean = part("weighting.token_mean")
    chosen = recipe("cispo", weighting={"formula": "token_mean", **what}) if what else recipe(
        "cispo", loss={"formula": "policy_loss.covariance_clipped", "band": (0.8, 1.2), "anchor": "old",
                       "covariance_low": 1.0, "covariance_high": 5.0, "fraction": 0.1},
    )  # fmt: skip
    with pytest.raises(AdapterError, match="the whole optimiser step, and this hook is called for a part of it"):
        _ = fitting(verl.HOOK, chosen, mean, "…")


class Datum(SimpleNamespace):
    """A datum of Tinker: 1-D inputs by name."""


def tinker_data() -> tuple[list[Datum], torch.Tensor]:
    batch = padded(0)
    rows = zip(batch.rollout, batch.advantage, batch.mask, strict=True)
    return [Datum(loss_fn_inputs={"logprobs": r, "advantages": a, "mask": m}) for r, a, m in rows], batch.current


def test_tinkers_loss_is_the_sum_of_the_signal() -> None:
    data, current = tinker_data()
    batch, chosen = padded(0), recipe("cispo", loss={"anchor": "rollout"})
    ours, theirs = current.clone().requires_grad_(), current.clone().requires_grad_()
    loss, metrics = tinker.loss(chosen)(data, [*ours])
    loss.backward()
    mean, _ = trimtab.loss(
        theirs, recipe=recipe("cispo", loss={"anchor": "rollout"}, old="absent"), mask=batch.mask,
        advantage=batch.advantage, logp_rollout=batch.rollout,
    )  # fmt: skip
    mean.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    tokens = batch.mask.sum()
    assert_agree((loss.detach(), ours.grad), (mean.detach() * tokens, theirs.grad * tokens), tolerance=1e-12)
    assert metrics["trimtab/kept/token_fraction"] == 1.0


def test_tinker_refuses_what_it_has_no_log_probs_for() -> None:
    with pytest.raises(AdapterError, match="compares with logp_old, and a datum has none"):
        _ = tinker.loss("tis")


def test_tinkers_watch_changes_nothing(tmp_path: Path) -> None:
    from trimtab.integrations.looking import Looking

    data, current = tinker_data()
    looking = Looking("Tinker", tmp_path)
    found = tinker.watched(lambda _, logps: (torch.cat(logps).sum(), {}), looking)(data, [*current])
    assert found[0] == current.reshape(-1).sum()
    assert looking.watch is not None
    looking.watch.close()
    assert (looking.watch.number, looking.watch.failures) == (1, [])


def test_opsm_of_the_source_decides_per_sequence() -> None:
    """S1's worked example: three tokens, anchor − current = 1, mixed advantages with a negative mean."""
    current = torch.tensor([-2.0, -2.0, -2.0])
    mask, rejected = slime.compute_opsm_mask(
        SimpleNamespace(opsm_delta=0.5), [current], [current + 1], [torch.tensor([-1.0, 0.25, -1.0])], [torch.ones(3)]
    )
    assert mask.tolist() == [0.0, 0.0, 0.0]
    assert rejected == 1


def test_off_policy_is_of_the_source_reads_current_against_rollout() -> None:
    rollout, current = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -0.5, -3.0])
    args = SimpleNamespace(eps_clip=1.0, eps_clip_high=0.2)
    loss, _, metrics = slime.off_policy_is_function(
        args, pg_loss=torch.ones(3), rollout_log_probs=[rollout], loss_masks=[torch.ones(3)], cur_log_probs=[current],
        train_log_probs=[rollout],
    )  # fmt: skip
    torch.testing.assert_close(loss, torch.tensor([1.0, 1.2, float(torch.exp(torch.tensor(-2.0)))]))
    assert metrics["ois"].requires_grad is False
    with pytest.raises(AdapterError, match="does not hand over"):
        _ = slime.off_policy_is_function(args, pg_loss=loss, rollout_log_probs=[rollout], loss_masks=[torch.ones(3)])
