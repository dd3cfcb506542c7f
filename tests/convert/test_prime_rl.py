"""prime-rl's penalty on drift, its algorithms and its factor of the advantage."""

from pathlib import Path

import pytest
import torch
from tests.convert.converting import converted, stages, told

from trimtab.signal import SignalBatch, part, prepare

LOSS, ALGO = "trainer.loss.", "orchestrator.algo."
TYPE = f"{LOSS}type=default"


def test_the_penalty_on_drift_acts_on_all_tokens(tmp_path: Path) -> None:
    for kind in ("default", "ipo"):
        kl = converted("prime_rl", f"{LOSS}type={kind}", f"{LOSS}kl_tau=0.002", folder=tmp_path).recipe.kl
        assert kl is not None
        assert (kl.part, kl.coef, kl.into, kl.anchor, kl.on) == (
            part("kl.anchor_square"), 0.002, "loss", "rollout", "all",
        )  # fmt: skip
    default = converted("prime_rl", TYPE).recipe.kl
    assert default is not None
    assert default.coef == 1e-3
    assert converted("prime_rl", TYPE, f"{LOSS}kl_tau=0").recipe.kl is None


def advantage_of(*flags: str) -> torch.Tensor:
    """The advantages that a converted recipe gives four answers to two prompts."""
    made = converted("prime_rl", *flags).recipe
    logp = torch.full((4, 1), -0.5, dtype=torch.float64)
    batch = SignalBatch.from_padded(
        torch.ones(4, 1, dtype=torch.bool), reward=torch.tensor([1.0, 0.0, 0.5, 0.0]), group=[0, 0, 1, 1],
        logp_rollout=logp,
    )  # fmt: skip
    prepared, _ = prepare(batch, made)
    return prepared.advantage


def test_a_factor_of_the_advantage_is_one_of_the_reward_where_nothing_is_divided() -> None:
    torch.testing.assert_close(advantage_of(TYPE, f"{LOSS}adv_tau=3.0"), 3 * advantage_of(TYPE))
    found = converted("prime_rl", TYPE, f"{LOSS}adv_tau=3.0", f"{ALGO}type=max_rl")
    assert found.recipe.normalize == part("normalize.over_mean")
    assert told(found, f"{LOSS}adv_tau")[0] == "no equivalent"
    assert found.recipe.reward == ()


def test_a_teacher_has_a_loss_of_its_own(tmp_path: Path) -> None:
    found = converted("prime_rl", f"{ALGO}type=opd", f"{LOSS}kl_tau=0.5", folder=tmp_path)
    assert stages(found) == [
        "policy_loss.clipped(band=(0, inf)) against rollout",
        "keep.probability_band(low=0.2, high=1.0, by_sign=False) on total",
    ]
    assert found.recipe.advantage == part("advantage.plus_teacher", coef=1.0, outcome_coef=0.0)
    assert found.recipe.kl is not None
    assert found.recipe.kl.coef == 1e-3
    assert told(found, f"{LOSS}kl_tau")[1].startswith("inert")


def test_long_answers_pay_and_the_rest_is_said() -> None:
    penalty = f"{ALGO}length_penalty."
    found = converted("prime_rl", TYPE, f"{penalty}type=linear", f"{penalty}num_output_tokens_weight=0.3")
    assert found.recipe.reward == (part("reward.relative_length", factor=0.3),)
    assert any("The shares of input tokens and turns are not written" in one for one in found.warnings)


def test_a_baseline_per_role(tmp_path: Path) -> None:
    found = converted("prime_rl", f"{ALGO}type=rae", f"{ALGO}decay=0.9", f"{LOSS}adv_tau=2.0", folder=tmp_path)
    assert found.recipe.normalize == part("normalize.minus_role_average", decay=0.9)
    assert found.recipe.reward == (part("reward.affine", scale=2.0),)
    assert any("reads role" in one for one in found.warnings)


def test_what_the_environment_wrote_is_learned_with_one_weight(tmp_path: Path) -> None:
    made = converted("prime_rl", f"{ALGO}type=echo", folder=tmp_path).recipe
    assert made.observed is not None
    assert made.observed.coef == 0.1
    several = converted("prime_rl", f"{ALGO}type=echo", f"{ALGO}roles.tool.alpha=0.1", f"{ALGO}roles.user.alpha=0.3")
    assert told(several, f"{ALGO}type")[0] == "no equivalent"
    assert several.recipe.observed is not None
    assert several.recipe.observed.coef == 0.3


@pytest.mark.parametrize("kind", ["opsd", "sft", "hierarchical_grpo"])
def test_algorithms_without_an_equivalent(kind: str) -> None:
    assert told(converted("prime_rl", f"{ALGO}type={kind}"), f"{ALGO}type")[0] == "no equivalent"
