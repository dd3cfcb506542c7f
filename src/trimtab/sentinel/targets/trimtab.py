"""Trimtab itself as a target: every formula and every recipe, checked for its promises."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.definitions import DEFINITIONS, RUNNING, plain
from trimtab.sentinel.binding.like import STOPS_GRADIENT
from trimtab.sentinel.binding.subject import Kind, Level, Out, Result, Subject
from trimtab.signal import Recipe, SignalBatch, catalog, decide, find, names, prepare, recipe, token_loss
from trimtab.signal.catalogue import Formula
from trimtab.signal.metric_kind import Metric
from trimtab.signal.reduce import LOG_BOUND
from trimtab.signal.update import Ledger, MicroBatch

_KINDS: dict[str, tuple[Level, Kind]] = {
    "reward": ("sequence", "reward"), "normalize": ("sequence", "advantage"), "kl": ("token", "kl"),
    "advantage": ("token", "advantage"), "importance": ("token", "importance"), "keep": ("token", "keep"),
    "select": ("token", "weight"), "policy_loss": ("token", "term"), "value_loss": ("token", "term"),
    "weighting": ("token", "weight"),
}  # fmt: skip

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "reward.affine": [{"bias": 0.0, "scale": 1.0}, {"bias": -1.0, "scale": 2.0}],
    "reward.clip": [{"low": -0.5, "high": 1.0}],
    "reward.soft_overlong": [{"max_length": 4.0, "buffer": 2.0, "factor": 1.5}],
    "reward.not_ended_penalty": [{"amount": 0.5}],
    "reward.not_ended_scale": [{"factor": 0.25}],
    "normalize.mean_std": [
        {"mean": mean, "std": std, "ddof": ddof, "eps": 1e-6}
        for mean, std, ddof in (
            ("group", "group", 1), ("group", "none", 1), ("batch", "batch", 0),
            ("group", "batch", 1), ("none", "group", 0),
        )
    ] + [{"mean": "group", "std": std, "ddof": 1, "eps": 1e-3, "shift": -0.1} for std in ("none", "group")],
    "reward.not_ended_constant": [{"value": -0.5}],
    "reward.relative_length": [{"factor": 0.25}],
    "reward.weighted_sum": [{"weights": (1.0, -0.5)}],
    "normalize.leave_one_out": [{"std": "none", "eps": 1e-6}, {"std": "others", "eps": 1e-3}],
    "normalize.best_minus_second": [{"std": "group", "eps": 1e-3}, {"std": "none", "eps": 1e-6}],
    "normalize.running": [{"eps": 1e-3}],
    "normalize.minus_role_average": [{"decay": 0.95}],
    "normalize.rescaled_mean": [{"counted": "varied_groups"}, {"counted": "nonzero_rewards"}],
    "normalize.each_key": [
        {"weights": (1.0, 0.5), "ddof": 1, "eps": 1e-6, "whitened": True},
        {"weights": (0.25, 2.0), "ddof": 0, "eps": 1e-3, "whitened": False},
    ],
    "kl.k2_gradient": [{"value": "k1"}, {"value": "k3"}],
    "kl.importance_weighted_k2_gradient": [{"value": "k3", "cap": 10.0}, {"value": "k2", "cap": 1.2}],
    "advantage.reward_to_go": [{"gamma": 1.0}, {"gamma": 0.5}],
    "advantage.gae": [
        {"gamma": 1.0, "lam": 0.95}, {"gamma": 0.9, "lam": 0.5}, {"gamma": 0.9, "lam": 0.5, "lam_value": 1.0},
    ],
    "advantage.gae_by_length": [{"alpha": 0.4, "gamma": 0.9, "lam_value": 0.5}],
    "advantage.gae_by_share": [{"share": 0.3, "gamma": 0.9}],
    "advantage.turn_gae": [{"gamma": 0.9, "lam": 0.5}],
    "advantage.turn_reward_to_go": [
        {"gamma": 0.5, "compared": "none", "eps": 1e-6}, {"gamma": 0.9, "compared": "group", "eps": 1e-3},
    ],
    "advantage.turns_by_state": [
        {"gamma": 0.9, "coef": 0.5, "std": "group", "eps": 1e-3},
        {"gamma": 0.5, "coef": 2.0, "std": "none", "eps": 1e-6},
    ],
    "advantage.plus_teacher": [{"coef": 0.5, "outcome_coef": 1.0}, {"coef": 1.0, "outcome_coef": 0.0}],
    "advantage.scaled_by_teacher": [{"share": 0.4, "band": (0.8, 1.2)}],
    "advantage.optimal_token_baseline": [{"eps": 1e-8}],
    "importance.truncated": [
        {"level": "token", "band": (0.0, 2.0)},
        {"level": "sequence", "band": (0.0, 5.0)},
        {"level": "geometric", "band": (0.8, 1.25)},
    ],
    "importance.self_normalised": [
        {"level": "token", "band": (0.0, 2.0)},
        {"level": "sequence", "band": (0.2, 5.0)},
    ],
    "importance.truncated_by_turn": [{"band": (0.8, 1.25)}],
    "keep.token_band": [{"band": (0.5, 2.0)}],
    "keep.product_band": [{"band": (0.5, 2.0)}],
    "keep.geometric_band": [{"band": (0.9, 1.1)}],
    "keep.veto": [{"low": 0.25, "high": 4.0}, {"low": None, "high": 2.0}, {"low": 0.5, "high": None}],
    "keep.negative_drift": [{"delta": 0.05}, {"delta": 0.5}],
    "keep.token_band_by_sign": [{"band": (0.7, 1.2)}],
    "keep.probability_band": [
        {"low": 0.15, "high": 0.05, "by_sign": True},
        {"low": 0.05, "high": 0.1, "by_sign": False},
    ],
    "keep.binary_kl": [
        {"limit": limit, "level": level, "direction": direction, "by_sign": by_sign, "eps": 1e-8}
        for limit, level, direction, by_sign in (
            (0.02, "token", "earlier_to_later", True), (0.05, "token", "larger", False),
            (0.05, "sequence", "later_to_earlier", False),
        )
    ],
    "keep.total_variation": [{"limit": 0.1}],
    "keep.divergence": [
        {"limit": limit, "measure": measure, "total": total}
        for limit, measure, total in (
            (0.02, "k3", "mean"), (0.05, "k2", "sum"), (0.15, "ratio_distance", "mean"), (1.2, "exp_distance", "mean"),
        )
    ],
    "keep.outward_drift": [{"limit": 0.1}],
    "keep.prefix_budget": [
        {"limit": 0.15, "last_weight": 0.8, "budget_low": 0.02, "budget_high": 0.04, "quantile": 0.9},
        {"limit": 0.1, "last_weight": 0.5, "budget_low": 0.01, "budget_high": 0.2, "quantile": 0.3},
    ],
    "keep.second_moment": [{"limit": 0.04}],
    "keep.second_moment_by_sign": [{"limit": 0.04}],
    "keep.high_entropy": [{"fraction": 0.2}, {"fraction": 0.6}],
    "keep.recent_version": [{"lag": 0, "newest": "batch"}, {"lag": 1, "newest": "sequence"}],
    "select.covariance_in_band": [{"band": (0.8, 1.2), "covariance_low": 0.0, "covariance_high": 5.0, "fraction": 0.5}],
    "select.covariance_largest": [{"fraction": 0.3}],
    "policy_loss.clipped": [{"band": (0.8, 1.2)}, {"band": (0.8, 1.28)}],
    "policy_loss.dual_clipped": [{"band": (0.8, 1.2), "cap": 3.0}, {"band": (0.8, 1.2), "cap": 1.3}],
    "policy_loss.geometric_clipped": [{"band": (0.9, 1.1)}],
    "policy_loss.geometric_clipped_token": [{"band": (0.9, 1.1)}],
    "policy_loss.clipped_importance": [{"band": (0.0, 5.0)}, {"band": (0.9, 1.1)}],
    "policy_loss.soft_gated": [{"temperature_positive": 1.0, "temperature_negative": 1.05}],
    "policy_loss.covariance_clipped": [{"band": (0.8, 1.2)}],
    "policy_loss.covariance_penalised": [{"coef": 0.5}],
    "policy_loss.geometric_of_clipped": [{"band": (0.9, 1.1)}, {"band": (0.0, 1.5)}],
    "policy_loss.gamma_weighted": [
        {"power_positive": 2.0, "rate_positive": 3.0, "power_negative": 3.0, "rate_negative": 2.0}
    ],
    "policy_loss.turn_clipped": [{"band": (0.9, 1.1)}],
    "policy_loss.quadratic": [{"coef": 0.1}],
    "policy_loss.tapered": [{"band": (0.0, 1.0), "level": level} for level in ("token", "sequence", "geometric")],
    "policy_loss.geometric_soft_gated": [{"temperature_positive": 1.0, "temperature_negative": 1.05}],
    "value_loss.squared_clipped": [{"reach": 0.2}],
    "value_loss.huber_clipped": [{"reach": 0.2, "width": 1.0}],
    "weighting.token_mean": [{"over": "all"}, {"over": "kept"}],
    "weighting.sequence_mean_token_mean": [{"over": "all"}, {"over": "kept"}],
    "weighting.sequence_mean_token_sum": [{"over": "all"}, {"over": "kept"}],
    "weighting.prompt_mean": [{"over": "all"}, {"over": "kept"}],
    "weighting.episode_mean": [{"over": "all"}, {"over": "kept"}],
    "weighting.given_weight": [{"by": "weights", "over": "all"}, {"by": "tokens", "over": "kept"}],
    "weighting.constant_divisor": [{"divisor": 8.0, "over": "all"}, {"divisor": 8.0, "over": "kept"}],
}  # fmt: skip
"""The settings each formula is checked with; one without settings is checked as it is."""


UNCENTRED = "without a mean it divides rewards themselves by their spread, so they grow as the spread shrinks"
MEASURED = "a sequence is measured, and tokens are decided about: some of a drifted sequence stay"
BY_WHAT_THEIR_SEQUENCE_DID = ("keep.outward_drift", "keep.prefix_budget")
REFUSED = "SignalBatch and token_loss refuse half-precision log-probs, so no formula gets them"


def formula_subjects() -> list[Subject]:
    """Every formula of the catalogue, in every listed variant."""
    return [bind(entry, settings) for name, entry in catalog().items() for settings in VARIANTS.get(name, [{}])]


def named_subjects(name: str) -> list[Subject]:
    """One formula, of the catalogue or by dotted path, in its listed variants or with its defaults."""
    entry = find(name)
    settings = {n: p.default for n, p in entry.settings.items() if p.default is not p.empty}
    return [bind(entry, variant) for variant in VARIANTS.get(entry.name, [settings])]


def bind(entry: Formula, settings: Mapping[str, Any], fn: Any = None) -> Subject:
    """A formula as a subject. `fn` replaces the function, for example by a planted bug."""
    function = fn or entry.fn

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        available = _inputs(entry, _furnished(case))
        return _results(
            entry, function(**{name: available[name] for name in entry.inputs}, **options), _scope(entry, options)
        )

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        value, seen = DEFINITIONS[entry.name](plain(_furnished(case), bound=LOG_BOUND), **options)
        level, kind = _KINDS[entry.stage]
        found = {"value": Result(torch.tensor(value, dtype=torch.float64), level, kind, _scope(entry, options))}
        return found | {name: _second(name, _tensor(values)) for name, values in seen.items()}

    across = entry.stage in ("importance", "keep") and entry.scope in ("update", "batch")
    wide = (
        "batch" in settings.values() or across or entry.stage in ("select", "weighting", "reward") or entry.name in WIDE
    )
    return Subject(
        name=entry.name,
        call=call,
        inputs=frozenset(entry.inputs),
        options=dict(settings),
        couples="batch" if wide else "group" if entry.stage == "normalize" or entry.scope == "group" else "sequence",
        definition=define if entry.name in DEFINITIONS else None,
        promises=tuple(p for p in entry.promises if not (wide and p == "group_isolation")),
        exact=True,
        stops_gradient=entry.name in STOPS_GRADIENT,
        waived={
            "half_precision": REFUSED,
            **OF_THEMSELVES.get(entry.name, {}),
            **({"degenerate_bounded": UNCENTRED} if _is_uncentred(settings) else {}),
            **({"decision_granularity": MEASURED} if entry.name in BY_WHAT_THEIR_SEQUENCE_DID else {}),
        },
        reads=_reads(entry),
        adapt=_accepted(entry),
    )


BY_LENGTH = {"credit_flows_back": "its lambda is a function of the length, so a token less before changes it"}
BY_TURN = {"credit_over_trainable": "tool output ends a turn, and a turn is its step of time"}
OF_THEMSELVES = {
    "advantage.gae_by_length": BY_LENGTH, "advantage.gae_by_share": BY_LENGTH,
    "advantage.turn_gae": BY_TURN, "advantage.turn_reward_to_go": BY_TURN, "advantage.turns_by_state": BY_TURN,
}  # fmt: skip
"""Laws that a formula breaks by its definition."""

WIDE = ("normalize.rescaled_mean", "normalize.each_key")
"""Formulas that compare across groups, whatever their settings."""


def _accepted(entry: Formula) -> Callable[[Case], Case]:
    """How any case becomes one that the formula accepts."""
    if entry.constant_advantage:
        return _constant_inside
    if entry.name == "normalize.over_mean":
        return lambda case: case.with_sequences(reward=case.sequences["reward"].abs())
    return lambda case: case


def _is_uncentred(settings: Mapping[str, Any]) -> bool:
    return settings.get("mean") == "none" and settings.get("std", "none") != "none"


def _constant_inside(case: Case) -> Case:
    """A policy loss with sequence gradients never gets advantages that vary inside a sequence."""
    return case.with_tokens(advantage=case.sequences["outcome"][case.owner])


def _anchor(entry: Formula) -> str:
    return "logp_old" if entry.stage in ("policy_loss", "select") else "logp_rollout"


def _reads(entry: Formula) -> frozenset[str]:
    """Case fields behind a formula's inputs."""
    behind = {"logp_anchor": [_anchor(entry)], "logratio": ["logp_old", "logp_rollout"], **BEHIND}
    behind |= {"group_of_token": ["group"], "episode_of_token": ["episode"], "weight": ["entropy"]}
    behind |= {"logp_later": ["logp_old"], "logp_earlier": ["logp_rollout"]}
    fields = {field for name in entry.inputs for field in behind.get(name, [name])}
    return frozenset(fields | {"outcome", "reward", "logp_rollout"})


