import pytest
import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.assemble import Assembled, Episode, assemble
from trimtab.rollout.engine import Sample

PAD = 0


def sample(prompt: int, answer: int, first: int, *, ended: bool = True) -> Sample:
    """Every number says where it belongs: answer token t of a sequence that starts at `first` has logp -(first + t)."""
    return Sample(
        prompt_ids=tuple(range(100 + first, 100 + first + prompt)),
        ids=tuple(range(200 + first, 200 + first + answer)),
        logp=-torch.arange(first, first + answer, dtype=torch.float32),
        version=tuple(range(first, first + answer)),
        finish="eos" if ended else "length",
    )


@pytest.fixture
def mixed() -> Assembled:
    episodes = [
        Episode(sample(2, 3, 10), group=4, reward=1.0),
        Episode(sample(4, 1, 20, ended=False), group=4, reward=0.0),
        Episode(sample(1, 2, 30), group=9, reward=0.5, scored=False),
    ]
    return assemble(episodes, pad_id=PAD, first_id=70)


def test_every_token_field_comes_out_flat_in_its_place(mixed: Assembled) -> None:
    old = mixed.logp_rollout - 0.5
    batch = mixed.batch(logp_old=old, logp_ref=old - 1, value=old * 2, value_after=torch.tensor([1.0, 2.0, 3.0]))
    place = torch.tensor([10.0, 11, 12, 20, 30, 31])
    for field, expected in {"logp_rollout": -place, "logp_old": -place - 0.5, "logp_ref": -place - 1.5}.items():
        assert torch.equal(getattr(batch, field), expected), field
    assert torch.equal(batch.value, 2 * (-place - 0.5))
    assert torch.equal(batch.version, place.long())
    assert torch.equal(batch.value_after, torch.tensor([1.0, 2.0, 3.0]))


def test_levels_rewards_and_finish_reasons(mixed: Assembled) -> None:
    batch = mixed.batch()
    assert batch.levels.token_counts.tolist() == [3, 1, 2] == list(mixed.token_counts)
    assert batch.levels.group_of_episode.tolist() == [0, 0, 1]
    assert batch.reward[:2].tolist() == [1.0, 0.0]
    assert batch.scored.tolist() == [True, True, False]
    assert batch.ended.tolist() == [True, False, True]
    assert batch.sequence_id.tolist() == [70, 71, 72]
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
    with pytest.raises(SignalError, match=r"shape \(5,\) and the batch 6 trainable tokens"):
        _ = mixed.batch(logp_old=torch.zeros(5))


def test_no_episodes_are_refused() -> None:
    with pytest.raises(SignalError, match="there are no episodes"):
        _ = assemble([], pad_id=PAD)
