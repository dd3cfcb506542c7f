import pytest
import torch
from torch import Tensor

from trimtab.errors import ConfigError, EngineError, StaleWeights
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.tokenizer import encode
from trimtab.rollout.weights import digest
from trimtab.train.policy import Policy, frozen_copy, published

TEXTS = ["58213=", "7=", "0123456789=", "42="]


@pytest.fixture
def prompts(policy: Policy) -> list[tuple[int, ...]]:
    return [tuple(encode(policy.tokenizer, text)) for text in TEXTS]


def requests(prompts: list[tuple[int, ...]], copies: int = 1, seed: int = 0) -> list[Request]:
    """`copies` answers to each prompt, side by side, every one with a seed of its own."""
    rows = [ids for ids in prompts for _ in range(copies)]
    return [Request(ids, 1_000_000 * seed + row) for row, ids in enumerate(rows)]


def logits_alone(policy: Policy, ids: list[int]) -> Tensor:
    """The plain truth: one sequence, no padding, no cache, the whole forward pass."""
    with torch.no_grad():
        return policy.model(input_ids=torch.tensor([ids])).logits[0].float()


def logp_alone(policy: Policy, prompt: tuple[int, ...], sample: Sample, temperature: float) -> Tensor:
    logits = logits_alone(policy, [*prompt, *sample.ids])
    start = len(prompt) - 1
    table = torch.log_softmax(logits[start : start + len(sample.ids)] / temperature, -1)
    return table.gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]


def fresh(policy: Policy, **settings: object) -> Embedded:
    built = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids, **settings)  # type: ignore[arg-type]
    state = published(policy.model)
    built.load(state, 0, digest(state))
    return built


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("max_rows", [0, 1, 5])
def test_logp_is_that_of_a_full_forward_pass(
    policy: Policy, prompts: list[tuple[int, ...]], temperature: float, max_rows: int
) -> None:
    asked = requests(prompts, copies=3)
    samples = fresh(policy, max_rows=max_rows).sample(asked, Sampling(max_new_tokens=9, temperature=temperature))
    assert len(samples) == 12
    for request, sample in zip(asked, samples, strict=True):
        assert sample.logp.dtype == torch.float32
        expected = logp_alone(policy, request.ids, sample, temperature)
        torch.testing.assert_close(sample.logp, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("max_rows", [pytest.param(1, marks=pytest.mark.slow), 3, 7, 100])
def test_an_answer_does_not_depend_on_its_neighbours(
    policy: Policy, engine: Embedded, prompts: list[tuple[int, ...]], max_rows: int
) -> None:
    """Other slots, another order, other rows beside it: the same tokens."""
    asked = requests(prompts, copies=6)
    how = Sampling(max_new_tokens=12, temperature=1.3)
    together = [sample.ids for sample in engine.sample(asked, how)]
    assert len({len(ids) for ids in together}) > 3  # rows leave at different times
    slots = fresh(policy, max_rows=max_rows)
    assert [sample.ids for sample in slots.sample(asked, how)] == together
    assert [sample.ids for sample in slots.sample(asked[::-1], how)] == together[::-1]
    assert [engine.sample([request], how)[0].ids for request in asked[::5]] == together[::5]


def test_the_same_call_gives_the_same_bits(engine: Embedded, prompts: list[tuple[int, ...]]) -> None:
    asked, how = requests(prompts, copies=6), Sampling(max_new_tokens=12, temperature=1.3)
    for first, second in zip(engine.sample(asked, how), engine.sample(asked, how), strict=True):
        assert first.ids == second.ids
        assert torch.equal(first.logp, second.logp)


def test_greedy_takes_the_likeliest_token_alone_or_in_company(
    engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]
) -> None:
    together = engine.sample(requests(prompts), Greedy(max_new_tokens=5))
    for prompt, sample in zip(prompts, together, strict=True):
        assert sample.ids == engine.sample([Request(prompt, 9)], Greedy(max_new_tokens=5))[0].ids
        row = list(prompt)
        for token in sample.ids:
            assert token == int(logits_alone(policy, row)[-1].argmax())
            row.append(token)
        assert torch.equal(sample.logp, torch.zeros(len(sample.ids)))


