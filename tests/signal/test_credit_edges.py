"""Shaping and credit at their edges."""

from math import nan

import torch

from trimtab.signal import SignalBatch, recipe
from trimtab.signal.credit import shaping_steps


def test_an_episode_without_a_score_enters_the_shaping_with_0() -> None:
    batch = SignalBatch.from_tokens([1, 1], reward=[0.5, nan], group=[0, 0], scored=[True, False])
    chosen = recipe("reinforce", reward={"formula": "affine", "bias": 1.0, "scale": 2.0})
    # 2 * (0.5 + 1) and 2 * (0 + 1)
    first, second = shaping_steps(batch, chosen, torch.tensor([True, False]))
    assert first.tolist() == [0.5, 0.0]
    assert second.tolist() == [3.0, 2.0]
