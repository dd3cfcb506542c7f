"""What maps share: a recipe in the making, and the estimators that frameworks name alike."""

from dataclasses import dataclass, field, replace
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
        if self.loss.part.formula.constant_advantage and "correction" in self.fields:
            self.fields["correction"] = tuple(self._of_sequences(one) for one in self.fields["correction"])
        fields: dict[str, Any] = {**self.fields, **({"old": "recompute"} if self._reads_old else {})}
        return Recipe(
            name=self.name, loss=self.loss, weighting=self.weighting, normalize=self.normalize,
            advantage=self.advantage, **fields,
        )  # fmt: skip

    def _of_sequences(self, stage: Stage) -> Stage:
        """An importance beside a loss that has one gradient per sequence: it becomes one weight per sequence."""
        formula, settings = stage.part.formula, stage.part.settings
        by_turn = "turn" in formula.inputs
        if formula.stage != "importance" or not (by_turn or settings.get("level") == "token"):
            return stage
        self.options.warn(
            f"{self.loss.part.formula.name} has one gradient per sequence, so {formula.name} is written as one weight "
            "per sequence, the geometric mean of its tokens' ratios. Theirs is the mean of their weights. Check it."
        )
        name = "importance.truncated" if by_turn else formula.name
        return replace(stage, part=part(name, **{**settings, "level": "geometric"}))

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


EVERY = 100_000
"""A top-k that is no bound: more tokens than a vocabulary has."""


def sampled(built: Built, top_p: str, top_k: str) -> None:
    """Which tokens answers are drawn from. A part of them is a difference to the trainer that no ratio corrects."""
    options = built.options
    share = options.number(top_p, None, "train.engine.top_p")
    count = options.number(top_k, None, "train.engine.top_k")
    if count is not None and not 0 < count < EVERY:
        options.differs(top_k, "train.engine.top_k = 0: all tokens")
        count = 0
    given = {"top_p": share, "top_k": None if count is None else int(count)}
    built.train["engine"] = {name: value for name, value in given.items() if value is not None} or None
    if (share or 1.0) < 1.0 or count:
        said = " and ".join(f"{key} = {options.given[key].value}" for key in (top_p, top_k) if key in options.given)
        options.warn(
            f"{said}: answers are drawn from a part of the tokens, and the trainer's log-probs are over all. "
            "train.engine.record_support = true lets the trainer take the same part."
        )


def divided(options: Options, whole: str, part_: str, *, per: float = 1.0, epochs: float = 1.0) -> int | None:
    """How many optimiser steps a batch is cut into: the whole over its parts."""
    first, second = options.given.get(whole), options.given.get(part_)
    numbers = [one.value for one in (first, second) if one is not None and isinstance(one.value, int | float)]
    if len(numbers) < 2 or not numbers[1]:
        return None
    return max(1, round(numbers[0] * per / numbers[1] * epochs))
