from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import Rows, lay_out
from trimtab.rollout.weights import digest
from trimtab.signal import scores
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy, frozen_copy, published


def episode(prompt: list[int], answer: list[int], support: list[tuple[int, ...]] | None = None) -> Episode:
    count = len(answer)
    return Episode(
        ids=torch.tensor([*prompt, *answer]),
        trainable=torch.tensor([False] * len(prompt) + [True] * count),
        logp=torch.zeros(count),
        version=torch.zeros(count, dtype=torch.int64),
        turn=torch.zeros(count, dtype=torch.int64),
        ended=True,
        reward=0.0,
        status="ok",
        support=None
        if support is None
        else (torch.tensor([token for ids in support for token in ids]), torch.tensor([len(ids) for ids in support])),
    )


def rows_of(policy: Policy, rollouts: Rollouts, order: Sequence[int]) -> Rows:
    return lay_out(rollouts, torch.tensor(list(order)), pad_id=policy.pad_id)


@pytest.fixture
def mixed(policy: Policy) -> Rollouts:
    stream = torch.Generator().manual_seed(0)
    episodes: list[Episode] = []
    for prompt, answer in ((2, 3), (6, 1), (1, 5), (4, 4)):
        ids = torch.randint(3, 14, (prompt + answer,), generator=stream).tolist()
        episodes.append(episode(ids[:prompt], ids[prompt:]))
    return gather(0, "", episodes)


def naive(policy: Policy, rollouts: Rollouts, order: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """Sequence by sequence, every logit, the shift written out."""
    logps: list[Tensor] = []
    entropies: list[Tensor] = []
    for index in order:
        one = slice(int(rollouts.first_id[index]), int(rollouts.first_id[index + 1]))
        ids, trains = rollouts.ids[one].long(), rollouts.trainable[one]
        table = torch.log_softmax(policy.model(input_ids=ids[None]).logits[0] / temperature, -1)
        for column in trains.nonzero()[:, 0].tolist():
            logps.append(table[column - 1, ids[column]])
            entropies.append(-(table[column - 1].exp() * table[column - 1]).sum())
    return torch.stack(logps), torch.stack(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_logp_and_entropy_equal_the_naive_ones(policy: Policy, mixed: Rollouts, temperature: float) -> None:
    order = [2, 0, 3, 1]
    passed = token_pass(policy.model, rows_of(policy, mixed, order), temperature=temperature)
    logp, entropy = naive(policy, mixed, order, temperature)
    assert passed.logp.dtype == torch.float32
    torch.testing.assert_close(passed.logp, logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(passed.entropy, entropy, atol=1e-5, rtol=0)


def test_chunks_change_neither_numbers_nor_gradients(policy: Policy, mixed: Rollouts) -> None:
    results: list[tuple[Tensor, list[Tensor]]] = []
    for tokens in (1000, 4):
        room = 4 * len(policy.tokenizer) * tokens
        passed = token_pass(policy.model, rows_of(policy, mixed, range(4)), temperature=0.7, logits_bytes=room)
        total = (passed.logp * torch.arange(13)).sum() + passed.entropy.square().sum()
        results.append((passed.logp.detach(), list(torch.autograd.grad(total, list(policy.model.parameters())))))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=0)
    for whole, chunked in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-4, rtol=1e-4)


def test_what_stands_in_the_padding_does_not_matter(policy: Policy, mixed: Rollouts) -> None:
    rows = rows_of(policy, mixed, range(4))
    before = token_pass(policy.model, rows, temperature=1.0).logp
    for row, last in enumerate(rows.last_column.tolist()):
        rows.ids[row, last + 1 :] = 7
    assert torch.equal(token_pass(policy.model, rows, temperature=1.0).logp, before)


def test_states_are_those_that_predict_and_the_one_after_the_end(policy: Policy, mixed: Rollouts) -> None:
    passed = token_pass(
        policy.model, rows_of(policy, mixed, [0, 2]), temperature=1.0, with_state=True, with_state_after=True
    )
    hidden = policy.model.base_model(input_ids=mixed.ids[None, :5].long()).last_hidden_state[0]
    torch.testing.assert_close(passed.state[:3], hidden[1:4], atol=1e-5, rtol=0)
    assert passed.state_after is not None
    torch.testing.assert_close(passed.state_after[0], hidden[4], atol=1e-5, rtol=0)
    assert token_pass(policy.model, rows_of(policy, mixed, [0, 2]), temperature=1.0).state_after is None


def test_a_first_token_that_trains_is_refused(policy: Policy) -> None:
    headless = gather(0, "", [episode([], [3, 4])])
    with pytest.raises(SignalError, match=r"rows \[0\] train their first token, so nothing predicts it"):
        _ = token_pass(policy.model, rows_of(policy, headless, [0]), temperature=1.0)


def test_a_support_narrows_the_softmax_in_one_chunk_or_several(policy: Policy) -> None:
    supports = [[(3, 7, 9), (5,), tuple(range(14))], [(4, 8)]]
    cut = gather(0, "", [episode([4, 5], [7, 5, 6], supports[0]), episode([6], [8], supports[1])])
    whole = gather(0, "", [episode([4, 5], [7, 5, 6]), episode([6], [8])])
    for rows_bytes in (2**20, 4 * 14 * 3, 1):
        passed = token_pass(policy.model, rows_of(policy, cut, [0, 1]), temperature=0.8, logits_bytes=rows_bytes)
        place = 0
        for row, ids, answer in ((0, [4, 5, 7, 5, 6], 3), (1, [6, 8], 1)):
            logits = policy.model(torch.tensor([ids])).logits[0, -answer - 1 : -1] / 0.8
            for step in range(answer):
                left = list(supports[row][step])
                table = torch.log_softmax(logits[step, left], -1)
                expected = table[left.index(ids[len(ids) - answer + step])]
                torch.testing.assert_close(passed.logp[place], expected, atol=1e-5, rtol=0)
                torch.testing.assert_close(passed.entropy[place], -(table.exp() * table).sum(), atol=1e-5, rtol=0)
                place += 1
        total = passed.logp.sum() + passed.entropy.sum()
        gradients = torch.autograd.grad(total, list(policy.model.parameters()))
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    plain = token_pass(policy.model, rows_of(policy, whole, [0, 1]), temperature=0.8)
    assert float(passed.logp[1].detach()) == 0.0  # alone in its support
    torch.testing.assert_close(plain.logp[2], passed.logp[2], atol=1e-5, rtol=0)  # nothing was ruled out


def test_with_the_support_the_trainer_says_what_the_sampler_said(policy: Policy) -> None:
    engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids)
    state = published(policy.model)
    engine.load(state, 0, digest(state))
    asked = [Request((4, 5, 6 + row % 3), row) for row in range(12)]
    samples = engine.sample(asked, Sampling(6, 1.3, top_p=0.7, top_k=8, record_support=True))
    episodes = [
        episode(list(request.ids), list(sample.ids), list(sample.support or ()))
        for request, sample in zip(asked, samples, strict=True)
    ]
    passed = token_pass(policy.model, rows_of(policy, gather(0, "", episodes), range(12)), temperature=1.3)
    torch.testing.assert_close(passed.logp, torch.cat([sample.logp for sample in samples]), atol=1e-5, rtol=0)


