"""Terms with a population of their own, by hand: right answers alone, and what the environment wrote."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import Recipe, SignalBatch, Term, decide, part, prepare, recipe, step, token_loss
from trimtab.signal.fast.choice import Path, use_path
from trimtab.signal.objective import TokenLoss
from trimtab.signal.tensors import as_on_a_device
from trimtab.signal.update import MicroBatch

LOGP = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], dtype=torch.float64)
OBSERVED = torch.tensor([-0.5, -0.25, -0.125], dtype=torch.float64)


def batch() -> SignalBatch:
    """Three answers of 1, 2 and 3 tokens with rewards 1, 0 and 2; the environment wrote 2 tokens in the first, 1 in the
    third."""
    return SignalBatch.from_tokens(
        [1, 2, 3], reward=[1.0, 0.0, 2.0], group=[0, 0, 0], observed=[2, 0, 1], logp_old=LOGP, scored=[True] * 3
    )


def made(weighting: str = "token_mean", **terms: Term) -> Recipe:
    return recipe("reinforce", weighting=weighting, normalize="mean_std", **terms)


def run(
    chosen: Recipe, num: int = 1, ranks: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, float]]:
    """Loss, both gradients and metrics of one step, in `num` micro-batches on each of `ranks`."""
    now, seen = LOGP.clone().requires_grad_(), OBSERVED.clone().requires_grad_()
    decided = decide(next(prepare(batch(), chosen)[0].updates(1)))
    rows, told = torch.split(now, [1, 2, 3]), torch.split(seen, [2, 0, 1])
    results: list[TokenLoss] = []
    for rank in range(ranks):
        for micro in (decided.shard(rank, ranks) if ranks > 1 else decided).split(num=num):
            mine = cast("list[int]", micro.sequences.tolist())
            given: dict[str, Any] = (
                {"logp_observed": torch.cat([*(told[i] for i in mine), seen[:0]])} if chosen.observed else {}
            )
            result = token_loss(micro, torch.cat([*(rows[i] for i in mine), now[:0]]), **given)
            (result.loss / ranks).backward()
            results.append(result)
    joined = step(results)
    assert now.grad is not None
    return joined.loss, now.grad, seen.grad if seen.grad is not None else torch.zeros(3), joined.metrics.numbers()


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_nll_of_right_answers_is_divided_by_their_own_tokens(path: Path) -> None:
    with use_path(path):
        _, with_nll, _, numbers = run(made(nll=Term(0.1, on="rewarded")))
        _, without, _, _ = run(made())
    # tokens 0 and 3 to 5 are of answers with a reward: -1/4 each, times 0.1
    right = torch.tensor([1, 0, 0, 1, 1, 1], dtype=torch.float64)
    torch.testing.assert_close(with_nll - without, -0.025 * right, rtol=0, atol=1e-15)
    assert numbers["loss/nll"] == pytest.approx(0.1 * (1 + 4 + 5 + 6) / 4)
    assert numbers["weight/nll"] == pytest.approx(1)


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_nll_of_right_answers_by_sequence(path: Path) -> None:
    with use_path(path):
        _, with_nll, _, _ = run(made("sequence_mean_token_mean", nll=Term(1.0, on="rewarded")))
        _, without, _, _ = run(made("sequence_mean_token_mean"))
    # two answers, half the weight each: 1/2 for the token of the first, 1/6 for each of the third
    due = -torch.tensor([3.0, 0, 0, 1, 1, 1], dtype=torch.float64) / 6
    torch.testing.assert_close(with_nll - without, due, rtol=0, atol=1e-15)


def test_what_the_environment_wrote_has_its_own_denominator_and_moves_nothing_else() -> None:
    loss, gradient, observed, numbers = run(made(observed=Term(0.5)))
    plain, without, _, _ = run(made())
    torch.testing.assert_close(observed, torch.full((3,), -0.5 / 3, dtype=torch.float64))
    assert torch.equal(gradient, without)
    assert float(loss - plain) == pytest.approx(0.5 * (0.5 + 0.25 + 0.125) / 3)
    assert numbers["loss/observed"] == pytest.approx(0.5 * 0.875 / 3)
    assert numbers["weight/observed"] == pytest.approx(1)


@pytest.mark.parametrize(("num", "ranks"), [(3, 1), (2, 1), (1, 2), (1, 3)])
def test_both_terms_are_the_same_however_the_step_is_cut(num: int, ranks: int) -> None:
    chosen = made(observed=Term(0.5), nll=Term(0.1, on="rewarded"))
    loss, gradient, observed, _ = run(chosen)
    parted, own, seen, _ = run(chosen, num, ranks)
    assert torch.equal(gradient, own) or ranks > 1
    torch.testing.assert_close(own, gradient, rtol=1e-15, atol=0)
    torch.testing.assert_close(seen, observed, rtol=1e-15, atol=0)
    torch.testing.assert_close(parted / ranks, loss, rtol=1e-14, atol=0)


def test_weights_of_both_terms_have_to_be_spent() -> None:
    chosen = made(observed=Term(0.5), nll=Term(0.1, on="rewarded"))
    decided = decide(next(prepare(batch(), chosen)[0].updates(1)))
    (micro,) = decided.split(num=1)
    token_loss(micro, LOGP.clone().requires_grad_(), logp_observed=OBSERVED).loss.backward()
    decided.check_spent()
    halved = decide(next(prepare(batch(), chosen)[0].updates(1)))
    (micro,) = halved.split(num=1)
    (token_loss(micro, LOGP.clone().requires_grad_(), logp_observed=OBSERVED).loss / 2).backward()
    with pytest.raises(SignalError, match=r"add up to 3 but 1\.5 flowed back"):
        halved.check_spent()


def test_no_right_answer_and_no_word_of_the_environment_weigh_nothing() -> None:
    empty = SignalBatch.from_tokens([1, 2], reward=[0.0, -1.0], group=[0, 0], observed=[0, 0], logp_old=LOGP[:3])
    chosen = made(observed=Term(0.5), nll=Term(0.1, on="rewarded"))
    (micro,) = decide(next(prepare(empty, chosen)[0].updates(1))).split(num=1)
    result = token_loss(micro, LOGP[:3].clone().requires_grad_(), logp_observed=OBSERVED[:0])
    numbers = result.metrics.numbers()
    assert (numbers["loss/nll"], numbers["loss/observed"]) == (0, 0)
    assert (numbers["weight/nll"], numbers["weight/observed"]) == (0, 0)


def test_a_single_token_of_the_environment_weighs_all() -> None:
    one = SignalBatch.from_tokens([1, 2], reward=[1.0, 0.0], group=[0, 0], observed=[0, 1], logp_old=LOGP[:3])
    (micro,) = decide(next(prepare(one, made(observed=Term(0.5)))[0].updates(1))).split(num=1)
    numbers = token_loss(micro, LOGP[:3].clone().requires_grad_(), logp_observed=OBSERVED[:1]).metrics.numbers()
    assert numbers["loss/observed"] == pytest.approx(0.5 * 0.5)
    assert numbers["weight/observed"] == 1


def test_an_answer_that_was_not_scored_is_not_right() -> None:
    one = SignalBatch.from_tokens([1, 1, 1], reward=[5.0, 1.0, 0.0], scored=[False, True, True], group=[0, 0, 0])
    prepared, _ = prepare(one, made(nll=Term(1.0, on="rewarded")))
    (micro,) = decide(next(prepared.updates(1))).split(num=1)
    assert micro.part.fields["weight_nll"].tolist() == [1.0, 0.0]  # of the two that train


def test_padded_rows_say_where_the_environment_wrote() -> None:
    mask = torch.tensor([[True, False, True], [True, True, False]])
    seen = torch.tensor([[False, True, False], [False, False, True]])
    logp = -torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64).requires_grad_()
    given: dict[str, Any] = {"mask": mask, "reward": [1.0, 0.0], "group": [0, 0]}
    loss, numbers = trimtab.loss(logp, recipe=made(observed=Term(1.0)), observed=seen, **given)
    plain, _ = trimtab.loss(logp, recipe=made(), **given)
    assert float((loss - plain).detach()) == pytest.approx((2 + 6) / 2)
    assert numbers["loss/observed"] == pytest.approx(4)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "entropy on right answers": (lambda: made(entropy=Term(0.1, on="rewarded")), "entropy.on = 'rewarded'"),
    "a choice of the environment's tokens": (lambda: made(observed=Term(0.1, on="kept")), "observed.on = 'kept'"),
    "a formula for them": (lambda: made(observed=Term(0.1, part=part("kl.k3"))), "takes no formula"),
    "a batch that does not know them": (
        lambda: prepare(SignalBatch.from_tokens([1], reward=[1.0], group=[0]), made(observed=Term(0.1))),
        "needs observed, which the batch does not carry",
    ),
    "a negative count": (
        lambda: SignalBatch.from_tokens([1, 1], reward=[1.0, 0.0], group=[0, 0], observed=[0, -2]),
        "observed is -2 at 1",
    ),
    "a count too few": (
        lambda: SignalBatch.from_tokens([1, 1], reward=[1.0, 0.0], group=[0, 0], observed=[1]),
        r"observed has shape \[1\] for 2 sequences",
    ),
    "no log-probs of them": (
        lambda: token_loss(_micro(made(observed=Term(0.1))), LOGP), "has a term on the environment's tokens"
    ),
    "log-probs that nobody reads": (
        lambda: token_loss(_micro(made()), LOGP, logp_observed=OBSERVED), "was given, and nothing reads it"
    ),
    "log-probs of other tokens": (
        lambda: token_loss(_micro(made(observed=Term(0.1))), LOGP, logp_observed=OBSERVED[:2]),
        r"shape \[2\] for 3 tokens of the environment",
    ),
    "a token of both": (
        lambda: trimtab.loss(
            torch.zeros(1, 2), recipe=made(observed=Term(0.1)), mask=[[1, 1]], observed=[[0, 1]], reward=[1.0],
            group=[0],
        ),
        r"rows \[0\] have tokens in both",
    ),
    "right answers without rewards": (
        lambda: trimtab.loss(
            torch.zeros(1, 2), recipe=made(nll=Term(0.1, on="rewarded")), mask=[[1, 1]], advantage=[1.0]
        ),
        "would act nowhere",
    ),
    "a part of a step": (
        lambda: decide(
            next(prepare(batch(), made(observed=Term(0.1)))[0].updates(1)),
            counts=trimtab.Counts(tokens=60, sequences=9),
        ),
        "divides observed by its own tokens",
    ),
    "right answers of a part of a step": (
        lambda: decide(
            next(prepare(batch(), made(nll=Term(0.1, on="rewarded")))[0].updates(1)),
            counts=trimtab.Counts(tokens=60, sequences=9),
        ),
        "divides nll by its own tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused(case: tuple[Callable[[], object], str]) -> None:
    make, says = case
    with pytest.raises(SignalError, match=says):
        _ = make()


def _micro(chosen: Recipe) -> MicroBatch:
    (micro,) = decide(next(prepare(batch(), chosen)[0].updates(1))).split(num=1)
    return micro


def test_counts_of_a_step_that_is_here_whole_refuse_no_term_and_change_no_weight() -> None:
    update = next(prepare(batch(), made(nll=Term(0.1, on="rewarded"), observed=Term(0.5)))[0].updates(1))
    plain, counted = decide(update), decide(update, counts=trimtab.Counts(tokens=6, sequences=3))
    for name in ("weight_policy", "weight_nll"):
        torch.testing.assert_close(counted.whole.fields[name], plain.whole.fields[name], rtol=0, atol=0)


def test_a_term_on_the_environments_tokens_is_the_same_on_a_device() -> None:
    chosen = made(observed=Term(0.5))
    loss, _, observed, _ = run(chosen, 2)
    with as_on_a_device():
        there, _, seen, _ = run(chosen, 2)
        with pytest.raises(SignalError, match=r"logp_observed has shape \[2, 1\] for 2 tokens"):
            _ = token_loss(_micro(chosen), LOGP, logp_observed=OBSERVED[:2, None])
    torch.testing.assert_close(there, loss, rtol=1e-15, atol=0)
    assert torch.equal(seen, observed)
