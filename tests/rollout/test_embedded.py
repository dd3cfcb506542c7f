import pytest
import torch
from torch import Tensor

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Greedy, Sample, Sampling
from trimtab.rollout.tokenizer import encode
from trimtab.train.policy import Policy, frozen_copy, published

TEXTS = ["58213=", "7=", "0123456789=", "42="]


@pytest.fixture
def prompts(policy: Policy) -> list[list[int]]:
    return [encode(policy.tokenizer, text) for text in TEXTS]


def logits_alone(policy: Policy, ids: list[int]) -> Tensor:
    """The plain truth: one sequence, no padding, no cache, the whole forward pass."""
    with torch.no_grad():
        return policy.model(input_ids=torch.tensor([ids])).logits[0].float()


def logp_alone(policy: Policy, sample: Sample, temperature: float) -> Tensor:
    logits = logits_alone(policy, [*sample.prompt_ids, *sample.ids])
    start = len(sample.prompt_ids) - 1
    table = torch.log_softmax(logits[start : start + len(sample.ids)] / temperature, -1)
    return table.gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logp_is_that_of_a_full_forward_pass(
    engine: Embedded, policy: Policy, prompts: list[list[int]], temperature: float
) -> None:
    samples = engine.sample(prompts, Sampling(max_new_tokens=9, temperature=temperature, seed=1, samples_per_prompt=3))
    assert len(samples) == 12
    for sample in samples:
        assert sample.logp.dtype == torch.float32
        torch.testing.assert_close(sample.logp, logp_alone(policy, sample, temperature), atol=1e-5, rtol=0)


def test_the_cache_changes_no_sample(engine: Embedded, policy: Policy, prompts: list[list[int]]) -> None:
    """The same draws, taken without a cache and without padding, give the same tokens."""
    samples = engine.sample(prompts, Sampling(max_new_tokens=6, temperature=1.0, seed=5))
    generator = torch.Generator().manual_seed(5)
    rows = [list(prompt) for prompt in prompts]
    for _ in range(6):
        last = torch.stack([logits_alone(policy, row)[-1] for row in rows])
        drawn = torch.multinomial(torch.log_softmax(last, -1).exp(), 1, generator=generator)[:, 0].tolist()
        rows = [[*row, token] for row, token in zip(rows, drawn, strict=True)]
        if all(policy.eos_id in row for row in rows):
            break
    for sample, prompt, row in zip(samples, prompts, rows, strict=True):
        assert list(sample.ids) == row[len(prompt) : len(prompt) + len(sample.ids)]


def test_greedy_takes_the_likeliest_token_alone_or_in_company(
    engine: Embedded, policy: Policy, prompts: list[list[int]]
) -> None:
    together = engine.sample(prompts, Greedy(max_new_tokens=5))
    for prompt, sample in zip(prompts, together, strict=True):
        assert sample.ids == engine.sample([prompt], Greedy(max_new_tokens=5))[0].ids
        row = list(prompt)
        for token in sample.ids:
            assert token == int(logits_alone(policy, row)[-1].argmax())
            row.append(token)
        assert torch.equal(sample.logp, torch.zeros(len(sample.ids)))


def test_an_answer_ends_with_its_first_end_token(engine: Embedded, policy: Policy, prompts: list[list[int]]) -> None:
    samples = engine.sample(prompts, Sampling(max_new_tokens=12, temperature=1.5, seed=3, samples_per_prompt=16))
    assert {sample.finish for sample in samples} == {"eos", "length"}
    for sample in samples:
        assert len(sample.ids) == len(sample.logp) == len(sample.version)
        if sample.finish == "eos":
            assert sample.ids.index(policy.eos_id) == len(sample.ids) - 1
        else:
            assert policy.eos_id not in sample.ids
            assert len(sample.ids) == 12


def test_samples_of_a_prompt_stand_side_by_side(engine: Embedded, prompts: list[list[int]]) -> None:
    samples = engine.sample(prompts, Sampling(max_new_tokens=2, temperature=1.0, seed=0, samples_per_prompt=3))
    assert [sample.prompt_ids for sample in samples] == [tuple(prompt) for prompt in prompts for _ in range(3)]


