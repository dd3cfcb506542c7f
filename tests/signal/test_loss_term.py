"""Terms of the loss on both paths: which policy a ratio is taken to, and what is computed only on demand."""

from math import exp
from typing import Any

import pytest
import torch

from trimtab.signal import SignalBatch, decide, prepare, recipe, token_loss, use_metrics, use_path
from trimtab.signal.objective import TokenLoss
from trimtab.signal.ratio import Ratio
from trimtab.signal.update import MicroBatch

ROLLOUT, NOW = torch.tensor([-1.0, -1.0, -1.0, -1.0]), torch.tensor([-0.5, -1.05, -1.4, -1.0])
CLIPPED = {"formula": "clipped", "band": (0.8, 1.2), "anchor": "rollout"}


def micro_of(name: str, **changes: Any) -> MicroBatch:
    batch = SignalBatch.from_tokens(
        [2, 2], reward=[1.0, 0.0], group=[0, 0], logp_rollout=ROLLOUT, logp_old=ROLLOUT, version=[0] * 4
    )
    chosen = recipe(name, **changes)
    (micro,) = decide(next(prepare(batch, chosen, version=1)[0].updates(1))).split(num=1)
    return micro


def loss_of(micro: MicroBatch) -> TokenLoss:
    return token_loss(micro, NOW.clone().requires_grad_())


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize("old", ["absent", "current", "interpolated"])
def test_a_loss_against_the_sampler_takes_the_ratio_to_the_sampler_whatever_the_old_policy_is(
    old: str, path: Any
) -> None:
    with use_path(path):
        found = loss_of(micro_of("start_async", loss=CLIPPED, old=old))
    # advantages 1 and -1 over sqrt(2), up to eps; ratios e^0.5 (clipped), e^-0.05, e^-0.4 (clipped), 1
    assert found.metrics.numbers()["policy_loss.clipped/clipped_tokens"] == 0.5
    bounded = (1.2 + exp(-0.05) - 0.8 - 1.0) / 4
    assert found.loss.item() == pytest.approx(-bounded / 2**0.5, abs=1e-6)
    assert found.loss.requires_grad
    assert not found.token_loss.requires_grad


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_few_metrics_take_no_walk_over_the_ratios(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(self: Ratio, value: object) -> None:
        raise AssertionError("nobody asked for sums of this ratio")

    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("dapo", {}), ("dapo", {"old": "current"}), ("start_async", {"loss": CLIPPED})
    )  # fmt: skip
    with use_path(path), use_metrics("few"):
        parts = [micro_of(name, **changes) for name, changes in cases]
        monkeypatch.setattr(Ratio, "_walk", walk)
        assert all(torch.isfinite(loss_of(part).loss) for part in parts)
