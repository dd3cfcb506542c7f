"""One child process a peer and test session. Heavy modules that the formulas never touch are stood in for."""

import os
from collections.abc import Iterator

import pytest
from tests.peers.peer import Peer
from tests.peers.wheels import SKYRL, VERL, Wheel, WheelError, unpack

# skyrl.tinker holds web schemas that the backends' package imports on the way.
SKYRL_STUBS = ("ray", "omegaconf", "loguru", "skyrl_gym", "skyrl.tinker")
VERL_STUBS = ("ray", "omegaconf", "tensordict", "transformers", "codetiming", "orjson")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/peers/" in item.nodeid.replace("\\", "/"):
            item.add_marker(pytest.mark.peers)


def started(wheel: Wheel, stubs: tuple[str, ...]) -> Peer:
    try:
        return Peer(unpack(wheel), stubs)
    except WheelError as reason:
        if os.environ.get("TRIMTAB_OFFLINE") == "1":
            pytest.skip(f"{reason}")
        pytest.fail(f"{reason}", pytrace=False)


@pytest.fixture(scope="session")
def skyrl() -> Iterator[Peer]:
    peer = started(SKYRL, SKYRL_STUBS)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def verl() -> Iterator[Peer]:
    peer = started(VERL, VERL_STUBS)
    yield peer
    peer.close()