BEHIND = {
    "rewards": ["reward", "outcome"], "rewards_scored": ["ended"], "baseline": ["outcome"],
    "role_average": ["outcome"],
    "logp_teacher": ["logp_ref"], "pi_squared": ["logp_ref"], "turn": [], "state": [],
}  # fmt: skip
"""Inputs that a case does not hold, and the fields of the case that stand for them."""


def _furnished(case: Case) -> Case:
    """The case with fields that only few formulas read, made of others: a second reward, a teacher, turns, states."""
    rows, tokens = case.sequences, case.tokens
    turns = [_turn(kinds, place) for kinds in case.kinds for place in range(len(kinds))]
    # Two states that every other turn returns to; what stands at later tokens of a turn is nobody's state.
    states = [
        turn % 2 if place == 0 or kinds[place - 1] != "a" else 7 + place
        for kinds in case.kinds
        for place, turn in enumerate(_turn(kinds, one) for one in range(len(kinds)))
    ]
    ended = rows["ended"]
    return case.with_sequences(
        rewards=torch.stack([rows["reward"], rows["outcome"]], 1), baseline=rows["outcome"],
        role_average=rows["outcome"] / 2,
        rewards_scored=torch.stack([torch.ones_like(ended), ended], 1),
    ).with_tokens(
        logp_teacher=tokens["logp_ref"], pi_squared=tokens["logp_ref"].exp(),
        turn=torch.tensor(turns, dtype=torch.long), state=torch.tensor(states, dtype=torch.long),
    )  # fmt: skip


