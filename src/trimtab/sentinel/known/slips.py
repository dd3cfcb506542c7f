"""Slips of a hand that turn a right function into a wrong one, or back: the changes that repairs are made of.

An operand on the wrong side, `min` for `max`, another variable of the same shape, a step too far; what was left out is
in `omissions.py`. Nothing here takes a whole feature away: a method that does more than a published one is no mistake.
"""

import ast
from collections.abc import Callable, Iterator

from trimtab.sentinel.known.source import (
    REDUCTIONS,
    Around,
    is_free,
    is_minus_one,
    is_one,
    is_whole,
    minus_one,
    name_of,
)

OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div, ast.Mod), ast.Mod: (ast.FloorDiv,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip
PAIRS = (
    ("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax"), ("nanmin", "nanmax"),
    ("std", "var"), ("any", "all"), ("repeat", "repeat_interleave"), ("zeros_like", "ones_like"),
    ("softmax", "log_softmax"), ("sigmoid", "logsigmoid"), ("clamp_min", "clamp_max"), ("first", "last"),
    ("cumsum", "cumprod"), ("tile", "repeat"), ("log", "log2"), ("scatter", "scatter_add"),
)  # fmt: skip
OTHERS: dict[str, tuple[str, ...]] = {}
for _one, _other in PAIRS:
    OTHERS[_one] = (*OTHERS.get(_one, ()), _other)
    OTHERS[_other] = (*OTHERS.get(_other, ()), _one)
KEYWORDS = {"min": "max", "max": "min", "a_min": "a_max", "a_max": "a_min"}


Slip = Callable[[ast.expr, Around], Iterator[ast.expr]]


def belongs(slip: Slip, node: ast.expr, owner: ast.AST, field: str, *, is_result: bool) -> bool:
    """Whether a kind of slip can happen to an expression where it stands."""
    if slip is renamed and is_result:
        return False  # another result, and not another formula
    if slip is negated and isinstance(owner, ast.Compare):
        return False  # it would switch something off
    # Elsewhere, x - 1 is a distance from 1, and not a step too far.
    return _counts(owner, field) or not (slip is one_step or (slip is other_number and is_whole(node)))


# --- an operand, a sign, a side -----------------------------------------------------------------------------------


def turned(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv):
            yield ast.BinOp(node.right, node.op, node.left)
        for other in OPERATORS.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)
        yield from _exchanged(node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BoolOp) and all(isinstance(one, ast.Compare) for one in node.values):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Call):
        yield from _called(node)
    elif isinstance(node, ast.Subscript):
        yield from _cut(node)


SHAPED = frozenset({"exp", "square", "abs", "log", "sqrt", "expm1"})
"""Functions of one number, which do not commute with a mean."""


def reordered(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    """The square of a mean for the mean of squares, and the other way round."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Call):
        call = node.left
        if call.args and not _is_free_call(call):
            yield ast.Call(call.func, [ast.BinOp(call.args[0], ast.Pow(), node.right), *call.args[1:]], call.keywords)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in REDUCTIONS:
            inside = ast.BinOp(call.func.value, ast.Pow(), node.right)
            yield ast.Call(ast.Attribute(inside, call.func.attr, ast.Load()), call.args, call.keywords)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.BinOp):
        power = node.args[0]
        if isinstance(power.op, ast.Pow):
            yield ast.BinOp(ast.Call(node.func, [power.left, *node.args[1:]], node.keywords), ast.Pow(), power.right)
    if (
        isinstance(node, ast.Call)
        and name_of(node) in SHAPED
        and _is_free_call(node)
        and isinstance(node.args[0], ast.Call)
    ):
        call = node.args[0]
        if call.args:
            yield ast.Call(call.func, [ast.Call(node.func, [call.args[0]], []), *call.args[1:]], call.keywords)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in REDUCTIONS:
            inside = ast.Call(node.func, [call.func.value], [])
            yield ast.Call(ast.Attribute(inside, call.func.attr, ast.Load()), call.args, call.keywords)


def _is_free_call(node: ast.Call) -> bool:
    """`torch.exp(x)`, and not `x.exp()` or `masked_mean(x, mask)`."""
    return isinstance(node.func, ast.Attribute) and is_free(node.func.value) and len(node.args) == 1


def _exchanged(node: ast.BinOp) -> Iterator[ast.expr]:
    """`a * x + b * y` with the factors of the other."""
    first, second = node.left, node.right
    if not (isinstance(first, ast.BinOp) and isinstance(second, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)):
        return
    if isinstance(first.op, ast.Mult) and isinstance(second.op, ast.Mult):
        yield ast.BinOp(
            ast.BinOp(second.left, ast.Mult(), first.right), node.op, ast.BinOp(first.left, ast.Mult(), second.right)
        )


def negated(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call | ast.BinOp) or (isinstance(node, ast.Name) and node.id in around.arrays):
        yield ast.UnaryOp(ast.USub(), node)


def one_step(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    """A step more or less."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and is_one(node.right):
        yield node.left
    elif isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id in around.arrays | around.counts):
        yield from (ast.BinOp(node, op(), ast.Constant(1)) for op in (ast.Add, ast.Sub))


