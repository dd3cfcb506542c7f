"""Formulas as catalogue entries: the only place that knows what a formula declares and how one is found by name.

A formula is a pure function. Its positional arguments are its inputs, by name; its keyword-only arguments are its
settings. `@formula` records source, scope, consumption and promises and leaves the function as it is.
Code calls functions by import; the catalogue exists so that recipes, tests and tools can enumerate.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal, TypeVar, get_args

from trimtab.errors import SignalError, unknown_name

Scope = Literal["token", "sequence", "episode", "group", "update", "batch"]
Divisor = Literal["tokens", "sequences", "nothing", "unknown"]
Consumes = Literal["nothing", "ratio"]
"""`ratio`: the formula spends the factors of the ratio it is handed (engine, update, or both)."""

PROMISES = (
    "mask_content",
    "nonfinite_isolation",
    "no_aliasing",
    "split",
    "permutation",
    "group_isolation",
    "suppressed_do_not_vote",
    "decision_granularity",
    "importance_contract",
    "on_policy_identity",
    "equals_definition",
    "metric_truth",
)
"""Every promise is the name of the sentinel invariant that holds a formula to it."""

STAGES = (
    "reward",
    "kl",
    "normalize",
    "advantage",
    "importance",
    "keep",
    "select",
    "policy_loss",
    "value_loss",
    "weighting",
)

PAIR = ("logratio", "logp_later", "logp_earlier")
"""What a stage reads of the ratio that its recipe names: engine is old over rollout, so old is the later policy."""

_TOKENS = ("logp_old", "logp_rollout", "logp_ref", "value_old", "position", "turn", "version", "segments")
_EPISODES = (
    "votes", "group_of_episode", "num_groups", "length", "ended", "rewards", "rewards_scored", "baseline", "role",
)  # fmt: skip
_AFTER_THE_VOTE = ("advantage", "returns", "trains")
_NOW = ("logp_current", "entropy")
_STAGE = (*_TOKENS, *_AFTER_THE_VOTE, *_NOW, *PAIR, "logp_anchor", "token_key")
_LOSS = (*_STAGE, "keep", "selected")

INPUTS: dict[str, tuple[str, ...]] = {
    "reward": ("reward", *_EPISODES),
    "kl": (*_TOKENS, "logp_current", "logp_anchor"),
    "normalize": ("reward", *_EPISODES, "running_mean", "running_std", "role_average"),
    "advantage": (*_TOKENS, *_EPISODES, "outcome", "token_reward", "value_after", "trains", "episode_of_sequence"),
    "importance": _STAGE,
    "keep": _STAGE,
    "select": _LOSS,
    "policy_loss": _LOSS,
    "value_loss": (*_LOSS, "value"),
    "weighting": ("advantage", "keep", "segments", "episode_of_token", "group_of_token"),
}
"""What the pipeline hands to a formula of each stage: all of these, always; a field the batch does not carry is None.
A batch's `extra` fields come on top, by their own names, wherever `segments` does. `parts.run` holds the pipeline to
it."""

EVERYWHERE = frozenset(name for names in INPUTS.values() for name in names)
"""Every name that the pipeline makes itself or takes from a batch; any other is an extra field of the caller's."""

AFTER_THE_VOTE = frozenset(_AFTER_THE_VOTE)
"""A correction that reads one of these decides after the vote; any other decides before it, so that what it rejects
moves nobody."""
NOW = frozenset(_NOW)
"""A correction that reads one of these needs the current policy."""


@dataclass(frozen=True)
class Rule:
    """A condition on a setting's value, as part of its type."""

    holds: Callable[[Any], bool]
    says: str


Band = Annotated[
    tuple[float, float],
    Rule(lambda band: 0 <= band[0] < band[1], "a band is (low, high) with 0 <= low < high"),
    Rule(
        lambda band: band[0] <= 1 <= band[1],
        "a band is the interval itself, not offsets from 1, and holds the ratio 1; clip 0.2 / 0.28 is (0.8, 1.28)",
    ),
]
"""Bounds on a ratio: the interval itself, (0.8, 1.2), never an offset from 1."""
Positive = Annotated[float, Rule(lambda value: 0 < value < float("inf"), "it must be above 0 and finite")]
Ceiling = Annotated[float, Rule(lambda value: value > 0, "it must be above 0")]
"""An upper bound; infinity is no bound."""
NonNegative = Annotated[float, Rule(lambda value: 0 <= value < float("inf"), "it must be 0 or more, and finite")]
Finite = Annotated[float, Rule(lambda value: abs(value) < float("inf"), "it must be finite")]
Count = Annotated[int, Rule(lambda value: value >= 0, "it must be 0 or more")]
Unit = Annotated[float, Rule(lambda value: 0 <= value <= 1, "it must lie in [0, 1]")]

Fn = TypeVar("Fn", bound=Callable[..., Any])


