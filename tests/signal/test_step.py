"""`step` and what is said of an optimiser step: its loss, and the weight that acted."""

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, StepResult, decide, prepare, recipe, step, token_loss
from trimtab.signal.objective import TokenLoss

F64 = torch.float64


def results(num: int, dtype: torch.dtype = F64) -> list[TokenLoss]:
    """Three answers of one token each, in `num` micro-batches."""
    logp = torch.tensor([-1.0, -2.0, -3.0], dtype=dtype)
    batch = SignalBatch.from_tokens([1, 1, 1], reward=[1.0, 0.0, 3.0], group=[0, 0, 0], logp_old=logp)
    chosen = recipe("reinforce", normalize="raw", weighting="token_mean")
    decided = decide(next(prepare(batch, chosen)[0].updates(1)))
    return [token_loss(one, logp[one.sequences].requires_grad_()) for one in decided.split(num=num)]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_losses_add_up_to_a_number_without_a_gradient(num: int) -> None:
    stepped = step(results(num))
    assert not stepped.loss.requires_grad
    assert float(stepped.loss) == pytest.approx((1 * 1 + 0 * 2 + 3 * 3) / 3)


def test_the_weight_that_acted_is_read_in_double_precision() -> None:
    stepped = step(results(2, torch.float32))
    assert stepped.kept_weight.dtype == F64
    assert float(stepped.kept_weight) == pytest.approx(1, abs=1e-6)
    assert not stepped.is_empty


def test_what_is_no_result_of_token_loss_is_refused_by_its_type() -> None:
    with pytest.raises(SignalError, match="it holds a float"):
        _ = step([*results(1), 2.0])  # type: ignore[list-item]
    with pytest.raises(SignalError, match="it holds a StepResult"):
        _ = step(step(results(1)))  # type: ignore[arg-type]
    with pytest.raises(SignalError, match="there is no micro-batch"):
        _ = step([])
    assert isinstance(step(iter(results(2))), StepResult)
