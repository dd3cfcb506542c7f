"""Half-precision products run on this processor, and a choice of the user's own stays."""

import os
import subprocess
import sys

import pytest

from trimtab.processor import LIMIT, limit_instructions

PRODUCT = "import torch; x = torch.ones(4, 64).bfloat16(); print(torch.nn.Linear(64, 64).bfloat16()(x).shape[1])"


def test_a_product_in_half_precision_does_not_end_the_process() -> None:
    own = {**os.environ, LIMIT[0]: LIMIT[1]}
    found = subprocess.run([sys.executable, "-c", PRODUCT], env=own, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "64")


def test_a_choice_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT[0], "AVX2")
    limit_instructions()
    assert os.environ[LIMIT[0]] == "AVX2"
    monkeypatch.delenv(LIMIT[0])
    limit_instructions()
    assert os.environ[LIMIT[0]] == LIMIT[1]
