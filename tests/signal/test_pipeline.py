"""Every loss and weighting with a representative correction, from padded tensors to the gradient.

The same samples give the same gradient, however they are split, ordered, padded, spread over ranks, or whatever stands
in the cells nobody may read.
"""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import Prepared, SignalBatch, Stage, decide, part, prepare, recipe, step, token_loss
from trimtab.signal.update import select

F64 = torch.float64
LOSSES = {
    "reinforce": Stage(part("policy_loss.reinforce")),
    "cross_entropy": Stage(part("policy_loss.cross_entropy")),
    "clipped": Stage(part("policy_loss.clipped"), anchor="old"),
    "dual_clipped": Stage(part("policy_loss.dual_clipped"), anchor="old"),
    "geometric_clipped": Stage(part("policy_loss.geometric_clipped", band=(0.9, 1.1)), anchor="old"),
    "geometric_clipped_token": Stage(part("policy_loss.geometric_clipped_token", band=(0.9, 1.1)), anchor="old"),
    "clipped_importance": Stage(part("policy_loss.clipped_importance"), anchor="old"),
    "soft_gated": Stage(part("policy_loss.soft_gated"), anchor="old"),
    "covariance_clipped": Stage(part("policy_loss.covariance_clipped", covariance_low=0.0, fraction=0.3), anchor="old"),
    "covariance_penalised": Stage(part("policy_loss.covariance_penalised", fraction=0.3), anchor="old"),
}
WEIGHTINGS = {
    "token_mean": part("weighting.token_mean"),
    "token_mean_kept": part("weighting.token_mean", over="kept"),
    "sequence_mean_token_mean": part("weighting.sequence_mean_token_mean"),
    "sequence_mean_token_sum": part("weighting.sequence_mean_token_sum", over="kept"),
    "constant_divisor": part("weighting.constant_divisor", divisor=16),
    "token_sum": part("weighting.token_sum"),
}
CORRECTION = (
    Stage(part("importance.truncated", level="sequence", band=(0.0, 2.0)), ratio="engine"),
    Stage(part("keep.veto", low=0.9), ratio="engine"),
    Stage(part("keep.negative_drift", delta=0.02), anchor="rollout"),
)
"""An importance, a decision before the vote, and one that needs the current policy."""
GRID = [
    pytest.param(
        loss, weighting, id=f"{loss}-{weighting}", marks=() if (row + column) % 5 in (0, 2) else pytest.mark.slow
    )
    for (row, loss), (column, weighting) in product(enumerate(LOSSES), enumerate(WEIGHTINGS))
]
"""By default two weightings for each loss and four losses for each weighting; all pairs in the slow suite."""


@cache
def chosen(loss: str, weighting: str) -> trimtab.Recipe:
    return recipe("tis", loss=LOSSES[loss], weighting=WEIGHTINGS[weighting], correction=CORRECTION)


def samples(seed: int = 0) -> dict[str, torch.Tensor]:
    """Eight ragged rows in three groups, tool tokens inside, one row without trainable tokens, one unscored."""
    generator = torch.Generator().manual_seed(seed)

    def rand() -> torch.Tensor:
        return torch.rand(8, 7, generator=generator, dtype=F64)

    old = -0.1 - rand()
    lengths = torch.tensor([7, 1, 4, 6, 2, 5, 3, 7])
    mask = (torch.arange(7) < lengths[:, None]) & (rand() > 0.2)
    mask[1, 0], mask[4] = True, False
    return {
        "mask": mask, "logp": old + 0.3 * (rand() - 0.5), "logp_old": old,
        "logp_rollout": (old + 0.6 * (rand() - 0.5)).clamp(max=-1e-3),
        "reward": torch.tensor([1.0, 0, 0.5, 0, 1, 1, 0, 2], dtype=F64),
        "group": torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]),
        "scored": torch.tensor([True, True, True, True, True, True, True, False]),
        "sequence_id": torch.arange(8),
    }  # fmt: skip


def door(given: dict[str, torch.Tensor], one: trimtab.Recipe) -> Prepared:
    fields = {n: given[n] for n in ("reward", "group", "scored", "sequence_id", "logp_old", "logp_rollout")}
    return prepare(SignalBatch.from_padded(given["mask"], **fields), one)[0]


