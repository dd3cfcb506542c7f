"""What an argument is, from what a body does with it: for names that tell nothing.

    def weigh(a, b, live): … torch.where(live, a - b, 0.0).exp()      live is a mask, a and b are log-probs

The only place that reads meaning out of foreign code. Names come first: only arguments whose names say nothing are
looked at, and only fields that no other argument fills are given out.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

CARRIERS = frozenset({
    "float", "double", "bool", "long", "int", "detach", "to", "type_as", "unsqueeze", "squeeze", "view", "reshape",
    "flatten", "clone", "contiguous", "astype", "cpu", "requires_grad_", "cat", "stack", "as_tensor", "tensor",
    "asarray", "array", "concatenate", "from_numpy", "list", "transpose", "expand_as", "expand",
})  # fmt: skip
"""Calls that hand on what they are given."""
NUMBERS = ("torch.tensor", "tensor", "list[float]", "np.ndarray", "ndarray", "sequence[float]")
"""Annotations of numbers."""
EARLIER = frozenset({"old", "prev", "then", "before", "past", "there", "behav", "mu", "ref", "base", "q", "behind"})
"""Words of the policy that is compared with."""


def fields_by_use(function: Callable[..., Any], unknown: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """The fields of arguments whose use tells; `known` are those of the other arguments."""
    tree = _tree(function)
    if tree is None or not unknown:
        return {}
    behind = _aliases(tree, {*unknown, *known})
    taken = set(known.values())
    found: dict[str, str] = {}

    def give(name: str | None, field: str) -> None:
        if name in unknown and name not in found and field not in taken:
            found[str(name)] = field
            taken.add(field)

    for name in _masks(tree, behind):
        give(name, "trainable")
    for name in _keys(tree, behind):
        give(name, "group")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ("log_softmax", "softmax", "logsumexp"):
            give(_first_root(node, behind), "logits")
        elif isinstance(node, ast.Call) and _called(node) in ("gather", "gather_logprobs"):
            give(_root(node.args[-1], behind) if node.args else None, "token_id")
    for name, is_minus in _exponents(tree, behind):
        give(name, "minus_log_ratio" if is_minus else "log_ratio")
    for first, second in _differences(tree, behind):
        one, other = (second, first) if _is_earlier(first) and not _is_earlier(second) else (first, second)
        if {one, other} <= {*unknown, *known} and _is_a_policy(one, known) and _is_a_policy(other, known):
            give(one, "logp_current")
            give(other, "logp_old")
        elif known.get(one) == "value":
            give(other, "returns")
    for first, second in _equalities(tree, behind):
        if known.get(first) == "token_id":
            give(second, "eos_id")
        elif known.get(second) in ("eos_id", "pad_id", "stop_ids"):
            give(first, "token_id")
    for name in unknown:
        if "list[int" in _annotation(function, name):
            give(name, "length")
    if taken & {"logp_current", "logp_old"}:
        for name in _compared_with_zero(tree, behind):
            give(name, "advantage")
    if not taken & {"logits", "token_id", "token_loss", "returns"}:
        for name in unknown:
            told = _annotation(function, name)
            if (told in NUMBERS and len(unknown) + len(known) > 1) or (taken and told in ("", "any")):
                give(name, "reward")
    return found


def _annotation(function: Callable[..., Any], name: str) -> str:
    one = inspect.signature(function).parameters.get(name)
    told = "" if one is None or one.annotation is one.empty else one.annotation
    return (
        (told.__name__ if inspect.isclass(told) and "[" not in str(told) else str(told)).lower().removeprefix("typing.")
    )


def is_size_by_use(function: Callable[..., Any], name: str) -> bool:
    """Whether an argument is how many neighbours belong together: `rewards.view(-1, k)`."""
    tree = _tree(function)
    if tree is None:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ("view", "reshape") and len(node.args) == 2:
            first, second = node.args
            if ast.unparse(first) == "-1" and ast.unparse(second) == name:
                return True
    return False


def _tree(function: Callable[..., Any]) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _root(node: ast.expr | None, behind: Mapping[str, str]) -> str | None:
    """The argument that an expression hands on: `a` in `torch.cat(a).float()`."""
    if isinstance(node, ast.Name):
        return behind.get(node.id)
    if isinstance(node, ast.Subscript):
        return _root(node.value, behind)
    if isinstance(node, ast.UnaryOp):
        return _root(node.operand, behind)
    if isinstance(node, ast.Call) and _called(node) in CARRIERS:
        return _first_root(node, behind)
    return None


def _first_root(node: ast.Call, behind: Mapping[str, str]) -> str | None:
    """The argument that a call is about: what a method belongs to, or the first thing that a function is given."""
    own = _root(node.func.value, behind) if isinstance(node.func, ast.Attribute) else None
    given = node.args[0] if node.args else None
    given = given.left if isinstance(given, ast.BinOp) else given
    return own or _root(given, behind)


def _aliases(tree: ast.AST, arguments: Collection[str]) -> dict[str, str]:
    """Every variable that holds an argument, or one entry of it, under another name."""
    behind = {name: name for name in arguments}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            held = _root(node.value, behind)
            if held is not None:
                behind.setdefault(node.targets[0].id, held)
        elif isinstance(node, ast.For | ast.comprehension):
            for target, source in _unzipped(node.target, node.iter):
                held = _root(source, behind)
                if isinstance(target, ast.Name) and held is not None:
                    behind.setdefault(target.id, held)
    return behind


def _unzipped(target: ast.expr, source: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`for a, b in zip(x, y)` walks over x and y at once."""
    if (
        isinstance(source, ast.Call)
        and _called(source) == "enumerate"
        and isinstance(target, ast.Tuple)
        and source.args
    ):
        yield from _unzipped(target.elts[-1], source.args[0])
    elif isinstance(source, ast.Call) and _called(source) == "zip" and isinstance(target, ast.Tuple):
        yield from zip(target.elts, source.args, strict=False)
    else:
        yield target, source


