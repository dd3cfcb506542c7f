"""Bind a function in a few lines: roles are presets of facts, and common argument names are known.

    subject = bind(policy_loss, role="policy_loss", options={"eps": 0.2}, definition=like("policy_loss.clipped", …))

A role sets the level that may be coupled and the kind of the result. Each of these can be overridden.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trimtab.errors import TrimtabError, unknown_name
from trimtab.sentinel.batch.case import MASKS, Case
from trimtab.sentinel.batch.directed import SEQUENCE_FIELDS, TOKEN_FIELDS
from trimtab.sentinel.batch.perturb import groups_of
from trimtab.sentinel.binding.built import built
from trimtab.sentinel.binding.callable import asked_for, inner_choices
from trimtab.sentinel.binding.names import GROUP_NAMES, KNOWN_ARGUMENTS
from trimtab.sentinel.binding.strict import check_view, check_word
from trimtab.sentinel.binding.subject import KINDS, LAYOUTS, LEVELS, Kind, Layout, Level, Out, Result, Subject
from trimtab.sentinel.binding.writes import noting_writes

FIELDS = (*MASKS, *TOKEN_FIELDS, *SEQUENCE_FIELDS, "in_use")
"""What a case holds, by name."""
Argument = str | Callable[[Case], Any]


@dataclass(frozen=True)
class Role:
    """Known facts about a function from its part in the signal."""

    kind: Kind
    couples: str = "sequence"
    token_kind: Kind | None = None
    """The kind of a result with one entry per token, if it differs."""
    level: Level | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    waived: Mapping[str, str] = field(default_factory=dict[str, str])
    about: str = ""


_NO_GRADIENT = dict.fromkeys(("connected", "expected_gradient"), "it takes arrays of NumPy, which carry no gradient")
ROLES: dict[str, Role] = {
    "reward_normalisation": Role("advantage", "group", level="sequence", about="rewards to normalised rewards"),
    "group_advantage": Role("advantage", "group", about="rewards and groups to advantages"),
    "whitening": Role("advantage", "batch", about="advantages or returns over the whole batch to mean 0 and spread 1"),
    "returns": Role("return", "sequence", about="token rewards (and values) to returns or GAE"),
    "kl": Role("kl", "token", about="two log-probs to a KL estimate per token"),
    "kl_in_reward": Role("reward", "sequence", about="rewards minus a KL penalty"),
    "kl_in_loss": Role("loss", "sequence", token_kind="term", about="a KL term of the loss"),
    "importance": Role("importance", "sequence", about="an off-policy factor per token, detached"),
    "keep": Role("keep", "sequence", about="which tokens or sequences a correction keeps"),
    "policy_loss": Role("loss", "sequence", token_kind="term", about="log-probs and advantages to a loss"),
    "value_loss": Role("loss", "sequence", token_kind="term", about="values and returns to a loss"),
    "aggregation": Role("loss", "sequence", about="one number per token to the loss, with the scale of accumulation"),
    "statistic": Role("statistic", "batch", about="a masked mean, variance or other number over a whole batch"),
    "logp": Role("logp", "token", about="logits and ids to log-probs"),
    "entropy": Role("entropy", "token", about="logits to entropies"),
    "response_mask": Role("mask", "sequence", level="cell", about="ids to the mask of tokens that train"),
    "packing": Role("carried", "sequence", about="collation, packing, sorting, re-indexing: values only move"),
    "reward_plumbing": Role("carried", "sequence", level="sequence", about="rewards from scorer to trainer"),
    "metric": Role("metric", "batch", level="scalar", about="a number people steer by"),
    "distillation": Role("loss", "sequence", token_kind="kl", about="student and teacher logits to a divergence"),
    "preference": Role("loss", "group", about="chosen and rejected log-probs to a loss"),
}  # fmt: skip


@dataclass(frozen=True)
class At:
    """Where a result is in the return value, and its kind."""

    path: tuple[Any, ...]
    kind: Kind
    level: Level | None
    facts: Mapping[str, Any]
    argument: str | None = None
    """The argument that holds the result after the call, for a function that fills its argument."""

    def __post_init__(self) -> None:
        if None in self.path:
            raise TrimtabError(
                f"at: None is no place in a return value (the path is {self.path}); indexing with it would add an "
                "axis. The whole return value is at((), KIND)."
            )


def after(argument: str, path: Any, kind: Kind, *, level: Level | None = None, **facts: Any) -> At:
    """A side effect: `after("rollout_data", "kl", "kl")` is the content of that argument after the call."""
    return At(path if isinstance(path, tuple) else (path,), kind, level, facts, argument)


def at(path: Any, kind: Kind, *, level: Level | None = None, **facts: Any) -> At:
    """`at(0, "loss")`, `at((1, "clipfrac"), "metric", range=(0, 1))`; `at((), "keep")` is the whole return value."""
    return At(path if isinstance(path, tuple) else (path,), kind, level, facts)


def bind(
    fn: Callable[..., Any],
    *,
    role: str | None = None,
    name: str | None = None,
    layout: Layout = "padded",
    args: Mapping[str, Argument] | None = None,
    options: Mapping[str, Any] | None = None,
    convert: Mapping[str, Callable[[Any], Any]] | None = None,
    returns: Mapping[str, At] | None = None,
    view: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    arrays: bool = False,
    **facts: Any,
) -> Subject:
    """A subject from a function, or from a class that is made with its options and then called.

    layout    padded [rows, width], list (one tensor per sequence), packed (all tokens) or flat (trainable tokens)
    view      more about a padded or list layout: with_prompt (False unless given), side, shift, drop_first
    args      argument to a field of the case in this layout and view, or to a function of the case; known names need
              no entry
    options   keyword arguments that configure it; `convert` turns ours into its units
    returns   result names to `at(path, kind)`; by default the (first) return value, with the kind of the role
    dtype     cast float fields, for a function that refuses float64
    arrays    hand fields as arrays of NumPy; gradients are then not followed
    facts     any other field of Subject: couples, combine, definition, variants, waived, penalties, …
    """  # fmt: skip
    fn = built(fn) if inspect.isclass(fn) else fn
    if role is not None and role not in ROLES:
        raise TrimtabError(unknown_name("role", role, sorted(ROLES)))
    check_word("layout", layout, LAYOUTS)
    check_view(layout, view or {})
    for where in (returns or {}).values():
        check_word("kind of a result", where.kind, KINDS)
        if where.level is not None:
            check_word("level of a result", where.level, LEVELS)
    for where in (args or {}).values():
        if isinstance(where, str):
            check_word("field", where, FIELDS)
    preset = ROLES[role] if role is not None else None
    given = {**_known(fn, {**(options or {}), **(args or {})}), **(args or {})}
    layout_view = {"with_prompt": False, **(view or {})} if layout in ("padded", "list") else {}
    if layout == "list":
        layout_view = {k: v for k, v in layout_view.items() if k == "with_prompt"}

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        inputs = {name: _taken(case, where, layout, layout_view, dtype, arrays) for name, where in given.items()}
        turned = {n: (convert or {}).get(n, lambda v: v)(v) for n, v in chosen.items()}
        with noting_writes(case, inputs):
            returned = fn(**inputs, **turned)
        wanted = returns or {_main(preset): at((0,) if isinstance(returned, tuple) else (), "loss")}
        found: dict[str, Result] = {}
        for n, where in wanted.items():
            value = _found(returned if where.argument is None else inputs[where.argument], where.path)
            found[n] = _result(case, value, where if returns else None, preset, layout, layout_view)
        return found

    preset_facts: dict[str, Any] = {"couples": preset.couples, **preset.facts} if preset else {}
    if facts.get("block", 1) > 1:
        _ = facts.setdefault("adapt", groups_of(facts["block"]))
    if arrays:
        preset_facts = {"stops_gradient": True, **preset_facts}
    facts |= {"twin": built(facts["twin"])} if inspect.isclass(facts.get("twin")) else {}
    if isinstance(facts.get("twin"), Subject):
        facts["twin"] = facts["twin"].call
    elif facts.get("twin") is not None and _parameters(facts["twin"]) == _parameters(fn):
        same_way: dict[str, Any] = {"layout": layout, "args": args, "options": options, "convert": convert}
        facts["twin"] = bind(
            facts["twin"], role=role, returns=returns, view=view, dtype=dtype, arrays=arrays, name="twin", **same_way
        ).call
    waived = {**(preset.waived if preset else {}), **(_NO_GRADIENT if arrays else {}), **facts.pop("waived", {})}
    texts = asked_for(fn)
    boundary: Any = fn if hasattr(fn, "trace") and hasattr(fn, "spec") else None
    return Subject(
        name or getattr(fn, "__name__", None) or str(getattr(getattr(fn, "spec", None), "name", "function")),
        call, options=options or {}, role=role, waived=waived,
        boundary=boundary,
        choices={n: v for n, v in (texts | inner_choices(options or {}, texts)).items() if n not in given},
        said=inspect.getdoc(getattr(fn, "function", fn)) or "",
        defaults={n: v for n, v in _defaults(fn).items() if n not in given and n not in (options or {})},
        **{**preset_facts, **facts},
    )  # fmt: skip


def subject(**how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`@subject(role="policy_loss", options={"eps": 0.2})` on a function leaves it unchanged and makes it checkable."""

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.__trimtab__ = lambda watched=None: bind(watched or fn, **how)  # type: ignore[attr-defined]
        return fn

    return mark