def _turn(kinds: tuple[str, ...], place: int) -> int:
    """How often the environment spoke before a token."""
    return sum(before == "o" and after != "o" for before, after in pairwise(kinds[: place + 1]))


def _inputs(entry: Formula, given: Case) -> dict[str, Any]:
    """The inputs that the pipeline would pass, from the leaves of the case."""
    flat = {name: given.flat(name) for name in given.tokens}
    if "keep" in entry.inputs and entry.stage == "policy_loss":
        for name in ("logp_current", "logp_old", "advantage"):
            flat[name] = torch.where(flat["keep"], flat[name], torch.zeros_like(flat[name]))
    levels = given.levels
    return {
        **flat, **given.sequences, "segments": given.segments, "logp_anchor": flat[_anchor(entry)],
        "logratio": flat["logp_old"] - flat["logp_rollout"],
        "group_of_token": given.flat("group"), "episode_of_token": given.flat("episode"), "weight": flat["entropy"],
        "logp_later": flat["logp_old"], "logp_earlier": flat["logp_rollout"],
        "trains": torch.ones(given.num_sequences, dtype=torch.bool),
        "group_of_episode": levels.group_of_episode, "num_groups": levels.num_groups,
        "episode_of_sequence": levels.episode_of_sequence,
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in RUNNING.items()},
    }  # fmt: skip


