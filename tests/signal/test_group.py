"""Groups by number, whatever they are called."""

import torch

from trimtab.signal.group import renumbered


def test_nobody_is_in_no_group() -> None:
    assert renumbered(torch.zeros(0, dtype=torch.long))[1] == 0
    assert renumbered(torch.tensor([7, 3, 7]))[1] == 2
