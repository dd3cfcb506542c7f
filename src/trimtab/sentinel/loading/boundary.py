"""A real function of a target, ready to be called: the only place that watches it run."""

import asyncio
import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from trimtab.sentinel.loading.stubs import StubRecord
from trimtab.sentinel.loading.syntax import executable_lines
from trimtab.sentinel.loading.tree import CouldNotLoad, Spec, near


@dataclass
class Call:
    """One call: its arguments, copies of them from before the call, and the result."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    args_before: tuple[Any, ...]
    kwargs_before: dict[str, Any]
    returned: Any = None
    error: BaseException | None = None


@dataclass(repr=False, eq=False)
class Boundary:
    """Calls the function it holds. It knows its file and lines, the stubs for absent modules, and executed lines."""

    spec: Spec
    function: Any  # the function, class or other callable itself
    file: str
    source: str
    shown: str  # the file's name in code objects
    first_line: int
    last_line: int
    record: StubRecord
    namespace: Callable[[str], Any]  # another name of the same file
    around: AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)
    owner: type | None = None  # the class, when the boundary is its method
    keeps: Any = None  # a temporary folder that has to outlive the boundary
    executed: set[int] = field(default_factory=set[int])
    _executable: set[int] | None = None
    _calls: list[list[Call]] = field(default_factory=list[list[Call]])

    def __repr__(self) -> str:
        return f"<boundary {self.file}:{self.spec.name}, lines {self.first_line} to {self.last_line}, {self.spec.how}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with self.around, _eager():
            return self._call_watched(args, kwargs)

    def _call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = [Call(args, kwargs, copied(args), copied(kwargs)) for _ in self._calls]
        for into, call in zip(self._calls, calls, strict=True):
            into.append(call)
        was, self.record.running = self.record.running, True
        try:
            returned = self.function(*args, **kwargs)
        except BaseException as error:
            for call in calls:
                call.error = error
            raise
        finally:
            self.record.running = was
        for call in calls:
            call.returned = returned
        return returned

    def awaited(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run an async function and return its result."""

        async def run() -> Any:
            was, self.record.running = self.record.running, True
            try:
                return await self.function(*args, **kwargs)
            finally:
                self.record.running = was

        with self.around:
            return asyncio.run(run())

    def get(self, name: str) -> Any:
        """Another name of the same file, dotted or not: a class for building arguments, or a constant."""
        first, *rest = name.split(".")
        try:
            with self.around:
                value = self.namespace(first)
                for part in rest:
                    value = getattr(value, part)
        except (KeyError, AttributeError):
            raise CouldNotLoad(f"{self.file}: no {name}") from None
        return value

    def made(self, owner: str | type | None = None, /, **attributes: Any) -> Any:
        """Make an object of the boundary's class, or of another class of its file, without its constructor."""
        chosen = self.get(owner) if isinstance(owner, str) else owner or self.owner or self.function
        return made(chosen, **attributes)

    @property
    def stubs(self) -> dict[str, str]:
        """Every stub so far, with the reason."""
        return dict(sorted(self.record.replaced.items()))

    @property
    def stubs_used(self) -> list[str]:
        """Stubs that were read or called while the boundary ran."""
        return sorted(self.record.used)

    @property
    def executable(self) -> set[int]:
        """Lines of the body that Python can execute."""
        if self._executable is None:
            found = executable_lines(self.source, self.shown, self.first_line, self.last_line)
            is_part = self.spec.first or self.spec.expression or self.spec.keyword
            self._executable = found if is_part else (found - {self.first_line}) or found
        return self._executable

    @property
    def body_ran(self) -> bool:
        """Whether a line of the body ran while traced."""
        return bool(self.executed & self.executable)

    @contextlib.contextmanager
    def trace(self) -> Generator[set[int]]:
        """While entered, executed lines of the boundary are noted in `executed`. Otherwise it costs nothing."""
        watch = _monitored if hasattr(sys, "monitoring") else _traced
        with watch(self.shown, self.first_line, self.last_line, self.executed):
            yield self.executed

    @contextlib.contextmanager
    def record_calls(self) -> Generator[list[Call]]:
        """While entered, every call of this boundary is kept in the list."""
        calls: list[Call] = []
        self._calls.append(calls)
        try:
            yield calls
        finally:
            self._calls = [kept for kept in self._calls if kept is not calls]

    def as_data(self) -> dict[str, Any]:
        """The data for a report."""
        return {
            "boundary": f"{self.file}:{self.spec.name}",
            "how": self.spec.how,
            "stubs": self.stubs,
            "stubs_used": self.stubs_used,
            "first_line": self.first_line,
            "last_line": self.last_line,
            "executed": sorted(self.executed & self.executable),
            "missed": sorted(self.executable - self.executed),
        }


