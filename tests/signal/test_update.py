"""How an optimiser step is cut, named and accounted for."""

import pytest
import torch
from tests.golden.exact import assert_is, index, lengths

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, Stage, decide, part, prepare, recipe, token_loss
from trimtab.signal.update import Decided, Ledger, _cuts, token_key, weight_sums

WORD = 2**64


def splitmix(sequence: int, place: int, seed: int) -> int:
    """The finaliser of Steele et al. 2014 on 64-bit words, in Python's own integers."""
    word = (sequence * 0x5851F42D4C957F2D + place * 0x14057B7EF767814F + (seed + 1) * 0x61C8864680B583EB) % WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word >> 11


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_a_tokens_key_is_a_hash_of_seed_sequence_and_place_in_53_bits(seed: int) -> None:
    # sequences 5, 0 and 2^62 with 2, 0 and 3 tokens
    found = token_key(lengths(2, 0, 3), index(5, 0, 2**62), seed)
    expected = [splitmix(5, 0, seed), splitmix(5, 1, seed), *(splitmix(2**62, place, seed) for place in range(3))]
    assert found.tolist() == expected
    assert max(expected) < 2**53


@pytest.mark.parametrize(
    ("max_tokens", "cuts"),
    [
        (1, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
        (3, [(0, 1), (1, 3), (3, 4), (4, 5)]),  # 2 | 3 + 0 | 3, and a 4 of its own
        (5, [(0, 3), (3, 4), (4, 5)]),
        (6, [(0, 3), (3, 4), (4, 5)]),
        (7, [(0, 3), (3, 5)]),
        (8, [(0, 4), (4, 5)]),
        (12, [(0, 5)]),
    ],
)
def test_sequences_of_2_3_0_3_4_tokens_are_packed_in_order(max_tokens: int, cuts: list[tuple[int, int]]) -> None:
    assert _cuts(index(2, 3, 0, 3, 4), max_tokens, None) == cuts


@pytest.mark.parametrize(
    ("num", "cuts"), [(1, [(0, 5)]), (2, [(0, 2), (2, 5)]), (3, [(0, 1), (1, 3), (3, 5)]), (6, None)]
)
def test_a_named_number_of_parts_is_that_number(num: int, cuts: list[tuple[int, int]] | None) -> None:
    found = _cuts(index(2, 3, 0, 3, 4), None, num)
    assert len(found) == num
    assert [i for start, stop in found for i in range(start, stop)] == [0, 1, 2, 3, 4]
    assert cuts is None or found == cuts


def decided() -> Decided:
    batch = SignalBatch.from_padded(
        [[1, 1], [1, 0], [1, 1]], reward=[1.0, 0.0, 0.5], group=[0, 0, 0], logp_old=torch.full((3, 2), -1.0)
    )
    return decide(next(prepare(batch, recipe("dr_grpo"))[0].updates()))


def test_an_update_is_one_step_of_everything_unless_said_otherwise() -> None:
    whole = decided()
    assert_is(whole.whole.sequences, 0, 1, 2)
    assert whole.data_parallel == 1
    assert whole.ledger == Ledger()


def test_shares_of_ranks_begin_at_rank_0_and_sequence_0() -> None:
    assert_is(decided().shard(0, 3).whole.sequences, 0)
    assert_is(decided().shard(2, 3).whole.sequences, 2)
    assert_is(decided().own(index(0, 2), 2).whole.sequences, 0, 2)
    assert decided().own(index(0), 2).data_parallel == decided().shard(1, 2).data_parallel == 2
    for wrong in (lambda: decided().shard(3, 3), lambda: decided().shard(-1, 3), lambda: decided().own(index(-1), 2)):
        with pytest.raises(SignalError):
            wrong()


def test_parts_are_cut_where_the_caller_says() -> None:
    batch = SignalBatch.from_padded([[1]] * 4, reward=[1.0, 0.0, 1.0, 0.0], group=[0, 0, 1, 1])
    first, second = (decide(one) for one in prepare(batch, recipe("dr_grpo", loss="reinforce"))[0].updates(2))
    assert [micro.sequences.tolist() for micro in first.split(parts=[[1], [], [0]])] == [[1], [], [0]]
    assert [micro.sequences.tolist() for micro in second.split(parts=[index(3, 2)])] == [[3, 2]]
    for parts, named in (([[0]], 1), ([[0, 1], [1]], 3), ([], 0), ([[0, 2]], 2)):
        with pytest.raises(SignalError, match=f"parts names {named} sequences and this update has 2, not each of them"):
            first.split(parts=parts)
    with pytest.raises(SignalError, match="name one of max_tokens, num and parts"):
        first.split(num=1, parts=[[0, 1]])
    with pytest.raises(SignalError, match="name one of max_tokens, num and parts"):
        first.split()


def spend(scale: float) -> Decided:
    step = decided()
    for micro in step.split(num=2):
        logp = torch.full((micro.num_tokens,), -1.0, requires_grad=True)
        (token_loss(micro, logp).loss * scale).backward()
    return step


def test_what_was_spent_is_compared_within_a_share_of_what_was_due() -> None:
    spend(1.0).check_spent()
    spend(1.0).check_spent(tolerance=1e-6)
    spend(1 + 5e-5).check_spent()
    spend(0.5).check_spent(grad_scale=0.5)
    spend(1.5).check_spent(tolerance=0.51)
    for wrong in (spend(1 + 1.5e-4), spend(0.5), decided()):
        with pytest.raises(SignalError, match="flowed"):
            wrong.check_spent()
    with pytest.raises(SignalError, match="flowed"):
        spend(1.5).check_spent(tolerance=0.49)
    # A tolerance of exactly nothing is a tolerance; one below it is none.
    with pytest.raises(SignalError, match="tolerance"):
        spend(1.0).check_spent(tolerance=-1e-9)
    with pytest.raises(SignalError, match="flowed"):
        spend(2.0).check_spent(tolerance=0.0)


def test_the_ledger_keeps_numbers_and_no_graph() -> None:
    ledger, weight = Ledger(), torch.ones((), requires_grad=True)
    ledger.record(weight * 2, weight * 3)
    assert [(float(g), float(w)) for g, w in ledger.entries] == [(2.0, 3.0)]
    assert not any(one.requires_grad for entry in ledger.entries for one in entry)


def test_only_the_very_first_update_still_has_the_old_policy() -> None:
    batch = SignalBatch.from_padded(
        [[1], [1], [1], [1]], reward=[1.0, 0.0, 1.0, 0.0], group=[0, 0, 1, 1], logp_old=torch.full((4, 1), -1.0)
    )
    prepared, _ = prepare(batch, recipe("dr_grpo"))
    assert [update.is_first for update in prepared.updates(2)] == [True, False]
    assert [update.is_first for update in prepared.updates(2)] == [False, False]
    assert [update.is_first for update in prepared.updates(4, together="sequence")] == [False] * 4


def test_a_batch_without_groups_that_train_is_one_empty_step() -> None:
    batch = SignalBatch.from_padded([[1], [1]], reward=[1.0, 1.0], group=[0, 0], logp_old=torch.full((2, 1), -1.0))
    prepared, _ = prepare(batch, recipe("dr_grpo", filter_constant_groups=True))
    assert prepared.num_training_groups == 0
    assert [update.num_tokens for update in prepared.updates(1)] == [0]
    with pytest.raises(SignalError, match="2 optimiser steps from 0 groups"):
        prepared.updates(2)


def test_a_second_pass_is_refused_where_it_begins_also_if_it_was_asked_for_before_the_first_began() -> None:
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    batch = SignalBatch.from_padded([[1, 1, 1]] * 2, reward=[1.0, 0.0], group=[0, 0], logp_old=old, logp_rollout=old)
    prepared, _ = prepare(batch, recipe("tis", old="current"))
    first, second = prepared.updates(1), prepared.updates(1)
    next(first)
    with pytest.raises(SignalError, match="follows the policy from step to step"):
        next(second)


def test_the_weight_of_a_step_is_summed_in_double_precision() -> None:
    batch = SignalBatch.from_padded([[1, 1, 1]], reward=[1.0], group=[0], logp_old=torch.full((1, 3), -1.0))
    decided = decide(next(prepare(batch, recipe("start_on_policy", normalize="raw"))[0].updates(1)))
    # 1 / 3 in single precision, three times
    assert sum(weight_sums(decided.whole).values()) == 3 * float(torch.tensor(1 / 3, dtype=torch.float32))


def test_a_step_says_what_its_kept_tokens_weigh_and_how_many_voters_it_rejected() -> None:
    # the last token has a ratio of e^0.9, above 2, and is the only one of its sequence
    batch = SignalBatch.from_padded(
        [[1, 1], [1, 0], [1, 0]], reward=[1.0, 0.0, 0.5], group=[0, 0, 0], logp_rollout=torch.full((3, 2), -1.0)
    )
    banded = recipe("start_on_policy", correction=Stage(part("keep.token_band", band=(0.5, 2.0)), ratio="total"))
    whole = decide(next(prepare(batch, banded)[0].updates()))
    (micro,) = whole.split(num=1)
    numbers = token_loss(micro, torch.tensor([-1.0, -1.0, -1.0, -0.1])).metrics.numbers()
    assert numbers["weight/policy"] == 0.75
    assert numbers["voted_then_rejected/sequence_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("scale", [0.0, float("inf"), -float("inf"), float("nan")])
def test_what_was_spent_is_not_compared_at_a_scale_of_0_or_without_end(scale: float) -> None:
    with pytest.raises(SignalError, match="check_spent: grad_scale = "):
        decided().check_spent(grad_scale=scale)


def test_parts_are_cut_as_they_are_named_each_sequence_once() -> None:
    micros = list(decided().split(parts=[index(2, 0), index(), index(1)]))
    assert [micro.sequences.tolist() for micro in micros] == [[2, 0], [], [1]]
    for wrong in ([index(0, 1)], [index(0, 1, 2), index(0)], [index(0, 1), index(1)], [index(0, 1, 3)], []):
        with pytest.raises(SignalError, match=rf"parts names {sum(map(len, wrong))} sequences and this update has 3"):
            _ = list(decided().split(parts=wrong))


def test_shares_of_the_environments_tokens_are_added_up_in_double_precision() -> None:
    batch = SignalBatch.from_tokens(
        [1, 1, 1], reward=[1.0, 0.0, 2.0], group=[0, 0, 0], observed=[1, 1, 1], logp_old=torch.full((3,), -1.0)
    )
    chosen = recipe("reinforce", normalize="raw", weighting="token_mean", observed=0.5)
    (micro,) = decide(next(prepare(batch, chosen)[0].updates())).split(num=1)
    # three times 1/3 of float32 is not 1, and float32 would round it to 1
    third = float(torch.tensor(1.0) / 3)
    assert weight_sums(micro.part)["weight_observed"] == third + third + third != 1


def test_a_batch_knows_whether_every_sequence_of_it_trains() -> None:
    for scored, all_train in (([1, 1], True), ([1, 0], False)):
        batch = SignalBatch.from_tokens([1, 1], reward=[1.0, 0.0], group=[0, 0], scored=scored)
        prepared, _ = prepare(batch, recipe("reinforce"))
        assert prepared.all_train == all_train
        assert next(prepared.updates(1)).sequences.tolist() == [0, 1][: sum(scored)]
