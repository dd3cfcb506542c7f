"""What a caller says of episodes, and of the states of turns, is gathered over ranks as it was given."""

import torch
from tests.golden.exact import assert_is
from tests.signal.test_gather import on_every_rank

from trimtab.signal import SignalBatch, SignalState, gather, prepare, recipe


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


# Two prompts, four answers of two turns; each rank has one answer to each prompt.
REWARD, GROUP, ROLE, SOURCE = [1.0, 0.0, 3.0, 2.0], [5, 2, 5, 2], [0, 1, 1, 1], [3, 0, 0, 8]
LOGP, ROLLOUT = -1.0 - torch.arange(12.0).double() / 8, -1.5 + torch.arange(12.0).double().sin() / 4
TURN, STATE = [[0, 0, 1]] * 4, [[3, 9, 4], [3, 9, 3], [4, 9, 3], [3, 9, 3]]


def answers(chosen: range) -> SignalBatch:
    at = list(chosen)
    return SignalBatch.from_list(
        [[1, 1, 1]] * len(at), reward=[REWARD[i] for i in at], group=[GROUP[i] for i in at],
        role=[ROLE[i] for i in at], source=[SOURCE[i] for i in at], turn=[TURN[i] for i in at],
        logp_old=[LOGP[3 * i : 3 * i + 3] for i in at], logp_rollout=[ROLLOUT[3 * i : 3 * i + 3] for i in at],
        extra={"state": [torch.tensor(STATE[i]) for i in at]},
    )  # fmt: skip


BY_STATE_AND_ROLE = recipe("reinforce", normalize="minus_role_average", advantage="turns_by_state")


def test_roles_states_and_sources_of_two_ranks_give_what_one_process_gives() -> None:
    before = SignalState(memory={"role_average_1": 0.5})
    alone, state = prepare(answers(range(4)), BY_STATE_AND_ROLE, before)
    assert alone.advantage.unique().numel() > 4
    for whole, _ in on_every_rank(lambda rank, it: gather(answers(range(2 * rank, 2 * rank + 2)), it, rank), 2):
        assert_is(whole.role, *ROLE)
        assert_is(whole.source, *SOURCE)
        assert_is(whole.extra["state"], *[one for row in STATE for one in row])
        prepared, after = prepare(whole, BY_STATE_AND_ROLE, before)
        torch.testing.assert_close(prepared.advantage, alone.advantage, rtol=0, atol=0)
        assert after.memory == state.memory
        assert prepared.metrics.numbers() == alone.metrics.numbers()
