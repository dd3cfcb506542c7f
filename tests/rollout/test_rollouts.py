import io
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.episode import Episode, Status
from trimtab.rollout.join import gather, join
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import cut, lay_out
from trimtab.rollout.wire import receive, send

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
        message="took too long" if status == "timeout" else "",
    )


def supported(tokens: int) -> Episode:
    """Token t was drawn from t + 1 ids."""
    counts = torch.arange(1, tokens + 1)
    return replace(episode(1, tokens, 50), support=(torch.arange(int(counts.sum())), counts))


@pytest.fixture
def mixed() -> Rollouts:
    return join(
        [
            gather(4, "a", [episode(2, 3, 10), episode(4, 1, 20, ended=False, reward=0.0)]),
            gather(9, "ü", [episode(1, 2, 30, reward=0.5, status="timeout")]),
        ]
    )


def test_every_token_field_comes_out_flat_in_its_place(mixed: Rollouts) -> None:
    old = mixed.logp_rollout - 0.5
    batch = mixed.batch(logp_old=old, logp_ref=old - 1, value_old=old * 2, value_after=torch.tensor([1.0, 2.0, 3.0]))
    place = torch.tensor([10.0, 11, 12, 20, 30, 31])
    for field, expected in {"logp_rollout": -place, "logp_old": -place - 0.5, "logp_ref": -place - 1.5}.items():
        assert torch.equal(getattr(batch, field), expected), field
    assert torch.equal(batch.value_old, 2 * (-place - 0.5))
    assert torch.equal(batch.version, place.long())
    assert torch.equal(batch.value_after, torch.tensor([1.0, 2.0, 3.0]))


def test_levels_rewards_and_finish_reasons(mixed: Rollouts) -> None:
    batch = mixed.batch()
    assert batch.levels.token_counts.tolist() == [3, 1, 2] == mixed.token_counts.tolist()
    assert batch.levels.group_of_episode.tolist() == [0, 0, 1]
    assert batch.reward[:2].tolist() == [1.0, 0.0]
    assert batch.scored.tolist() == [True, True, False]
    assert batch.ended is not None
    assert batch.ended.tolist() == [True, False, True]
    assert batch.sequence_id.tolist() == [8, 9, 18]  # ticket x largest group + place
    assert batch.logp_old is None
    assert mixed.prompt_length.tolist() == [2, 4, 1]
    assert mixed.position.tolist() == [2, 3, 4, 4, 1, 2]


def test_rows_are_padded_on_the_right_and_point_at_trainable_tokens(mixed: Rollouts) -> None:
    rows = lay_out(mixed, torch.tensor([2, 0]), pad_id=PAD)
    assert rows.ids.tolist() == [[130, 230, 231, PAD, PAD], [110, 111, 210, 211, 212]]
    assert rows.row_of_token.tolist() == [0, 0, 1, 1, 1]
    assert rows.column_of_token.tolist() == [1, 2, 2, 3, 4]
    assert rows.last_column.tolist() == [2, 4]


def test_rows_and_flat_fields_have_one_order(mixed: Rollouts) -> None:
    rows = lay_out(mixed, torch.arange(3), pad_id=PAD)
    targets: Tensor = rows.ids[rows.row_of_token, rows.column_of_token]
    assert torch.equal(targets, (200 - mixed.logp_rollout).long())


def test_a_field_of_another_length_is_refused(mixed: Rollouts) -> None:
    with pytest.raises(SignalError, match=r"logp_old has shape \[5\] but trainable has \[6\]"):
        _ = mixed.batch(logp_old=torch.zeros(5))
    with pytest.raises(SignalError, match=r"logp_trainer has shape \[5\] and there are 6 trainable tokens"):
        _ = replace(mixed, logp_trainer=torch.zeros(5))
    with pytest.raises(SignalError, match=r"extra.episode.cost has shape \[6\] and there are 3 episodes"):
        _ = replace(mixed, extra={"episode": {"cost": torch.zeros(6)}})
    with pytest.raises(SignalError, match="length adds up to 14 of 13 tokens"):
        _ = replace(mixed, length=mixed.length + torch.tensor([0, 0, 1]))
    with pytest.raises(SignalError, match="trainable is true at 13 where logp_rollout has 6 values"):
        _ = replace(mixed, trainable=torch.ones(13, dtype=torch.bool))


def test_no_episodes_are_refused() -> None:
    with pytest.raises(SignalError, match="there are no episodes"):
        _ = join([])


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
    rollouts = gather(0, "", [two_turns])
    rows, batch = lay_out(rollouts, torch.tensor([0]), pad_id=PAD), rollouts.batch()
    assert rows.ids[rows.row_of_token, rows.column_of_token].tolist() == [10, 11, 12]
    assert batch.num_tokens == 3
    assert batch.turn is not None
    assert batch.turn.tolist() == [0, 0, 1]
    assert rollouts.prompt_length.tolist() == [2]


def test_rewards_that_could_not_be_had_neither_count_nor_hide(mixed: Rollouts) -> None:
    assert mixed.reward_mean == 0.5  # of 1.0 and 0.0; the timeout's 0.5 is not read
    assert mixed.statuses() == {"ok": 2, "timeout": 1}
    assert math.isnan(mixed.reward[2])


