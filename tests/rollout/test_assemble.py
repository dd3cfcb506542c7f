import pytest
import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.assemble import Assembled, assemble
from trimtab.rollout.episode import Episode, Group, Status

PAD = 0


def episode(prompt: int, answer: int, first: int, *, ended: bool = True, reward: float = 1.0, status: Status = "ok"):
    """Every number says where it belongs: answer token t of a sequence that starts at `first` has logp -(first + t)."""
    return Episode(
        ids=torch.tensor([*range(100 + first, 100 + first + prompt), *range(200 + first, 200 + first + answer)]),
        trainable=torch.tensor([False] * prompt + [True] * answer),
        logp=-torch.arange(first, first + answer, dtype=torch.float32),
        version=torch.arange(first, first + answer),
        turn=torch.zeros(answer, dtype=torch.int64),
        ended=ended,
        reward=reward,
        status=status,
    )


@pytest.fixture
def mixed() -> Assembled:
    groups = [
        Group(4, "a", (episode(2, 3, 10), episode(4, 1, 20, ended=False, reward=0.0))),
        Group(9, "b", (episode(1, 2, 30, reward=0.5, status="timeout"),)),
    ]
    return assemble(groups, pad_id=PAD)


def test_every_token_field_comes_out_flat_in_its_place(mixed: Assembled) -> None:
    old = mixed.logp_rollout - 0.5
    batch = mixed.batch(logp_old=old, logp_ref=old - 1, value_old=old * 2, value_after=torch.tensor([1.0, 2.0, 3.0]))
    place = torch.tensor([10.0, 11, 12, 20, 30, 31])
    for field, expected in {"logp_rollout": -place, "logp_old": -place - 0.5, "logp_ref": -place - 1.5}.items():
        assert torch.equal(getattr(batch, field), expected), field
    assert torch.equal(batch.value_old, 2 * (-place - 0.5))
    assert torch.equal(batch.version, place.long())
    assert torch.equal(batch.value_after, torch.tensor([1.0, 2.0, 3.0]))


def test_levels_rewards_and_finish_reasons(mixed: Assembled) -> None:
    batch = mixed.batch()
    assert batch.levels.token_counts.tolist() == [3, 1, 2] == list(mixed.token_counts)
    assert batch.levels.group_of_episode.tolist() == [0, 0, 1]
    assert batch.reward[:2].tolist() == [1.0, 0.0]
    assert batch.scored.tolist() == [True, True, False]
    assert batch.ended.tolist() == [True, False, True]
    assert batch.sequence_id.tolist() == [8, 9, 18]  # ticket x largest group + place
    assert batch.logp_old is None


def test_a_field_lies_in_the_cell_of_its_own_token(mixed: Assembled) -> None:
    cells = mixed.cells(mixed.logp_rollout)
    assert [len(entry) for entry in cells] == [5, 5, 3]
    assert cells[0].isnan().tolist() == [True, True, False, False, False]
    assert cells[0][2:].tolist() == [-10.0, -11.0, -12.0]
    assert cells[1][4] == -20.0
    for ids, entry in zip(mixed.ids, cells, strict=True):  # answer ids were made as 200 - logp
        answer = ~entry.isnan()
        assert torch.equal(ids[answer], (200 - entry[answer]).long())


def test_rows_are_padded_on_the_right_and_point_at_trainable_tokens(mixed: Assembled) -> None:
    rows = mixed.rows(torch.tensor([2, 0]))
    assert rows.ids.tolist() == [[130, 230, 231, PAD, PAD], [110, 111, 210, 211, 212]]
    assert rows.row_of_token.tolist() == [0, 0, 1, 1, 1]
    assert rows.column_of_token.tolist() == [1, 2, 2, 3, 4]
    assert rows.last_column.tolist() == [2, 4]


def test_rows_and_flat_fields_have_one_order(mixed: Assembled) -> None:
    rows = mixed.rows(range(3))
    targets: Tensor = rows.ids[rows.row_of_token, rows.column_of_token]
    assert torch.equal(targets, (200 - mixed.logp_rollout).long())


def test_a_field_of_another_length_is_refused(mixed: Assembled) -> None:
    with pytest.raises(SignalError, match=r"shape \(5,\) and the batch has 6 trainable tokens"):
        _ = mixed.batch(logp_old=torch.zeros(5))


def test_no_episodes_are_refused() -> None:
    with pytest.raises(SignalError, match="there are no episodes"):
        _ = assemble([], pad_id=PAD)


def test_observations_do_not_train_and_turns_are_told_apart() -> None:
    two_turns = Episode(
        ids=torch.tensor([1, 2, 10, 11, 3, 3, 12]),
        trainable=torch.tensor([False, False, True, True, False, False, True]),
        logp=torch.tensor([-1.0, -2.0, -3.0]),
        version=torch.zeros(3, dtype=torch.int64),
        turn=torch.tensor([0, 0, 1]),
        ended=True,
        reward=1.0,
        status="ok",
    )
    assembled = assemble([Group(0, "", (two_turns,))], pad_id=PAD)
    rows, batch = assembled.rows([0]), assembled.batch()
    assert rows.ids[rows.row_of_token, rows.column_of_token].tolist() == [10, 11, 12]
    assert batch.num_tokens == 3
    assert batch.turn is not None
    assert batch.turn.tolist() == [0, 0, 1]
    assert assembled.cells(assembled.logp_rollout)[0][4:6].isnan().all()


def test_rewards_that_could_not_be_had_neither_count_nor_hide(mixed: Assembled) -> None:
    assert mixed.reward_mean == 0.5  # of 1.0 and 0.0; the timeout's 0.5 is not read
    assert mixed.statuses() == {"ok": 2, "timeout": 1}
