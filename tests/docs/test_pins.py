"""constraints.txt: what is pinned goes together."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
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


def test_every_requirement_of_ours_is_pinned_within_its_range() -> None:
    """Extras included; `make package` also asks the package index for each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    asked = [one for one in map(Requirement, texts) if one.name != "trimtab"]
    unfit = [str(one) for one in asked if PINS.get(canonicalize_name(one.name), "none") not in one.specifier]
    assert len(asked) > 20
    assert not unfit


def test_the_classifiers_name_the_pythons_of_the_matrix() -> None:
    """What we say we run on is what scripts/matrix.py runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {text.rpartition(" ")[2] for text in project["classifiers"] if "Python :: 3." in text}
    run = set(re.findall(r'Entry\("(3\.\d+)"', (ROOT / "scripts" / "matrix.py").read_text()))
    assert said == run
    assert project["requires-python"] == f">={min(run, key=lambda text: int(text.partition('.')[2]))}"
