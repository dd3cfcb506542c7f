"""Corrections that look at a whole update or batch: a split changes nothing, and a part of a step is refused."""

import pytest
import torch
from tests.signal.paths import F64, batch_of, run

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import Counts, Recipe, Stage, part, recipe

WIDE = {
    "second_moment": Stage(part("keep.second_moment", limit=0.01), ratio="total"),
    "second_moment_by_sign": Stage(part("keep.second_moment_by_sign", limit=0.002), ratio="total"),
    "second_moment of the engine": Stage(part("keep.second_moment", limit=0.01), ratio="engine"),
    "self_normalised": Stage(part("importance.self_normalised", band=(0.9, 1.1)), ratio="total"),
    "self_normalised by sequence": Stage(part("importance.self_normalised", level="sequence"), ratio="engine"),
    "high_entropy": Stage(part("keep.high_entropy", fraction=0.4)),
    "recent_version": Stage(part("keep.recent_version")),
}


def with_stage(name: str) -> Recipe:
    return recipe("reinforce", correction=(WIDE[name],), old="recompute")


@pytest.mark.parametrize("name", WIDE)
def test_a_split_changes_nothing(name: str) -> None:
    given = batch_of()
    whole, parted = (run(with_stage(name), given, parts=parts)["gradient of logp"] for parts in (1, 4))
    torch.testing.assert_close(parted, whole, rtol=0, atol=0)
    plain = run(recipe("reinforce"), given)["gradient of logp"]
    assert not torch.equal(whole, plain), "the stage does nothing here"


@pytest.mark.parametrize("name", WIDE)
def test_a_part_of_a_step_is_refused(name: str) -> None:
    logp = torch.full((2, 2), -1.0, requires_grad=True, dtype=F64)
    held = logp.detach()
    given = {"logp_old": held, "logp_rollout": held, "version": [[1, 1], [1, 1]]}
    with pytest.raises(SignalError, match="decides across the whole step, and this call holds a part of it"):
        trimtab.loss(
            logp, recipe=with_stage(name), mask=[[1, 1], [1, 1]], reward=[1.0, 0.0], group=[0, 0], **given,
            counts=Counts(tokens=40, sequences=10), entropy=torch.ones_like(held),
        )  # fmt: skip


def test_the_mean_of_self_normalised_importances_is_1_over_the_update() -> None:
    found = run(with_stage("self_normalised"), batch_of(), parts=3)
    assert found["importance.self_normalised/importance_mean"] == pytest.approx(1.0, abs=1e-12)


def test_an_importance_by_turn_varies_inside_a_sequence() -> None:
    by_turn = Stage(part("importance.truncated_by_turn"), ratio="engine")
    with pytest.raises(SignalError, match="shares one gradient among a sequence's tokens"):
        recipe("gspo", correction=(by_turn,))
    assert recipe("grpo", correction=(by_turn,)).needs >= {"turn", "logp_rollout"}
