"""What can be called in a module: functions, methods and modules of torch, with their settings filled in.

The only place that makes objects of foreign classes without being told how.
"""

import ast
import dataclasses
import inspect
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch

from trimtab.sentinel.binding.usage import is_bound_by_use, is_size_by_use
from trimtab.sentinel.binding.words import field_of, fields_of, is_group_size, number_of, words_of

CONFIGS = frozenset({
    "config", "cfg", "args", "settings", "conf", "hparams", "opts", "options", "ctrl", "controller",
})  # fmt: skip
"""Words of an argument that holds settings as attributes or keys."""


class Config:
    """A config object nobody has written: each setting is a text that the code asks for, a number, or off.

    `asked` holds every setting that was read, with its value; `made` those that were read while an object was made
    with it, some of which may be for other methods than the one that is called.
    """

    def __init__(
        self, *, bounds: bool = False, texts: Mapping[str, Any] | None = None, held: Mapping[str, Any] | None = None
    ) -> None:
        self.__dict__.update(_bounds=bounds, _texts=dict(texts or {}), _held=dict(held or {}), asked={}, made={})

    def _setting(self, name: str) -> Any:
        if name in self._held:
            self.asked[name] = self._held[name]
        elif name in self._texts:
            self.asked[name] = self._texts[name][0]
        else:
            self.asked[name] = _setting(name, bounds=self._bounds, root=self)
        return self.asked[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._setting(name)

    def __getitem__(self, name: str) -> Any:
        return self._setting(name)

    def __contains__(self, name: str) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        if default is None or name in self._held or name in self._texts:
            return self._setting(name)
        self.asked[name] = default
        return default

    def with_setting(self, name: str, value: Any) -> "Config":
        """The same settings, but for one."""
        return Config(bounds=self._bounds, texts=self._texts, held={**self._held, name: value})

    def __repr__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._held.items()) or "a config object"


