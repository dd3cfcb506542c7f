"""`trimtab.loss` for people with an optimiser loop of their own: one call, several calls, advantages of their own."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import trimtab
from trimtab import Counts
from trimtab.errors import SignalError
from trimtab.signal import Part, Stage, recipe
from trimtab.signal import part as part_of
from trimtab.signal.counts import share_of
from trimtab.signal.layout import Segments

F64 = torch.float64
ROWS = 12


def rows(**changes: Any) -> dict[str, Any]:
    """Three prompts, four answers each, of very different lengths, so that a wrong denominator shows."""
    generator = torch.Generator().manual_seed(1)
    old = -0.1 - torch.rand(ROWS, 9, generator=generator, dtype=F64)
    lengths = torch.tensor([1, 9, 2, 8, 3, 3, 9, 1, 9, 9, 1, 1])
    return {
        "mask": torch.arange(9) < lengths[:, None],
        "logp_old": old,
        "logp_rollout": (old + 0.05 * torch.randn(ROWS, 9, generator=generator, dtype=F64)).clamp(max=0),
        "reward": torch.rand(ROWS, generator=generator, dtype=F64),
        "group": torch.arange(ROWS) // 4,
        **changes,
    }


def cut(given: dict[str, Any], chosen: Tensor) -> dict[str, Any]:
    return {name: value[chosen] for name, value in given.items()}


def gradient(given: dict[str, Any], chosen: Any, parts: list[Tensor], **options: Any) -> Tensor:
    logp = (given["logp_old"] - 0.03).clone().requires_grad_()
    for part in parts:
        loss, _ = trimtab.loss(logp[part], recipe=chosen, **cut(given, part), **options)
        loss.backward()
    assert logp.grad is not None
    return logp.grad


def gradient_at(given: dict[str, Any], chosen: Any) -> Tensor:
    """The gradient at the old policy itself, in one call."""
    leaf = given["logp_old"].clone().requires_grad_()
    trimtab.loss(leaf, recipe=chosen, **given)[0].backward()
    assert leaf.grad is not None
    return leaf.grad


WHOLE = [torch.arange(ROWS)]
BY_PROMPT = list(torch.arange(ROWS).split(4))
UNEVEN = [torch.arange(4), torch.arange(4, ROWS)]
RECIPES = ["grpo", "dapo", "tis", "dr_grpo", "gspo", "sapo", "start_on_policy"]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("parts", [BY_PROMPT, UNEVEN], ids=["by_prompt", "uneven"])
def test_micro_batches_with_the_counts_of_the_step_give_the_gradient_of_one_call(
    name: str, parts: list[Tensor]
) -> None:
    given = rows(logp_ref=rows()["logp_old"] - 0.2)
    counts = sum((trimtab.count(recipe=name, **cut(given, part)) for part in parts), Counts())
    assert (counts.tokens, counts.sequences) == (56, ROWS)
    got = gradient(given, name, parts, counts=counts)
    torch.testing.assert_close(got, gradient(given, name, WHOLE), rtol=1e-12, atol=1e-15)


def test_a_call_whose_counts_are_its_own_is_the_whole_step() -> None:
    """So it may also decide across the step, which a part of one may not."""
    given = rows()
    chosen = recipe("tis", loss=Stage(part_of("policy_loss.covariance_clipped"), anchor="old"))
    assert chosen.needs_logp_now
    counts = trimtab.count(recipe=chosen, **cut(given, WHOLE[0]))
    assert torch.equal(gradient(given, chosen, WHOLE, counts=counts), gradient(given, chosen, WHOLE))


@pytest.mark.parametrize(("own", "whole", "share"), [(1, 1, 1.0), (1, 2, 0.5), (0, 0, 0.0), (0, 3, 0.0), (3, 4, 0.75)])
@pytest.mark.parametrize("weighting", ["token_mean", "sequence_mean_token_mean"])
def test_the_share_of_a_call_is_its_part_of_the_step(own: int, whole: int, share: float, weighting: str) -> None:
    segments = Segments.from_counts(torch.ones(own, dtype=torch.long), own)
    assert share_of(part_of(f"weighting.{weighting}"), segments, Counts(whole, whole)) == share


def test_a_sequence_without_tokens_has_no_share_in_the_step() -> None:
    segments = Segments.from_counts(torch.tensor([2, 0, 1]), 3)
    assert share_of(part_of("weighting.sequence_mean_token_sum"), segments, Counts(6, 4)) == 0.5


def test_a_weighting_that_does_not_say_what_it_divides_by_is_not_shared() -> None:
    silent = Part(replace(part_of("weighting.token_mean").formula, divides_by="unknown"))
    with pytest.raises(SignalError, match=r"weighting\.token_mean: does not say what it divides by"):
        share_of(silent, Segments.from_counts(torch.ones(2, dtype=torch.long), 2), Counts(4, 4))


def test_without_counts_each_call_is_a_step_of_its_own_and_dividing_is_wrong() -> None:
    """What people write who average micro-batch losses: far from the gradient of the step, and warned about."""
    given = rows()
    logp = (given["logp_old"] - 0.03).clone().requires_grad_()
    for part in UNEVEN:
        loss, _ = trimtab.loss(logp[part], recipe="tis", **cut(given, part))
        with pytest.warns(UserWarning, match=r"a gradient of 0.5 arrived where 1 was due"):
            (loss / 2).backward()
    right = gradient(given, "tis", WHOLE)
    assert (logp.grad - right).abs().max() > 0.2 * right.abs().max()


@pytest.mark.parametrize("scale", [1.0, 0.25, 65536.0])
def test_a_declared_scale_is_not_warned_about(scale: float) -> None:
    given = rows()
    logp = given["logp_old"].clone().requires_grad_()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loss, _ = trimtab.loss(logp, recipe=recipe("tis"), grad_scale=scale, **given)
        (loss * scale).backward()
    assert [str(one.message) for one in said if "arrived where" in str(one.message)] == []
    torch.testing.assert_close(logp.grad / scale, gradient_at(given, "tis"), rtol=1e-12, atol=1e-15)


def test_ranks_multiply_the_loss_because_gradients_are_averaged() -> None:
    given = rows()
    counts = sum((trimtab.count(recipe="tis", **cut(given, part)) for part in UNEVEN), Counts())
    per_rank = [gradient(given, "tis", [part], counts=counts, ranks=2) for part in UNEVEN]
    torch.testing.assert_close(sum(per_rank) / 2, gradient(given, "tis", WHOLE), rtol=1e-12, atol=1e-15)


def test_counts_leave_out_what_does_not_train() -> None:
    given = rows(ended=torch.arange(ROWS) % 4 != 3)
    chosen = recipe("tis", not_ended="suppress")
    counts = trimtab.count(recipe=chosen, **given)
    assert (counts.tokens, counts.sequences) == (56 - 8 - 1 - 1, 9)
    parts = [trimtab.count(recipe=chosen, **cut(given, part)) for part in BY_PROMPT]
    assert sum(parts, Counts()) == counts


@pytest.mark.parametrize("shape", ["per_row", "per_token", "list"])
def test_an_advantage_of_the_callers_own_takes_the_place_of_the_recipes(shape: str) -> None:
    given = rows()
    reward, group = given.pop("reward"), given.pop("group")
    means = torch.stack([reward[group == g].mean() for g in range(3)])[group]
    spreads = torch.stack([reward[group == g].std() for g in range(3)])[group]
    advantage = (reward - means) / (spreads + 1e-6)
    taken = {
        "per_row": advantage,
        "per_token": advantage[:, None].expand(ROWS, 9),
        "list": advantage.tolist(),
    }[shape]
    own = (given["logp_old"] - 0.03).clone().requires_grad_()
    loss, metrics = trimtab.loss(own, recipe="tis", advantage=taken, **given)
    loss.backward()
    torch.testing.assert_close(own.grad, gradient(rows(), "tis", WHOLE), rtol=1e-12, atol=1e-15)
    assert not [name for name in metrics if name.startswith(("reward/", "votes/", "constant_groups/"))]


def test_an_own_advantage_splits_groups_where_the_recipe_cannot() -> None:
    given, halves = rows(), [torch.arange(0, ROWS, 2), torch.arange(1, ROWS, 2)]
    counts = sum((trimtab.count(recipe="tis", **cut(given, part)) for part in halves), Counts())
    with pytest.raises(SignalError, match="group 0 has 4 answers in the whole step and 2 in this call"):
        gradient(given, "tis", halves, counts=counts)
    given["advantage"] = torch.linspace(-1, 1, ROWS, dtype=F64)
    got = gradient(given, "tis", halves, counts=counts)
    torch.testing.assert_close(got, gradient(given, "tis", WHOLE), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_lists_are_read_in_the_precision_of_the_log_probs(dtype: torch.dtype) -> None:
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in rows().items()}
    leaves = [(given["logp_old"] - 0.03).clone().requires_grad_() for _ in range(2)]
    for leaf, fields in zip(leaves, (given, {name: value.tolist() for name, value in given.items()}), strict=True):
        trimtab.loss(leaf, recipe="tis", **fields)[0].backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "counts of another step": ({"counts": Counts(tokens=3, sequences=1)}, "this call alone has 56"),
    "counts that are a number": ({"counts": 128}, "counts is int. Add up trimtab.count"),
    "whitening a part": (
        {"recipe": recipe("tis", whiten=True), "counts": Counts(1000, 100)},
        "compares across the whole batch, and this call holds a part of it",
    ),
    "a batch baseline of a part": (
        {"recipe": "decoupled_ppo", "counts": Counts(1000, 100)},
        "compares across the whole batch",
    ),
    "kept tokens of a part": (
        {"recipe": recipe("tis", weighting={"over": "kept"}), "counts": Counts(1000, 100)},
        "over = 'kept' divides by what is kept in the whole step",
    ),
    "a selection over a part": (
        {"recipe": recipe("tis", loss={"formula": "covariance_clipped"}), "counts": Counts(1000, 100)},
        "decides across the whole step, and this call holds a part of it",
    ),
    "tokens of the environment in rows of another width": (
        {"recipe": recipe("tis", observed=0.1), "observed": torch.zeros(1, 9)},
        r"observed has shape \[1, 9\] and mask \[12, 9\], so tokens do not match",
    ),
    "an entropy in half precision": (
        {"entropy": torch.zeros(ROWS, 9, dtype=torch.float16)},
        "^loss: entropy is float16, so differences of log-probs round away",
    ),
    "a value of integers": ({"value": torch.zeros(ROWS, 9, dtype=torch.long)}, r"^loss: value holds torch\.int64"),
    "no ranks": ({"ranks": 0}, "ranks = 0 is not possible"),
    "no scale": ({"grad_scale": 0.0}, "grad_scale = 0.0 is not possible"),
    "advantages of other rows": ({"advantage": [1.0, 2.0]}, "advantage has 2 entries for 12 rows"),
    "an undefined advantage": ({"advantage": [float("nan")] * ROWS}, "advantage is nan at 56 trainable tokens"),
    "no reward": ({"reward": None}, "reward is missing, which recipe 'tis' needs to compare answers"),
    "a filter without rewards": (
        {"recipe": "dapo", "reward": None, "group": None, "advantage": [1.0] * ROWS},
        "needs to drop groups whose answers all got the same reward",
    ),
    "a value target without returns": (
        {"recipe": "ppo", "advantage": [1.0] * ROWS},
        "trains a value, and its target comes with the advantage that you give",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_one_call_cannot_know_is_refused(changes: dict[str, Any], message: str) -> None:
    given = {"recipe": "tis", **rows(), **changes}
    with pytest.raises(SignalError, match=message):
        trimtab.loss(given["logp_old"].clone().requires_grad_(), **given)


def test_metrics_of_rewards_are_told_where_there_are_rewards() -> None:
    given = rows()
    logp = given["logp_old"].clone().requires_grad_()
    _, numbers = trimtab.loss(logp, recipe="tis", **given)
    assert numbers["reward/episode_mean"] == pytest.approx(given["reward"].mean().item())
    assert "advantage/token_mean" in numbers
    without = {name: value for name, value in given.items() if name not in ("reward", "group")}
    _, numbers = trimtab.loss(logp, recipe="tis", advantage=given["reward"], **without)
    assert "reward/episode_mean" not in numbers
    assert "advantage/token_mean" in numbers


def test_a_term_that_is_infinite_is_refused_by_name() -> None:
    logp = torch.full((2, 1), -1.0, requires_grad=True)
    with pytest.raises(SignalError, match="loss: loss/entropy is -inf, so the gradient would be undefined"):
        trimtab.loss(
            logp, recipe=recipe("start_on_policy", entropy=1e300), mask=[[1], [1]], reward=[1.0, 0.0], group=[0, 0],
            entropy=torch.ones(2, 1),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arrives", "said"), [(1e6 + 1, False), (1e6 - 1, False), (1e6 + 1.5, True), (1e6 - 1.5, True)]
)
def test_a_gradient_within_a_millionth_of_its_scale_is_the_one_that_was_declared(arrives: float, said: bool) -> None:
    given = rows()
    logp = given["logp_old"].clone().requires_grad_()
    loss, _ = trimtab.loss(logp, recipe="tis", grad_scale=1e6, **given)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        (loss * arrives).backward()
    assert bool(heard) == said


def test_a_sum_over_tokens_is_not_shared_between_calls() -> None:
    leaf = torch.full((2, 3), -1.0, requires_grad=True)
    given = {
        "logp_old": leaf.detach(),
        "reward": [1.0, 0.0],
        "group": [0, 0],
        "mask": torch.ones(2, 3, dtype=torch.bool),
    }
    chosen = recipe("reinforce", weighting="token_sum", normalize="raw")
    for counts in (None, Counts(tokens=60, sequences=20)):
        (gradient,) = torch.autograd.grad(trimtab.loss(leaf, recipe=chosen, counts=counts, **given)[0], leaf)
        assert gradient.tolist() == [[-1.0] * 3, [0.0] * 3]
