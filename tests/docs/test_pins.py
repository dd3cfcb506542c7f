"""constraints.txt: what is pinned goes together."""

from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINES = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
PINS = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES) if version}


def wanted(dist: Distribution) -> Iterator[Requirement]:
    """What a package needs here, without its extras."""
    requirements = (Requirement(text) for text in dist.requires or ())
    return (one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""}))


def test_every_pinned_package_takes_the_pins_of_what_it_needs() -> None:
    """Of those that are installed: with `make test-all`, every extra."""
    pinned = [dist for dist in distributions() if canonicalize_name(dist.name) in PINS]
    refused = [
        f"{dist.name} needs {one}, pinned is {pin}"
        for dist in pinned
        for one in wanted(dist)
        if (pin := PINS.get(canonicalize_name(one.name))) and pin not in one.specifier
    ]
    assert len(pinned) > 20
    assert not refused