def test_an_answer_ends_with_its_first_end_token(
    engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]
) -> None:
    samples = engine.sample(requests(prompts, copies=16, seed=3), Sampling(max_new_tokens=12, temperature=1.5))
    assert {sample.finish for sample in samples} == {"eos", "length"}
    for sample in samples:
        assert len(sample.ids) == len(sample.logp) == len(sample.version)
        if sample.finish == "eos":
            assert sample.ids.index(policy.eos_id) == len(sample.ids) - 1
        else:
            assert policy.eos_id not in sample.ids
            assert len(sample.ids) == 12


def test_frequencies_are_those_of_the_distribution(
    engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]
) -> None:
    many = engine.sample(requests(prompts[:1], copies=20_000), Sampling(max_new_tokens=1, temperature=1.3))
    counts = torch.bincount(torch.tensor([sample.ids[0] for sample in many]), minlength=len(policy.tokenizer))
    expected = torch.softmax(logits_alone(policy, list(prompts[0]))[-1] / 1.3, -1)
    torch.testing.assert_close(counts / 20_000, expected, atol=0.015, rtol=0)  # four standard deviations of a half


def test_a_seed_repeats_itself_and_another_does_not(engine: Embedded, prompts: list[tuple[int, ...]]) -> None:
    def ids(seed: int) -> list[tuple[int, ...]]:
        how = Sampling(max_new_tokens=8, temperature=1.5)
        return [sample.ids for sample in engine.sample(requests(prompts, copies=4, seed=seed), how)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_cut_sampling_says_which_tokens_were_left_and_renormalises(
    engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]
) -> None:
    asked = requests(prompts, copies=3)
    how = Sampling(max_new_tokens=6, temperature=1.4, top_p=0.8, top_k=6, record_support=True)
    for request, sample in zip(asked, engine.sample(asked, how), strict=True):
        assert sample.support is not None
        assert len(sample.support) == len(sample.ids)
        logits = logits_alone(policy, [*request.ids, *sample.ids])[len(request.ids) - 1 : -1] / 1.4
        for place, (token, left) in enumerate(zip(sample.ids, sample.support, strict=True)):
            assert token in left
            assert 1 <= len(left) <= 6
            expected = torch.log_softmax(logits[place, list(left)], -1)[left.index(token)]
            torch.testing.assert_close(sample.logp[place], expected, atol=1e-5, rtol=0)
            # The fewest of the six likeliest that hold 0.8 of their probability.
            ranked = logits[place].topk(6)
            share = torch.softmax(ranked.values.double(), -1).cumsum(-1)
            assert set(left) == set(ranked.indices[: int((share < 0.8).sum()) + 1].tolist())
    plain = engine.sample(asked, Sampling(max_new_tokens=6, temperature=1.4, record_support=True))
    assert all(sample.support is None for sample in plain)


def test_load_changes_tokens_and_version_together(
    engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]
) -> None:
    before = engine.sample(requests(prompts), Greedy(max_new_tokens=4))
    changed = frozen_copy(policy.model)
    with torch.no_grad():
        changed.get_output_embeddings().weight.neg_()
    state = published(changed)
    engine.load(state, 7, digest(state))
    after = engine.sample(requests(prompts), Greedy(max_new_tokens=4))
    assert engine.version == 7
    assert {version for sample in after for version in sample.version} == {7}
    assert [sample.ids for sample in before] != [sample.ids for sample in after]


def test_the_engine_keeps_its_own_parameters(engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]) -> None:
    """A trainer that steps without publishing must not move the sampler."""
    changed = frozen_copy(policy.model)
    state = published(changed)
    engine.load(state, 1, digest(state))
    how = Sampling(max_new_tokens=4, temperature=1.0)
    before = engine.sample(requests(prompts), how)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
    after = engine.sample(requests(prompts), how)
    assert [sample.ids for sample in before] == [sample.ids for sample in after]