def _main(preset: Role | None) -> str:
    return preset.kind if preset is not None else "value"


def _known(fn: Callable[..., Any], taken: Mapping[str, Any]) -> dict[str, Argument]:
    """Fill required arguments with commonly used names. An unknown name is refused, because it cannot be guessed."""
    try:
        parameters = inspect.signature(getattr(fn, "function", fn)).parameters
    except (TypeError, ValueError):
        return {}
    found: dict[str, Argument] = {}
    for name, parameter in parameters.items():
        if name in taken or name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        fillable = parameter.default is parameter.empty or parameter.default is None
        if name in GROUP_NAMES and fillable:
            found[name] = lambda case: case.sequence("group").numpy()
        elif name in KNOWN_ARGUMENTS and fillable:
            found[name] = KNOWN_ARGUMENTS[name]
        elif parameter.default is parameter.empty:
            raise TrimtabError(
                f"bind: the argument {name!r} is unknown, so it cannot be filled. "
                f"Give args={{{name!r}: FIELD}} or options={{{name!r}: VALUE}}."
            )
    return found


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(getattr(fn, "function", fn)).parameters)
    except (TypeError, ValueError):
        return []


def _defaults(fn: Callable[..., Any]) -> dict[str, Any]:
    """Settings with a value of the function's own."""
    try:
        parameters = inspect.signature(getattr(fn, "function", fn)).parameters
    except (TypeError, ValueError):
        return {}
    return {n: p.default for n, p in parameters.items() if p.default is not p.empty}


