"""One thread a worker, and the tests' own modules importable by dotted path."""

import gc
import logging
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process that runs tests. One that only hands them out needs no torch, and its workers wait for it."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch

    from trimtab.processor import limit_instructions
    from trimtab.signal.tensors import as_on_a_device

    if os.environ.get("TRIMTAB_TEST_AS_DEVICE"):  # the fast path as it runs on a GPU, without numpy
        as_on_a_device().__enter__()
    limit_instructions()
    torch.set_num_threads(1)
    for logger in logging.root.manager.loggerDict.values():  # pytest asks each that keeps its records, in every test
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.set_threshold(100_000, 50, 50)  # a million objects of torch and transformers stay; looking at them takes long
