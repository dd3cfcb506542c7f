"""Rows of the coverage page that are met by settings, or by several parts together: run whole, against numpy.

Each case is a recipe and, worked out in float64 by its own few lines, the gradient of its loss with respect to the
log-probs of the current policy.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from trimtab.signal import KL, Recipe, SignalBatch, Stage, Term, decide, part, prepare, recipe, token_loss

Numbers = Any
LENGTHS: Numbers = np.array([2, 1, 3, 2, 1, 3])
REWARD = np.array([1.0, 0.0, 0.5, 2.0, 0.0, 1.0])
GROUP = np.array([0, 0, 0, 1, 1, 1])
OWNER: Numbers = np.arange(6).repeat(LENGTHS)
OLD = -np.array([0.5, 1.0, 0.2, 1.5, 0.7, 0.3, 0.9, 1.1, 0.4, 2.0, 0.6, 0.8])
ROLLOUT = OLD + np.array([0.1, -0.2, 0.15, 0.9, -0.1, 0.05, -0.6, 0.2, 0.0, 0.3, -0.3, 0.1])
CURRENT = OLD + np.array([0.3, -0.1, 0.2, -0.4, 0.05, 0.1, 0.25, -0.3, 0.1, -0.15, 0.2, -0.05])
REF = OLD + np.array([-0.1, 0.2, 0.1, -0.3, 0.2, 0.0, 0.1, -0.2, 0.3, 0.1, -0.1, 0.2])
VERSION = np.array([4, 4, 3, 2, 2, 3, 4, 4, 1, 2, 3, 4])
TRAINS_NOW = 5
N = len(OLD)


def batch(**changes: Any) -> SignalBatch:
    given = {"logp_old": OLD, "logp_rollout": ROLLOUT, "logp_ref": REF, "version": VERSION}
    return SignalBatch.from_tokens(
        LENGTHS, **{"reward": REWARD, "group": GROUP, **{n: torch.from_numpy(v) for n, v in given.items()}, **changes}
    )


def gradient(chosen: Recipe, **changes: Any) -> Numbers:
    """What arrives at the log-probs of the current policy, and at the entropy where the recipe has one."""
    logp = torch.from_numpy(CURRENT).requires_grad_()
    entropy = torch.full_like(logp, 0.7).requires_grad_()
    version = TRAINS_NOW if chosen.old == "interpolated" else None
    decided = decide(next(prepare(batch(**changes), chosen, version=version)[0].updates(1)), logp.detach())
    (micro,) = decided.split(num=1)
    token_loss(micro, logp, entropy=entropy).loss.backward()
    assert logp.grad is not None
    return logp.grad.numpy() if chosen.entropy is None else cast("torch.Tensor", entropy.grad).numpy()


def plain(**changes: Any) -> Recipe:
    """REINFORCE on rewards as they are, token mean."""
    return recipe("reinforce", weighting="token_mean", **{"old": "recompute", **changes})


def compared(mean: str, std: str) -> Any:
    return part("normalize.mean_std", mean=mean, std=std, eps=0.0)


def per_group(values: Numbers, group: Numbers = GROUP, std: bool = False) -> Numbers:
    out = np.empty_like(values)
    for one in set(group.tolist()):
        mine = group == one
        out[mine] = values[mine] - values[mine].mean()
        out[mine] /= values[mine].std(ddof=1) if std else 1
    return out


def ratio(first: Numbers, second: Numbers) -> Numbers:
    return np.exp(first - second)


def per_sequence(values: Numbers, how: Callable[[Numbers], float]) -> Numbers:
    return np.array([how(values[i == OWNER]) for i in range(6)])[OWNER]


def white(values: Numbers) -> Numbers:
    return (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)


def ppo_slope(r: Numbers, a: Numbers, low: float, high: float) -> Numbers:
    """The derivative of -min(r A, clip(r) A) with respect to log r."""
    flat = ((a > 0) & (r > high)) | ((a < 0) & (r < low))
    return np.where(flat, 0.0, -r * a)


def returns_of(rewards: Numbers) -> Numbers:
    return np.concatenate([rewards[i == OWNER][::-1].cumsum()[::-1] for i in range(6)])


A = per_group(REWARD)[OWNER]
GROUP_MEAN = {"normalize": compared("group", "none")}
UPDATE, ENGINE, TOTAL = ratio(CURRENT, OLD), ratio(OLD, ROLLOUT), ratio(CURRENT, ROLLOUT)
K1 = OLD - REF
GAP = REF - CURRENT
K3 = np.exp(GAP) - GAP - 1
LAST = np.append(OWNER[1:] != OWNER[:-1], True)
SHARE = np.where(VERSION < TRAINS_NOW, np.clip((TRAINS_NOW - 1 - VERSION) / (TRAINS_NOW - VERSION), 0, 1), 0)
BETWEEN = ROLLOUT + SHARE * (CURRENT - ROLLOUT)
DRIFT = np.exp(per_sequence(OLD - ROLLOUT, np.mean))
WORST = per_sequence((OLD - ROLLOUT) ** 2 / 2, np.max)
BAND = Stage(part("keep.token_band", band=(0.5, 1.3)), ratio="engine")
IN_BAND = (ENGINE >= 0.5) & (ENGINE <= 1.3)


def loss(name: str, anchor: str | None = "old", **settings: Any) -> Stage:
    return Stage(part(f"policy_loss.{name}", **settings), anchor=cast("Any", anchor))


INF = float("inf")
ROWS: dict[str, tuple[Recipe, Numbers]] = {
    "A1": (plain(normalize=compared("group", "group")), -per_group(REWARD, std=True)[OWNER] / N),
    "A2": (plain(**GROUP_MEAN), -A / N),
    "A6": (
        plain(normalize="raw", advantage=part("advantage.reward_to_go"), whiten=True,
              kl=KL(part("kl.k1"), 0.5, "token_reward")),
        -white(returns_of(REWARD[OWNER] * LAST - 0.5 * K1)) / N,
    ),
    "A7": (plain(**GROUP_MEAN, whiten=True), -white(A) / N),
    "A8": (plain(normalize=compared("group", "batch")), -A / REWARD.std(ddof=1) / N),
    "A9": (plain(normalize=compared("batch", "none")), -(REWARD - REWARD.mean())[OWNER] / N),
    "A30": (plain(normalize="raw", whiten=True), -white(REWARD[OWNER]) / N),
    "A32": (plain(**GROUP_MEAN, clip_advantage=0.3), -A.clip(-0.3, 0.3) / N),
    "A36": (plain(normalize="raw"), -REWARD[OWNER] / N),
    "B11": (
        plain(normalize="raw", advantage=part("advantage.reward_to_go"), kl=KL(part("kl.k1"), 0.5, "token_reward")),
        -returns_of(REWARD[OWNER] * LAST - 0.5 * K1) / N,
    ),
    "B12": (
        plain(**GROUP_MEAN, kl=KL(part("kl.k1"), 0.5, "sequence_reward")),
        -per_group(REWARD - 0.5 * np.bincount(OWNER, K1))[OWNER] / N,
    ),
    "C8": (
        plain(**GROUP_MEAN, old="current", kl=KL(part("kl.importance_weighted_k3"), 0.5, "loss", anchor="old")),
        (-A + 0.5 * (K3 + 1 - np.exp(GAP))) / N,
    ),
    "C13": (
        plain(**GROUP_MEAN, correction=(BAND,), kl=KL(part("kl.k3"), 0.5, "loss", on="kept")),
        np.where(IN_BAND, -per_group(REWARD)[OWNER] + 0.5 * (1 - np.exp(GAP)), 0) / N,
    ),
    "D6": (
        plain(**GROUP_MEAN, loss=loss("clipped_importance", "rollout", band=(0.0, 1.2))), -TOTAL.clip(0, 1.2) * A / N,
    ),
    "D7": (
        plain(**GROUP_MEAN, loss=loss("clipped_importance", band=(0.0, 5.0)),
              correction=(Stage(part("keep.token_band_by_sign", band=(0.8, 1.2)), ratio="update"),)),
        np.where(((A > 0) & (UPDATE > 1.2)) | ((A < 0) & (UPDATE < 0.8)), 0, -UPDATE * A) / N,
    ),
    "D14": (plain(**GROUP_MEAN, loss=loss("clipped", band=(0.0, INF))), -UPDATE * A / N),
    "D20": (
        plain(**GROUP_MEAN, loss=loss("clipped_importance", "rollout", band=(0.0, 1.0))), -TOTAL.clip(0, 1) * A / N,
    ),
    "D22": (
        replace(plain(**GROUP_MEAN, loss=loss("geometric_clipped", band=(0.9, 1.1))),
                weighting=part("weighting.sequence_mean_token_sum")),
        ppo_slope(np.exp(per_sequence(CURRENT - OLD, np.mean)), A, 0.9, 1.1) / 6,
    ),
    "D23": (
        plain(**GROUP_MEAN, loss=loss("clipped_importance", "rollout", band=(0.0, INF)),
              correction=(Stage(part("keep.token_band", band=(0.8, 1.2)), ratio="total"),)),
        np.where((TOTAL >= 0.8) & (TOTAL <= 1.2), -TOTAL * A, 0) / N,
    ),
    "D28": (plain(**GROUP_MEAN, entropy=Term(0.25)), np.full(N, -0.25 / N)),
    "D30": (
        plain(**GROUP_MEAN, loss=loss("clipped", band=(0.8, 1.2)),
              correction=(Stage(part("importance.truncated", band=(0.0, 1.1)), ratio="engine"),)),
        ENGINE.clip(0, 1.1) * ppo_slope(UPDATE, A, 0.8, 1.2) / N,
    ),
    "D31": (
        plain(**GROUP_MEAN, loss=loss("clipped", band=(0.8, 1.2)), old="interpolated"),
        ppo_slope(ratio(CURRENT, BETWEEN), A, 0.8, 1.2) / N,
    ),
    "D32": (plain(**GROUP_MEAN, loss=loss("clipped", band=(0.8, 1.2)), old="current"), -A / N),
    "E3": (
        plain(**GROUP_MEAN, correction=(Stage(part("importance.truncated", level="geometric", band=(0.0, 1.02)),
                                              ratio="engine"),)),
        -DRIFT.clip(0, 1.02) * A / N,
    ),
    "E4": (
        plain(**GROUP_MEAN, correction=(Stage(part("importance.truncated", band=(0.9, 1.1)), ratio="engine"),)),
        -ENGINE.clip(0.9, 1.1) * A / N,
    ),
    "E19": (
        plain(**GROUP_MEAN, loss=loss("clipped", "rollout", band=(0.8, 1.2)), old="absent"),
        ppo_slope(TOTAL, A, 0.8, 1.2) / N,
    ),
    "E21": (
        plain(**GROUP_MEAN, correction=(Stage(part("importance.truncated", band=(0.0, 1.3)), ratio="total"),)),
        -TOTAL.clip(0, 1.3) * A / N,
    ),
    "F10": (
        plain(**GROUP_MEAN, correction=(BAND,), kl=KL(part("kl.k3"), 0.5, "loss", on="all")),
        (np.where(IN_BAND, -A, 0) + 0.5 * (1 - np.exp(GAP))) / N,
    ),
    "F11": (
        replace(plain(**GROUP_MEAN, correction=(BAND,)), weighting=part("weighting.token_mean", over="kept")),
        np.where(IN_BAND, -A, 0) / IN_BAND.sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    chosen, due = ROWS[row]
    np.testing.assert_allclose(gradient(chosen), due, rtol=1e-12, atol=1e-15)


def test_row_a22_groups_are_the_callers() -> None:
    role = np.array([0, 1, 0, 2, 1, 2])
    due = -per_group(REWARD, role)[OWNER] / N
    np.testing.assert_allclose(gradient(plain(**GROUP_MEAN), group=role), due, rtol=1e-12, atol=1e-15)


def test_row_a33_who_is_not_scored_leaves_the_statistics() -> None:
    scored = np.array([True, True, False, True, True, True])
    due = np.zeros(6)
    due[scored] = per_group(REWARD[scored], GROUP[scored])
    tokens = scored[OWNER]
    found = np.zeros(N)
    decided = decide(next(prepare(batch(scored=scored), plain(**GROUP_MEAN))[0].updates(1)))
    logp = torch.from_numpy(CURRENT[tokens]).requires_grad_()
    (micro,) = decided.split(num=1)
    token_loss(micro, logp).loss.backward()
    assert logp.grad is not None
    found[tokens] = logp.grad.numpy()
    np.testing.assert_allclose(found, -due[OWNER] / tokens.sum() * tokens, rtol=1e-12, atol=1e-15)


def test_rows_e8_and_e23_a_veto_is_a_limit_on_the_largest_k2_and_a_mask_leaves_the_raw_weight() -> None:
    reach = float(np.sqrt(2 * 0.05))
    veto = Stage(part("keep.veto", low=float(np.exp(-reach)), high=float(np.exp(reach))), ratio="engine")
    kept = WORST <= 0.05
    assert 0 < kept.sum() < N
    found = prepare(batch(), plain(**GROUP_MEAN, correction=(veto,)))[0].keep.numpy()
    np.testing.assert_array_equal(found, kept)
    stages = (
        Stage(part("keep.geometric_band", band=(0.8, 1.1)), ratio="engine"),
        Stage(part("importance.truncated", band=(0.0, INF)), ratio="engine"),
    )
    inside = (DRIFT >= 0.8) & (DRIFT <= 1.1)
    assert 0 < inside.sum() < N
    prepared, _ = prepare(batch(), plain(**GROUP_MEAN, correction=stages))
    np.testing.assert_array_equal(prepared.keep.numpy(), inside)
    np.testing.assert_allclose(prepared.importance.numpy(), ENGINE, rtol=1e-14)


def test_row_b13_the_coefficient_follows_the_kl() -> None:
    steered = plain(normalize="raw", advantage=part("advantage.reward_to_go"),
                    kl=KL(part("kl.k1"), 0.5, "token_reward", target=0.01, horizon=60.0))  # fmt: skip
    _, state = prepare(batch(), steered)
    error = np.clip(K1.mean() / 0.01 - 1, -0.2, 0.2)
    assert state.memory["kl_coef"] == pytest.approx(0.5 * (1 + error * 6 / 60))


def test_rows_b6_and_b7_who_did_not_end() -> None:
    ended = np.array([True, True, True, False, True, True])
    zero = prepare(batch(ended=ended), replace(plain(**GROUP_MEAN), not_ended="zero"))[0]
    others = np.zeros(6)
    others[ended] = per_group(REWARD[ended], GROUP[ended])
    np.testing.assert_allclose(zero.advantage.numpy(), others[OWNER], atol=1e-15)
    assert zero.trains.all()
    suppressed = prepare(batch(ended=ended), replace(plain(**GROUP_MEAN), not_ended="suppress"))[0]
    assert suppressed.trains.tolist() == ended.tolist()
    stays = ended[OWNER]
    np.testing.assert_allclose(suppressed.advantage.numpy()[stays], others[OWNER][stays], atol=1e-15)


def test_rows_a34_and_a35_groups_that_do_not_train() -> None:
    same = np.array([1.0, 1.0, 1.0, 2.0, 0.0, 1.0])
    dropped = prepare(batch(reward=same), plain(**GROUP_MEAN, filter_constant_groups=True))[0]
    assert dropped.trains.tolist() == [False] * 3 + [True] * 3
    band = prepare(batch(reward=same), plain(**GROUP_MEAN, group_mean_band=(0.5, 1.0)))[0]
    assert band.trains.tolist() == [False] * 6  # both means are 1, and the band is open
    wider = prepare(batch(reward=same), plain(**GROUP_MEAN, group_mean_band=(0.5, 1.1)))[0]
    assert wider.trains.tolist() == [True] * 6