SECOND = {"advantage": "returns", "normalize": "has_signal"}
"""The second return value of the formulas of a stage, where it is one tensor."""


def _scope(entry: Formula, settings: Mapping[str, Any]) -> str:
    """What a decision is about; a setting may say it."""
    return settings["level"] if entry.stage == "keep" and "level" in settings else entry.scope


def _results(entry: Formula, returned: object, scope: str | None = None) -> Out:
    level, kind = _KINDS[entry.stage]
    value, rest = cast("tuple[Tensor, object]", returned if isinstance(returned, tuple) else (returned, {}))
    # A mean divides what was held in a band: only 0 bounds the result.
    bounds = (0.0, float("inf")) if entry.name == "importance.self_normalised" else None
    out = {"value": Result(value, level, kind, scope or entry.scope, range=bounds)}
    others = cast("dict[str, Tensor]", rest if isinstance(rest, dict) else {SECOND[entry.stage]: rest})
    return out | {name: _second(name, tensor) for name, tensor in others.items()}


def _tensor(values: list[bool] | list[float]) -> Tensor:
    flags = all(isinstance(value, bool) for value in values)
    return torch.tensor(values, dtype=torch.bool if flags else torch.float64)


def _second(name: str, values: Tensor) -> Result:
    """Observations, a value target, or which episodes have a signal."""
    if name == "returns":
        return Result(values.double(), "token", "return")
    by_sequence = name.endswith("_sequences") or name == "has_signal"
    return Result(values, "sequence" if by_sequence else "token", "observation")


