"""Groups by number, whatever they are called."""

from contextlib import nullcontext

import pytest
import torch

from trimtab.signal.group import group_index, renumbered
from trimtab.signal.tensors import as_on_a_device


def test_nobody_is_in_no_group() -> None:
    assert renumbered(torch.zeros(0, dtype=torch.long))[1] == 0
    assert renumbered(torch.tensor([7, 3, 7]))[1] == 2


@pytest.mark.parametrize(
    ("names", "index", "num", "lone"),
    [
        ([], [], 0, 0), ([4], [0], 1, 1), ([4, 4], [0, 0], 1, 0), ([4, 4, 9], [0, 0, 1], 2, 1),
        ([4, 9, 9], [0, 1, 1], 2, 1), ([4, 4, 9, 9], [0, 0, 1, 1], 2, 0), ([9, 4, 9, 4], [1, 0, 1, 0], 2, 0),
        ([9, 4, 7, 9, 4, 4], [2, 0, 1, 2, 0, 0], 3, 1), ([5, 5, 5, -1, -1], [1, 1, 1, 0, 0], 2, 0),
        ([9, 4, 1], [2, 1, 0], 3, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("elsewhere", [False, True])
def test_groups_are_counted_in_the_order_of_their_names(
    names: list[int], index: list[int], num: int, lone: int, elsewhere: bool
) -> None:
    given = torch.tensor(names, dtype=torch.long)
    with as_on_a_device() if elsewhere else nullcontext():
        found, facts = group_index(given)
        noted, count = renumbered(given)
    assert found.tolist() == noted.tolist() == index
    assert ([int(one) for one in facts], count) == ([num, lone], num)
    assert noted.has_company is (lone == 0)
    assert given.tolist() == names
    assert not hasattr(given, "has_company")