def _masks(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[str]:
    """What chooses between two values, indexes, is turned into flags, or is both a factor and summed."""
    factors: list[str] = []
    for node in ast.walk(tree):
        chosen: ast.expr | None = None
        if isinstance(node, ast.Call) and _called(node) == "where" and node.args:
            chosen = node.args[0]
        elif (
            isinstance(node, ast.Call)
            and _called(node) in ("bool", "masked_fill")
            and isinstance(node.func, ast.Attribute)
        ):
            chosen = node.func.value if _called(node) == "bool" else node.args[0]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            chosen = node.operand
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name | ast.Call):
            chosen = node.slice if not isinstance(node.value, ast.Name) or node.value.id in behind else None
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors += [one for one in (_root(node.left, behind), _root(node.right, behind)) if one]
        if isinstance(chosen, ast.Compare):
            chosen = chosen.left
        held = _root(chosen, behind)
        if held is not None:
            yield held
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "sum":
            held = _first_root(node, behind)
            if held in factors:
                yield str(held)


def _keys(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[str]:
    """What tells groups apart: a key of a table, or what `unique` is asked of."""
    tables = set(_tables(tree))
    for node in ast.walk(tree):
        held: str | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in tables:
            held = _root(node.slice, behind)
        elif isinstance(node, ast.Call) and _called(node) == "unique":
            held = _first_root(node, behind)
        if held is not None:
            yield held


def _tables(tree: ast.AST) -> Iterator[str]:
    """Variables that hold a dictionary."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(made, ast.Dict) or ast.unparse(made).endswith("dict"):
                yield node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and "dict" in ast.unparse(node.annotation):
            yield ast.unparse(node.target)


def _differences(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of arguments of which one is taken from the other."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            first, second = _root(node.left, behind), _root(node.right, behind)
            if first is not None and second is not None and first != second:
                yield first, second


def _exponents(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str | None, bool]]:
    """Arguments that are exponents as they are, and whether with a minus."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "exp":
            own = isinstance(node.func, ast.Attribute) and not node.args
            inside = node.func.value if isinstance(node.func, ast.Attribute) and own else node.args[0]
            if isinstance(inside, ast.Name | ast.UnaryOp):
                yield _root(inside, behind), isinstance(inside, ast.UnaryOp)


def _equalities(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            first, second = _root(node.left, behind), _root(node.comparators[0], behind)
            if first is not None and second is not None:
                yield first, second


def _is_a_policy(name: str, known: Mapping[str, str]) -> bool:
    return known.get(name, "logp").startswith("logp")


def _is_earlier(name: str) -> bool:
    return bool(set(name.lower().split("_")) & EARLIER)


def _compared_with_zero(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[str]:
    """What has a sign that matters, or is a factor of a loss."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) in ("0", "0.0"):
            held = _root(node.left, behind)
            if held is not None:
                yield held
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from (one for one in (_root(node.left, behind), _root(node.right, behind)) if one)
