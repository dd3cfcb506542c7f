"""What a recipe, a batch and a decision are made of cannot be changed behind their checks."""

import dataclasses
import importlib
import pkgutil

import pytest

import trimtab.signal

CHANGES = {"Ledger"}
"""The one thing that grows while a step is spent."""


def data_classes() -> list[type]:
    modules = [
        importlib.import_module(f"trimtab.signal.{m.name}") for m in pkgutil.iter_modules(trimtab.signal.__path__)
    ]
    found = {
        one for m in modules for one in vars(m).values() if isinstance(one, type) and dataclasses.is_dataclass(one)
    }
    return sorted((one for one in found if one.__module__.startswith("trimtab.signal")), key=lambda one: one.__name__)


@pytest.mark.parametrize("kind", data_classes(), ids=lambda kind: kind.__name__)
def test_it_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen is (kind.__name__ not in CHANGES)


def test_there_are_as_many_as_we_think() -> None:
    assert len(data_classes()) > 25