def _counts(owner: ast.AST, field: str) -> bool:
    """Whether a number there counts something: an index, a dimension, a range, or what a sum is divided by."""
    if isinstance(owner, ast.BinOp):
        return isinstance(owner.op, ast.Div | ast.FloorDiv | ast.Pow) and field == "right"
    if isinstance(owner, ast.Call):
        return name_of(owner) in (
            "range",
            "pow",
            "arange",
            "roll",
            "flip",
            "sum",
            "mean",
            "std",
            "var",
            "cumsum",
            "unsqueeze",
        )
    return isinstance(owner, ast.Subscript | ast.Slice | ast.keyword | ast.UnaryOp | ast.Tuple)


def _called(node: ast.Call) -> Iterator[ast.expr]:
    """Another function, two arguments in the other order, the other bound."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for other in OTHERS.get(name, ()):
        func = (
            ast.Attribute(node.func.value, other, ast.Load())
            if isinstance(node.func, ast.Attribute)
            else ast.Name(other, ast.Load())
        )
        yield ast.Call(func, node.args, node.keywords)
    if name == "reversed" and len(node.args) == 1:
        yield node.args[0]
    if name == "range" and len(node.args) <= 2 and not node.keywords:
        yield ast.Call(ast.Name("reversed", ast.Load()), [node], [])
    for i, j in ((0, 1), (1, 2)):
        if len(node.args) > j and not isinstance(node.args[i], ast.Starred):
            swapped = list(node.args)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            yield ast.Call(node.func, swapped, node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in KEYWORDS and not any(k.arg == KEYWORDS[keyword.arg] for k in node.keywords):
            turned = ast.keyword(KEYWORDS[keyword.arg], keyword.value)
            yield ast.Call(node.func, node.args, [*node.keywords[:i], turned, *node.keywords[i + 1 :]])


def _cut(node: ast.Subscript) -> Iterator[ast.expr]:
    """`[:, 1:]` and `[:, :-1]` are one column apart, `[0]` and `[-1]` are the two ends."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for i, part in enumerate(parts):
        for other in _other_slices(part):
            changed = [*parts[:i], other, *parts[i + 1 :]]
            whole = ast.Tuple(changed, ast.Load()) if isinstance(node.slice, ast.Tuple) else other
            yield ast.Subscript(node.value, whole, node.ctx)


def _other_slices(part: ast.expr) -> Iterator[ast.expr]:
    if isinstance(part, ast.Slice) and part.step is None:
        if part.upper is None and part.lower is not None:
            if is_one(part.lower):
                yield ast.Slice(None, minus_one(), None)
            yield ast.Slice(None, part.lower, None)
        elif part.lower is None and part.upper is not None:
            if is_minus_one(part.upper):
                yield ast.Slice(ast.Constant(1), None, None)
            yield ast.Slice(part.upper, None, None)
    elif isinstance(part, ast.Constant) and part.value == 0:
        yield minus_one()
    elif is_minus_one(part):
        yield ast.Constant(0)


# --- another variable, another setting ----------------------------------------------------------------------------


def renamed(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    """Another variable, `self.high` for `self.low`, `batch["ref"]` for `batch["old"]`."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
        for other in around.alike.get(ast.unparse(node), ()):
            yield ast.parse(other, mode="eval").body


# --- a number ------------------------------------------------------------------------------------------------------


def other_number(node: ast.expr, around: Around) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int) and abs(value) <= 3:
        yield from (ast.Constant(value + step) for step in (1, -1))
        if value > 1:
            yield ast.Constant(-value)
    elif isinstance(value, float) and value in (0.0, 0.5, 1.0, 2.0):
        yield from (ast.Constant(other) for other in (0.0, 0.5, 1.0, 2.0) if other != value)
