"""One batch, run on the fast path, as on a device, and by the formulas as they are written: what differs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trimtab.signal import Recipe, SignalBatch, Stage, decide, part, prepare, recipe, step, token_loss, use_path
from trimtab.signal.tensors import as_on_a_device
from trimtab.signal.update import select

LENGTHS = (5, 1, 4, 0, 3, 6, 2, 7)
COUNT = sum(LENGTHS)
GROUP = (0, 0, 0, 1, 1, 2, 2, 2)
F64 = torch.float64


def batch_of(seed: int = 0, dtype: torch.dtype = F64, *, spread: float = 0.4, episodes: bool = False) -> dict[str, Any]:
    """Eight ragged sequences in three groups, one of them empty, one unscored, some not ended."""
    stream = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*(shape or (COUNT,)), generator=stream, dtype=F64)

    old = -0.3 - rand()
    tokens = {
        "logp_old": old,
        "logp_rollout": (old + spread * (rand() - 0.5)).clamp(max=-1e-3),
        "logp_ref": (old + spread * (rand() - 0.5)).clamp(max=-1e-3),
        "value_old": rand() - 0.5,
    }
    given: dict[str, Any] = {name: values.to(dtype) for name, values in tokens.items()}
    given["version"] = torch.tensor([3 + (t % 4) // 3 for t in range(COUNT)])
    given["turn"] = torch.tensor([t % n // 2 for n in LENGTHS for t in range(n)])
    given["extra"] = {"weight": (torch.arange(COUNT) % 5 + 1).to(dtype)}
    given["value_after"] = rand(8).to(dtype)
    given["ended"] = torch.tensor([True, True, False, True, True, True, False, True])
    given["reward"] = torch.tensor([1.0, 0, 0.5, 0.25, 1, 1, 0, 2], dtype=F64)
    given["group"] = torch.tensor(GROUP)
    given["scored"] = torch.tensor([True] * 7 + [False])
    if episodes:
        given |= {"episode": torch.tensor([0, 1, 1, 2, 3, 4, 5, 5]), "group": torch.tensor([0, 0, 1, 1, 2, 2])}
        given |= {"reward": given["reward"][:6], "scored": given["scored"][:6]}
    given["logp_current"] = (old + spread * (rand() - 0.5)).clamp(max=-1e-3).to(dtype)
    given["entropy"], given["value"] = rand().to(dtype), (rand() - 0.5).to(dtype)
    return given


Found = dict[str, float | Tensor]


def run(one: Recipe, given: dict[str, Any], *, parts: int = 1, updates: int = 1) -> Found:
    """Everything that comes out: gradients, losses, decisions and metrics."""
    given = dict(given)
    current = given.pop("logp_current").clone().requires_grad_()
    entropy, value = given.pop("entropy").clone().requires_grad_(), given.pop("value").clone().requires_grad_()
    batch = SignalBatch.from_tokens(torch.tensor(LENGTHS), **given)
    prepared, _ = prepare(batch, one, version=5 if one.old == "interpolated" else None)
    metrics = prepared.metrics
    found: Found = {
        "advantage": prepared.advantage, "returns": prepared.returns, "keep": prepared.keep.double(),
        "importance": prepared.importance, "voted": prepared.voted.double(), "votes": prepared.votes.double(),
        "trains": prepared.trains.double(),
    }  # fmt: skip
    for number, update in enumerate(prepared.updates(updates)):
        _, place = select(batch.segments, update.sequences)
        now = current[place].detach(), entropy[place].detach()
        decided = decide(update, now[0] if one.needs_logp_now else None, entropy_now=now[1])
        found |= {f"{n} {number}": v for n, v in decided.whole.fields.items() if n.startswith("weight_")}
        outs = []
        for micro in decided.split(num=parts):
            _, place = select(batch.segments, micro.sequences)
            extra = {"entropy": entropy[place], "value": value[place] if one.value else None}
            outs.append(token_loss(micro, current[place], **extra))
            outs[-1].loss.backward(retain_graph=True)
        decided.check_spent()
        result = step(outs)
        metrics = metrics.merge(result.metrics)
        found[f"loss {number}"] = result.loss
        found[f"tokens {number}"] = torch.cat([out.token_loss * out.keep for out in outs])
    leaves = {"logp": current, "entropy": entropy, "value": value}
    found |= {f"gradient of {name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    found |= metrics.numbers()
    return found | {name: histogram.counts.double() for name, histogram in metrics.histograms.items()}


@contextmanager
def on(path: str) -> Iterator[None]:
    """`fast`, `reference`, or `device`: the fast path without numpy, as it runs on a GPU."""
    if path == "device":
        with as_on_a_device():
            yield
    else:
        with use_path(path):  # type: ignore[arg-type]
            yield


def worst_difference(one: Found, other: Found) -> float:
    """The largest distance of any number, as a share where it is large; infinite where one lacks what the other has."""
    if one.keys() != other.keys():
        return float("inf")
    errors = [0.0]
    for name in one:
        first, second = torch.as_tensor(one[name], dtype=F64).detach(), torch.as_tensor(other[name], dtype=F64).detach()
        if first.shape != second.shape:
            return float("inf")
        gap = (first - second).abs() / second.abs().clamp(min=1)
        errors.append(float(gap.nan_to_num(torch.inf).max()) if gap.numel() else 0.0)
    return max(errors)


LOSSES = (
    Stage(part("policy_loss.reinforce")),
    Stage(part("policy_loss.cross_entropy")),
    Stage(part("policy_loss.clipped", band=(0.95, 1.08)), anchor="old"),
    Stage(part("policy_loss.clipped", band=(0.95, 1.08)), anchor="rollout"),
    Stage(part("policy_loss.dual_clipped", band=(0.95, 1.08), cap=1.05), anchor="old"),
    Stage(part("policy_loss.clipped_importance", band=(0.95, 1.08)), anchor="old"),
    Stage(part("policy_loss.soft_gated", temperature_negative=1.1), anchor="old"),
    Stage(part("policy_loss.covariance_clipped", covariance_low=0.0, fraction=0.3), anchor="old"),
    Stage(part("policy_loss.covariance_penalised", fraction=0.3), anchor="old"),
    Stage(part("policy_loss.geometric_clipped", band=(0.97, 1.03)), anchor="old"),
    Stage(part("policy_loss.geometric_clipped_token", band=(0.97, 1.03)), anchor="old"),
    Stage(part("policy_loss.geometric_of_clipped", band=(0.95, 1.08)), anchor="old"),
    Stage(part("policy_loss.geometric_soft_gated"), anchor="old"),
    Stage(part("policy_loss.gamma_weighted"), anchor="rollout"),
    Stage(part("policy_loss.turn_clipped", band=(0.95, 1.08)), anchor="old"),
    Stage(part("policy_loss.quadratic"), anchor="rollout"),
    Stage(part("policy_loss.tapered", level="geometric", band=(0.97, 1.02)), anchor="old"),
)
WEIGHTINGS = (
    part("weighting.token_mean"),
    part("weighting.token_mean", over="kept"),
    part("weighting.sequence_mean_token_mean"),
    part("weighting.sequence_mean_token_mean", over="kept"),
    part("weighting.sequence_mean_token_sum", over="kept"),
    part("weighting.constant_divisor", divisor=16),
    part("weighting.token_sum"),
    part("weighting.prompt_mean"),
    part("weighting.episode_mean", over="kept"),
    part("weighting.given_weight"),
)
CORRECTIONS = (
    (),
    (
        Stage(part("importance.truncated", level="sequence", band=(0.0, 1.1)), ratio="engine"),
        Stage(part("keep.veto", low=0.83, high=1.2), ratio="engine"),
    ),
    (
        Stage(part("importance.truncated", level="geometric", band=(0.97, 1.02)), ratio="engine"),
        Stage(part("keep.geometric_band", band=(0.95, 1.06)), ratio="engine"),
        Stage(part("keep.product_band", band=(0.7, 1.3)), ratio="engine"),
    ),
    (
        Stage(part("importance.truncated", level="token", band=(0.9, 1.1)), ratio="engine"),
        Stage(part("keep.token_band", band=(0.85, 1.15)), ratio="engine"),
        Stage(part("keep.geometric_band", band=(0.95, 1.06)), ratio="engine"),
    ),
    (
        Stage(part("keep.negative_drift", delta=0.01), anchor="rollout"),
        Stage(part("keep.product_band", band=(0.8, 1.25)), ratio="update"),
        Stage(part("keep.veto", high=1.15), ratio="update"),
    ),
    (
        Stage(part("keep.probability_band", low=0.1, high=0.08), ratio="total"),
        Stage(part("keep.binary_kl", limit=0.02), ratio="total"),
        Stage(part("keep.token_band_by_sign", band=(0.85, 1.15)), ratio="update"),
        Stage(part("keep.second_moment_by_sign", limit=0.02), ratio="total"),
        Stage(part("keep.prefix_budget", limit=0.1, budget_low=0.005, budget_high=0.01), ratio="total"),
    ),
    (
        Stage(part("keep.total_variation", limit=0.09), ratio="engine"),
        Stage(part("keep.divergence", limit=0.02), ratio="update"),
        Stage(part("keep.outward_drift", limit=0.05), ratio="engine"),
        Stage(part("keep.second_moment", limit=0.02), ratio="engine"),
        Stage(part("keep.recent_version")),
    ),
    (
        Stage(part("importance.self_normalised", level="sequence"), ratio="engine"),
        Stage(part("importance.self_normalised", level="geometric", band=(0.9, 1.1)), ratio="update"),
        Stage(part("keep.high_entropy", fraction=0.5)),
    ),
)
NORMALIZERS = (
    part("normalize.mean_std", mean="group", std="group"),
    part("normalize.mean_std", mean="group", std="batch", ddof=0),
    part("normalize.mean_std", mean="batch", std="none"),
    part("normalize.mean_std", mean="none", std="group"),
    part("normalize.leave_one_out"),
    part("normalize.raw"),
)


def recipes() -> list[Recipe]:
    """Every loss, weighting, correction and baseline at least once, with terms beside the policy in some."""
    found = []
    for place, loss in enumerate(LOSSES * 3):
        correction = CORRECTIONS[(place + place // len(LOSSES)) % len(CORRECTIONS)]
        constant = loss.part.formula.constant_advantage
        if constant and correction is CORRECTIONS[3]:  # a sequence's gradient cannot be shared by some of its tokens
            correction = CORRECTIONS[1]
        changes: dict[str, Any] = {
            "loss": loss, "weighting": WEIGHTINGS[place % len(WEIGHTINGS)], "correction": correction,
            "normalize": NORMALIZERS[place // 2 % len(NORMALIZERS)], "allow_double_count": True,
        }  # fmt: skip
        if place % 3 == 0:
            changes["entropy"] = 0.01
        if place % 4 == 1:
            changes["kl"] = {"formula": "k3", "coef": 0.1, "into": "loss"}
        if place % 5 == 2 and not constant:
            changes["advantage"] = part("advantage.gae", gamma=0.9, lam=0.8)
            changes["whiten"] = True
        if place % 7 == 3:
            changes["not_ended"] = "suppress"
        found.append(recipe("grpo", **changes))
    return found