def gradient(
    given: dict[str, torch.Tensor], one: trimtab.Recipe, *, micro_batches: int = 1, rank: int = 0, ranks: int = 1
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """d loss / d logp over the padded cells, the loss, and the merged metrics."""
    prepared = door(given, one)
    logp = given["logp"].clone().requires_grad_()
    tokens = prepared.batch.cells.gather(logp)
    update = next(prepared.updates(1))
    _, index = select(prepared.batch.segments, update.sequences)
    decided = decide(update, tokens[index].detach() if one.needs_logp_now else None)
    decided = decided.shard(rank, ranks) if ranks > 1 else decided
    outs = []
    for micro in decided.split(num=micro_batches):
        _, index = select(prepared.batch.segments, micro.sequences)
        outs.append(token_loss(micro, tokens[index]))
        outs[-1].loss.backward(retain_graph=True)
    decided.check_spent()
    result = step(outs)
    return logp.grad, result.loss, result.metrics.numbers()


@pytest.mark.parametrize(("loss", "weighting"), GRID)
def test_one_and_three_micro_batches_give_the_same_bits(loss: str, weighting: str) -> None:
    one = chosen(loss, weighting)
    whole, total, metrics = gradient(samples(), one)
    assert whole.abs().sum() > 0
    for parts in (3, 6):
        split, split_total, split_metrics = gradient(samples(), one, micro_batches=parts)
        assert torch.equal(whole, split)
        torch.testing.assert_close(split_total, total, rtol=1e-12, atol=1e-15)
        assert split_metrics == pytest.approx(metrics, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("loss", "weighting"), GRID)
def test_order_padding_side_and_garbage_change_nothing(loss: str, weighting: str) -> None:
    one, given = chosen(loss, weighting), samples()
    whole, _, _ = gradient(given, one)
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    permuted, _, _ = gradient({n: v[order] for n, v in given.items()}, one)
    torch.testing.assert_close(permuted, whole[order], rtol=1e-12, atol=1e-15)
    flipped = {
        n: torch.cat(
            [torch.full((8, 2), -0.5, dtype=v.dtype) if v.dtype == F64 else torch.zeros(8, 2, dtype=v.dtype), v], 1
        )
        if v.ndim == 2
        else v
        for n, v in given.items()
    }
    torch.testing.assert_close(gradient(flipped, one)[0][:, 2:], whole, rtol=1e-12, atol=1e-15)
    for garbage in (float("nan"), float("inf"), float("-inf"), 7.5):
        dirty = {n: torch.where(given["mask"], v, garbage) if n.startswith("logp") else v for n, v in given.items()}
        assert torch.equal(gradient(dirty, one)[0], whole)


@pytest.mark.parametrize(("loss", "weighting"), GRID)
def test_two_ranks_average_to_one(loss: str, weighting: str) -> None:
    one = chosen(loss, weighting)
    whole, _, _ = gradient(samples(), one)
    ranks = [gradient(samples(), one, micro_batches=2, rank=r, ranks=2)[0] for r in range(2)]
    torch.testing.assert_close((ranks[0] + ranks[1]) / 2, whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("loss", "weighting"), GRID)
def test_rejected_and_unscored_rows_get_exactly_zero_policy_gradient(loss: str, weighting: str) -> None:
    one, given = chosen(loss, weighting), samples()
    prepared = door(given, one)
    rejected = ~prepared.batch.cells.scatter(prepared.keep.double(), fill=1.0).bool()
    assert rejected[prepared.trains].any()
    got = gradient(given, one)[0]
    assert (got[rejected] == 0).all()
    assert (got[[4, 7]] == 0).all()


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_updates_share_statistics_and_own_their_denominators(updates: int) -> None:
    """Advantages belong to the batch; each optimiser step's weights sum to one by themselves."""
    prepared = door(samples(), recipe("tis"))
    seen = []
    for update in prepared.updates(updates):
        decided = decide(update)
        assert decided.whole.fields["weight_policy"].sum().item() == pytest.approx(1.0, abs=1e-15)
        seen += update.sequences.tolist()
    assert sorted(seen) == prepared.trains.nonzero().squeeze(1).tolist()


def test_groups_stay_together_and_too_many_updates_are_refused() -> None:
    prepared = door(samples(), recipe("tis"))
    groups = prepared.batch.levels.group_of_episode
    members = [set(groups[u.sequences].tolist()) for u in prepared.updates(3)]
    assert members == [{0}, {1}, {2}]
    with pytest.raises(SignalError, match="4 optimiser steps from 3 groups that train"):
        list(prepared.updates(4))


@pytest.mark.parametrize("misuse", ["divided twice", "dropped a micro-batch"])
def test_check_spent_catches_a_caller_who(misuse: str) -> None:
    prepared = door(samples(), recipe("tis"))
    decided = decide(next(prepared.updates(1)))
    tokens = prepared.batch.cells.gather(samples()["logp"]).requires_grad_()
    for place, micro in enumerate(decided.split(num=3)):
        _, index = select(prepared.batch.segments, micro.sequences)
        out = token_loss(micro, tokens[index])
        if misuse == "divided twice":
            (out.loss / 3).backward()
        elif place:
            out.loss.backward()
    with pytest.raises(SignalError, match="the weights of this optimiser step add up to 1 but"):
        decided.check_spent()


def test_nothing_kept_is_an_outcome_with_a_connected_zero_loss() -> None:
    given = samples()
    one = recipe(
        "geometric_mask", correction=(Stage(part("keep.geometric_band", band=(1 - 1e-9, 1 + 1e-9)), ratio="engine"),)
    )
    got, total, metrics = gradient(given, one, micro_batches=2)
    assert total.item() == 0.0
    assert torch.equal(got, torch.zeros_like(got))
    assert metrics["kept/token_fraction"] == 0.0
    prepared = door(given, one)
    tokens = prepared.batch.cells.gather(given["logp"])
    update = next(prepared.updates(1))
    (micro,) = decide(update).split(num=1)
    out = token_loss(micro, tokens[select(prepared.batch.segments, update.sequences)[1]].requires_grad_())
    assert out.loss.requires_grad
    assert step([out]).is_empty


@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-6, 1e-3])
def test_answers_cut_off_beside_voters_who_almost_agree_get_a_bounded_advantage(apart: float) -> None:
    """5 answers ended and right, 3 cut off: whitening divides by the voters' tiny spread, the cut-off ones too."""
    generator = torch.Generator().manual_seed(0)
    old = -0.5 - torch.rand(8, 6, generator=generator, dtype=F64)
    batch = SignalBatch.from_padded(
        torch.ones(8, 6),
        reward=[1.0 + apart * i for i in range(5)] + [0.0] * 3,
        group=[0, 0, 0, 0, 1, 1, 1, 1],
        ended=[True] * 5 + [False] * 3,
        logp_old=old,
        logp_ref=old + 1e-9 * torch.randn(8, 6, generator=generator, dtype=F64),
    )
    prepared, _ = prepare(batch, recipe("reinforce_plus_plus", not_ended="zero"))
    voters = prepared.advantage.reshape(8, 6)[:5]
    assert voters.mean() == pytest.approx(0.0, abs=1e-6)
    assert prepared.advantage.abs().max() <= voters.abs().max() < 3.0


