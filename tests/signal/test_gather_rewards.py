"""Several rewards and a baseline are gathered over ranks as they were given."""

import torch

from trimtab.signal import SignalBatch, gather


class Twice:
    """Two ranks that hold the same."""

    def concat(self, local: torch.Tensor) -> list[torch.Tensor]:
        assert local.ndim == 1
        return [local, local.clone()]

    def sum(self, local: torch.Tensor) -> torch.Tensor:
        return 2 * local


def test_rewards_of_two_ranks_stand_below_each_other() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    scored = torch.tensor([[True, False, True], [True, True, False]])
    batch = SignalBatch.from_tokens(
        [1, 2], reward=[0.0, 1.0], group=[0, 0], rewards=rewards, rewards_scored=scored, baseline=[0.5, 0.25]
    )
    whole, _ = gather(batch, Twice(), 1)
    assert torch.equal(whole.rewards, torch.cat([rewards, rewards]))
    assert torch.equal(whole.rewards_scored, torch.cat([scored, scored]))
    assert whole.baseline.tolist() == [0.5, 0.25, 0.5, 0.25]
