"""Rewards and log-probs in float32 are computed with in float64, so that large numbers hide no small ones.

Each formula is called twice, with float32 numbers and with the same numbers in float64, and both give the same bits.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.signal import catalog
from trimtab.signal.layout import Segments
from trimtab.signal.turns import turn_reward_to_go

NUM, GROUPS, F32 = 40, 4, torch.float32
STREAM = torch.Generator().manual_seed(0)


def floats(count: int, around: float = 0.0, over: float = 1.0) -> Tensor:
    return around + over * torch.rand(count, generator=STREAM, dtype=F32)


SEGMENTS = Segments.from_counts(torch.full((NUM,), 3), 3 * NUM)
TURNS = torch.tensor([0, 0, 1] * NUM)
GIVEN: dict[str, Any] = {
    "reward": floats(NUM, 4096.0, 3.0), "rewards": floats(2 * NUM, 4096.0, 3.0).reshape(NUM, 2),
    "baseline": floats(NUM, 4096.0), "role_average": floats(NUM, 4096.0),
    "running_mean": torch.tensor(4097.3).double(), "running_std": torch.tensor(1.3).double(),
    "length": floats(NUM, 2.0, 50.0).floor(), "outcome": floats(NUM, 4096.0, 3.0),
    "token_reward": floats(3 * NUM, 4096.0, 3.0), "logp_old": -0.1 - floats(3 * NUM),
    "logp_teacher": -0.1 - floats(3 * NUM), "pi_squared": 0.3 + 0.2 * floats(3 * NUM),
    "logratio": floats(3 * NUM, -0.5), "logp_later": -0.1 - floats(3 * NUM), "logp_earlier": -0.1 - floats(3 * NUM),
    "advantage": floats(3 * NUM, -0.5), "votes": torch.arange(NUM) % 7 != 3,
    "rewards_scored": torch.ones(NUM, 2, dtype=torch.bool), "group_of_episode": torch.arange(NUM) % GROUPS,
    "num_groups": GROUPS, "episode_of_sequence": torch.arange(NUM), "segments": SEGMENTS, "turn": TURNS,
    "state": torch.arange(3 * NUM) % 5, "token_key": torch.arange(3 * NUM),
}  # fmt: skip
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "normalize.mean_std": [{}, {"mean": "batch", "std": "batch"}, {"std": "batch"}, {"shift": 0.1}],
    "normalize.leave_one_out": [{}, {"std": "others"}],
    "normalize.best_minus_second": [{}, {"std": "none"}],
    "normalize.each_key": [{"weights": (1.0, 0.5)}, {"weights": (1.0, 0.5), "whitened": False}],
    "normalize.rescaled_mean": [{"counted": "varied_groups"}, {"counted": "nonzero_rewards"}],
    "advantage.turn_reward_to_go": [{"compared": "group"}, {}],
    "keep.second_moment": [{"limit": 0.02}],
    "keep.second_moment_by_sign": [{"limit": 0.02}],
}
ROUNDED = ("normalize.each_key", "advantage.turns_by_state", "advantage.turn_reward_to_go")
"""What adds up numbers that were rounded to float32 before; all others round once, at the end."""
NAMES = [
    name for name, one in catalog().items()
    if one.stage == "normalize" or name in SETTINGS
    or name in ("advantage.turns_by_state", "advantage.optimal_token_baseline", "keep.prefix_budget")
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_float32_numbers_give_what_their_float64_copies_give(name: str) -> None:
    formula = catalog()[name]
    narrow = {key: GIVEN[key] for key in formula.inputs}
    wide = {key: one.double() if isinstance(one, Tensor) and one.dtype == F32 else one for key, one in narrow.items()}
    for settings in SETTINGS.get(name, [{}]):
        for mine, exact in zip(formula.fn(**narrow, **settings), formula.fn(**wide, **settings), strict=True):
            if isinstance(mine, Tensor):
                near = 2e-6 if name in ROUNDED else 0.0
                torch.testing.assert_close(mine, exact.to(mine.dtype), rtol=near, atol=near)


def test_turns_are_compared_in_double_precision() -> None:
    """With turns of one token nothing is rounded before the comparison, so it gives the bits of float64."""
    reward, alone = GIVEN["reward"], Segments.from_counts(torch.ones(NUM, dtype=torch.long), NUM)
    more = (
        torch.zeros(NUM, dtype=torch.long), GIVEN["votes"], torch.arange(NUM), GIVEN["group_of_episode"], GROUPS, alone
    )  # fmt: skip
    mine, _ = turn_reward_to_go(reward, *more, compared="group")
    exact, _ = turn_reward_to_go(reward.double(), *more, compared="group")
    assert torch.equal(mine, exact.float())