def test_token_loss_never_asks_the_device_for_a_number() -> None:
    """It runs on fake tensors, which have no values to ask for."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for loss, weighting in product(LOSSES, ("token_mean",)):
        one = chosen(loss, weighting)
        prepared = door(samples(), one)
        update = next(prepared.updates(1))
        index = select(prepared.batch.segments, update.sequences)[1]
        tokens = prepared.batch.cells.gather(samples()["logp"])[index]
        decided = decide(update, tokens if one.needs_logp_now else None)
        (micro,) = decided.split(num=1)
        fields = dict(micro.part.fields)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = _faked(micro, fields, mode)
            out = token_loss(fake, mode.from_tensor(tokens).requires_grad_())
            out.loss.backward()
        assert out.loss.shape == ()


def _faked(
    micro: trimtab.signal.MicroBatch, fields: dict[str, torch.Tensor], mode: object
) -> trimtab.signal.MicroBatch:
    from trimtab.signal.layout import Segments

    slice_ = micro.part
    segments = Segments(mode.from_tensor(slice_.segments.token_counts), slice_.num_tokens)
    faked = {n: mode.from_tensor(v) for n, v in fields.items()}
    return replace(micro, part=replace(slice_, segments=segments, fields=faked))


def test_later_updates_that_need_the_current_policy_ask_for_it() -> None:
    one = chosen("covariance_clipped", "token_mean")
    first, second = door(samples(), one).updates(2)
    decide(first)
    with pytest.raises(SignalError, match="needs logp_now"):
        decide(second)


def test_terms_have_their_own_population() -> None:
    """The KL acts on all trainable tokens although a correction rejects some; `on = "kept"` restricts it."""
    given = samples()
    ref = given["logp_old"] - 0.3
    stage = (Stage(part("keep.geometric_band", band=(1 - 1e-9, 1 + 1e-9)), ratio="engine"),)
    for on, acts in (("all", True), ("kept", False)):
        kl = trimtab.signal.KL(part("kl.k2"), coef=1.0, into="loss", on=on)
        logp = given["logp"].clone().requires_grad_()
        loss, metrics = trimtab.loss(
            logp,
            recipe=recipe("tis", correction=stage, kl=kl),
            mask=given["mask"],
            reward=given["reward"],
            group=given["group"],
            logp_old=given["logp_old"],
            logp_rollout=given["logp_rollout"],
            logp_ref=ref,
        )
        loss.backward()
        assert (logp.grad.abs().sum() > 0) == acts
        assert metrics["weight/policy"] == 0.0


@pytest.mark.parametrize(("on", "owed"), [("kept", (0.08, 0.18)), ("all", (0.08, 0.18, 0.5))])
def test_a_kl_on_kept_tokens_is_theirs_alone(on: str, owed: tuple[float, ...]) -> None:
    """k2 of gaps 0.4, 0.6 and 1 is 0.08, 0.18 and 0.5; the sampler gave the third token another log-prob."""
    old = torch.full((1, 3), -1.0, dtype=torch.float64)
    given: dict[str, Any] = {
        "mask": torch.ones(1, 3), "reward": torch.ones(1).double(), "group": torch.zeros(1, dtype=torch.long),
        "logp_old": old, "logp_rollout": old - torch.tensor([[0.0, 0.0, 2.0]]).double(),
        "logp_ref": old - torch.tensor([[0.4, 0.6, 1.0]]).double(), "advantage": torch.zeros(1, 3).double(),
    }  # fmt: skip
    kl = trimtab.signal.KL(part("kl.k2"), coef=1.0, into="loss", on=on)
    stage = (Stage(part("keep.token_band", band=(0.5, 2.0)), ratio="engine"),)
    logp = old.clone().requires_grad_()
    loss, _ = trimtab.loss(logp, recipe=recipe("tis", correction=stage, kl=kl), **given)
    loss.backward()
    assert loss.item() == pytest.approx(sum(owed) / 3)
    gaps = (0.4, 0.6, 1.0 if on == "all" else 0.0)
    assert logp.grad.tolist()[0] == pytest.approx([gap / 3 for gap in gaps])


@pytest.mark.parametrize("loss", [*LOSSES, "outside"])
@pytest.mark.parametrize("content", [float("nan"), float("-inf"), -500.0])
def test_what_the_current_policy_says_about_a_rejected_token_never_matters(loss: str, content: float) -> None:
    """Selected on the way in: a zero weight afterwards would still send 0 × NaN back through an exponential."""
    given = samples()
    losses = {**LOSSES, "outside": Stage(part("outside_formulas.leaky"), anchor="old")}
    one = recipe("tis", loss=losses[loss], correction=(Stage(part("keep.veto", low=0.9), ratio="engine"),))
    prepared = door(given, one)
    rejected = ~prepared.batch.cells.scatter(prepared.keep.double(), fill=1.0).bool()
    assert rejected[prepared.trains].any()
    whole, _, _ = gradient(given, one)
    other, _, _ = gradient({**given, "logp": torch.where(rejected, content, given["logp"])}, one)
    assert torch.equal(other, whole)
