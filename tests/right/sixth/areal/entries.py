"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together, walked
from tests.right.shapes import in_pairs, prompted

from trimtab.sentinel import Subject, at, bind

PROXIMAL = gap("logp_current", "logp_old")
BEHAVIOUR = gap("logp_old", "logp_rollout")
DISTANCE = gap("logp_old", "logp_ref")


def _scaled(method: Any) -> Subject:
    def transform(x, std_level, eps):
        config = SimpleNamespace(group_size=2, mean_level="group", std_level=std_level, eps=eps)
        return method(SimpleNamespace(config=config), x)

    return bind(
        transform, role="reward_normalisation", name="Scaler.transform", args={"x": in_pairs("reward")},
        options={"std_level": "group", "eps": 1e-5}, variants={"std_level": ("none",), "eps": (0.1,)},
    )  # fmt: skip


def _scaled_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        scale = loops.spread(group, 0) + o["eps"] if o["std_level"] == "group" else 1.0
        found.append((row.reward - loops.mean(group)) / scale)
    return found


def _actor(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss",
        args={"logprobs": "logp_current", "proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout",
              "advantages": "advantage", "loss_mask": "trainable"},
        options={"eps_clip": 0.2, "eps_clip_higher": 0.28, "importance_sampling_level": "sequence"},
        variants={"eps_clip": (0.05,), "eps_clip_higher": (None, 0.05), "importance_sampling_level": ("token",)},
        returns={"loss": at(0, "loss"), "clip_ratio": at((1, "clip_ratio"), "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _band(o: Any) -> tuple[float, float]:
    return 1 - o["eps_clip"], 1 + (o["eps_clip"] if o["eps_clip_higher"] is None else o["eps_clip_higher"])


def _seen(r: Row, t: int, o: Any) -> tuple[float, float]:
    """The log-ratio and the advantage that a token is trained with."""
    if o["importance_sampling_level"] == "sequence":
        return r.mean(PROXIMAL), r.mean(lambda row, s: row.advantage[s])
    return PROXIMAL(r, t), r.advantage[t]


def _actor_loss(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: loops.exp(BEHAVIOUR(r, t)) * ppo(*_seen(r, t, o), *_band(o)))


def _actor_clipped(rows: list[Row], o: Any) -> float:
    low, high = _band(o)

    def one(r: Row, t: int) -> float:
        log_ratio, advantage = _seen(r, t, o)
        x = loops.exp(log_ratio)
        return float((x > high and advantage > 0) or (x < low and advantage < 0))

    return loops.token_mean(rows, one)


def _errors(r: Row, t: int, o: Any) -> tuple[float, float]:
    near = r.value_old[t] + loops.clamp(r.value[t] - r.value_old[t], -o["band"], o["band"])
    return (r.value[t] - r.returns[t]) ** 2 / 2, (near - r.returns[t]) ** 2 / 2


def _held(r: Row, t: int, o: Any) -> float:
    plain, held = _errors(r, t, o)
    return float(held > plain)


def _prepared(method: Any) -> Subject:
    def prepare(rewards, logprobs, ref_logp, loss_mask, kl_ctl, reward_bias, reward_scaling, reward_clip):
        config = SimpleNamespace(
            kl_ctl=kl_ctl, reward_bias=reward_bias, reward_scaling=reward_scaling, reward_clip=reward_clip
        )
        data = {"rewards": rewards, "logprobs": logprobs, "ref_logp": ref_logp, "loss_mask": loss_mask}
        return method(SimpleNamespace(config=config), data)

    return bind(
        prepare, role="kl_in_reward", name="PPOActor.prepare", view={"with_prompt": True, "shift": True},
        args={"rewards": "reward", "logprobs": lambda case: prompted(case).padded("logp_old"), "ref_logp": "logp_ref",
              "loss_mask": lambda case: case.padded("trainable")},
        options={"kl_ctl": 0.1, "reward_bias": -0.5, "reward_scaling": 2.0, "reward_clip": 20.0},
        variants={"kl_ctl": (0.0, 0.5), "reward_bias": (0.0,), "reward_scaling": (1.0,), "reward_clip": (0.5,)},
        returns={"reward": at("tot_rewards", "reward"), "kl_reward": at("kl_rewards", "reward")},
    )  # fmt: skip


def _prepared_value(row: Row, o: Any) -> list[float]:
    found = [-o["kl_ctl"] * DISTANCE(row, t) for t in range(row.count)]
    if found:
        score = (row.reward + o["reward_bias"]) * o["reward_scaling"]
        found[-1] += loops.clamp(score, -o["reward_clip"], o["reward_clip"])
    return found


ENTRIES = [
    Entry("Scaler.transform", "areal", "reward_normalisation",
          "The spread of a group is measured around the mean of the batch, so easy and hard prompts are damped.",
          _scaled, per_row("advantage", "advantage", _scaled_value), neutral=True),
    Entry("ppo_actor_loss_fn", "areal", "policy_loss",
          "The advantage of a sequence is a mean over all cells of its row, with tool output and padding.",
          _actor, together(scalar("loss", "loss", _actor_loss), scalar("clip_ratio", "metric", _actor_clipped)),
          several=True),
    Entry("step_fn", "areal", "value_loss",
          "The new and the old value are swapped in the clip, so a small step is undone and a large one is allowed.",
          lambda fn: bind(
              fn, role="value_loss",
              args={"guess": "value", "anchor": "value_old", "goal": "returns", "live": "trainable"},
              options={"band": 0.2}, variants={"band": (0.5,)},
              returns={"loss": at(0, "loss"), "held": at((1, "held"), "metric", range=(0, 1))}),
          together(
              scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: max(_errors(r, t, o)))),
              scalar("held", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: _held(r, t, o)))),
          neutral=True, unusual=True, several=True),
    Entry("PPOActor.prepare", "areal", "kl_in_reward",
          "The engine's log-probs are not rolled to the left like the mask, so each is compared with the next token.",
          _prepared,
          together(walked("reward", "reward", _prepared_value),
                   per_token("kl_reward", "reward", lambda r, t, o: -o["kl_ctl"] * DISTANCE(r, t))),
          neutral=True, several=True),
]  # fmt: skip
