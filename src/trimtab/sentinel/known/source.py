"""What a repair needs to know of a function's source: what is at hand in its body, and how to read an expression."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

REDUCTIONS = frozenset({"sum", "mean", "std", "var", "max", "min", "amax", "amin"})
FREE = frozenset({"torch", "np", "numpy", "F", "math", "self", "nn"})


@dataclass(frozen=True)
class Around:
    """What a body has at hand.

    alike    a variable, and the others that held something of the same type and shape
    masks    variables that held 0 and 1 only
    numbers  settings: variables, attributes and keys that held one number
    settings numbers, and whole numbers that are no counts of the batch
    arrays   variables that held more than one number
    counts   variables that held a whole number
    modules  names of modules that have a logarithm
    """

    alike: Mapping[str, tuple[str, ...]]
    masks: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    arrays: frozenset[str] = frozenset()
    counts: frozenset[str] = frozenset()
    modules: tuple[str, ...] = ()


def name_of(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_free(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in FREE


def is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)


def is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1 and not isinstance(node.value, bool)


def is_minus_one(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and is_one(node.operand)


def minus_one() -> ast.expr:
    return ast.UnaryOp(ast.USub(), ast.Constant(1))
