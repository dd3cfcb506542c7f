"""Weights by hand. Sequences of 1, 3 and 2 tokens; the second lost its last token and the third lost both."""

import pytest
import torch
from tests.golden.exact import assert_near, flags, index, lengths, tokens

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, decide, prepare, recipe, weighting
from trimtab.signal.layout import Segments

ANY = tokens(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
KEEP = flags(1, 1, 1, 0, 0, 0)
LENGTHS = lengths(1, 3, 2)


def test_weighting_token_mean() -> None:
    # all: 1 / 6 a token; kept: 1 / 3. A token that is not kept weighs 0 either way.
    assert_near(weighting.token_mean(ANY, KEEP, over="all"), 1 / 6, 1 / 6, 1 / 6, 0, 0, 0)
    assert_near(weighting.token_mean(ANY, KEEP, over="kept"), 1 / 3, 1 / 3, 1 / 3, 0, 0, 0)


def test_weighting_sequence_mean_token_mean() -> None:
    # all: three sequences of 1, 3, 2 tokens: 1/3, 1/9; kept: two sequences of 1 and 2 kept tokens: 1/2, 1/4
    assert_near(weighting.sequence_mean_token_mean(ANY, KEEP, LENGTHS, over="all"), 1 / 3, 1 / 9, 1 / 9, 0, 0, 0)
    assert_near(weighting.sequence_mean_token_mean(ANY, KEEP, LENGTHS, over="kept"), 1 / 2, 1 / 4, 1 / 4, 0, 0, 0)


def test_weighting_sequence_mean_token_sum() -> None:
    # all: 1 / 3 sequences; kept: 1 / 2 sequences
    assert_near(weighting.sequence_mean_token_sum(ANY, KEEP, LENGTHS, over="all"), 1 / 3, 1 / 3, 1 / 3, 0, 0, 0)
    assert_near(weighting.sequence_mean_token_sum(ANY, KEEP, LENGTHS, over="kept"), 1 / 2, 1 / 2, 1 / 2, 0, 0, 0)


def test_weighting_constant_divisor() -> None:
    # all: 1 / (3 * 10); kept: 1 / (2 * 10): the divisor never changes with the lengths
    assert_near(weighting.constant_divisor(ANY, KEEP, LENGTHS, divisor=10.0, over="all"), *[1 / 30] * 3, 0, 0, 0)
    assert_near(weighting.constant_divisor(ANY, KEEP, LENGTHS, divisor=10.0, over="kept"), *[1 / 20] * 3, 0, 0, 0)


def test_weighting_token_sum() -> None:
    assert_near(weighting.token_sum(ANY, KEEP), 1, 1, 1, 0, 0, 0)


def test_weighting_prompt_mean() -> None:
    # prompts of 4 and 2 tokens, of which 3 and 0 are kept. all: 1 / (2 * 4); kept: one prompt, 1 / 3
    group = index(4, 4, 4, 4, 9, 9)
    assert_near(weighting.prompt_mean(ANY, KEEP, group, over="all"), 1 / 8, 1 / 8, 1 / 8, 0, 0, 0)
    assert_near(weighting.prompt_mean(ANY, KEEP, group, over="kept"), 1 / 3, 1 / 3, 1 / 3, 0, 0, 0)


def test_weighting_episode_mean() -> None:
    # the first and the last sequence are one episode: 3 and 3 tokens. all: 1 / (2 * 3); kept: 1 and 2 kept tokens
    episode = index(1, 0, 0, 0, 1, 1)
    assert_near(weighting.episode_mean(ANY, KEEP, episode, over="all"), 1 / 6, 1 / 6, 1 / 6, 0, 0, 0)
    assert_near(weighting.episode_mean(ANY, KEEP, episode, over="kept"), 1 / 2, 1 / 4, 1 / 4, 0, 0, 0)


def test_weighting_given_weight() -> None:
    # weights 1, 2, 0, 4, 1, 2 sum to 10, the kept ones to 3
    own = tokens(1.0, 2.0, 0.0, 4.0, 1.0, 2.0)
    assert_near(weighting.given_weight(ANY, KEEP, own), 0.1, 0.2, 0, 0, 0, 0)
    assert_near(weighting.given_weight(ANY, KEEP, own, by="weights", over="kept"), 1 / 3, 2 / 3, 0, 0, 0, 0)
    assert_near(weighting.given_weight(ANY, KEEP, own, by="tokens"), 1 / 6, 2 / 6, 0, 0, 0, 0)
    assert_near(weighting.given_weight(ANY, KEEP, own, by="tokens", over="kept"), 1 / 3, 2 / 3, 0, 0, 0, 0)
    assert_near(weighting.given_weight(ANY, KEEP, own / 100), 0.1, 0.2, 0, 0, 0, 0)
    assert_near(weighting.given_weight(ANY, KEEP, 0 * own), 0, 0, 0, 0, 0, 0)
    with pytest.raises(SignalError, match="weight is -1 at token 2, so that token would train the wrong way"):
        weighting.given_weight(ANY, KEEP, tokens(1.0, 1.0, -1.0, 1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # episodes 0 | 1, 1 | 2 of prompts 0, 0, 1: three episodes of 1, 5 and 2 tokens, two prompts of 6 and 2
        ("episode_mean", [1 / 3, *[1 / 15] * 5, *[1 / 6] * 2]),
        ("prompt_mean", [*[1 / 12] * 6, *[1 / 4] * 2]),
        ("given_weight", [t / 36 for t in range(1, 9)]),
    ],
)
def test_a_weighting_is_handed_episodes_prompts_and_the_callers_weights(name: str, expected: list[float]) -> None:
    chosen = recipe("reinforce", weighting=name, normalize="raw")
    batch = SignalBatch.from_tokens(
        [1, 3, 2, 2], reward=[1.0, 0.0, 1.0], group=[0, 0, 1], episode=[0, 1, 1, 2],
        extra={"weight": torch.arange(1.0, 9.0, dtype=torch.float64)},
        logp_old=-torch.ones(8, dtype=torch.float64),
    )  # fmt: skip
    update = next(prepare(batch, chosen)[0].updates(1))
    assert_near(decide(update).whole.fields["weight_policy"], *expected)
    # of the second prompt's own update, only that prompt counts
    *_, last = prepare(batch, chosen)[0].updates(2)
    assert_near(decide(last).whole.fields["weight_policy"].sum(0, keepdim=True), 1.0)


def test_the_mean_family_sums_to_one_over_its_population() -> None:
    everything = torch.ones_like(KEEP)
    assert_near(weighting.token_mean(ANY, everything).sum(0, keepdim=True), 1.0)
    assert_near(weighting.sequence_mean_token_mean(ANY, everything, LENGTHS).sum(0, keepdim=True), 1.0)
    assert_near(weighting.token_mean(ANY, KEEP, over="kept").sum(0, keepdim=True), 1.0)
    assert_near(weighting.sequence_mean_token_mean(ANY, KEEP, LENGTHS, over="kept").sum(0, keepdim=True), 1.0)


def test_an_empty_sequence_is_no_sequence() -> None:
    # it has no token, so it neither weighs nor counts: 2 sequences, not 3
    segments = Segments.from_counts(index(1, 0, 2), 3)
    assert_near(weighting.sequence_mean_token_mean(ANY[:3], flags(1, 1, 1), segments), 1 / 2, 1 / 4, 1 / 4)


def test_nothing_kept_weighs_nothing() -> None:
    nothing = torch.zeros_like(KEEP)
    assert_near(weighting.token_mean(ANY, nothing, over="kept"), 0, 0, 0, 0, 0, 0)
    assert_near(weighting.sequence_mean_token_mean(ANY, nothing, LENGTHS, over="kept"), 0, 0, 0, 0, 0, 0)
