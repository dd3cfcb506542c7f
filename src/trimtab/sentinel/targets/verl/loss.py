"""verl: policy losses of its registry, value loss and aggregation, with the counts of the whole batch."""

from collections.abc import Mapping
from typing import Any

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, like
from trimtab.sentinel.binding.subject import Call, Subject
from trimtab.sentinel.findings.alone import Settings
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.target import Binding, CouldNotBind
from trimtab.sentinel.targets.verl.source import (
    MODES,
    OWN_FORWARD,
    algo,
)

NESTED = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")


def _config(case: Case, chosen: Mapping[str, Any]) -> Settings:
    """The actor's config, with the counts of the whole batch that the trainer writes into it."""
    tokens, rows = handed.counts(case)
    info = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": rows, "loss_scale_factor": None}
    own = {n: v for n, v in chosen.items() if n not in NESTED and n != "loss_agg_mode"}
    base = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None, "tau_pos": 1.0, "tau_neg": 1.05}
    nested = Settings(**{n: chosen.get(n) for n in NESTED})
    return Settings(**{**base, **own}, global_batch_info=info, loss_scale_factor=None, policy_loss=nested)


def policy_loss(
    boundary: Boundary, options: Mapping[str, Any], *, metrics: tuple[str, ...] = (), **facts: Any
) -> Subject:
    """A registered policy loss, with the config and the counts that the trainer passes."""
    if "config" not in handed.parameters(boundary):
        raise CouldNotBind(f"{boundary.spec.name} takes no config: it is from before the registry of policy losses")
    mode = str(options.get("loss_agg_mode", "token-mean"))

    def loss(case: Case, **chosen: Any) -> Any:
        config = _config(case, chosen)
        fields = {"old_log_prob": "logp_old", "log_prob": "logp_current", "advantages": "advantage"}
        tensors = {n: case.padded(field, with_prompt=False) for n, field in fields.items()}
        mask = case.padded("trainable", with_prompt=False)
        mode_now = chosen.get("loss_agg_mode", mode)
        return boundary(**tensors, response_mask=mask, loss_agg_mode=mode_now, config=config)

    facts.setdefault("combine", "sum")
    facts.setdefault("waived", {"nonfinite_isolation": OWN_FORWARD})
    return bind(
        loss,
        role="policy_loss",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        options=options,
        returns=_loss_results(metrics),
        **facts,
    )


def _loss_results(metrics: tuple[str, ...]) -> dict[str, Any]:
    facts: dict[str, dict[str, Any]] = {
        "actor/pg_clipfrac": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
        "actor/pg_clipfrac_lower": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
        "actor/ppo_kl": {"agreed": 0.0, "reduction": "mean"},
    }
    return {"loss": at(0, "loss")} | {n: at((1, n), "metric", **facts[n]) for n in metrics}


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["clip_ratio_low"], 1 + options["clip_ratio_high"]


CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OTHER_CLIPS = {"clip_ratio_low": (0.5,), "clip_ratio_high": (0.9,)}
EVERY = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")


def _averaged(formula: str, mode: str, **settings: Any) -> Call:
    return handed.simply(like(formula, mean=MODES[mode], **settings))


def _vanilla(boundary: Boundary) -> list[Subject]:
    modes = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
    return [
        policy_loss(
            boundary,
            {**CLIPS, "clip_ratio_c": 3.0, "loss_agg_mode": mode},
            metrics=EVERY,
            definition=_averaged("policy_loss.dual_clipped", mode, band=_band, cap=lambda o: o["clip_ratio_c"]),
            variants={**OTHER_CLIPS, "clip_ratio_c": (1.5,), "loss_agg_mode": tuple(set(modes) - {mode})},
            impossible={"loss_agg_mode": ("token-men",), "clip_ratio_c": (0.5,)},
        )
        for mode in modes
    ]


def _dppo(boundary: Boundary) -> Subject:
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 20.0}
    variants = {"clip_ratio_low": (0.01,), "clip_ratio_high": (0.01,), "clip_ratio_c": (1.5,)}
    waived = {"nonfinite_isolation": OWN_FORWARD}
    return policy_loss(boundary, options, metrics=EVERY, variants=variants, stops_gradient=True, waived=waived)


def _gspo(boundary: Boundary) -> Subject:
    mode = "seq-mean-token-mean"
    define = _averaged("policy_loss.geometric_clipped_token", mode, band=_band)
    return policy_loss(
        boundary,
        {**CLIPS, "loss_agg_mode": mode},
        metrics=EVERY[:2],
        definition=define,
        variants=OTHER_CLIPS,
        stops_gradient=True,
    )


def _sapo(boundary: Boundary) -> Subject:
    define = _averaged(
        "policy_loss.soft_gated",
        "seq-mean-token-mean",
        temperature_positive=lambda o: o["tau_pos"],
        temperature_negative=lambda o: o["tau_neg"],
    )
    options = {"tau_pos": 1.0, "tau_neg": 1.05, "loss_agg_mode": "seq-mean-token-mean"}
    variants = {"tau_pos": (2.0,), "tau_neg": (2.0,)}
    return policy_loss(boundary, options, metrics=EVERY[1:2], definition=define, variants=variants)


