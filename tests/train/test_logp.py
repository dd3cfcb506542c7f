import pytest
import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.assemble import Assembled, Episode, assemble
from trimtab.rollout.engine import Sample
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy


@pytest.fixture
def mixed(policy: Policy) -> Assembled:
    stream = torch.Generator().manual_seed(0)
    episodes: list[Episode] = []
    for prompt, answer in ((2, 3), (6, 1), (1, 5), (4, 4)):
        ids = torch.randint(3, 14, (prompt + answer,), generator=stream).tolist()
        given = Sample(tuple(ids[:prompt]), tuple(ids[prompt:]), torch.zeros(answer), (0,) * answer, "eos")
        episodes.append(Episode(given, group=0, reward=0.0))
    return assemble(episodes, pad_id=policy.pad_id)


def naive(policy: Policy, assembled: Assembled, order: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """Sequence by sequence, every logit, the shift written out."""
    logps: list[Tensor] = []
    entropies: list[Tensor] = []
    for index in order:
        ids, trains = assembled.ids[index], assembled.trainable[index]
        table = torch.log_softmax(policy.model(input_ids=ids[None]).logits[0] / temperature, -1)
        for column in trains.nonzero()[:, 0].tolist():
            logps.append(table[column - 1, ids[column]])
            entropies.append(-(table[column - 1].exp() * table[column - 1]).sum())
    return torch.stack(logps), torch.stack(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_logp_and_entropy_equal_the_naive_ones(policy: Policy, mixed: Assembled, temperature: float) -> None:
    order = [2, 0, 3, 1]
    passed = token_pass(policy.model, mixed.rows(order), temperature=temperature)
    logp, entropy = naive(policy, mixed, order, temperature)
    assert passed.logp.dtype == torch.float32
    torch.testing.assert_close(passed.logp, logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(passed.entropy, entropy, atol=1e-5, rtol=0)


def test_chunks_change_neither_numbers_nor_gradients(policy: Policy, mixed: Assembled) -> None:
    results: list[tuple[Tensor, list[Tensor]]] = []
    for chunk_tokens in (1000, 4):
        passed = token_pass(policy.model, mixed.rows(range(4)), temperature=0.7, chunk_tokens=chunk_tokens)
        total = (passed.logp * torch.arange(13)).sum() + passed.entropy.square().sum()
        results.append((passed.logp.detach(), list(torch.autograd.grad(total, list(policy.model.parameters())))))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=0)
    for whole, chunked in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-4, rtol=1e-4)


def test_what_stands_in_the_padding_does_not_matter(policy: Policy, mixed: Assembled) -> None:
    rows = mixed.rows(range(4))
    before = token_pass(policy.model, rows, temperature=1.0).logp
    for row, last in enumerate(rows.last_column.tolist()):
        rows.ids[row, last + 1 :] = 7
    assert torch.equal(token_pass(policy.model, rows, temperature=1.0).logp, before)


def test_states_are_those_that_predict_and_the_one_after_the_end(policy: Policy, mixed: Assembled) -> None:
    passed = token_pass(policy.model, mixed.rows([0, 2]), temperature=1.0, with_state_after=True)
    hidden = policy.model.base_model(input_ids=mixed.ids[0][None]).last_hidden_state[0]
    torch.testing.assert_close(passed.state[:3], hidden[1:4], atol=1e-5, rtol=0)
    assert passed.state_after is not None
    torch.testing.assert_close(passed.state_after[0], hidden[4], atol=1e-5, rtol=0)
    assert token_pass(policy.model, mixed.rows([0, 2]), temperature=1.0).state_after is None


def test_a_first_token_that_trains_is_refused(policy: Policy) -> None:
    headless = assemble([Episode(Sample((), (3, 4), torch.zeros(2), (0, 0), "eos"), 0, 0.0)], pad_id=policy.pad_id)
    with pytest.raises(SignalError, match=r"rows \[0\] train their first token, so nothing predicts it"):
        _ = token_pass(policy.model, headless.rows([0]), temperature=1.0)
