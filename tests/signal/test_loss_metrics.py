"""What is measured of a loss holds no graph, and is about every token of the part."""

from typing import Any

import pytest
import torch

from trimtab.signal import SignalBatch, Term, decide, prepare, recipe, token_loss, use_path
from trimtab.signal.loss_metrics import population_of
from trimtab.signal.update import MicroBatch


def micro() -> MicroBatch:
    batch = SignalBatch.from_tokens([2, 1], reward=[1.0, 0.0], group=[0, 0], logp_old=torch.full((3,), -1.0))
    chosen = recipe("dapo", entropy=Term(0.1), nll=Term(0.1))
    (only,) = decide(next(prepare(batch, chosen)[0].updates(1))).split(num=1)
    return only


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_no_metric_of_a_loss_holds_its_graph(path: Any) -> None:
    logp, entropy = torch.full((3,), -1.1, requires_grad=True), torch.full((3,), 0.5, requires_grad=True)
    with use_path(path):
        found = token_loss(micro(), logp, entropy=entropy)
    held = {
        name: value
        for name, metric in found.metrics.items()
        for value in metric._asdict().values()
        if isinstance(value, torch.Tensor)
    }
    assert found.loss.requires_grad
    assert [name for name, value in held.items() if value.requires_grad] == []


def test_a_part_is_measured_over_all_of_its_tokens() -> None:
    found = population_of(micro().part)
    assert found.is_everything
    assert found.among is None  # so that nobody has to count them
    assert found.tokens.tokens.tolist() == [True, True, True]
