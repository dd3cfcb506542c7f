"""Entries in the dialect of SkyRL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, scalar, together
from tests.right.shapes import detached

from trimtab.sentinel import Case, Subject, at, bind

MISMATCH = gap("logp_old", "logp_rollout")


def _prescaled(r: Row, t: int, o: Any) -> float:
    rows = loops.rows(r.case)
    count = {
        "token_mean": sum(row.count for row in rows),
        "sequence_mean": len(rows) * r.count,
        "seq_mean_token_sum_norm": len(rows) * o["max_seq_len"],
    }[o["loss_reduction"]]
    return r.advantage[t] / count


def _critic(fn: Any) -> Subject:
    def loss(values, old_values, returns, loss_mask, value_clip):
        return fn(values, old_values, returns, SimpleNamespace(value_clip=value_clip), loss_mask)

    return bind(
        loss, role="value_loss", name="ppo_critic_loss",
        args={"values": "value", "old_values": "value_old", "returns": "returns", "loss_mask": "trainable"},
        options={"value_clip": 0.2}, variants={"value_clip": (0.5,)},
        returns={"loss": at(0, "loss"), "clipfrac": at(1, "metric", range=(0, 1))},
    )  # fmt: skip


def _errors(r: Row, t: int, o: Any) -> tuple[float, float]:
    near = r.value_old[t] + loops.clamp(r.value[t] - r.value_old[t], -o["value_clip"], o["value_clip"])
    return (near - r.returns[t]) ** 2, (r.value[t] - r.returns[t]) ** 2


def _clipped(r: Row, t: int, o: Any) -> float:
    held, plain = _errors(r, t, o)
    return float(held > plain)


def _mean_kl(case: Case) -> float:
    kept = zip(detached(case, "kl"), detached(case, "trainable"), strict=True)
    found = [x for row, mask in kept for x, live in zip(row, mask, strict=True) if live]
    return sum(found) / max(len(found), 1)


def _updated(method: Any) -> Subject:
    def update(current, n_steps, init_kl_coef, target, horizon):
        controller = SimpleNamespace(value=init_kl_coef, target=target, horizon=horizon)
        return method(controller, current, n_steps)

    return bind(
        update, name="AdaptiveKLController.update", couples="batch",
        args={"current": _mean_kl, "n_steps": lambda case: len(case.kinds)},
        options={"init_kl_coef": 0.1, "target": 0.6, "horizon": 100},
        variants={"init_kl_coef": (0.3,), "target": (2.0,), "horizon": (50,)},
        returns={"coef": at((), "statistic", level="scalar")},
    )  # fmt: skip


def _updated_value(rows: list[Row], o: Any) -> float:
    kl = loops.token_mean(rows, lambda r, t: r.kl[t])
    error = loops.clamp(kl / o["target"] - 1, -0.2, 0.2)
    return o["init_kl_coef"] * (1 + error * len(rows) / o["horizon"])


def _passed(r: Row, t: int, o: Any) -> float:
    x = r.total(MISMATCH) if o["kind"] == "product" else r.mean(MISMATCH)
    return float(o["low"] <= loops.exp(x) <= o["high"])


ENTRIES = [
    Entry("prescale", "skyrl", None,
          "The constant length is there but the number of rows is not, so the step grows with the batch.",
          lambda fn: bind(
              fn, couples="batch", args={"advantages": "advantage", "loss_mask": "trainable"},
              options={"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 8},
              variants={"loss_reduction": ("token_mean", "sequence_mean"), "max_seq_len": (16,)},
              returns={"advantage": at((), "advantage")}),
          per_token("advantage", "advantage", _prescaled), neutral=True),
    Entry("ppo_critic_loss", "skyrl", "value_loss",
          "The clipped value is detached, and where both errors are the same only half of the gradient is left.",
          _critic,
          together(
              scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: max(_errors(r, t, o)) / 2)),
              scalar("clipfrac", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: _clipped(r, t, o)))),
          several=True, pads_finite=True),
    Entry("AdaptiveKLController.update", "skyrl", None,
          "The error is absolute instead of relative to the target, so a small target is hardly followed.",
          _updated, scalar("coef", "statistic", _updated_value)),
    Entry("gate", "skyrl", "keep",
          "The product is a mean over the cells of the row, so it depends on how long the longest row is.",
          lambda fn: bind(
              fn, role="keep", args={"fresh": "logp_old", "stale": "logp_rollout", "alive": "trainable"},
              options={"kind": "product", "low": 0.7, "high": 1.4},
              variants={"kind": ("geometric",), "low": (0.95,), "high": (1.05,)},
              returns={"keep": at((), "keep", scope="sequence", pair=("logp_old", "logp_rollout"))}),
          per_token("keep", "keep", _passed), neutral=True, unusual=True),
]  # fmt: skip
