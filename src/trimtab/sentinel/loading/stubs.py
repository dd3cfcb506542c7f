"""Stubs for modules that are not installed: the only place that defines how an absent object behaves.

With a stub, a file can be *defined*: a stub can be a decorator, a base class, an annotation, a context manager or an
empty iterable, and it has every attribute. But arithmetic fails: a stub in a sum, a comparison or a tensor raises.
Nothing is an instance of a stub, and a stub is false.
"""

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

_DECORATED = (types.FunctionType, type, staticmethod, classmethod, property)
_ANNOTATION = (type, type(None), str, types.GenericAlias, types.UnionType)
_ERROR_NAME = re.compile(r"[A-Z]\w*(Error|Exception)$")


class StubRecord:
    """The replaced names with reasons, and the replacements that were used while the boundary ran."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.given = dict(given or {})
        self.replaced: dict[str, str] = {}
        self.used: set[str] = set()
        self.running = False

    def module(self, name: str, why: str) -> "StubModule":
        self.replaced.setdefault(name, why)
        return StubModule(name, self)

    def value(self, path: str, why: str) -> "Stub":
        self.replaced.setdefault(path, why)
        return Stub(path, self)

    def touch(self, path: str) -> None:
        if self.running:
            self.used.add(path)


class Stub:
    """One absent object. All its attributes are absent too."""

    def __init__(self, path: str, record: StubRecord) -> None:
        self._stub_path = path
        self._stub_record = record
        self._stub_parts: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_stub_")):
            raise AttributeError(name)
        self._stub_record.touch(f"{self._stub_path}.{name}")
        if name not in self._stub_parts:
            self._stub_parts[name] = _part(self._stub_path, name, self._stub_record)
        return self._stub_parts[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._stub_record.touch(f"{self._stub_path}()")
        if len(args) == 1 and not kwargs and isinstance(args[0], _DECORATED):
            return cast("Any", args[0])
        if len(args) == 3 and isinstance(args[0], str) and isinstance(args[1], tuple) and isinstance(args[2], dict):
            return type(args[0], cast("tuple[type, ...]", args[1]), cast("dict[str, Any]", args[2]))  # as a metaclass
        return Stub(f"{self._stub_path}()", self._stub_record)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """A separate permissive class with the simplest metaclass, so that no order of bases can conflict."""
        told = {"_stub_path": self._stub_path, "_stub_record": self._stub_record}
        return (type(self._stub_path.rpartition(".")[2], (StubBase,), told),)

    def __getitem__(self, key: Any) -> "Stub":
        return self

    def __class_getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(self, other: Any) -> Any:
        # This is only for annotations: `mask | stub` must fail.
        return self if isinstance(other, (*_ANNOTATION, Stub)) or _is_typing(other) else NotImplemented

    __ror__ = __or__

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, item: Any) -> bool:
        return False

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> "Stub":
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    async def __aenter__(self) -> "Stub":
        return self

    async def __aexit__(self, *_: Any) -> None:
        return None

    def __await__(self) -> Iterator[Any]:
        return self
        yield

    def __deepcopy__(self, memo: Any) -> "Stub":
        return self

    def __copy__(self) -> "Stub":
        return self

    def __repr__(self) -> str:
        return f"<stub {self._stub_path}>"


def _is_typing(value: Any) -> bool:
    return type(value).__module__ in ("typing", "typing_extensions")


def _part(path: str, name: str, record: StubRecord) -> Any:
    """An attribute of an absent object: given by the caller, an exception class if named so, or a stub."""
    full = f"{path}.{name}"
    if full in record.given:
        return record.given[full]
    if _ERROR_NAME.match(name):  # `except ray.RayError` needs a class
        return type(name, (Exception,), {"__module__": path})
    return Stub(full, record)


class StubBase:
    """The base of a class whose real base is absent: any constructor works, and attributes of the base are stubs."""

    _stub_path = ""
    _stub_record = StubRecord()

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __init_subclass__(cls, **_: Any) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, key: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_stub_")):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        self._stub_record.touch(f"{self._stub_path}.{name}")
        return Stub(f"{self._stub_path}.{name}", self._stub_record)


class StubModule(types.ModuleType):
    """An absent module. Its attributes are stubs, the same one each time."""

    def __init__(self, name: str, record: StubRecord) -> None:
        super().__init__(name, "A stub for a module that is not installed.")
        self.__path__ = []
        self._stub_parts: dict[str, Any] = {}
        self._stub_record = record

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0.0.0"
        if name.startswith(("__", "_stub_")):
            raise AttributeError(f"stub module {self.__name__} has no {name}")
        self._stub_record.touch(f"{self.__name__}.{name}")
        if name not in self._stub_parts:
            self._stub_parts[name] = _part(self.__name__, name, self._stub_record)
        return self._stub_parts[name]


class PatchedModule(types.ModuleType):
    """A real module with some names replaced, for one import statement only."""

    def __init__(self, real: Any, replaced: Mapping[str, Any]) -> None:
        super().__init__(getattr(real, "__name__", "patched"))
        self.__dict__.update(replaced)
        self._patched_real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_patched_real"], name)


def with_given(module: Any, name: str, given: Mapping[str, Any]) -> Any:
    """A module with the parts that the caller gave by dotted name; the module itself if there are none."""
    inside = [key.removeprefix(f"{name}.").partition(".")[0] for key in given if key.startswith(f"{name}.")]
    parts = {part: f"{name}.{part}" for part in inside}
    replaced = {
        part: given[full] if full in given else with_given(getattr(module, part), full, given)
        for part, full in parts.items()
    }
    return PatchedModule(module, replaced) if replaced else module