def test_a_version_that_does_not_grow_is_refused(engine: Embedded, policy: Policy) -> None:
    state = published(policy.model)
    with pytest.raises(StaleWeights, match="version 0 is not newer than 0"):
        engine.load(state, 0, digest(state))


def held(engine: Embedded) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine._model.state_dict().items()}  # pyright: ignore[reportPrivateUsage]


def test_one_wrong_value_is_refused_and_every_old_one_stays(engine: Embedded, policy: Policy) -> None:
    state = {name: tensor.clone() + 1 for name, tensor in published(policy.model).items()}
    named = digest(state)
    before = held(engine)
    last = list(state)[-1]
    state[last].view(-1)[0] = torch.nextafter(state[last].view(-1)[0], torch.tensor(torch.inf))
    with pytest.raises(StaleWeights, match="so they changed on the way; version 0 stays in use"):
        engine.load(state, 1, named)
    assert engine.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in held(engine).items())


def test_a_foreign_state_is_refused_and_nothing_is_copied(engine: Embedded, policy: Policy) -> None:
    before = held(engine)
    state = {name: torch.zeros_like(tensor) for name, tensor in published(policy.model).items()}
    last = list(state)[-1]
    for wrong, message in (
        ({**state, last: torch.zeros(3)}, r"has shape \(3,\) where the engine has"),
        ({**state, "more": torch.zeros(3)}, r"adds \['more'\]"),
        ({name: tensor for name, tensor in state.items() if name != last}, f"lacks \\['{last}'\\]"),
    ):
        with pytest.raises(EngineError, match=message):
            engine.load(wrong, 1, digest(wrong))
    assert engine.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in held(engine).items())


def test_senseless_requests_are_refused(engine: Embedded, policy: Policy, prompts: list[tuple[int, ...]]) -> None:
    for how, message in (
        (Sampling(max_new_tokens=4, temperature=0.0), "temperature is 0"),
        (Sampling(max_new_tokens=4, temperature=float("nan")), "temperature is nan"),
        (Sampling(max_new_tokens=4, temperature=1.0, top_p=0.0), "top_p is 0.0"),
        (Sampling(max_new_tokens=4, temperature=1.0, top_k=-1), "top_k is -1"),
        (Greedy(max_new_tokens=0), "max_new_tokens is 0"),
        (Greedy(max_new_tokens=10**6), "need more than the 32768 positions"),
    ):
        with pytest.raises(EngineError, match=message):
            _ = engine.sample(requests(prompts), how)
    with pytest.raises(EngineError, match=r"requests \[1\] of 2 have no prompt"):
        _ = engine.sample([Request((3,), 0), Request((), 1)], Greedy(max_new_tokens=4))
    with pytest.raises(EngineError, match="request 1 holds id 99 and the model knows 14 ids"):
        _ = engine.sample([Request((3,), 0), Request((99,), 1)], Greedy(max_new_tokens=4))
    empty = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids)
    with pytest.raises(EngineError, match="nothing was loaded yet"):
        _ = empty.sample(requests(prompts), Greedy(max_new_tokens=4))
    with pytest.raises(ConfigError, match="no entry is called 'int9'"):
        _ = Embedded(frozen_copy(policy.model), pad_id=0, eos_ids=(1,), format="int9")
    assert engine.sample([], Greedy(max_new_tokens=4)) == []


def test_parameters_that_are_no_numbers_are_not_sampled(policy: Policy, prompts: list[tuple[int, ...]]) -> None:
    engine = fresh(policy)
    state = {name: tensor.clone() for name, tensor in published(policy.model).items()}
    state["model.norm.weight"][0] = torch.nan
    engine.load(state, 1, digest(state))
    with pytest.raises(EngineError, match="have a log-prob that is not finite, so version 1"):
        _ = engine.sample(requests(prompts), Sampling(max_new_tokens=3, temperature=1.0))
