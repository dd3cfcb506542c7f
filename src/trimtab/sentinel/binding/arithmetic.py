"""Formulas in a body that say what their parts are, whatever they are called.

    delta = gain + gamma * after - guess             gain is a reward, guess a value
    near = anchor + (guess - anchor).clamp(-e, e)    with (guess - goal) ** 2: a value, the old one, and its target

The only place that knows formulas by their shape.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from trimtab.sentinel.binding.body import called_in, root_of

CLIPS = ("clamp", "clip")
DISCOUNTS = re.compile(r"gamma|discount", re.IGNORECASE)


def fields_in_formulas(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Arguments and their fields, from errors of one step and from clipped squared errors."""
    for reward, value in _errors_of_a_step(tree, behind):
        yield reward, "reward"
        yield value, "value"
    squared = list(_squared(tree, behind))
    for value, anchor in _kept_near(tree, behind):
        for pair in squared:
            if value in pair and anchor not in pair:
                yield value, "value"
                yield anchor, "value_old"
                yield pair[1] if pair[0] == value else pair[0], "returns"


def _errors_of_a_step(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """`r + gamma * after - v`: what a step paid, and what was expected of it."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.BinOp)):
            continue
        paid, after = node.left.left, node.left.right
        if isinstance(node.left.op, ast.Add) and isinstance(after, ast.BinOp) and DISCOUNTS.search(ast.unparse(after)):
            reward, value = root_of(paid, behind), root_of(node.right, behind)
            if reward is not None and value is not None and reward != value:
                yield reward, value


def _taken_from(node: ast.expr, behind: Mapping[str, str]) -> tuple[str, str] | None:
    """The two arguments of a difference."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return None
    first, second = root_of(node.left, behind), root_of(node.right, behind)
    return (first, second) if first is not None and second is not None and first != second else None


def _squared(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of arguments whose difference is squared."""
    for node in ast.walk(tree):
        inside: ast.expr | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and ast.unparse(node.right) in ("2", "2.0"):
            inside = node.left
        elif isinstance(node, ast.Call) and called_in(node) in ("square", "pow"):
            inside = _subject(node)
        pair = _taken_from(inside, behind) if inside is not None else None
        if pair is not None:
            yield pair


def _subject(node: ast.Call) -> ast.expr | None:
    """What a call is about: `x` in `x.clamp(0, 1)` and in `torch.clamp(x, 0, 1)`."""
    own = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_module = isinstance(own, ast.Name) and own.id in ("torch", "np", "numpy", "F", "jnp")
    return own if own is not None and not is_module else next(iter(node.args), None)


def _kept_near(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Arguments that are clipped around another: `b + (a - b).clamp(-e, e)`, `a.clamp(b - e, b + e)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for base, other in ((node.left, node.right), (node.right, node.left)):
                inside = _subject(other) if isinstance(other, ast.Call) and called_in(other) in CLIPS else None
                pair = _taken_from(inside, behind) if inside is not None else None
                if pair is not None and pair[1] == root_of(base, behind):
                    yield pair
        elif isinstance(node, ast.Call) and called_in(node) in CLIPS:
            ends = [one for one in (*node.args, *(k.value for k in node.keywords)) if isinstance(one, ast.BinOp)]
            around = {root_of(one.left, behind) for one in ends if isinstance(one.op, ast.Add | ast.Sub)}
            value, anchor = root_of(_subject(node), behind), next(iter(around), None)
            if len(ends) == 2 and len(around) == 1 and value is not None and anchor is not None and value != anchor:
                yield value, anchor