@contextlib.contextmanager
def _traced(file: str, first: int, last: int, executed: set[int]) -> Generator[None]:
    def lines(frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "line" and first <= frame.f_lineno <= last:
            executed.add(frame.f_lineno)
        return lines

    def calls(frame: types.FrameType, event: str, arg: Any) -> Any:
        return lines if frame.f_code.co_filename == file and frame.f_code.co_firstlineno <= last else None

    outer = sys.gettrace()
    sys.settrace(calls)
    try:
        yield
    finally:
        sys.settrace(outer)


@contextlib.contextmanager
def _monitored(file: str, first: int, last: int, executed: set[int]) -> Generator[None]:
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - Python 3.11 does not know it
    free = [tool for tool in (4, 3, 5, 2, 1, 0) if monitoring.get_tool(tool) is None]
    if not free:
        raise CouldNotLoad(
            "every tool id of sys.monitoring is in use, so executed lines cannot be seen; end a profiler or debugger"
        )

    def line(code: types.CodeType, number: int) -> Any:
        if code.co_filename == file and first <= number <= last:
            executed.add(number)
        return monitoring.DISABLE

    monitoring.use_tool_id(free[0], "trimtab")
    monitoring.register_callback(free[0], monitoring.events.LINE, line)
    monitoring.set_events(free[0], monitoring.events.LINE)
    monitoring.restart_events()
    try:
        yield
    finally:
        monitoring.set_events(free[0], 0)
        monitoring.free_tool_id(free[0])


def _eager() -> AbstractContextManager[Any]:
    """Run compiled functions uncompiled: a compiler hides lines and needs a toolchain that may be missing."""
    torch = sys.modules.get("torch")
    if torch is None or "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def copied(value: Any) -> Any:
    """The same structure with copies of every tensor and array; other objects are not copied."""
    # The type is tested, because an object that has every attribute would look like a tensor.
    kind = type(value)
    if hasattr(kind, "detach") and hasattr(kind, "clone"):
        return value.detach().clone()
    if kind.__module__ == "numpy" and hasattr(kind, "copy"):
        return value.copy()
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return {key: copied(part) for key, part in pairs.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _rebuilt(value, [copied(part) for part in cast("list[Any]", value)])
    if isinstance(value, types.SimpleNamespace):
        return kind(**{name: copied(part) for name, part in vars(value).items()})
    return value


def _rebuilt(like: Any, parts: list[Any]) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def made(owner: Any, /, **attributes: Any) -> Any:
    """Make an object without its constructor, with these attributes. They shadow properties of the same name."""
    if not isinstance(owner, type):
        raise CouldNotLoad(f"{owner!r} is not a class, so no object of it can be made")
    shadows = {
        name: value for name, value in attributes.items() if inspect.isdatadescriptor(getattr(owner, name, None))
    }
    if shadows or getattr(owner, "__abstractmethods__", None):
        owner = type(owner)(owner.__name__, (owner,), {**shadows, "__module__": owner.__module__})
        if getattr(owner, "__abstractmethods__", None):
            owner.__abstractmethods__ = frozenset()  # pyright: ignore[reportAttributeAccessIssue]
    new: Any = (
        object.__new__ if owner.__new__ is object.__new__ else next(k for k in owner.__mro__ if not _is_heap(k)).__new__
    )
    built = new(owner)
    for ancestor in owner.__mro__:
        if (ancestor.__module__, ancestor.__name__) == ("torch.nn.modules.module", "Module"):
            ancestor.__init__(built)  # hooks and parameter tables, without which no module can be called
    for name in attributes.keys() - shadows.keys():
        try:
            setattr(built, name, attributes[name])
        except (AttributeError, TypeError):  # a frozen dataclass
            object.__setattr__(built, name, attributes[name])
    return built


def _is_heap(owner: type) -> bool:
    return bool(owner.__flags__ & (1 << 9))


def unknown(name: str, where: str, choices: list[str]) -> CouldNotLoad:
    return CouldNotLoad(f"{where}: no definition {name}; {near(name, choices)}")
