"""What an argument is, from what a body does with it: for names that tell nothing.

    def weigh(a, b, live): … torch.where(live, a - b, 0.0).exp()      live is a mask, a and b are log-probs

The only place that reads meaning out of foreign code. Names come first: only arguments whose names say nothing are
looked at, and only fields that no other argument fills are given out.
"""

import ast
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from trimtab.sentinel.binding.arithmetic import fields_in_formulas
from trimtab.sentinel.binding.body import aliases, called_in, first_root, root_of, tree_of

NUMBERS = ("torch.tensor", "tensor", "list[float]", "np.ndarray", "ndarray", "sequence[float]")
"""Annotations of numbers."""
FLAGS = ("bool", "masked_fill")
"""Methods of, and with, a mask."""
EARLIER = frozenset({
    "old", "prev", "then", "before", "past", "there", "behav", "mu", "ref", "base", "q", "behind", "teacher", "guide",
})  # fmt: skip
"""Words of the policy that is compared with."""


Told = Iterator[tuple[str | None, str]]
"""Arguments and fields, the surest first: an argument takes one field, and a field goes to one argument."""


def fields_by_use(function: Callable[..., Any], unknown: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """The fields of arguments whose use tells; `known` are those of the other arguments."""
    tree = tree_of(function)
    if tree is None or not unknown:
        return {}
    behind = aliases(tree, {*unknown, *known})
    found: dict[str, str] = {}

    def give(told: Told) -> None:
        for name, field in told:
            if name in unknown and name not in found and field not in {*known.values(), *found.values()}:
                found[str(name)] = field

    give(_of_one(tree, behind, set(known.values())))
    give(_of_two(tree, behind, {*unknown, *known}, {**known, **found}))
    give(_equal_ones(tree, behind, {**known, **found}))
    hints = {name: _annotation(function, name) for name in unknown if name not in found}
    give(_of_annotations(hints, {*known.values(), *found.values()}))
    if {"logp_current", "logp_old"} & {*known.values(), *found.values()}:
        give((name, "advantage") for name in _compared_with_zero(tree, behind))
    give(_any_numbers(hints, {*known.values(), *found.values()}, is_alone=len(unknown) + len(known) < 2))
    return found


def _of_one(tree: ast.AST, behind: Mapping[str, str], taken: set[str]) -> Told:
    """Masks, names of groups, logits, ids, and what a well-known formula is made of."""
    yield from ((name, "trainable") for name in _masks(tree, behind))
    yield from ((name, "group") for name in _keys(tree, behind))
    for name in sorted(_softmaxed(tree, behind), key=_is_earlier):
        yield name, "teacher_logits" if "logits" in taken else "logits"
        taken = {*taken, "logits"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_in(node) in ("gather", "gather_logprobs"):
            yield root_of(node.args[-1], behind) if node.args else None, "token_id"
    yield from fields_in_formulas(tree, behind)
    for name, is_minus in _exponents(tree, behind):
        yield name, "minus_log_ratio" if is_minus else "log_ratio"


def _of_two(tree: ast.AST, behind: Mapping[str, str], names: set[str], known: Mapping[str, str]) -> Told:
    """Two policies of which one is taken from the other, and what a value is compared with."""
    for first, second in _differences(tree, behind):
        one, other = (second, first) if _is_earlier(first) and not _is_earlier(second) else (first, second)
        if {one, other} <= names and _is_a_policy(one, known) and _is_a_policy(other, known):
            yield one, "logp_current"
            yield other, "logp_old"
        elif known.get(one) == "value":
            yield other, "returns"


def _equal_ones(tree: ast.AST, behind: Mapping[str, str], known: Mapping[str, str]) -> Told:
    for first, second in _equalities(tree, behind):
        if known.get(first) == "token_id":
            yield second, "eos_id"
        elif known.get(second) in ("eos_id", "pad_id", "stop_ids"):
            yield first, "token_id"


def _of_annotations(hints: Mapping[str, str], taken: set[str]) -> Told:
    if taken == {"trainable"} and len(hints) == 1:  # any numbers, one per token, under a mask
        yield from ((name, "token_loss") for name, told in hints.items() if "list[" in told and "tensor" in told)
    yield from ((name, "length") for name, told in hints.items() if "list[int" in told)


def _any_numbers(hints: Mapping[str, str], taken: set[str], *, is_alone: bool) -> Told:
    """What is left is rewards, unless the function is about something else."""
    if not taken & {"logits", "token_id", "token_loss", "returns"}:
        for name, told in hints.items():
            if (told in NUMBERS and not is_alone) or (taken and told in ("", "any")):
                yield name, "reward"


def _softmaxed(tree: ast.AST, behind: Mapping[str, str]) -> list[str]:
    """What a softmax is taken of: `(scores / temperature).log_softmax(-1)`."""
    found: list[str | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_in(node) in ("log_softmax", "softmax", "logsumexp"):
            own = node.func.value if isinstance(node.func, ast.Attribute) else None
            found.append(root_of(own.left, behind) if isinstance(own, ast.BinOp) else first_root(node, behind))
    return list(dict.fromkeys(name for name in found if name is not None))


def _annotation(function: Callable[..., Any], name: str) -> str:
    one = inspect.signature(function).parameters.get(name)
    told = "" if one is None or one.annotation is one.empty else one.annotation
    return (
        (told.__name__ if inspect.isclass(told) and "[" not in str(told) else str(told)).lower().removeprefix("typing.")
    )


def is_size_by_use(function: Callable[..., Any], name: str) -> bool:
    """Whether an argument is how many neighbours belong together: `rewards.view(-1, k)`."""
    tree = tree_of(function)
    if tree is None:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_in(node) in ("view", "reshape") and len(node.args) == 2:
            first, second = node.args
            if ast.unparse(first) == "-1" and ast.unparse(second) == name:
                return True
    return False


def is_bound_by_use(function: Callable[..., Any], name: str) -> bool:
    """Whether a setting is the end of an interval itself, and no distance: `ratio.clamp(max=high)`."""
    for node in ast.walk(tree_of(function) or ast.Module([], [])):
        if isinstance(node, ast.Call) and called_in(node) in ("clamp", "clip", "clamp_max", "clamp_min"):
            ends = (*node.args, *(keyword.value for keyword in node.keywords))
            if any(isinstance(one, ast.Name) and one.id == name for one in ends):
                return True
    return False


def _masks(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[str]:
    """What chooses between two values, indexes, is turned into flags, or is both a factor and summed."""
    factors: list[str] = []
    for node in ast.walk(tree):
        chosen: ast.expr | None = None
        if isinstance(node, ast.Call) and called_in(node) == "where" and node.args:
            chosen = node.args[0]
        elif isinstance(node, ast.Call) and called_in(node) in FLAGS and isinstance(node.func, ast.Attribute):
            chosen = node.func.value if called_in(node) == "bool" else node.args[0]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            chosen = node.operand
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name | ast.Call):
            chosen = node.slice if not isinstance(node.value, ast.Name) or node.value.id in behind else None
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors += [one for one in (root_of(node.left, behind), root_of(node.right, behind)) if one]
        if isinstance(chosen, ast.Compare):
            chosen = chosen.left
        held = root_of(chosen, behind)
        if held is not None:
            yield held
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_in(node) == "sum":
            held = first_root(node, behind)
            if held in factors:
                yield str(held)


def _keys(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[str]:
    """What tells groups apart: a key of a table, or what `unique` is asked of."""
    tables = set(_tables(tree))
    for node in ast.walk(tree):
        held: str | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in tables:
            held = root_of(node.slice, behind)
        elif isinstance(node, ast.Call) and called_in(node) == "unique":
            held = first_root(node, behind)
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
            first, second = root_of(node.left, behind), root_of(node.right, behind)
            if first is not None and second is not None and first != second:
                yield first, second


def _exponents(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str | None, bool]]:
    """Arguments that are exponents as they are, and whether with a minus."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_in(node) == "exp":
            own = isinstance(node.func, ast.Attribute) and not node.args
            inside = node.func.value if isinstance(node.func, ast.Attribute) and own else node.args[0]
            if isinstance(inside, ast.Name | ast.UnaryOp):
                yield root_of(inside, behind), isinstance(inside, ast.UnaryOp)


def _equalities(tree: ast.AST, behind: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            first, second = root_of(node.left, behind), root_of(node.comparators[0], behind)
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
            held = root_of(node.left, behind)
            if held is not None:
                yield held
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from (one for one in (root_of(node.left, behind), root_of(node.right, behind)) if one)