def test_a_token_outside_its_support_is_refused(policy: Policy) -> None:
    wrong = gather(0, "", [episode([4, 5], [7, 5], [(3, 7), (6, 8)])])
    with pytest.raises(SignalError, match=r"1 trainable tokens \(first: 1, id 5\) are not among the ids"):
        _ = token_pass(policy.model, rows_of(policy, wrong, [0]), temperature=1.0)
    with pytest.raises(SignalError, match="support counts 1 tokens and 2 ids, and there are 2 and 2"):
        _ = gather(0, "", [episode([4, 5], [7, 5], [(3, 7)])])


def test_logits_of_a_batch_never_exist_at_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest piece that goes through the head, forward and backward, stays within the room for logits."""
    heights: list[int] = []
    product = scores._product

    def watched(states: Tensor, head: Tensor, offset: Tensor | None, table: Tensor) -> Tensor:
        heights.append(len(states))
        assert len(table) == 50
        return product(states, head, offset, table)

    monkeypatch.setattr(scores, "_product", watched)
    rows = rows_of(policy, gather(0, "", [episode([4, 5], [6] * 30) for _ in range(8)]), range(8))
    passed = token_pass(policy.model, rows, temperature=1.0, logits_bytes=4 * len(policy.tokenizer) * 50)
    (passed.logp.sum() + passed.entropy.sum()).backward()
    assert heights[:5] == [50, 50, 50, 50, 40]
    assert sorted(heights[5:]) == [40, 50, 50, 50, 50]


def test_a_bfloat16_model_gives_float32_numbers(policy: Policy, mixed: Rollouts) -> None:
    half = frozen_copy(policy.model).bfloat16()
    passed = token_pass(half, rows_of(policy, mixed, range(4)), temperature=1.0, with_state=True, with_state_after=True)
    assert {passed.logp.dtype, passed.entropy.dtype, passed.state.dtype} == {torch.float32}
    assert passed.state_after is not None
    assert passed.state_after.dtype == torch.float32
    torch.testing.assert_close(
        passed.logp, token_pass(policy.model, rows_of(policy, mixed, range(4)), temperature=1.0).logp, atol=0.3, rtol=0
    )
