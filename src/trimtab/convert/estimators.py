"""Baselines and credit by the names that frameworks give them."""

from typing import cast

from trimtab.convert.built import Built, group
from trimtab.convert.options import Options
from trimtab.signal import Part, Term, part

TO_GO = ("gae", "ppo", "reinforce_plus_plus", "reinforce++", "remax", "optimal_token_baseline",
         "tir_optimal_token_baseline")  # fmt: skip
"""Estimators that read token rewards, so that a KL in the reward stays at its token."""


def estimator(options: Options, key: str, built: Built, name: str, *, std: Part, gamma: float, lam: float) -> None:
    """Baseline and credit by the name of an estimator."""
    match name:
        case "grpo" | "group_norm" | "gspo" | "cispo" | "grpo_vectorized":
            built.normalize = std
        case "dr_grpo":
            built.normalize = group("none")
        case "rloo" | "rloo_vectorized":
            built.normalize = part("normalize.leave_one_out")
        case "reinforce_plus_plus" | "reinforce++":
            built.normalize, built.advantage = part("normalize.raw"), part("advantage.reward_to_go", gamma=gamma)
            built.fields["whiten"] = True
        case "reinforce_plus_plus_baseline" | "reinforce_baseline":
            built.normalize, built.fields["whiten"] = group("none"), True
        case "flash_reinforce":
            built.normalize = group("none", mean="batch")
        case "reinforce":
            built.normalize, built.advantage = part("normalize.raw"), part("advantage.reward_to_go", gamma=gamma)
            built.fields["whiten"] = options.framework == "openrlhf"
        case "gae" | "ppo":
            built.normalize, built.advantage = part("normalize.raw"), part("advantage.gae", gamma=gamma, lam=lam)
            built.fields["value"] = Term(coef=1.0, part=part("value_loss.squared_clipped"))
            built.fields["whiten"] = options.framework in ("verl", "skyrl", "openrlhf")
        case _:
            if not _rarer(options, key, built, name, has_std=std.settings.get("std") != "none"):
                unknown_estimator(options, key, built, name)


def _rarer(options: Options, key: str, built: Built, name: str, *, has_std: bool) -> bool:
    """The estimators of verl and SkyRL that compare answers in other ways; False: not one of them."""
    raw, to_go = part("normalize.raw"), part("advantage.reward_to_go", gamma=1.0)
    match name:
        case "maxrl":
            built.normalize = part("normalize.over_mean")
            options.differs(key, "normalize.over_mean; it adds nothing to the mean, and refuses rewards below 0")
        case "opo":
            built.normalize = part("normalize.length_weighted_mean")
        case "gpg":
            built.normalize = part("normalize.rescaled_mean", counted="nonzero_rewards")
        case "grpo_passk":
            built.normalize = part("normalize.best_minus_second", std="group" if has_std else "none", eps=1e-6)
        case "remax":
            built.normalize, built.advantage = part("normalize.minus_given"), to_go
        case "optimal_token_baseline" | "tir_optimal_token_baseline":
            built.normalize, built.advantage = raw, part("advantage.optimal_token_baseline", eps=1e-8)
            options.differs(key, "advantage.optimal_token_baseline; steps are trainable tokens, and no importance "
                            "enters its weights")  # fmt: skip
        case _:
            return False
    return True


def unknown_estimator(options: Options, key: str, built: Built, name: str) -> None:
    """No baseline, and a word about it."""
    built.normalize = part("normalize.raw")
    options.lost(
        key, "no baseline is written here; choose one of normalize",
        f"{key} = {name} has no equivalent in this converter, so no baseline is written. Choose one.",
    )  # fmt: skip


def each_key(options: Options, at: str, built: Built, weights: object, count: object, *, eps: float, said: str) -> None:
    """Every reward normalised by itself (GDPO). How many there are is known from their weights or their names."""
    given = [float(one) for one in cast("list[float]", weights)] if isinstance(weights, list) else []
    if isinstance(count, list) and not given:
        given = [1.0] * len(cast("list[str]", count))
    if not given:
        built.normalize = part("normalize.raw")
        options.lost(
            at, "how many rewards there are is not in the file",
            f"{at}: normalize.each_key needs one weight per reward, and the file does not say how many there are. "
            "No baseline is written: write normalize.each_key with your weights.",
        )  # fmt: skip
        return
    built.normalize = part("normalize.each_key", weights=tuple(given), ddof=1, eps=eps)
    options.differs(at, f"normalize.each_key; {said}")
