"""SkyRL: policy losses on advantages that are scaled over the mini-batch, and the critic loss."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Call, Subject
from trimtab.sentinel.findings.alone import Settings
from trimtab.sentinel.loading import Boundary, CouldNotLoad
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.skyrl.source import (
    LEFT,
    OWN,
    ppo,
    single,
)
from trimtab.sentinel.targets.target import Binding, CouldNotBind

CORRECTION = {
    "tis_ratio_type": None,
    "sequence_mask_metric": None,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "geo_mask_low": 0.99,
    "geo_mask_high": 1.01,
    "product_mask_low": 0.5,
    "product_mask_high": 2.0,
}
REDUCTIONS = {"token_mean": "token_mean", "sequence_mean": "sequence_mean_token_mean over all rows"}


def algorithm(chosen: Mapping[str, Any]) -> Settings:
    """The settings of the algorithm: the chosen ones at their places, all others off."""
    parts: dict[str, dict[str, Any]] = {
        "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
        "cispo": {"cispo_eps_clip_low": 0.2, "cispo_eps_clip_high": 0.28, "cispo_anchor": "old"},
        "dppo": {"dppo_type": "binary_tv", "delta_low": 0.2, "delta_high": 0.2},
        "clip_cov": {"clip_ratio": 0.2, "clip_cov_lb": 0.1, "clip_cov_ub": 5.0},
        "kl_cov": {"kl_cov_frac": 0.2, "ppo_kl_coef": 1.0},
        "off_policy_correction": CORRECTION,
    }
    top = {
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.28,
        "clip_ratio_c": 3.0,
        "policy_loss_type": "regular",
        "loss_reduction": "token_mean",
        "max_seq_len": 8,
        "value_clip": 0.5,
    }
    for name, value in chosen.items():
        into = next((part for part in parts.values() if name in part), top)
        if into is CORRECTION:
            into = parts["off_policy_correction"] = {**CORRECTION, **parts["off_policy_correction"]}
        into[name] = value
    return Settings(**top, **{name: Settings(**part) for name, part in parts.items()})


def _scaled(boundary: Boundary, case: Case, chosen: Mapping[str, Any]) -> Tensor:
    """The advantages of a part, scaled once over the whole mini-batch as the trainer does."""
    whole = case.whole
    groups = whole.sequences["group"].tolist()
    edges = [i for i in range(len(groups)) if i == 0 or groups[i] != groups[i - 1]] + [len(groups)]
    extra = {"prompt_boundaries": list(pairwise(edges))}
    scale = boundary.get("apply_loss_reduction_to_advantages_minibatch")
    config = algorithm(chosen)
    share = scale(  # advantages are only divided, so the result for 1 is the factor of each token
        advantages=torch.ones_like(single(whole, "trainable")),
        loss_mask=single(whole, "trainable"),
        loss_reduction=config.loss_reduction,
        micro_batch_size=1,
        max_seq_len=config.max_seq_len,
        **(extra if config.loss_reduction == "prompt_mean" else {}),
    )
    if case.within is not None:
        rows = [whole.origin.index(i) for i in case.origin]
        share = share[rows][:, share.shape[1] - case.padded("attention", **LEFT).shape[1] :]
    return single(case, "advantage") * share


def policy_loss(boundary: Boundary, options: Mapping[str, Any], *, clip: bool = True, **facts: Any) -> Subject:
    """A registered policy loss on advantages that the trainer has scaled."""
    try:
        boundary.get("apply_loss_reduction_to_advantages_minibatch")
    except CouldNotLoad as error:
        raise CouldNotBind(f"{boundary.spec.name} is from before advantages were scaled: {error}") from error

    def loss(case: Case, **chosen: Any) -> Any:
        return boundary(
            log_probs=single(case, "logp_current"),
            old_log_probs=single(case, "logp_old"),
            advantages=_scaled(boundary, case, chosen),
            config=algorithm(chosen),
            loss_mask=single(case, "trainable"),
            rollout_logprobs=single(case, "logp_rollout"),
        )

    returns = {"loss": at(0, "loss")}
    if clip:
        returns["clip_ratio"] = at((1, "clip_ratio"), "metric", range=(0.0, 1.0), agreed=0.0, reduction="mean")
    facts = {"combine": "sum", "waived": OWN, **facts}
    return bind(
        loss,
        role="policy_loss",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        options=options,
        returns=returns,
        **facts,
    )


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["eps_clip_low"], 1 + options["eps_clip_high"]


CLIPS = {"eps_clip_low": 0.2, "eps_clip_high": 0.28}
OTHER_CLIPS = {"eps_clip_low": (0.5,), "eps_clip_high": (0.9,)}


def _averaged(formula: str, reduction: str = "token_mean", **settings: Any) -> Call:
    return handed.simply(like(formula, mean=REDUCTIONS[reduction], **settings))


def _ppo(boundary: Boundary) -> list[Subject]:
    regular = policy_loss(
        boundary,
        {**CLIPS, "loss_reduction": "token_mean"},
        variants={**OTHER_CLIPS, "loss_reduction": ("sequence_mean",)},
        definition=_averaged("policy_loss.clipped", band=_band),
        impossible={"loss_reduction": ("mean",)},
    )
    dual = policy_loss(
        boundary,
        {**CLIPS, "policy_loss_type": "dual_clip", "clip_ratio_c": 3.0, "loss_reduction": "sequence_mean"},
        definition=_averaged("policy_loss.dual_clipped", "sequence_mean", band=_band, cap=lambda o: o["clip_ratio_c"]),
        variants={**OTHER_CLIPS, "policy_loss_type": ("regular",), "clip_ratio_c": (1.5,)},
        impossible={"policy_loss_type": ("dual",)},
    )
    corrected = policy_loss(
        boundary,
        {**CLIPS, "tis_ratio_type": "token", "token_tis_ratio_clip_high": 2.0},
        variants={"token_tis_ratio_clip_high": (1.1,), "tis_ratio_type": ("sequence", None)},
        impossible={"tis_ratio_type": ("turn",)},
    )
    return [regular, dual, corrected]


def _sapo(boundary: Boundary) -> Subject:
    define = _averaged(
        "policy_loss.soft_gated",
        "sequence_mean",
        temperature_positive=lambda o: o["tau_pos"],
        temperature_negative=lambda o: o["tau_neg"],
    )
    options = {"tau_pos": 1.0, "tau_neg": 1.05, "loss_reduction": "sequence_mean"}
    variants = {"tau_pos": (2.0,), "tau_neg": (2.0,)}
    return policy_loss(boundary, options, clip=False, definition=define, variants=variants)


def _gspo(boundary: Boundary) -> Subject:
    define = _averaged("policy_loss.geometric_clipped_token", "sequence_mean", band=_band)
    options = {**CLIPS, "loss_reduction": "sequence_mean"}
    return policy_loss(boundary, options, definition=define, variants=OTHER_CLIPS, stops_gradient=True)


def _cispo(boundary: Boundary) -> Subject:
    options = {"cispo_eps_clip_low": 0.2, "cispo_eps_clip_high": 0.28}
    define = _averaged(
        "policy_loss.clipped_importance", band=lambda o: (1 - o["cispo_eps_clip_low"], 1 + o["cispo_eps_clip_high"])
    )
    variants = {"cispo_eps_clip_low": (0.5,), "cispo_eps_clip_high": (0.9,)}
    return policy_loss(boundary, options, definition=define, variants=variants, stops_gradient=True)


def _rollout_is(boundary: Boundary) -> Subject:
    waived = {**OWN, "clip_geometry": "tokens outside the band are dropped on both sides by design, as its source says"}
    return policy_loss(boundary, CLIPS, variants=OTHER_CLIPS, stops_gradient=True, waived=waived)


def _dppo(boundary: Boundary) -> list[Subject]:
    variants = {"delta_low": (0.01,), "delta_high": (0.01,)}
    return [
        policy_loss(
            boundary,
            {"dppo_type": kind, "delta_low": 0.2, "delta_high": 0.2},
            variants=variants,
            impossible={"dppo_type": ("tv",)},
        )
        for kind in ("binary_tv", "binary_kl")
    ]


def _kl_cov(boundary: Boundary) -> Subject:
    why = "the covariance is over the micro-batch, as the paper's own code has it"
    waived = {
        **OWN,
        "split": why,
        "denominator": why,
        "expected_gradient": why,
        "permutation": "torch.topk breaks ties between equal covariances by position",
    }
    return policy_loss(
        boundary,
        {"kl_cov_frac": 0.2, "ppo_kl_coef": 1.0},
        couples="batch",
        clip=False,
        waived=waived,
        variants={"kl_cov_frac": (0.6,), "ppo_kl_coef": (0.1,)},
        penalties={"ppo_kl_coef": "logp_old"},
    )


def _cross_entropy(boundary: Boundary) -> Subject:
    def loss(log_probs: Tensor, loss_mask: Tensor) -> Any:
        return boundary(log_probs, None, None, algorithm({}), loss_mask=loss_mask)

    define = handed.simply(like("policy_loss.cross_entropy", mean="token_sum"))
    args: dict[str, Any] = {
        "log_probs": lambda c: single(c, "logp_current"),
        "loss_mask": lambda c: single(c, "trainable"),
    }
    return bind(
        loss, role="policy_loss", name=boundary.spec.name, args=args, definition=define, waived=OWN, combine="sum"
    )


def _importance_sampling(boundary: Boundary) -> Subject:
    return policy_loss(boundary, {}, clip=False)


def _value_loss(boundary: Boundary) -> Subject:
    args: dict[str, Any] = {
        n: (lambda c, f=f: single(c, f))
        for n, f in (("values", "value"), ("old_values", "value_old"), ("returns", "returns"))
    }

    def loss(value_clip: float, **tensors: Any) -> Any:
        return boundary(**tensors, config=algorithm({"value_clip": value_clip}))

    define = handed.simply(
        like(
            "value_loss.squared_clipped",
            mean=REDUCTIONS["sequence_mean"],
            reach=lambda o: 1e9 if o["value_clip"] is None else o["value_clip"],  # None: no clip
        )
    )
    return bind(
        loss,
        role="value_loss",
        name=boundary.spec.name,
        options={"value_clip": 0.5},
        definition=define,
        waived=OWN,
        args=args | {"loss_mask": lambda c: single(c, "trainable")},
        variants={"value_clip": (0.1, None)},
        returns={"loss": at(0, "loss")},
    )


BINDINGS: tuple[Binding, ...] = (
    ppo("ppo_policy_loss", _ppo),
    ppo("sapo_policy_loss", _sapo),
    ppo("gspo_policy_loss", _gspo),
    ppo("compute_policy_loss_cispo", _cispo),
    ppo("rollout_is_policy_loss", _rollout_is),
    ppo("dppo_policy_loss", _dppo),
    ppo("compute_policy_loss_kl_cov", _kl_cov),
    ppo("cross_entropy_loss", _cross_entropy),
    ppo("importance_sampling_loss", _importance_sampling),
    ppo("ppo_critic_loss", _value_loss),
)
