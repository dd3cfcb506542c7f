"""Every small change to the source of a function, one at a time, made in place and taken back.

Which changes are tried is in `slips.py` and `omissions.py`.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.sentinel.known import omissions, slips
from trimtab.sentinel.known.source import Around

KINDS = (
    slips.turned, slips.reordered, slips.negated, slips.one_step, slips.renamed, omissions.masked, slips.other_number,
    omissions.scaled,
)  # fmt: skip
"""The likely ones first."""


@dataclass(frozen=True)
class Edit:
    """One change, made in place: `hold()` puts it in, `release()` takes it out."""

    owner: ast.AST
    field: str
    index: int | None
    old: ast.AST
    new: ast.AST

    def hold(self) -> None:
        self._put(self.new)

    def release(self) -> None:
        self._put(self.old)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node

    @property
    def renames(self) -> bool:
        """Whether one variable stands for another."""
        kinds = ast.Name | ast.Attribute | ast.Subscript
        return isinstance(self.old, kinds) and isinstance(self.new, kinds)

    @property
    def line(self) -> int:
        return getattr(self.old, "lineno", 0)

    def text(self) -> str:
        return f"`{ast.unparse(self.old)}` were `{ast.unparse(self.new)}`"


def edits(function: ast.AST, around: Around) -> Iterator[Edit]:
    """Every small change to the body of a function, the likely ones first."""
    slots = list(_slots(function))
    uses = Counter(ast.unparse(node) for _, _, _, node in slots if isinstance(node, ast.Name | ast.Attribute))
    handed_out = {id(n) for r in ast.walk(function) if isinstance(r, ast.Return | ast.Dict) for n in ast.walk(r)}
    for slip in KINDS:
        for owner, field, index, node in slots:
            if not slips.belongs(slip, node, owner, field, is_result=id(node) in handed_out):
                continue
            if slip is slips.renamed and uses[ast.unparse(node)] == 1:
                continue  # nothing would be left of it, and a right function uses what it is given
            for new in slip(node, around):
                yield Edit(owner, field, index, node, ast.copy_location(ast.fix_missing_locations(new), node))


def _slots(function: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """Every expression inside the body, with the place where it stands."""
    for owner in ast.walk(function):
        if isinstance(owner, ast.arguments):  # defaults are options, which the search varies anyway
            continue
        for field, value in ast.iter_fields(owner):
            if owner is function and field != "body":
                continue
            if field in ("annotation", "decorator_list", "returns"):
                continue
            if isinstance(value, ast.expr):
                yield owner, field, None, value
            elif isinstance(value, list):
                for i, one in enumerate(value):
                    if isinstance(one, ast.expr):
                        yield owner, field, i, one