@dataclass(frozen=True)
class Formula:
    """One catalogue entry, e.g. name = "policy_loss.clipped", inputs = ("logp_current", "logp_anchor", "advantage")."""

    name: str
    stage: str
    fn: Callable[..., Any]
    source: str
    scope: Scope
    consumes: Consumes
    promises: tuple[str, ...]
    known_as: tuple[str, ...]
    constant_advantage: bool
    """The gradient of a whole sequence is shared, so advantage and importance must not vary inside one."""
    selects: "Formula | None"
    """A formula of scope update that chooses tokens before this one runs (Clip-Cov, KL-Cov)."""
    rules: tuple[Rule, ...]
    """Conditions on several settings together: each gets all of them, by name."""
    divides_by: Divisor
    """What a weighting divides by, so that several calls can share one optimiser step."""

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in inspect.signature(self.fn).parameters.values() if p.kind in kinds)

    @cached_property
    def settings(self) -> dict[str, inspect.Parameter]:
        own = {
            p.name: p
            for p in inspect.signature(self.fn).parameters.values()
            if p.kind is inspect.Parameter.KEYWORD_ONLY
        }
        return own if self.selects is None else {**self.selects.settings, **own}

    @cached_property
    def summary(self) -> str:
        return (inspect.getdoc(self.fn) or self.name).splitlines()[0]


_CATALOG: dict[str, Formula] = {}


def formula(
    *,
    source: str,
    scope: Scope,
    promises: tuple[str, ...],
    consumes: Consumes = "nothing",
    stage: str | None = None,
    known_as: tuple[str, ...] = (),
    constant_advantage: bool = False,
    selects: Callable[..., Any] | None = None,
    rules: tuple[Rule, ...] = (),
    divides_by: Divisor = "unknown",
) -> Callable[[Fn], Fn]:
    """Declare a pure function to be a formula. It stays the function it was."""

    def declare(fn: Fn) -> Fn:
        where = stage or fn.__module__.rpartition(".")[2]
        name = f"{where}.{fn.__name__}"
        unknown = [promise for promise in promises if promise not in PROMISES]
        if unknown:
            raise SignalError(
                f"{name}: promises {unknown} are not known, so nothing would test them. Known: {list(PROMISES)}."
            )
        if stage is not None and stage not in STAGES:
            raise SignalError(unknown_name(f"{name}: stage", stage, list(STAGES)))
        if scope not in get_args(Scope):
            raise SignalError(unknown_name(f"{name}: scope", str(scope), list(get_args(Scope))))
        chooser = of(selects) if selects is not None else None
        entry = Formula(
            name, where, fn, source, scope, consumes, promises, known_as, constant_advantage, chooser, rules, divides_by
        )
        if fn.__module__.startswith("trimtab."):
            if name in _CATALOG:
                raise SignalError(f"{name}: is defined twice, so a recipe could mean either. Rename one.")
            _CATALOG[name] = entry
        fn.__formula__ = entry  # pyright: ignore[reportFunctionMemberAccess]  any function takes attributes
        return fn

    return declare


def of(fn: Callable[..., Any]) -> Formula:
    """The catalogue entry of a decorated function."""
    entry = getattr(fn, "__formula__", None)
    if not isinstance(entry, Formula):
        raise SignalError(f"{getattr(fn, '__name__', fn)}: is not a formula. Decorate it with @trimtab.formula(...).")
    return entry


@cache
def _installed() -> dict[str, Formula]:
    return {point.name: of(point.load()) for point in entry_points(group="trimtab.formulas")}


def catalog() -> dict[str, Formula]:
    """Every formula of the package and of installed entry points (group `trimtab.formulas`), by name."""
    outside = _installed()
    clash = sorted(outside.keys() & _CATALOG.keys())
    if clash:
        raise SignalError(f"catalog: entry points {clash} take names of built-in formulas. Rename them.")
    return dict(sorted({**_CATALOG, **outside}.items()))


def find(name: str, stage: str | tuple[str, ...] | None = None) -> Formula:
    """A formula by catalogue name ("clipped" when the stage is known), or by path ("my_losses:mine", "a.b.mine")."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(f"formula: a name is a text, not {name!r}. `trimtab catalog` lists them.")
    known = catalog()
    stages = (stage,) if isinstance(stage, str) else stage or STAGES
    for candidate in (name, *(f"{one}.{name}" for one in (stages if stage else ()))):
        if candidate in known:
            return known[candidate]
    head = name.partition(".")[0]
    if ":" in name or ("." in name and head not in STAGES):
        return _outside(name, stages[0])
    wanted = (head,) if head in STAGES else stages
    raise SignalError(unknown_name("formula", name, [one for one in known if one.partition(".")[0] in wanted]))


def _outside(path: str, stage: str) -> Formula:
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        fn = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module of the user's may raise anything when it is imported
        raise SignalError(
            f"formula: {path!r} cannot be imported ({type(error).__name__}: {error}). A formula outside the package is "
            "named by its dotted path, package.module.function, and must be importable from here."
        ) from error
    entry = getattr(fn, "__formula__", None)
    if isinstance(entry, Formula):
        return entry
    raise SignalError(
        f"formula: {path!r} is a {type(fn).__name__} without @trimtab.formula(...), "
        "so its scope and what it consumes are unknown. "
        f"Decorate it, with stage={stage!r} if its file has another name."
    )
