"""The child process beside the tests: the only place that imports another framework.

    python child.py FOLDER STUBS [PATH…]   FOLDER holds the unpacked wheel, STUBS names modules to stand in for, with
                                           commas; a PATH is imported from as well

One JSON line in, one out. In: {"call": "module:function", "with": {arguments}, "gradient": [names]}. Out: {"result": …,
"gradient": {name: …}} or {"error": …}. Tensors travel as {"$tensor": nested lists, "dtype": …}, arrays as {"$array": …}
and config objects as {"$new": "module:Class", "with": {…}}. By itself it
knows nothing of Trimtab: with its sources as a PATH, our hooks run inside the framework.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback
import types


class _StandInType(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: object) -> type:
        return cls


class StandIn(metaclass=_StandInType):
    """Whatever a heavy module would give: false, a decorator that changes nothing, a base class, an annotation."""

    def __new__(cls, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None: ...

    def __call__(self, decorated=None, **kwargs):
        return decorated

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> type:
        return getattr(StandIn, name)


class StandInModule(types.ModuleType):
    __path__: list = []
    __version__ = "99.0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the named modules and everything below them, also where they are installed: results depend on no luck."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == stub or name.startswith(f"{stub}.") for stub in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandInModule(spec.name)

    def exec_module(self, module) -> None: ...


def find(path: str):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def decode(value):
    import numpy
    import torch

    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return torch.tensor(value["$tensor"], dtype=getattr(torch, value["dtype"]))
    if "$array" in value:
        return numpy.array(value["$array"])
    if "$new" in value:
        return find(value["$new"])(**decode(value["with"]))
    return {name: decode(entry) for name, entry in value.items()}


def encode(value):
    import torch

    if isinstance(value, torch.Tensor):
        return {"$tensor": value.detach().tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, dict):
        return {name: encode(entry) for name, entry in value.items()}
    return value


def answer(request):
    function, arguments = find(request["call"]), decode(request["with"])
    wanted = {name: arguments[name].requires_grad_() for name in request["gradient"]}
    result = function(**arguments)
    if wanted:
        loss = result[0] if isinstance(result, list | tuple) else result
        loss.sum().backward()
    return {"result": encode(result), "gradient": {name: encode(leaf.grad) for name, leaf in wanted.items()}}


def main() -> None:
    folder, stubs, *paths = sys.argv[1:]
    # Whatever a framework prints on import must not be taken for an answer.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.meta_path.insert(0, StandInFinder(stubs.split(",")))
    sys.path[:0] = [folder, *paths]
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