class Off(float):
    """A setting that nothing is known about: 0 as a number, no as a switch, and a table of such settings."""

    _root: "Config | None"

    def __new__(cls, root: "Config | None" = None) -> "Off":
        made = super().__new__(cls, 0.0)
        made._root = root
        return made

    def _inner(self, name: str) -> Any:
        """A setting of a table inside a config object is a setting of that object."""
        return self._root[name] if self._root is not None else _setting(name, bounds=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._inner(name)

    def __getitem__(self, name: str) -> Any:
        return self._inner(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self._inner(name) if default is None else default

    def __index__(self) -> int:
        return 0

    def __call__(self, *_: Any, **__: Any) -> None:
        """An object that is told something (`controller.update(kl)`) has nothing to say."""


class Reach(float):
    """A setting that is a range: one number on both sides of 0, or the two ends."""

    def __getitem__(self, index: int) -> float:
        return (-float(self), float(self))[index]

    def __iter__(self) -> Iterator[float]:
        return iter((-float(self), float(self)))


def _setting(name: str, *, bounds: bool, root: Config | None = None) -> Any:
    if is_group_size(name):
        return 2
    if words_of(name)[:1] in (["use"], ["is"], ["do"], ["enable"], ["has"]):
        return False
    if name == "enabled":  # what is switched off altogether shows nothing
        return True
    number = number_of(name, bounds=bounds)
    if "range" in words_of(name):
        return Reach(10.0 if "reward" in words_of(name) else number or 1.0)
    return Off(root) if number is None else number


@dataclass(frozen=True)
class Found:
    """Something to call: with inputs by argument, and options by name."""

    name: str
    function: Callable[..., Any]
    """What is written in the file: for its lines and its signature."""
    arguments: Mapping[str, inspect.Parameter]
    """Arguments that no setting fills."""
    options: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    invented: frozenset[str] = frozenset()
    """Options that have no value of their own, so that ours may make no sense."""
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Other values of an option that its body asks for."""
    owner: type | None = None
    """The class of a method."""

    @property
    def takes_a_size(self) -> bool:
        """Whether an option is how many neighbours are answers to one prompt."""
        return any(is_group_size(name) or is_size_by_use(self.function, name) for name in self.options)


class CannotCall(Exception):
    """Nothing is known that could be given to it."""


def found_in(module: ModuleType, name: str, value: Any) -> Iterator[tuple[str, Callable[..., Found]]]:
    """What can be called of one name of a module: a function, the forward of a module of torch, or methods."""
    if inspect.isclass(value):
        for method in [] if dataclasses.is_dataclass(value) else _methods(value):
            yield f"{name}.{method}", lambda bounds=False, method=method: of_method(value, method, bounds=bounds)
    elif inspect.isfunction(inspect.unwrap(value)):
        yield name, lambda bounds=False: of_function(value, bounds=bounds)


def _methods(cls: type) -> list[str]:
    if issubclass(cls, torch.nn.Module):
        return ["forward"]
    own = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
    return [name for name in own if name == "__call__" or not name.startswith("__")]


def of_function(fn: Callable[..., Any], *, bounds: bool = False) -> Found:
    """A function; `bounds` takes settings called low and high as bounds of a ratio, not as distances from 1."""
    parameters = inspect.signature(fn).parameters
    choices = asked_for(fn)
    arguments, options = _sorted(parameters, choices, fn, bounds=bounds)
    options = _stabilised(arguments, options, parameters)
    return Found(
        fn.__name__, inspect.unwrap(fn), arguments, options, lambda given, chosen: fn(**given, **chosen),
        invented=_invented(parameters, options), choices=_choices(options, choices, bounds=bounds),
    )  # fmt: skip


def of_method(cls: type, method: str, *, bounds: bool = False) -> Found:
    """A method of an object that is made with its defaults. Settings of the object are options of the call."""
    function = inspect.unwrap(getattr(cls, method))
    choices = asked_for(function)
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if n != "self"}
    arguments, own = _sorted(parameters, choices, function, bounds=bounds)
    making = inspect.signature(cls).parameters if _is_made_by_hand(cls) else {}
    needed, settings = _sorted(making, choices, function, bounds=bounds)
    needed, settings = _with_objects(needed, settings)
    both = sorted((own.keys() | arguments.keys()) & (settings.keys() | needed.keys()))
    if both:
        raise CannotCall(f"{cls.__name__} and {method} both take {', '.join(both)}")

    def call(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> Any:
        made = cls(
            **{n: v for n, v in chosen.items() if n in settings}, **{n: v for n, v in given.items() if n in needed}
        )
        for held in (v for v in chosen.values() if isinstance(v, Config)):
            held.made.update(held.asked)
            held.asked.clear()
        rest = {n: v for n, v in given.items() if n not in needed}
        return getattr(made, method)(**rest, **{n: v for n, v in chosen.items() if n in own})

    options = _stabilised({**needed, **arguments}, {**settings, **own}, {**making, **parameters})
    return Found(
        f"{cls.__name__}.{method}", function, {**needed, **arguments}, options, call,
        invented=_invented({**making, **parameters}, options),
        choices=_choices(options, choices, bounds=bounds), owner=cls,
    )  # fmt: skip


def _with_objects(
    needed: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]
) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """What a constructor wants and no name tells (a strategy, an engine) holds settings, as far as anybody asks."""
    objects = {n: Config() for n, p in needed.items() if field_of(n) is None and p.default is p.empty}
    return {n: p for n, p in needed.items() if n not in objects}, {**settings, **objects}


STABILISERS = ("eps", "epsilon")
SMALL = 1e-6


def _stabilised(
    arguments: Mapping[str, Any], options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Where no policy is read, an epsilon is a stabiliser and not the reach of a clip."""
    told = fields_of(list(arguments))
    fields = [told.get(name, "batch") for name in arguments]
    if not fields or any(f.startswith("logp") or "ratio" in f or f in ("batch", "value") for f in fields):
        return dict(options)
    found = dict(options)
    for name, value in options.items():
        if isinstance(value, Config):
            found[name] = value.with_setting("eps", SMALL).with_setting("epsilon", SMALL)
        elif name in STABILISERS and parameters[name].default is inspect.Parameter.empty:
            found[name] = SMALL
    return found


def _is_made_by_hand(cls: type) -> bool:
    """Whether the class, or one that it is made from, has a constructor of its own."""
    return cls.__init__ not in (object.__init__, torch.nn.Module.__init__)


def _invented(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> frozenset[str]:
    without = {n for n, v in options.items() if v is not None and parameters[n].default in (parameters[n].empty, None)}
    return frozenset(n for n in without if not dataclasses.is_dataclass(options[n]) and not is_group_size(n))


def _choices(
    options: Mapping[str, Any], texts: Mapping[str, tuple[Any, ...]], *, bounds: bool
) -> dict[str, tuple[Any, ...]]:
    """Other values of options: texts that the body asks for, and a usual number where None switches it off."""
    numbers = {n: (number_of(n, bounds=bounds),) for n, v in options.items() if v is None}
    found = numbers | {n: v for n, v in texts.items() if n in options}
    return {n: v for n, v in (found | inner_choices(options, texts)).items() if v}


def inner_choices(options: Mapping[str, Any], texts: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Texts that a body asks for and that a config object among its options holds: `args.loss_type`."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, held in options.items():
        inner = settings_in(held)
        if inner is not None:
            there = [n for n in texts if n not in options and (isinstance(held, Config) or n in inner)]
            found |= {f"{name}.{n}": texts[n] for n in there}
    return found


def settings_in(value: Any) -> dict[str, Any] | None:
    """What a config object holds; None for everything else."""
    if isinstance(value, Mapping):
        return {str(k): v for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Config):
        return {**value.made, **value.asked}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value)) if isinstance(value, SimpleNamespace | Namespace) else None


def asked_for(fn: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Texts that a body compares its arguments with: `if how == "k1"`, `mode in ("sum", "mean")`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(fn))))
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, dict[Any, None]] = {}
    behind = {
        node.targets[0].id: _asked(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _asked(node.value)
    }
    for node in ast.walk(tree):
        asked = _asked(node.left) if isinstance(node, ast.Compare) else ""
        asked = behind.get(asked, asked)  # `how = cfg.algorithm.estimator`, then `if how == "k1"`
        if not isinstance(node, ast.Compare) or not asked:
            continue
        for other in node.comparators:
            entries = other.elts if isinstance(other, ast.Tuple | ast.List | ast.Set) else [other]
            texts = [one.value for one in entries if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            found.setdefault(asked, {}).update(dict.fromkeys(texts))
    return {name: tuple(texts) for name, texts in found.items() if texts}


def _asked(node: ast.expr) -> str:
    """The name of an argument, an attribute or a key."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _sorted(
    parameters: Mapping[str, inspect.Parameter],
    choices: Mapping[str, tuple[Any, ...]],
    function: Callable[..., Any],
    *,
    bounds: bool,
) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """Arguments to fill, and settings with a value for each: their default, a config object, or a usual number."""
    arguments: dict[str, inspect.Parameter] = {}
    options: dict[str, Any] = {}
    for name, one in parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        words = set(words_of(name))
        if words & CONFIGS and one.default in (one.empty, None):
            options[name] = _config(one.annotation, choices, bounds=bounds)
        elif is_group_size(name) or (one.annotation in (int, "int") and is_size_by_use(function, name)):
            options[name] = 2
        elif isinstance(one.default, int) and "chunk" in words:
            options[name] = 2  # a large one hides on small batches what happens between two
        elif one.default is not one.empty and one.default is not None:
            options[name] = one.default
        elif one.default is None and _is_number(name, one.annotation):
            options[name] = None
        elif one.default is one.empty and _is_number(name, one.annotation):
            options[name] = number_of(name, bounds=bounds or is_bound_by_use(function, name))
        elif name in choices and one.default is one.empty:
            options[name] = choices[name][0]
        else:
            arguments[name] = one
    return arguments, options


def _is_number(name: str, annotation: Any) -> bool:
    plain = annotation in (inspect.Parameter.empty, float, int) or str(annotation).replace(" ", "") in _NUMBERS
    return plain and field_of(name) is None and number_of(name) is not None


_NUMBERS = ("float", "int", "float|None", "int|None", "typing.Optional[float]", "typing.Optional[int]")


def _config(annotation: Any, texts: Mapping[str, tuple[Any, ...]], *, bounds: bool) -> Any:
    """The class that the signature names, made with its defaults; otherwise an object that suggests its settings."""
    if inspect.isclass(annotation) and dataclasses.is_dataclass(annotation) and not _needed(annotation):
        return annotation()
    return Config(bounds=bounds, texts=texts)


def _needed(cls: Any) -> list[str]:
    """Fields of a dataclass without a default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]
