import io
import math

import torch

from trimtab.rollout.episode import Episode, Group, pack, unpack, with_trainer
from trimtab.rollout.wire import receive, send


def groups() -> list[Group]:
    plain = Episode(
        ids=torch.tensor([1, 2, 3]),
        trainable=torch.tensor([False, True, True]),
        logp=torch.tensor([-0.1, -0.2]),
        version=torch.tensor([4, 5]),
        turn=torch.tensor([0, 1]),
        ended=True,
        reward=0.1,  # not a float32
        status="ok",
        support=(torch.tensor([2, 7, 3]), torch.tensor([2, 1])),
    )
    failed = Episode(
        ids=torch.tensor([9, 8]),
        trainable=torch.tensor([False, True]),
        logp=torch.tensor([-3.0]),
        version=torch.tensor([6]),
        turn=torch.tensor([0]),
        ended=False,
        reward=math.nan,
        status="timeout",
        message="took too long",
    )
    first = Group(3, "a prompt", (plain, failed))
    return [first, with_trainer(Group(8, "ü", (plain,)), [torch.tensor([-0.15, -0.25])]), Group(9, "", ())]


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other or (one != one and other != other)


def assert_same(one: list[Group], other: list[Group]) -> None:
    assert [(g.ticket, g.prompt, len(g.episodes)) for g in one] == [
        (g.ticket, g.prompt, len(g.episodes)) for g in other
    ]
    for first, second in zip(one, other, strict=True):
        for a, b in zip(first.episodes, second.episodes, strict=True):
            assert all(same(value, vars(b)[name]) for name, value in vars(a).items())


def test_packed_groups_come_back_bit_for_bit() -> None:
    assert_same(unpack(*pack(groups())), groups())
    assert unpack(*pack([])) == []


def test_messages_pass_a_pipe_whole_and_a_torn_one_is_the_end() -> None:
    pipe = io.BytesIO()
    tensors, meta = pack(groups())
    send(pipe, {"say": "groups", "meta": meta}, tensors)
    send(pipe, {"say": "loaded", "version": 3})
    whole = pipe.getvalue()
    pipe.seek(0)
    first, second = receive(pipe), receive(pipe)
    assert first is not None
    assert second is not None
    assert_same(unpack(first[1], first[0]["meta"]), groups())
    assert second == ({"say": "loaded", "version": 3}, {})
    assert receive(pipe) is None
    assert receive(io.BytesIO(whole[: len(whole) // 2])) is None


def test_a_group_is_constant_by_its_scored_episodes_alone() -> None:
    first, second, _ = groups()
    assert first.is_constant  # one reward, one timeout: nothing to compare
    assert second.is_constant
    assert first.version == 4