def _gpg_loss(boundary: Boundary) -> Subject:
    return policy_loss(
        boundary,
        {"loss_agg_mode": "token-mean"},
        definition=_averaged("policy_loss.reinforce", "token-mean"),
        variants={"loss_agg_mode": ("seq-mean-token-sum",)},
    )


def _clip_cov(boundary: Boundary) -> Subject:
    options = {**CLIPS, "clip_cov_ratio": 0.2, "clip_cov_lb": 0.1, "clip_cov_ub": 5.0}
    random = "it draws among candidates with torch.randperm, so two calls on one batch differ by design"
    waived = dict.fromkeys(
        (
            "mask_content",
            "nonfinite_isolation",
            "permutation",
            "no_aliasing",
            "split",
            "expected_gradient",
            "denominator",
            "mean_is_a_mean",
            "clip_geometry",
            "credit_over_trainable",
            "metric_reduction",
        ),
        random,
    )
    return policy_loss(boundary, options, couples="batch", waived=waived, metrics=EVERY[1:2])


def _kl_cov(boundary: Boundary) -> Subject:
    options = {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}
    variants = {"kl_cov_ratio": (0.6,), "ppo_kl_coef": (0.1,)}
    why = "the covariance is over the micro-batch, as the paper's own code has it"
    waived = {"nonfinite_isolation": OWN_FORWARD, "split": why, "denominator": why, "expected_gradient": why}
    waived["permutation"] = "torch.topk breaks ties between equal covariances by position"
    return policy_loss(
        boundary,
        options,
        couples="batch",
        variants=variants,
        waived=waived,
        metrics=EVERY[1:2],
        penalties={"ppo_kl_coef": "logp_old"},
    )


def _geo_mean(boundary: Boundary) -> Subject:
    return policy_loss(
        boundary,
        CLIPS,
        metrics=EVERY,
        variants=OTHER_CLIPS,
        adapt=handed.one_per_sequence("advantage"),
    )


def _cispo(boundary: Boundary) -> Subject:
    define = _averaged("policy_loss.clipped_importance", "token-mean", band=_band)
    return policy_loss(boundary, CLIPS, metrics=EVERY[:2], definition=define, variants=OTHER_CLIPS, stops_gradient=True)


def _dro(boundary: Boundary) -> Subject:
    impossible = {"dro_beta": (0.0, -1.0)}
    return policy_loss(boundary, {"dro_beta": 0.1}, variants={"dro_beta": (0.5,)}, impossible=impossible)


def _aggregation(boundary: Boundary) -> list[Subject]:
    own = handed.parameters(boundary)
    whole = "batch_num_tokens" in own
    told = {"batch_num_tokens": lambda c: handed.counts(c)[0], "global_batch_size": lambda c: handed.counts(c)[1]}
    found: list[Subject] = []
    for mode, name in MODES.items():
        args: dict[str, Any] = {"loss_mat": "token_loss", "loss_mask": "trainable"} | (told if whole else {})
        facts: dict[str, Any] = {"combine": "sum"} if whole else {}
        found.append(
            bind(
                boundary,
                role="aggregation",
                args=args,
                options={"loss_agg_mode": mode},
                definition=average(name),
                variants={"loss_agg_mode": tuple(set(MODES) - {mode, "token-sum"})},
                impossible={"loss_agg_mode": ("token_mean", "")},
                **facts,
            )
        )
    return found


def _value_loss(boundary: Boundary) -> list[Subject]:
    whole = "batch_num_tokens" in handed.parameters(boundary)
    told = {"batch_num_tokens": lambda c: handed.counts(c)[0], "global_batch_size": lambda c: handed.counts(c)[1]}
    args: dict[str, Any] = {
        "vpreds": "value",
        "values": "value_old",
        "returns": "returns",
        "response_mask": "trainable",
    }
    facts: dict[str, Any] = {"combine": "sum"} if whole else {}
    returns = {"loss": at(0, "loss"), "clip": at(1, "metric", range=(0.0, 1.0), reduction="mean")}
    define = handed.simply(like("value_loss.squared_clipped", mean="token_mean", reach=lambda o: o["cliprange_value"]))
    waived = {"nonfinite_isolation": OWN_FORWARD.replace("log-probs", "values")}
    return [
        bind(
            boundary,
            role="value_loss",
            args=args | (told if whole else {}),
            options={"cliprange_value": 0.5},
            definition=define,
            variants={"cliprange_value": (0.1,)},
            returns=returns,
            waived=waived,
            **facts,
        )
    ]


BINDINGS: tuple[Binding, ...] = (
    algo("agg_loss", _aggregation),
    algo("compute_policy_loss_vanilla", _vanilla),
    algo("compute_policy_loss_dppo_tv", _dppo),
    algo("compute_policy_loss_dppo_kl", _dppo),
    algo("compute_policy_loss_gspo", _gspo),
    algo("compute_policy_loss_sapo", _sapo),
    algo("compute_policy_loss_gpg", _gpg_loss),
    algo("compute_policy_loss_clip_cov", _clip_cov),
    algo("compute_policy_loss_kl_cov", _kl_cov),
    algo("compute_policy_loss_geo_mean", _geo_mean),
    algo("compute_policy_loss_dro", _dro),
    algo("compute_policy_loss_cispo", _cispo),
    algo("compute_value_loss", _value_loss),
)
