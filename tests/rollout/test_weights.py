import pytest
import torch

from trimtab.rollout.weights import digest

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.tensor(2.0)}


def test_the_order_of_names_and_the_layout_in_memory_do_not_matter() -> None:
    assert digest(dict(reversed(STATE.items()))) == digest(STATE)
    assert digest({**STATE, "a": STATE["a"].t().contiguous().t()}) == digest(STATE)
    assert digest({name: tensor.clone().requires_grad_() for name, tensor in STATE.items()}) == digest(STATE)


def test_tied_tensors_count_like_equal_ones() -> None:
    shared = torch.arange(3.0)
    assert digest({"a": shared, "b": shared}) == digest({"a": shared.clone(), "b": shared.clone()})
    assert digest({"a": shared, "b": shared}) != digest({"a": shared, "b": shared.flip(0)})
    square = torch.arange(4.0).reshape(2, 2)
    assert digest({"a": square, "b": square.t()}) != digest({"a": square, "b": square})


@pytest.mark.parametrize(
    "changed",
    [
        {"a": STATE["a"].nextafter(torch.tensor(9.0))},
        {"a": STATE["a"].reshape(3, 2)},
        {"a": STATE["a"].double()},
        {"b": STATE["b"].to(torch.float16)},
        {"c": torch.tensor([2.0])},
        {"c": torch.tensor(-2.0)},
        {"d": torch.zeros(0)},
    ],
)
def test_any_change_of_bits_shape_format_or_names_shows(changed: dict[str, torch.Tensor]) -> None:
    assert digest({**STATE, **changed}) != digest(STATE)


def test_a_name_that_moves_shows() -> None:
    assert digest({"x": STATE["a"], "b": STATE["b"], "c": STATE["c"]}) != digest(STATE)
    assert digest({"a": torch.zeros(2), "b": torch.ones(2)}) != digest({"a": torch.ones(2), "b": torch.zeros(2)})
    assert digest({"a": torch.zeros(2)}) != digest({"z": torch.zeros(2)})
    assert digest({"a": torch.tensor(0.0)}) != digest({"a": torch.tensor(-0.0)})
