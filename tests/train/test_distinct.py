"""Equal beginnings are one node, different ones are two, and everything finds its own."""

import pytest
import torch

from trimtab.rollout.rows import Rows
from trimtab.train.distinct import distinct


def drawn_rows(seed: int, *, rows: int = 12, width: int = 7, ids: int = 2) -> Rows:
    """Rows over few ids, so that many begin alike and some are the beginning of others; padding is a real id too."""
    stream = torch.Generator().manual_seed(seed)
    length = torch.randint(2, width + 1, (rows,), generator=stream)
    cells = torch.randint(0, ids, (rows, int(length.max())), generator=stream)
    column = torch.arange(cells.shape[1])
    cells[column >= length[:, None]] = 0
    trainable = (column < length[:, None]) & (column > 0)
    trainable &= torch.rand(trainable.shape, generator=stream) < 0.8
    row, place = trainable.nonzero(as_tuple=True)
    return Rows(cells, row, place, length - 1)


def beginning(rows: Rows, row: int, column: int) -> tuple[int, ...]:
    return tuple(rows.ids[row, : column + 1].tolist())


@pytest.mark.parametrize("with_last", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_tree_is_the_set_of_beginnings(seed: int, with_last: bool) -> None:
    rows = drawn_rows(seed)
    tree = distinct(rows, with_last=with_last)
    last = rows.last_column.tolist()
    wanted = {
        beginning(rows, row, column) for row in range(len(rows.ids)) for column in range(last[row] + int(with_last))
    }
    # The beginning of each node, read from the row of cells that it stands in.
    flat = tree.node.reshape(-1)
    assert torch.equal(flat[tree.cell], torch.arange(len(tree.ids)))
    width = tree.node.shape[1]
    named = [tuple(tree.ids[tree.node[cell // width, : cell % width + 1]].tolist()) for cell in tree.cell.tolist()]
    assert len(named) == len(set(named))
    assert set(named) == wanted
    assert tree.position.tolist() == [len(one) - 1 for one in named]
    for token, (row, column) in enumerate(zip(rows.row_of_token.tolist(), rows.column_of_token.tolist(), strict=True)):
        target = int(tree.target_of_token[token])
        assert named[int(tree.target_node[target])] == beginning(rows, row, column - 1)
        assert int(tree.target[target]) == int(rows.ids[row, column])
    if with_last:
        assert [named[node] for node in tree.last.tolist()] == [beginning(rows, r, c) for r, c in enumerate(last)]


def test_equal_rows_need_one_row_of_attention() -> None:
    ids = torch.tensor([[5, 6, 7], [5, 6, 7], [5, 6, 8]])
    rows = Rows(ids, torch.tensor([0, 1, 2]), torch.tensor([2, 2, 2]), torch.tensor([2, 2, 2]))
    tree = distinct(rows, with_last=False)
    assert tree.ids.tolist() == [5, 6]
    assert tree.node.tolist() == [[0, 1]]
    assert tree.target.tolist() == [7, 8]
    assert tree.target_of_token.tolist() == [0, 0, 1]


def test_rows_without_a_trainable_token_have_a_tree() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    tree = distinct(Rows(torch.tensor([[4]]), none, none, torch.tensor([0])), with_last=True)
    assert tree.ids.tolist() == [4]
    assert tree.last.tolist() == [0]
    assert len(tree.target) == 0
