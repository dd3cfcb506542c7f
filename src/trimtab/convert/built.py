"""What maps share: a recipe in the making, and the estimators that frameworks name alike."""

from dataclasses import dataclass, field
from typing import Any

from trimtab.convert.options import Options
from trimtab.signal import KL, Part, Recipe, Stage, part

KLS = {"k1": "kl.k1", "kl": "kl.k1", "k2": "kl.k2", "mse": "kl.k2", "k3": "kl.k3", "low_var_kl": "kl.k3",
       "abs": "kl.absolute"}  # fmt: skip


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
        fields: dict[str, Any] = {**self.fields, **({"old": "recompute"} if self._reads_old else {})}
        return Recipe(
            name=self.name, loss=self.loss, weighting=self.weighting, normalize=self.normalize,
            advantage=self.advantage, **fields,
        )  # fmt: skip

    @property
    def _reads_old(self) -> bool:
        """Whether an old policy that is said to be absent is read all the same."""
        kl: KL | None = self.fields.get("kl")
        stages: tuple[Stage, ...] = (self.loss, *self.fields.get("correction", ()))
        of_kl = kl is not None and (kl.into != "loss" or kl.anchor == "old")
        return self.fields.get("old") == "absent" and (of_kl or any(one.pair in ("engine", "update") for one in stages))

    def correct(self, *stages: Stage) -> None:
        self.fields["correction"] = (*self.fields.get("correction", ()), *stages)


def loss_of(name: str, *, anchor: str | None = "old", **settings: Any) -> Stage:
    return Stage(part(f"policy_loss.{name}", **settings), anchor=anchor)  # pyright: ignore[reportArgumentType]


def engine(name: str, **settings: Any) -> Stage:
    """A correction of the sampler: old against rollout."""
    return Stage(part(name, **settings), ratio="engine")


def group(std: str = "group", *, eps: float = 1e-6, mean: str = "group", ddof: int = 1) -> Part:
    return part("normalize.mean_std", mean=mean, std=std, ddof=ddof, eps=eps)


def kl_of(options: Options, key: str, estimate: str, coef: float, into: str, **more: Any) -> KL | None:
    """A KL by the name of its estimator; None without a coefficient. A `+` takes the gradient of k2 (verl)."""
    if not coef:
        return None
    base = estimate.removesuffix("+")
    if base not in KLS:
        options.lost(
            key, "there are k1, k2, k3 and abs", f"{key} = {estimate} has no equivalent, so k3 is written. Check it."
        )
    name = KLS.get(base, "kl.k3")
    if base == "low_var_kl":
        options.differs(key, "kl.k3; theirs bounds the result to ±10, ours the exponent to ±20")
    made = part(name)
    if estimate.endswith("+") and into == "loss" and name != "kl.k2":
        made = part("kl.k2_gradient", value="k3" if base == "abs" else name.removeprefix("kl."))
        options.differs(key, "kl.k2_gradient" + ("; the number that is logged is that of k3" if base == "abs" else ""))
    return KL(made, coef=float(coef), into=into, **more)  # pyright: ignore[reportArgumentType]


def counting(weighting: Part, over: str) -> Part:
    """The weighting with its denominator over all tokens, or over the kept ones; token_sum has none."""
    if "over" not in weighting.formula.settings:
        return weighting
    return part(weighting.formula.name, **{**weighting.settings, "over": over})


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
