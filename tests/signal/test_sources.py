"""The five commissioned behaviours, with the sources' own numbers. Each fails with its rule broken."""

import math

import pytest
import torch

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import KL, SignalBatch, Stage, decide, part, prepare, recipe, step, token_loss
from trimtab.signal.correction import negative_drift, truncated
from trimtab.signal.kl import k1, k2, k3
from trimtab.signal.layout import Segments
from trimtab.signal.reward import token_rewards

F64 = torch.float64


def segments(*counts: int) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def flat(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def one_sequence(advantage: torch.Tensor, chosen: trimtab.Recipe) -> tuple[object, torch.Tensor]:
    """S1's example through the pipeline: three tokens whose anchor lies 1.0 above the current policy."""
    from dataclasses import replace

    from trimtab.signal.fields import Field
    from trimtab.signal.preparation import Prepared

    current = flat(-1.5, -1.5, -1.5)
    batch = SignalBatch.from_list(
        [torch.ones(3, dtype=torch.bool)] * 2,
        reward=flat(0, 1),
        group=torch.tensor([0, 0]),
        logp_old=[current + 1, current + 1],
        logp_rollout=[current + 1, current + 1],
    )
    prepared, _ = prepare(batch, chosen)
    assert isinstance(prepared, Prepared)
    held = Field(torch.cat([advantage, torch.zeros(3, dtype=F64)]), batch.segments)
    prepared = replace(
        prepared,
        fields=prepared.fields.adding({"advantage": held}),
        trains=torch.tensor([True, False]),
        all_train=False,
    )
    logp = current.clone().requires_grad_()
    (micro,) = decide(next(prepared.updates(1))).split(num=1)
    return token_loss(micro, logp), logp


# --- S1 -----------------------------------------------------------------------------------------------------------

OPSM_ADVANTAGE = (-1.0, 0.25, -1.0)


def opsm_recipe(anchor: str = "rollout") -> trimtab.Recipe:
    stage = Stage(part("keep.negative_drift", delta=0.5), anchor=anchor)
    return recipe("tis", correction=(stage,), weighting=part("weighting.token_mean"))


@pytest.mark.parametrize("anchor", ["rollout", "old"])
def test_s1_rejects_the_whole_sequence_and_its_loss_is_exactly_zero(anchor: str) -> None:
    out, logp = one_sequence(flat(*OPSM_ADVANTAGE), opsm_recipe(anchor))
    assert out.keep.tolist() == [False, False, False]
    assert out.loss.item() == 0.0
    out.loss.backward()
    assert logp.grad.tolist() == [0.0, 0.0, 0.0]
    values = step([out]).metrics.numbers()
    assert values["keep.negative_drift/rejected_sequences"] == 1.0
    assert values["keep.negative_drift/rejected_tokens"] == 1.0
    assert values["voted_then_rejected/sequence_fraction"] == 1.0


def test_s1_the_known_wrong_answer_differs_from_ours_by_the_published_numbers() -> None:
    """Decided per token: keep [0,1,0], token losses [0, -0.25/e, 0], reduced -0.03065662, leaked position 1."""
    advantage = flat(*OPSM_ADVANTAGE)
    ratio = math.exp(-1.0)
    wrong_keep = ~((advantage < 0) & (flat(1, 1, 1) > 0.5))
    wrong_losses = torch.where(wrong_keep, -ratio * advantage, torch.zeros(3, dtype=F64))
    assert wrong_keep.int().tolist() == [0, 1, 0]
    torch.testing.assert_close(wrong_losses, flat(0, -0.09196986, 0), atol=1e-8, rtol=0)
    assert wrong_losses.mean().item() == pytest.approx(-0.03065662, abs=1e-8)
    right, _ = negative_drift(flat(-1, -1, -1), flat(0, 0, 0), advantage, segments(3), delta=0.5)
    assert (wrong_keep & ~right).nonzero().squeeze(1).tolist() == [1]


def test_s1_keeps_sequences_whose_advantage_is_not_negative() -> None:
    keep, _ = negative_drift(
        flat(-9, -9, -9, -9), flat(0, 0, 0, 0), flat(0.0, 0.0, -1.0, 2.0), segments(2, 2), delta=0.1
    )
    assert keep.tolist() == [True] * 4


def test_s1_untrainable_tokens_never_enter_even_as_nan() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    nan = float("nan")
    old = torch.tensor([[-0.5, -0.5, nan], [-0.5, -0.5, nan]])
    logp = torch.tensor([[-1.5, -1.5, nan], [-0.5, -0.5, nan]], requires_grad=True)
    loss, metrics = trimtab.loss(
        logp, recipe=opsm_recipe(), mask=mask, logp_old=old, logp_rollout=old,
        reward=torch.tensor([0.0, 1.0]), group=torch.tensor([0, 0]),
    )  # fmt: skip
    loss.backward()
    assert math.isfinite(loss.item())
    assert logp.grad[0].tolist() == [0.0, 0.0, 0.0]
    assert metrics["keep.negative_drift/rejected_sequences"] == 0.5


def test_s1_delta_has_no_silent_default_and_the_error_names_what_others_use() -> None:
    with pytest.raises(SignalError, match=r"1e-4 in slime, 0.05 to 0.2 in Trinity, 0.5 in TRL"):
        part("keep.negative_drift")


def test_s1_a_sequence_without_trainable_tokens_is_never_zero_over_zero() -> None:
    keep, seen = negative_drift(flat(-3.0), flat(-1.0), flat(-1.0), segments(0, 1), delta=0.5)
    assert keep.tolist() == [False]
    assert seen["drifted_sequences"].tolist() == [False, True]


# --- S2 -----------------------------------------------------------------------------------------------------------


def s2_batch() -> dict[str, torch.Tensor]:
    return {
        "logp_old": torch.tensor([[-0.7, -1.1, -0.2], [-0.9, -0.4, -2.0]], dtype=F64),
        "logp_rollout": torch.tensor([[-1.4, -0.9, -0.3], [-0.2, -0.5, -2.5]], dtype=F64),
        "reward": torch.tensor([1.0, 0.0], dtype=F64),
        "group": torch.tensor([0, 0]),
        "mask": torch.ones(2, 3, dtype=torch.bool),
    }


def s2_recipe(band: tuple[float, float] = (0.0, 1.5)) -> trimtab.Recipe:
    stage = Stage(part("importance.truncated", level="token", band=band), ratio="total")
    return recipe("reinforce_tis", correction=(stage,), weighting=part("weighting.sequence_mean_token_sum"))


def test_s2_the_gradient_is_minus_w_times_advantage_and_nothing_flows_into_w() -> None:
    batch = s2_batch()
    logp = (batch["logp_old"] - 0.1).clone().requires_grad_()
    loss, _ = trimtab.loss(logp, recipe=s2_recipe(), **batch)
    loss.backward()
    importance = torch.exp(logp.detach() - batch["logp_rollout"]).clamp(0.0, 1.5)
    advantage = torch.tensor([[1.0], [-1.0]], dtype=F64) * 0.5 / (math.sqrt(0.5) + 1e-6)
    torch.testing.assert_close(logp.grad, -importance * advantage / 2, atol=1e-12, rtol=0)


def test_s2_with_current_equal_to_old_it_is_the_two_sided_clip_of_old_over_rollout() -> None:
    batch = s2_batch()
    band = (0.8, 1.28)
    importance, _ = truncated(
        (batch["logp_old"] - batch["logp_rollout"]).reshape(-1), segments(3, 3), level="token", band=band
    )
    torch.testing.assert_close(
        importance, torch.exp(batch["logp_old"] - batch["logp_rollout"]).clamp(*band).reshape(-1)
    )


def test_s2_with_all_three_equal_it_is_reinforce() -> None:
    batch = s2_batch()
    batch["logp_rollout"] = batch["logp_old"]
    gradients = []
    for chosen in (s2_recipe(), recipe("start_on_policy", weighting=part("weighting.sequence_mean_token_sum"))):
        logp = batch["logp_old"].clone().requires_grad_()
        trimtab.loss(logp, recipe=chosen, **batch)[0].backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)