# --- whole recipes ------------------------------------------------------------------------------------------------

PIPELINE_PROMISES = (
    "mask_content",
    "nonfinite_isolation",
    "no_aliasing",
    "split",
    "permutation",
    "suppressed_do_not_vote",
)


def recipe_subjects() -> list[Subject]:
    """Every recipe, from padded tensors to loss and gradient."""
    return [bind_recipe(recipe(name)) for name in names()]


def bind_recipe(chosen: Recipe, name: str | None = None) -> Subject:
    """A whole recipe as a subject: from_padded, prepare, decide, token_loss."""
    wide = chosen.whiten or "batch" in chosen.normalize.settings.values() or chosen.decides_across
    wide = wide or chosen.normalize.formula.name in WIDE

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        return _run_recipe(chosen, case)

    inputs = frozenset({"logp_current", "reward", "votes", "whole", *chosen.needs})
    return Subject(
        name=f"recipe.{name or chosen.name}", call=call, inputs=inputs,
        couples="batch" if wide else "group", promises=PIPELINE_PROMISES, exact=True,
    )  # fmt: skip


def _run_recipe(chosen: Recipe, case: Case) -> Out:
    whole = _furnished(case.whole)
    batch = SignalBatch.from_padded(
        whole.padded("trainable").bool(),
        reward=whole.sequences["reward"], group=whole.sequences["group"], scored=whole.sequences["votes"],
        ended=whole.sequences["ended"], value_after=whole.sequences["value_after"],
        sequence_id=torch.tensor(whole.origin), length=whole.sequences["length"].long(),
        **{n: whole.padded(n) for n in ("logp_old", "logp_rollout", "logp_ref")},
        **({"value_old": whole.padded("value_old")} if chosen.value else {}),
        **{name: whole.sequences[name] for name in ("rewards", "rewards_scored") if "rewards" in chosen.needs},
        **({"baseline": whole.sequences["baseline"]} if "baseline" in chosen.needs else {}),
        **({"version": whole.padded("version").long()} if "version" in chosen.needs else {}),
        extra={name: whole.padded(name) for name in ("logp_teacher", "pi_squared") if name in chosen.needs},
    )  # fmt: skip
    newest = NEWEST if chosen.old == "interpolated" else None
    prepared, _ = prepare(batch, chosen, version=newest)
    update = next(prepared.updates(1))
    sequences = [int(s) for s in update.sequences]
    tokens = whole.token_places(sequences)
    now = whole.flat("logp_current")[tokens].detach() if chosen.needs_logp_now else None
    decided = decide(update, now, entropy_now=whole.flat("entropy")[tokens] if chosen.needs_entropy_now else None)
    mine = [whole.origin.index(i) for i in case.origin] if case.within is not None else list(range(whole.num_sequences))
    rows = [k for k, s in enumerate(sequences) if s in mine]
    micro = MicroBatch(decided.whole.take(torch.tensor(rows, dtype=torch.long)), 1, Ledger())
    own = case.token_places([mine.index(int(s)) for s in micro.sequences])
    extra = {"value": case.flat("value")[own]} if chosen.value else {}
    out = token_loss(micro, case.flat("logp_current")[own], **extra)
    # The advantage of a sequence that does not train is never read.
    trained = prepared.trains[batch.segments.sequence_of_token]
    advantage = torch.where(trained, prepared.advantage, 0.0)[whole.token_places(mine)]
    return {
        "loss": Result(out.loss, "scalar", "loss"),
        "advantage": Result(advantage, "token", "advantage"),
        "metric:loss/policy": Result(_number(out.metrics["loss/policy"]), "scalar", "metric"),
        # These metrics need not change: the weights of a mean sum to one by definition.
        "weight/policy": Result(_number(out.metrics["weight/policy"]), "scalar", "statistic"),
    }


NEWEST = 8
"""The version that trains, for recipes that go by the age of tokens; cases hold older ones."""


def _number(metric: Metric) -> Tensor:
    return torch.as_tensor(metric.value()[0], dtype=torch.float64)
