"""An argument followed through a body: under other names, through casts, into loops.

    for x, y in zip(a, b): gap = x.float() - y           x and gap's first part are a, y is b

The only place that walks from an expression back to the argument that it holds.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

CARRIERS = frozenset({
    "float", "double", "bool", "long", "int", "detach", "to", "type_as", "unsqueeze", "squeeze", "view", "reshape",
    "flatten", "clone", "contiguous", "astype", "cpu", "requires_grad_", "cat", "stack", "as_tensor", "tensor",
    "asarray", "array", "concatenate", "from_numpy", "list", "transpose", "expand_as", "expand",
})  # fmt: skip
"""Calls that hand on what they are given."""


def tree_of(function: Callable[..., Any]) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None


def called_in(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def root_of(node: ast.expr | None, behind: Mapping[str, str]) -> str | None:
    """The argument that an expression hands on: `a` in `torch.cat(a).float()`."""
    if isinstance(node, ast.Name):
        return behind.get(node.id)
    if isinstance(node, ast.Subscript):
        return root_of(node.value, behind)
    if isinstance(node, ast.UnaryOp):
        return root_of(node.operand, behind)
    if isinstance(node, ast.Call) and called_in(node) in CARRIERS:
        return first_root(node, behind)
    return None


def first_root(node: ast.Call, behind: Mapping[str, str]) -> str | None:
    """The argument that a call is about: what a method belongs to, or the first thing that a function is given."""
    own = node.func.value if isinstance(node.func, ast.Attribute) else None
    given = node.args[0] if node.args else None
    given = given.left if isinstance(given, ast.BinOp) else given
    return root_of(own, behind) or root_of(given, behind)


def aliases(tree: ast.AST, arguments: Collection[str]) -> dict[str, str]:
    """Every variable that holds an argument, or one entry of it, under another name."""
    behind = {name: name for name in arguments}
    for node in ast.walk(tree):
        pairs: Iterable[tuple[ast.expr, ast.expr]] = ()
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=False)
        elif isinstance(node, ast.For | ast.comprehension):
            pairs = _unzipped(node.target, node.iter)
        for target, source in pairs:
            held = root_of(source, behind)
            if isinstance(target, ast.Name) and held is not None:
                behind.setdefault(target.id, held)
    return behind


def _unzipped(target: ast.expr, source: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`for a, b in zip(x, y)` walks over x and y at once."""
    if (
        isinstance(source, ast.Call)
        and called_in(source) == "enumerate"
        and isinstance(target, ast.Tuple)
        and source.args
    ):
        yield from _unzipped(target.elts[-1], source.args[0])
    elif isinstance(source, ast.Call) and called_in(source) == "zip" and isinstance(target, ast.Tuple):
        yield from zip(target.elts, source.args, strict=False)
    else:
        yield target, source


def rolled_keys(function: Callable[..., Any]) -> frozenset[str]:
    """Keys of a batch that are moved to the left by one: `torch.roll(data["loss_mask"], shifts=-1, dims=-1)`."""
    found: set[str] = set()
    for node in ast.walk(tree_of(function) or ast.Module([], [])):
        if isinstance(node, ast.Call) and called_in(node) == "roll" and "-1" in ast.unparse(node).split("roll", 1)[1]:
            own = node.func.value if isinstance(node.func, ast.Attribute) else None
            for held in (own, next(iter(node.args), None)):
                if isinstance(held, ast.Subscript) and isinstance(held.slice, ast.Constant):
                    found.add(str(held.slice.value))
    return frozenset(found)