def test_s2_on_a_loss_that_carries_current_over_old_it_is_refused_with_the_sentence() -> None:
    stage = Stage(part("importance.truncated"), ratio="total")
    with pytest.raises(SignalError, match="would count that factor twice"):
        recipe("dapo", correction=(stage,))
    assert recipe("dapo", correction=(stage,), allow_double_count=True).correction == (stage,)


def test_s2_a_correction_from_outside_the_package_is_chosen_by_dotted_path() -> None:
    stage = Stage(part("outside_formulas.halved", stage="importance", factor=0.5), ratio="total")
    batch = s2_batch()
    gradients = []
    for chosen in (
        s2_recipe((0.0, 100.0)),
        recipe("reinforce_tis", correction=(stage,), weighting=part("weighting.sequence_mean_token_sum")),
    ):
        logp = batch["logp_old"].clone().requires_grad_()
        trimtab.loss(logp, recipe=chosen, **batch)[0].backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(gradients[1], 0.5 * gradients[0])


# --- S3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_s3_the_raw_kl_survives_reward_shaping(estimator: object) -> None:
    """The source's own tensors, which are no log-probs, pass through the formulas as they are."""
    logp, ref = flat(0.5, 0.7, 0.9), flat(0.4, 0.5, 0.6)
    kl = estimator(logp, ref)
    fresh = kl.clone()
    rewards = token_rewards(kl, flat(1.0), segments(3), kl_coef=0.05)
    torch.testing.assert_close(rewards, -0.05 * fresh + flat(0, 0, 1), atol=0, rtol=0)
    torch.testing.assert_close(kl, fresh, atol=0, rtol=0)


