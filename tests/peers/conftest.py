"""One child process a peer and test session. Heavy modules that the formulas never touch are stood in for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.peer import Peer
from tests.peers.wheels import AREAL, OPENRLHF, SKYRL, TRL, VERL, Wheel, WheelError, unpack

# skyrl.tinker holds web schemas that the backends' package imports on the way.
SKYRL_STUBS = ("ray", "omegaconf", "loguru", "skyrl_gym", "skyrl.tinker")
VERL_STUBS = ("ray", "omegaconf", "tensordict", "transformers", "codetiming", "orjson")
OTHER_STUBS = (
    "ray", "transformers", "deepspeed", "flash_attn", "ring_flash_attn", "vllm", "openrlhf.utils",
    "openrlhf.models.actor", "aiohttp", "colorlog", "numba", "einops", "swanlab", "tensorboardX", "tabulate", "trackio",
    "wandb", "pybase64", "omegaconf", "hydra", "torchdata", "cachetools", "orjson", "tensordict", "areal.infra",
    "areal.experimental", "areal.api", "areal.engine", "accelerate", "datasets", "huggingface_hub", "pandas", "peft",
    "jmespath", "trl.data_utils", "trl.generation", "trl.models", "trl.extras", "trl.chat_template_utils",
    "trl.trainer.base_trainer", "trl.trainer.callbacks", "trl.trainer.grpo_config", "trl.import_utils",
    "trl.distributed", "trl.experimental.gmpo.gmpo_config",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/peers/" in item.nodeid.replace("\\", "/"):
            item.add_marker(pytest.mark.peers)


def started(*wheels: Wheel, stubs: tuple[str, ...]) -> Peer:
    try:
        first, *more = map(unpack, wheels)
        return Peer(first, stubs, paths=(*more, Path(__file__).parent))
    except WheelError as reason:
        if os.environ.get("TRIMTAB_OFFLINE") == "1":
            pytest.skip(f"{reason}")
        pytest.fail(f"{reason}", pytrace=False)


@pytest.fixture(scope="session")
def skyrl() -> Iterator[Peer]:
    peer = started(SKYRL, stubs=SKYRL_STUBS)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def verl() -> Iterator[Peer]:
    peer = started(VERL, stubs=VERL_STUBS)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def others() -> Iterator[Peer]:
    """OpenRLHF, AReaL and TRL in one process: importing torch is what takes time."""
    peer = started(OPENRLHF, AREAL, TRL, stubs=OTHER_STUBS)
    yield peer
    peer.close()
