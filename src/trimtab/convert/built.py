"""What maps share: a recipe in the making, and the estimators that frameworks name alike."""

from dataclasses import dataclass, field
from typing import Any

from trimtab.convert.options import Options
from trimtab.signal import KL, Part, Recipe, Stage, Term, part

KLS = {"k1": "kl.k1", "kl": "kl.k1", "k2": "kl.k2", "mse": "kl.k2", "k3": "kl.k3", "low_var_kl": "kl.k3"}


@dataclass
class Built:
    """A recipe in the making, and the settings of the trainer beside it."""

    name: str
    options: Options
    loss: Stage
    weighting: Part
    normalize: Part
    advantage: Part = field(default_factory=lambda: part("advantage.broadcast"))
    fields: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)

    def recipe(self) -> Recipe:
        return Recipe(
            name=self.name, loss=self.loss, weighting=self.weighting, normalize=self.normalize,
            advantage=self.advantage, **self.fields,
        )  # fmt: skip

    def correct(self, *stages: Stage) -> None:
        self.fields["correction"] = (*self.fields.get("correction", ()), *stages)


def loss_of(name: str, *, anchor: str | None = "old", **settings: Any) -> Stage:
    return Stage(part(f"policy_loss.{name}", **settings), anchor=anchor)  # pyright: ignore[reportArgumentType]


def engine(name: str, **settings: Any) -> Stage:
    """A correction of the sampler: old against rollout."""
    return Stage(part(name, **settings), ratio="engine")


def group(std: str = "group", *, eps: float = 1e-6, mean: str = "group", ddof: int = 1) -> Part:
    return part("normalize.mean_std", mean=mean, std=std, ddof=ddof, eps=eps)


def estimator(options: Options, key: str, built: Built, name: str, *, std: Part, gamma: float, lam: float) -> None:
    """Baseline and credit by the name of an estimator."""
    match name:
        case "grpo" | "group_norm" | "gspo" | "cispo" | "grpo_vectorized":
            built.normalize = std
        case "dr_grpo":
            built.normalize = group("none")
        case "gpg":
            built.normalize = part("normalize.rescaled_mean", counted="nonzero_rewards")
        case "maxrl":
            built.normalize = part("normalize.over_mean")
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
            built.normalize = part("normalize.raw")
            options.tell(key, "no equivalent", "no baseline is written here; choose one of normalize")
            options.warn(f"{key} = {name} has no equivalent in this converter, so no baseline is written. Choose one.")


def kl_of(options: Options, key: str, estimate: str, coef: float, into: str, **more: Any) -> KL | None:
    """A KL by the name of its estimator; None without a coefficient, or without an equivalent."""
    if not coef:
        return None
    if estimate not in KLS:
        options.tell(key, "no equivalent", "there are k1, k2 and k3")
        options.warn(f"{key} = {estimate} has no equivalent, so k3 is written. Check it.")
    if estimate == "low_var_kl":
        options.tell(key, "changed", "kl.k3; theirs bounds the result to ±10, ours the exponent to ±20")
    return KL(part(KLS.get(estimate, "kl.k3")), coef=float(coef), into=into, **more)  # pyright: ignore[reportArgumentType]


def common(built: Built, keys: dict[str, str]) -> None:
    """Settings of the trainer that have the same meaning under another name."""
    for key, ours in keys.items():
        value = built.options.get(key, None, f"train.{ours}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            built.train[ours] = value


def divided(options: Options, whole: str, part_: str, *, per: float = 1.0, epochs: float = 1.0) -> int | None:
    """How many optimiser steps a batch is cut into: the whole over its parts."""
    first, second = options.given.get(whole), options.given.get(part_)
    numbers = [one.value for one in (first, second) if one is not None and isinstance(one.value, int | float)]
    if len(numbers) < 2 or not numbers[1]:
        return None
    return max(1, round(numbers[0] * per / numbers[1] * epochs))