def test_s3_the_logged_kl_is_the_freshly_computed_one() -> None:
    old, ref = (
        torch.tensor([[-0.5, -0.9], [-0.3, -0.4]], dtype=F64),
        torch.tensor([[-0.7, -0.6], [-0.3, -1.4]], dtype=F64),
    )
    chosen = recipe("reinforce_plus_plus", kl=KL(part("kl.k1"), coef=0.05, into="token_reward"))
    batch = SignalBatch.from_padded(
        torch.ones(2, 2), reward=flat(1, 0), group=torch.tensor([0, 0]), logp_old=old, logp_ref=ref
    )
    prepared, _ = prepare(batch, chosen)
    torch.testing.assert_close(prepared.kl, (old - ref).reshape(-1), atol=0, rtol=0)
    assert prepared.metrics.numbers()["kl_ref/token_mean"] == pytest.approx((old - ref).mean().item(), abs=1e-15)


def test_s3_shaping_leaves_expanded_views_alone() -> None:
    kl = torch.tensor(0.1, dtype=F64).expand(3)
    rewards = token_rewards(kl, flat(1.0, 0.0), segments(2, 1), kl_coef=0.05)
    torch.testing.assert_close(rewards, flat(-0.005, 0.995, -0.005))
    assert kl.tolist() == [0.1, 0.1, 0.1]


# --- S4 -----------------------------------------------------------------------------------------------------------


def s4_advantage(second_reward: float, not_ended: str = "zero", **changes: object) -> torch.Tensor:
    """The source's tensors: attention rows [1,1,0] (ended) and [1,1,1] (not ended), batch mean, no std."""
    attention = torch.tensor([[1, 1, 0], [1, 1, 1]])
    chosen = recipe(
        "reinforce", normalize=part("normalize.mean_std", mean="batch", std="none"), not_ended=not_ended, **changes
    )
    batch = SignalBatch.from_padded(
        attention,
        attention=attention,
        ended="shorter_than_row",
        reward=flat(1.0, second_reward),
        group=torch.tensor([0, 1]),
    )
    prepared, _ = prepare(batch, chosen)
    return prepared.advantage


def test_s4_a_row_that_gets_no_task_reward_does_not_move_the_others() -> None:
    torch.testing.assert_close(s4_advantage(1.0), s4_advantage(100.0), atol=0, rtol=0)
    assert s4_advantage(100.0)[:2].tolist() == [0.0, 0.0]


def test_s4_the_wrong_order_gives_minus_49_5() -> None:
    assert s4_advantage(100.0, not_ended="train")[:2].tolist() == [-49.5, -49.5]


