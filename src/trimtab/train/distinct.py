"""The only place that finds what sequences have in common: their distinct beginnings, each of which is computed once.

Under causal attention the state at a token depends on that token and those before it. The answers to one prompt
share the prompt, and often their first tokens; equal beginnings have equal states, so one is computed for all.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trimtab.rollout.rows import Rows

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Tree:
    """The distinct beginnings of some rows. Each that is computed is a node, and is named by its last token.

    Rows `[p, a, b]`, `[p, a, c]` and `[p, a, c]`, whose last tokens are only predicted: two nodes, `p` and `pa`, for
    six cells. One row holds both, so attention needs one row of two columns. There are two targets, `b` and `c`, for
    three tokens.
    """

    ids: Tensor
    """The token of each node."""
    position: Tensor
    """How many tokens are before it."""
    node: Tensor
    """The node in each cell of the rows that attention needs, `[rows, columns]`. To the right of a row's nodes, any."""
    cell: Tensor
    """Where each node stands among these cells, flat: in one of the rows that share it."""
    last: Tensor
    """The node of each row's last token; of all rows, and only if it is computed."""
    target_node: Tensor
    """For each distinct token that is predicted, the node that predicts it."""
    target: Tensor
    """Its id."""
    target_of_token: Tensor
    """For each trainable token its place among these."""


def distinct(rows: Rows, *, with_last: bool) -> Tree:
    """The tree of these rows. `with_last`: the states of last tokens are computed too, though they predict nothing."""
    ids, length = rows.ids.numpy(), rows.last_column.numpy() + 1
    width = ids.shape[1]
    column = np.arange(width)
    # A beginning is named by the cell where it ends, in the first of the rows that share it.
    name = _first_row(ids) * width + column
    read = column < (length if with_last else length - 1)[:, None]
    cells = np.unique(name[read])
    number = np.zeros(ids.size, dtype=np.int64)
    number[cells] = np.arange(len(cells))
    owners, owner = np.unique(cells // width, return_inverse=True)
    columns = int(read.sum(1).max(initial=0))
    targets, of_token = np.unique(name[rows.row_of_token.numpy(), rows.column_of_token.numpy()], return_inverse=True)
    last = name[np.arange(len(ids)), length - 1] if with_last else name[:0, 0]
    return Tree(
        ids=torch.from_numpy(ids.reshape(-1)[cells]),
        position=torch.from_numpy(cells % width),
        node=torch.from_numpy(number[name[owners, :columns]]),
        cell=torch.from_numpy(owner.reshape(-1) * columns + cells % width),
        last=torch.from_numpy(number[last]),
        target_node=torch.from_numpy(number[name.reshape(-1)[targets - 1]]),
        target=torch.from_numpy(ids.reshape(-1)[targets]),
        target_of_token=torch.from_numpy(of_token.reshape(-1)),
    )


def _first_row(ids: Numbers) -> Numbers:
    """For each cell the first row, in sorted order, that has the same ids up to this column, padding included."""
    rows = len(ids)
    order = np.lexsort(ids.T[::-1])  # equal beginnings become neighbours
    ranked = ids[order]
    begins = np.ones(ids.shape, dtype=bool)
    begins[1:] = ~np.logical_and.accumulate(ranked[1:] == ranked[:-1], axis=1)
    latest = np.maximum.accumulate(np.where(begins, np.arange(rows)[:, None], 0), axis=0)
    found = np.empty_like(latest)
    found[order] = order[latest]
    return found