def assert_same(one: Rollouts, other: Rollouts) -> None:
    assert one.head() == other.head()
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value.nan_to_num(-7.0), theirs[name].nan_to_num(-7.0)), name


def rich() -> Rollouts:
    """Everything that rollouts can hold, some of it for some sequences only."""
    probed = replace(gather(8, "b", [supported(2)]), logp_trainer=torch.tensor([-0.15, -0.25]))
    plain = gather(3, "a prompt", [supported(3), replace(supported(1), reward=0.1)])  # 0.1 is not a float32
    both = join([plain, probed])
    return replace(both, extra={"episode": {"cost": torch.arange(3.0)}, "trainable": {"x": torch.arange(6.0)}})


def test_the_serial_form_comes_back_bit_for_bit(mixed: Rollouts) -> None:
    for rollouts in (mixed, rich()):
        assert_same(Rollouts.read(rollouts.tensors(), rollouts.head()), rollouts)
    assert rich().batch().extra["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_another_format_and_missing_fields_are_refused(mixed: Rollouts) -> None:
    with pytest.raises(SignalError, match="has format 7 and this version of trimtab reads 1"):
        _ = Rollouts.read(mixed.tensors(), {**mixed.head(), "format": 7})
    poor = {name: value for name, value in mixed.tensors().items() if name != "turn"}
    with pytest.raises(SignalError, match="turn is missing"):
        _ = Rollouts.read(poor, mixed.head())


def test_messages_pass_a_pipe_whole_and_a_torn_one_is_the_end(mixed: Rollouts) -> None:
    pipe = io.BytesIO()
    send(pipe, {"say": "rollouts", "head": mixed.head()}, mixed.tensors())
    send(pipe, {"say": "loaded", "version": 3})
    whole = pipe.getvalue()
    pipe.seek(0)
    first, second = receive(pipe), receive(pipe)
    assert first is not None
    assert_same(Rollouts.read(first[1], first[0]["head"]), mixed)
    assert second == ({"say": "loaded", "version": 3}, {})
    assert receive(pipe) is None
    assert receive(io.BytesIO(whole[: len(whole) // 2])) is None


def test_a_group_is_constant_by_its_scored_episodes_alone() -> None:
    one, failed = episode(1, 2, 4), episode(1, 1, 9, status="timeout")
    group = gather(0, "", [one, failed])
    assert group.is_constant  # one reward, one timeout: nothing to compare
    assert not gather(0, "", [one, replace(one, reward=0.0)]).is_constant
    assert group.oldest_version == 4


def test_groups_are_what_was_joined() -> None:
    parts = [gather(3, "a", [supported(3), supported(1)]), gather(8, "b", [supported(2)])]
    for part, again in zip(parts, join(parts).groups(), strict=True):
        assert_same(again, part)


def test_groups_are_slices_or_taken_and_both_are_the_same() -> None:
    """Neighbours with an episode of their own are cut out; any other order is gathered."""
    whole = replace(rich(), messages={1: "late"})
    for group in whole.groups():
        owner = whole.ticket[whole.episode.long()]
        assert_same(group, whole.take((owner == group.tickets[0]).nonzero()[:, 0]))
    mixed_up = whole.take(torch.tensor([2, 0, 1]))
    assert sorted(group.tickets[0] for group in mixed_up.groups()) == [3, 8]
    assert sum(group.num_tokens for group in mixed_up.groups()) == whole.num_tokens


def test_a_taken_sequence_brings_all_that_is_its_own() -> None:
    taken = rich().take(torch.tensor([2, 0]))
    assert taken.ticket.tolist() == [3, 8]  # episodes stay in their order
    assert taken.episode.tolist() == [1, 0]
    assert taken.support_counts is not None
    assert taken.support_counts.tolist() == [1, 2, 1, 2, 3]
    assert taken.support_ids is not None
    assert taken.support_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert taken.extra["episode"]["cost"].tolist() == [0.0, 2.0]
    assert taken.extra["trainable"]["x"].tolist() == [4, 5, 0, 1, 2]
    assert taken.logp_trainer is not None
    assert taken.logp_trainer[:2].tolist() == pytest.approx([-0.15, -0.25])
    assert taken.logp_trainer[2:].isnan().all()
    assert set(taken.prompts) == {3, 8}
    assert set(rich().take(torch.tensor([0])).prompts) == {3}


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), most=st.integers(1, 30), seed=st.integers(0, 9))
def test_a_cut_bounds_positions_and_loses_nothing(lengths: list[int], most: int, seed: int) -> None:
    chosen = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))[: len(lengths) // 2 + 1]
    parts = cut(torch.tensor(lengths), chosen, most=most)
    assert sorted(torch.cat(parts).tolist()) == sorted(chosen.tolist())
    for part in parts:
        widths = [lengths[index] for index in part.tolist()]
        assert len(part) == 1 or len(part) * max(widths) <= most
    assert cut(torch.tensor(lengths), chosen[:0], most=most) == []


def test_long_prompts_count_as_much_as_long_answers() -> None:
    """512 prompts of 2000 tokens with answers of 8: a limit of 4096 is two rows, not all of them."""
    parts = cut(torch.full((512,), 2008), torch.arange(512), most=4096)
    assert {len(part) for part in parts} == {2}
