"""Half-precision products run on this processor, and a choice of the user's own stays."""

import os

import pytest
from tests.fork import run_in_fork

from trimtab.processor import LIMIT, limit_instructions

PRODUCT = "import torch; x = torch.ones(4, 64).bfloat16(); print(torch.nn.Linear(64, 64).bfloat16()(x).shape[1])"


def test_a_product_in_half_precision_does_not_end_the_process() -> None:
    assert os.environ[LIMIT[0]] == LIMIT[1]  # since before torch was imported, as in every run
    assert run_in_fork(PRODUCT).strip() == "64"


def test_a_choice_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT[0], "AVX2")
    limit_instructions()
    assert os.environ[LIMIT[0]] == "AVX2"
    monkeypatch.delenv(LIMIT[0])
    limit_instructions()
    assert os.environ[LIMIT[0]] == LIMIT[1]
