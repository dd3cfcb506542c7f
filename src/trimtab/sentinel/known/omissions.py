"""Slips that leave something out: a mask before a sum, a count below the line, a setting beside a variable."""

import ast
from collections.abc import Iterator

from trimtab.sentinel.known.source import REDUCTIONS, Around, is_free, name_of

EXTREMES = frozenset({"max", "min", "amax", "amin", "std", "var", "median", "quantile"})


def masked(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    """A mask before a sum, a mean over what it keeps, and other counts below the line."""
    if isinstance(node, ast.Call) and name_of(node) in REDUCTIONS:
        yield from _of_what_is_kept(node, around.masks)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_a_count(node.right):
        for mask in around.masks:
            for text in (f"{mask}.sum()", f"{mask}.sum(-1)", f"{mask}.shape[0]", f"{mask}.numel()"):
                if text not in ast.unparse(node.right):
                    yield ast.BinOp(node.left, ast.Div(), ast.parse(text, mode="eval").body)


def _is_a_count(node: ast.expr) -> bool:
    """Whether it is made of sizes and sums, and of no setting."""
    told = ast.unparse(node)
    return any(one in told for one in ("shape", "numel", "size", "len(", "sum", "count")) and "self." not in told


def _of_what_is_kept(node: ast.Call, masks: tuple[str, ...]) -> Iterator[ast.expr]:
    is_method = isinstance(node.func, ast.Attribute) and not is_free(node.func.value)
    if not is_method and not node.args:
        return
    inside = node.func.value if isinstance(node.func, ast.Attribute) and is_method else node.args[0]
    rest = node.args if is_method else node.args[1:]
    is_masked = any(mask in ast.unparse(inside) for mask in masks)
    for mask in masks:
        product = inside if is_masked else ast.BinOp(inside, ast.Mult(), ast.Name(mask, ast.Load()))
        if (
            is_masked
            and name_of(node) in EXTREMES
            and isinstance(inside, ast.BinOp)
            and isinstance(inside.op, ast.Mult)
        ):
            chosen = ast.Subscript(inside.left, ast.parse(f"{mask} > 0", mode="eval").body, ast.Load())
            rebuilt = ast.Attribute(chosen, name_of(node), ast.Load()) if is_method else node.func
            yield ast.Call(rebuilt, rest if is_method else [chosen, *rest], node.keywords)
        if is_masked:
            pass
        elif isinstance(node.func, ast.Attribute) and is_method:
            yield ast.Call(ast.Attribute(product, node.func.attr, ast.Load()), rest, node.keywords)
        else:
            yield ast.Call(node.func, [product, *rest], node.keywords)
        if name_of(node) == "mean":
            over = [*rest, *(k.value for k in node.keywords if k.arg in ("dim", "axis"))][:1]
            where = f"({', '.join(map(ast.unparse, over))})"
            yield ast.parse(f"({ast.unparse(product)}).sum{where} / {mask}.sum{where}", mode="eval").body


def scaled(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    """A variable over or times a setting, and a bound on a logarithm."""
    told = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""
    if told not in around.alike or not isinstance(getattr(node, "ctx", None), ast.Load):
        return
    operators = (ast.Div, ast.Mult, ast.Sub) if told in around.settings else (ast.Div, ast.Mult)
    for number in (one for one in around.settings if one != told):
        other = ast.parse(number, mode="eval").body
        yield from (ast.BinOp(node, op(), other) for op in operators)
    if told in around.numbers:
        for module in around.modules[:1]:
            yield ast.Call(ast.Attribute(ast.Name(module, ast.Load()), "log", ast.Load()), [node], [])