def _taken(
    case: Case, where: Argument, layout: Layout, view: Mapping[str, Any], dtype: torch.dtype | None, arrays: bool
) -> Any:
    if callable(where):
        return where(case)
    if where == "in_use" or (where in case.sequences and where not in case.tokens):
        values: Any = case.sequence(where)
    elif layout == "padded":
        values = case.padded(where, **view)
    elif layout == "list":
        values = case.list(where, **view)
    else:
        values = case.packed(where) if layout == "packed" else case.flat(where)
    cast = None if where in MASKS else dtype
    return [_as(one, cast, arrays) for one in values] if isinstance(values, list) else _as(values, cast, arrays)


def _as(values: Any, dtype: torch.dtype | None, arrays: bool) -> Any:
    held = values.to(dtype) if dtype is not None and values.dtype.is_floating_point else values
    return held.detach().clone().numpy() if arrays else held


def _found(returned: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        by_name = isinstance(step, str) and not isinstance(returned, Mapping)
        returned = getattr(returned, step) if by_name else returned[step]
    return returned


def _result(
    case: Case, value: Any, where: At | None, preset: Role | None, layout: Layout, view: Mapping[str, Any]
) -> Result:
    level = (where.level if where else preset.level if preset else None) or _level(case, value, layout, view)
    kind = where.kind if where else _kind(preset, level)
    facts = where.facts if where else {}
    if level == "token":
        return Result.token(case, value, kind, layout=layout, **view, **facts)
    if level == "cell":
        return Result.cell(case, value, kind, **view, **facts)
    return Result.sequence(value, kind, **facts) if level == "sequence" else Result.scalar(value, kind, **facts)


def _kind(preset: Role | None, level: Level) -> Kind:
    if preset is None:
        return {"token": "term", "sequence": "statistic", "scalar": "statistic", "cell": "mask"}[level]  # type: ignore[return-value]
    return preset.token_kind if level == "token" and preset.token_kind else preset.kind


def _level(case: Case, value: Any, layout: Layout, view: Mapping[str, Any]) -> Level:
    """The level from the shape: a number, one entry per sequence, or the layout of the inputs."""
    if layout == "list" and isinstance(value, list | tuple) and value and getattr(value[0], "ndim", 0):
        return "token"
    shape: tuple[int, ...] = ()
    if not isinstance(value, list | tuple) and hasattr(value, "shape"):
        shape = tuple(value.shape)  # a 0-d tensor has no length
    elif hasattr(value, "__len__"):
        shape = (len(value),)
    if len(shape) == 0 or (shape == (1,) and case.num_sequences != 1):
        return "scalar"
    tokens = {"packed": case.trainable.numel(), "flat": case.segments.num_tokens}.get(layout)
    return "token" if len(shape) >= 2 or shape == (tokens,) else "sequence"
