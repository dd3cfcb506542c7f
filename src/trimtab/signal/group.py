"""Groups by number: the only place that counts groups out as 0, 1, … and notes whether one has a single episode."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.tensors import Array, host, is_plain


def renumbered(group: Tensor) -> tuple[Tensor, int]:
    """Any group names as 0, 1, … in their order, and how many there are."""
    index, facts = group_index(group)
    num, lone = cast("list[int]", facts.tolist())
    return known_company(index, lone), num


def group_index(group: Tensor) -> tuple[Tensor, Array]:
    """Any group names as 0, 1, … in their order; how many there are, and whether one has a single episode."""
    if not group.numel():
        return torch.empty_like(group), host(torch.zeros(2, dtype=torch.long, device=group.device))
    if is_plain(group):
        index, sizes = _numbered(group.numpy())
        return torch.from_numpy(index), np.array([len(sizes), 1 in sizes])
    ordered, order = group.sort()
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    rank = begins.cumsum(0)
    lone = (begins & begins.roll(1)).any()  # one begins right after another, or the first after the last
    return torch.empty_like(order).scatter_(0, order, rank - 1), torch.stack([rank[-1], lone.long()])


def _numbered(group: Array) -> tuple[Array, Array]:
    """Group names as 0, 1, … in their order, and the size of each; names that ascend already need no sorting."""
    before, after = group[:-1], group[1:]
    if (after < before).any():
        _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
        return index, sizes
    index = np.zeros(len(group), np.int64)
    _ = np.cumsum(after != before, out=index[1:])
    return index, np.bincount(index)


def known_company(index: Tensor, lone: int) -> Tensor:
    """Note on an index of groups that none has a single episode: formulas then need not ask the device again."""
    index.has_company = not lone  # pyright: ignore[reportAttributeAccessIssue]
    return index
