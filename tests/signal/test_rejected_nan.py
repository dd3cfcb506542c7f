"""A rejected token enters no sum: not even if the current policy says nan of it, on either path."""

from typing import Any

import pytest
import torch

from trimtab.signal import Recipe, SignalBatch, Stage, decide, part, prepare, token_loss, use_path

LOSSES: list[tuple[str, dict[str, Any], str | None]] = [
    ("policy_loss.reinforce", {}, None),
    ("policy_loss.clipped", {"band": (0.8, 1.2)}, "old"),
    ("policy_loss.dual_clipped", {"band": (0.8, 1.2), "cap": 3.0}, "old"),
    ("policy_loss.clipped_importance", {"band": (0.8, 1.2)}, "old"),
    ("policy_loss.soft_gated", {"temperature_positive": 1.0, "temperature_negative": 1.05}, "old"),
]


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize(("name", "settings", "anchor"), LOSSES)
def test_nan_at_a_rejected_token_reaches_nothing(
    name: str, settings: dict[str, Any], anchor: str | None, path: Any
) -> None:
    old = torch.tensor([-0.5, -0.2, -0.9, -0.1], dtype=torch.float64)
    rollout = old - torch.tensor([3.0, 3.0, 0.0, 0.0], dtype=torch.float64)  # the first sequence is rejected
    current = (old - 0.01 + torch.tensor([0.0, torch.nan, 0.0, 0.0], dtype=torch.float64)).requires_grad_()
    recipe = Recipe(
        name="one",
        loss=Stage(part(name, **settings), anchor=anchor),
        normalize=part("normalize.mean_std", mean="none", std="none"),
        weighting=part("weighting.token_mean"),
        correction=(Stage(part("keep.geometric_band", band=(0.9, 1.1)), ratio="engine"),),
    )
    with use_path(path):
        batch = SignalBatch.from_tokens([2, 2], reward=[1.0, 1.0], group=[0, 1], logp_old=old, logp_rollout=rollout)
        prepared, _ = prepare(batch, recipe)
        (update,) = prepared.updates(1)
        (micro,) = decide(update).split(num=1)
        found = token_loss(micro, current)
        found.loss.backward()
    assert current.grad is not None
    assert found.keep.tolist() == [False, False, True, True]
    assert torch.isfinite(found.loss)
    assert current.grad[:2].tolist() == [0.0, 0.0]
    assert (current.grad[2:] < 0).all()  # a reward of 1 raises the log-probs of what is kept
