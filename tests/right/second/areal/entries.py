"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together, walked
from tests.right.shapes import in_pairs

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE, BEHAVIOUR = gap("logp_current", "logp_old"), gap("logp_old", "logp_rollout")
BOUNDS = {"cu_seqlens": lambda case: case.cu_seqlens}


def _weight(row: Row, t: int, o: Any) -> float:
    weight = loops.exp(BEHAVIOUR(row, t))
    return weight if weight <= o["behav_imp_weight_cap"] else 0.0


def _decoupled(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        low, high = 1 - o["eps_clip"], 1 + o["eps_clip_higher"]
        return ppo(UPDATE(r, t), r.advantage[t], low, high) * _weight(r, t, o)

    return loops.token_mean(rows, one)


def _clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio = loops.exp(UPDATE(r, t))
        return float(ratio > 1 + o["eps_clip_higher"] if r.advantage[t] > 0
                     else r.advantage[t] < 0 and ratio < 1 - o["eps_clip"])  # fmt: skip

    return loops.token_mean(rows, one)


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lam"])


def _gae_returns(row: Row, o: Any) -> list[float]:
    return [a + v for a, v in zip(_gae(row, o), row.value, strict=True)]


def _reward(row: Row, t: int, o: Any) -> float:
    last = loops.clamp(row.reward, -o["reward_clip"], o["reward_clip"]) if t == row.count - 1 else 0.0
    return last - o["kl_ctl"] * (row.logp_old[t] - row.logp_ref[t])


def _normalization(method: Any) -> Subject:
    def normalised(x, mean_level, std_level):
        return method(SimpleNamespace(mean_level=mean_level, std_level=std_level, group_size=2, eps=1e-5), x)

    return bind(
        normalised, role="reward_normalisation", couples="batch", name="Normalization", args={"x": in_pairs("reward")},
        options={"mean_level": "group", "std_level": "group"},
        variants={"mean_level": ("batch", None), "std_level": ("batch", None)},
    )  # fmt: skip


def _normalised(rows: list[Row], o: Any) -> list[float]:
    paid = [r.reward for r in rows]
    found: list[float] = []
    for row in rows:
        pools = {"group": [p.reward for p in loops.peers(rows, row)], "batch": paid}
        centre = loops.mean(pools[o["mean_level"]]) if o["mean_level"] else 0.0
        size = loops.spread(pools[o["std_level"]], 0) + 1e-5 if o["std_level"] else 1.0
        found.append((row.reward - centre) / size)
    return found


def _second_moment(case: Case, o: Any) -> Any:
    apart = [BEHAVIOUR(row, t) ** 2 for row in loops.rows(case) for t in range(row.count)]
    left = sorted(range(len(apart)), key=lambda i: -apart[i])
    while len(left) > 1 and not sum(apart[i] for i in left) / len(left) < o["tau"]:
        left = left[1:]
    return {"keep": Result(loops.numbers([float(i in left) for i in range(len(apart))]), "token", "keep")}


def _errors(row: Row, t: int, o: Any) -> tuple[float, float]:
    def error(x: float) -> float:
        gone = abs(x - row.returns[t])
        return 0.5 * (gone - 0.25) if o["loss_fn_type"] == "huber" and gone > 0.5 else 0.5 * gone * gone

    room = o["value_eps_clip"]
    near = row.value_old[t] + loops.clamp(row.value[t] - row.value_old[t], -room, room)
    return error(row.value[t]), error(near)


ENTRIES = [
    Entry("ppo_actor_loss_fn", "areal", "policy_loss",
          "The behaviour weight is behaviour over proximal policy.",
          lambda fn: bind(
              fn, role="policy_loss", layout="packed",
              args={"proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout"},
              options={"eps_clip": 0.2, "eps_clip_higher": 0.3, "behav_imp_weight_cap": 5.0},
              variants={"eps_clip": (0.05,), "eps_clip_higher": (0.05,), "behav_imp_weight_cap": (1.1,)},
              returns={"loss": at(0, "loss"), "behave": at((1, "behave_imp_weight"), "importance"),
                       "clip_ratio": at((1, "clip_ratio"), "metric", range=(0, 1), agreed=0.0)}),
          together(scalar("loss", "loss", _decoupled), per_token("behave", "importance", _weight),
                   scalar("clip_ratio", "metric", _clipped)), several=True),
    Entry("scan", "areal", "returns",
          "The running advantage is not reset between packed sequences.",
          lambda fn: bind(
              fn, role="returns", layout="packed", args={"rewards": "token_reward", **BOUNDS},
              options={"gamma": 0.9, "lam": 0.8}, variants={"gamma": (1.0,), "lam": (0.5,)},
              returns={"advantage": at(0, "advantage"), "return": at(1, "return")}),
          together(walked("advantage", "advantage", _gae), walked("return", "return", _gae_returns)),
          neutral=True, several=True),
    Entry("add_kl_rewards", "areal", "kl_in_reward",
          "The score goes to the last token of the sequence, also where that is tool output.",
          lambda fn: bind(
              fn, role="kl_in_reward", layout="packed",
              args={"reward_score": "reward", "old_logp": "logp_old", "ref_logp": "logp_ref", **BOUNDS},
              options={"kl_ctl": 0.1, "reward_clip": 20.0}, variants={"kl_ctl": (0.5,), "reward_clip": (0.3,)},
              penalties={"kl_ctl": "logp_ref"}),
          per_token("reward", "reward", _reward), unusual=True),
    Entry("Normalization.__call__", "areal", "reward_normalisation",
          "The levels of the spread are exchanged (as once in prime-rl).", _normalization,
          per_row("advantage", "advantage", _normalised)),
    Entry("select_tokens", "areal", "keep",
          "The decision about the sorted tokens is not put back in their order.",
          lambda fn: bind(
              fn, role="keep", couples="batch", layout="packed",
              args={"prox_logp": "logp_old", "behav_logp": "logp_rollout"},
              options={"tau": 0.04}, variants={"tau": (0.001,)}),
          _second_moment, neutral=True, unusual=True),
    Entry("term", "areal", "value_loss",
          "The clip is around the new value, so that inside the band the old value is trained, which is nothing.",
          lambda fn: bind(
              fn, role="value_loss", layout="packed", args={"target_value": "returns"},
              options={"value_eps_clip": 0.2, "loss_fn_type": "mse"},
              variants={"value_eps_clip": (0.05,), "loss_fn_type": ("huber",)},
              returns={"loss": at(0, "loss"), "clip_ratio": at((1, "clip_ratio"), "metric", range=(0, 1))}),
          together(scalar("loss", "loss",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: max(_errors(r, t, o)))),
                   scalar("clip_ratio", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(_errors(r, t, o)[1] > _errors(r, t, o)[0])))),
          neutral=True, several=True),
]  # fmt: skip
