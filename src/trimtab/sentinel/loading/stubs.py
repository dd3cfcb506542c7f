"""Stand-ins for modules that are not here: the only place that defines how an absent thing behaves.

A stub lets a file be *defined*: it decorates, is inherited from, annotated with, entered, iterated (empty) and asked
for attributes. It does not let arithmetic pass: a stub in a sum, a comparison or a tensor raises. Nothing is an
instance of it, and it is false, as an absent thing is.
"""

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

_DECORATED = (types.FunctionType, type, staticmethod, classmethod, property)
_ANNOTATION = (type, type(None), str, types.GenericAlias, types.UnionType)
_ERROR_NAME = re.compile(r"[A-Z]\w*(Error|Exception)$")


class StubRecord:
    """What was replaced and why, and which replacements were touched while the boundary ran."""

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
    """One absent object; everything got from it is absent too."""

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
        """A permissive class of its own, with the plainest metaclass, so that no order of bases can conflict."""
        told = {"_stub_path": self._stub_path, "_stub_record": self._stub_record}
        return (type(self._stub_path.rpartition(".")[2], (StubBase,), told),)

    def __getitem__(self, key: Any) -> "Stub":
        return self

    def __class_getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(self, other: Any) -> Any:
        # Only in annotations: a mask or-ed with an absent thing has to fail.
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
    """An attribute of something absent: given by the caller, an exception class by its name, or a stub."""
    full = f"{path}.{name}"
    if full in record.given:
        return record.given[full]
    if _ERROR_NAME.match(name):  # `except ray.RayError` needs a class
        return type(name, (Exception,), {"__module__": path})
    return Stub(full, record)


class StubBase:
    """What a class inherits when its base is absent: any constructor, and stubs for what the base would have held."""

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
        super().__init__(name, "Stands in for a module that is not here.")
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
    """A real module seen with some names replaced, for one import statement only."""

    def __init__(self, real: Any, replaced: Mapping[str, Any]) -> None:
        super().__init__(getattr(real, "__name__", "patched"))
        self.__dict__.update(replaced)
        self._patched_real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_patched_real"], name)


def with_given(module: Any, name: str, given: Mapping[str, Any]) -> Any:
    """A module seen with the parts the caller gave by dotted name; itself when none of them is inside it."""
    inside = [key.removeprefix(f"{name}.").partition(".")[0] for key in given if key.startswith(f"{name}.")]
    parts = {part: f"{name}.{part}" for part in inside}
    replaced = {
        part: given[full] if full in given else with_given(getattr(module, part), full, given)
        for part, full in parts.items()
    }
    return PatchedModule(module, replaced) if replaced else module