def test_frequencies_are_those_of_the_distribution(engine: Embedded, policy: Policy, prompts: list[list[int]]) -> None:
    many = engine.sample(prompts[:1], Sampling(max_new_tokens=1, temperature=1.3, seed=9, samples_per_prompt=20_000))
    counts = torch.bincount(torch.tensor([sample.ids[0] for sample in many]), minlength=len(policy.tokenizer))
    expected = torch.softmax(logits_alone(policy, prompts[0])[-1] / 1.3, -1)
    torch.testing.assert_close(counts / 20_000, expected, atol=0.015, rtol=0)  # four standard deviations of a half


def test_a_seed_repeats_itself_and_another_does_not(engine: Embedded, prompts: list[list[int]]) -> None:
    def ids(seed: int) -> list[tuple[int, ...]]:
        how = Sampling(max_new_tokens=8, temperature=1.5, seed=seed, samples_per_prompt=4)
        return [sample.ids for sample in engine.sample(prompts, how)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_load_changes_tokens_and_version_together(engine: Embedded, policy: Policy, prompts: list[list[int]]) -> None:
    before = engine.sample(prompts, Greedy(max_new_tokens=4))
    changed = frozen_copy(policy.model)
    with torch.no_grad():
        changed.get_output_embeddings().weight.neg_()
    engine.load(published(changed), 7)
    after = engine.sample(prompts, Greedy(max_new_tokens=4))
    assert engine.version == 7
    assert {version for sample in after for version in sample.version} == {7}
    assert [sample.ids for sample in before] != [sample.ids for sample in after]


def test_the_engine_keeps_its_own_parameters(engine: Embedded, policy: Policy, prompts: list[list[int]]) -> None:
    """A trainer that steps without publishing must not move the sampler."""
    changed = frozen_copy(policy.model)
    engine.load(published(changed), 1)
    before = engine.sample(prompts, Sampling(max_new_tokens=4, temperature=1.0, seed=0))
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
    after = engine.sample(prompts, Sampling(max_new_tokens=4, temperature=1.0, seed=0))
    assert [sample.ids for sample in before] == [sample.ids for sample in after]


def test_a_version_that_does_not_grow_is_refused(engine: Embedded, policy: Policy) -> None:
    with pytest.raises(StaleWeights, match="version 0 is not newer than 0"):
        engine.load(published(policy.model), 0)


def test_a_foreign_state_is_refused_and_nothing_is_copied(
    engine: Embedded, policy: Policy, prompts: list[list[int]]
) -> None:
    before = engine.sample(prompts, Greedy(max_new_tokens=4))
    state = {name: torch.zeros_like(tensor) for name, tensor in published(policy.model).items()}
    last = list(state)[-1]
    with pytest.raises(EngineError, match=r"has shape \(3,\) where the engine has"):
        engine.load({**state, last: torch.zeros(3)}, 1)
    with pytest.raises(EngineError, match=r"adds \['more'\]"):
        engine.load({**state, "more": torch.zeros(3)}, 1)
    assert engine.version == 0
    assert [s.ids for s in engine.sample(prompts, Greedy(max_new_tokens=4))] == [s.ids for s in before]


def test_senseless_requests_are_refused(engine: Embedded, policy: Policy, prompts: list[list[int]]) -> None:
    with pytest.raises(EngineError, match="temperature is 0"):
        _ = engine.sample(prompts, Sampling(max_new_tokens=4, temperature=0.0, seed=0))
    with pytest.raises(EngineError, match="max_new_tokens is 0"):
        _ = engine.sample(prompts, Greedy(max_new_tokens=0))
    with pytest.raises(EngineError, match="got 2 prompts, 1 of them empty"):
        _ = engine.sample([[3], []], Greedy(max_new_tokens=4))
    fresh = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_id=policy.eos_id)
    with pytest.raises(EngineError, match="nothing was loaded yet"):
        _ = fresh.sample(prompts, Greedy(max_new_tokens=4))