def test_s4_the_suppressed_row_has_a_task_reward_of_exactly_zero_after_normalisation() -> None:
    assert s4_advantage(100.0)[2:].tolist() == [0.0, 0.0, 0.0]


def test_s4_the_suppressed_row_still_trains_and_carries_its_kl() -> None:
    attention = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    logp, ref = torch.full((3, 3), -0.5, dtype=F64), torch.full((3, 3), -1.0, dtype=F64)
    kl = KL(part("kl.k1"), coef=0.1, into="token_reward")
    chosen = recipe(
        "reinforce_plus_plus",
        whiten=False,
        kl=kl,
        not_ended="zero",
        normalize=part("normalize.mean_std", mean="batch", std="none"),
    )
    batch = SignalBatch.from_padded(
        attention,
        attention=attention,
        ended="shorter_than_row",
        reward=flat(1, 100, 3),
        group=torch.tensor([0, 1, 2]),
        logp_old=logp,
        logp_ref=ref,
    )
    prepared, _ = prepare(batch, chosen)
    assert prepared.trains.tolist() == [True, True, True]
    assert prepared.votes.tolist() == [True, False, True]
    torch.testing.assert_close(prepared.advantage[2:5], flat(-0.15, -0.10, -0.05))


@pytest.mark.parametrize(
    "normalize",
    [part("normalize.mean_std", mean=m, std=s) for m in ("none", "group", "batch") for s in ("none", "group", "batch")]
    + [part("normalize.leave_one_out")],
    ids=str,
)
@pytest.mark.parametrize("not_ended", ["zero", "suppress"])
def test_s4_holds_at_every_level_of_normalisation(normalize: trimtab.signal.Part, not_ended: str) -> None:
    chosen = recipe("reinforce", normalize=normalize, not_ended=not_ended)
    ended = torch.tensor([True, True, False, True, True])
    seen = []
    for reward in (1.0, 100.0):
        batch = SignalBatch.from_padded(
            torch.ones(5, 2), reward=flat(1, 3, reward, 2, 7), group=torch.tensor([0, 0, 0, 1, 1]), ended=ended
        )
        prepared, _ = prepare(batch, chosen)
        seen.append(prepared.advantage.reshape(5, 2)[ended])
    torch.testing.assert_close(seen[0], seen[1], atol=0, rtol=0)


def test_s4_warns_when_no_row_is_shorter_than_the_width() -> None:
    attention = torch.ones(2, 3)
    with pytest.warns(UserWarning, match="finds no row shorter than the width 3"):
        SignalBatch.from_padded(
            attention, attention=attention, ended="shorter_than_row", reward=flat(0, 1), group=torch.tensor([0, 0])
        )


# --- S5 (the block itself is tested in tests/config) --------------------------------------------------------------


def test_s5_the_bound_applies_to_the_sum_and_never_to_tokens_before_it() -> None:
    """Token log-ratios +25 and -23 sum to 2; bounded at 20 before the sum, they would give 0.

    (+25 and -25 would not tell: both ways give 0.)
    """
    importance, _ = truncated(flat(25, -23), segments(2), level="sequence", band=(0.0, 10.0))
    torch.testing.assert_close(importance, flat(math.exp(2), math.exp(2)))


def test_s5_the_veto_stands_alone() -> None:
    chosen = recipe(
        "dapo",
        filter_constant_groups=False,
        correction=(Stage(part("keep.veto", low=1e-4, high=100.0), ratio="engine"),),
    )
    old = torch.tensor([[-0.5, -0.5], [-0.5, -12.0]], dtype=F64)
    rollout = torch.tensor([[-0.5, -0.5], [-0.5, -0.5]], dtype=F64)
    logp = old.clone().requires_grad_()
    loss, metrics = trimtab.loss(
        logp,
        recipe=chosen,
        mask=torch.ones(2, 2),
        logp_old=old,
        logp_rollout=rollout,
        reward=flat(1, 0),
        group=torch.tensor([0, 0]),
    )
    assert metrics["keep.veto/rejected_sequences"] == 0.5
    assert metrics["keep.veto/under_low_sequences"] == 0.5
    loss.backward()
    assert logp.grad[1].tolist() == [0.0, 0.0]
