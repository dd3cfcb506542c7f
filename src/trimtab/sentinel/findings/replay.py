"""Replays a finding from plain data: the only place that turns a reproduction file into calls and a verdict.

It needs only torch. A reproduction file names a boundary of a target, the arguments of each call, and checks:

    {"boundary": {"file": "losses.py", "name": "keep_mask"}, "scenario": {"calls": [{"args": [...]}]},
     "checks": [{"op": "constant", "of": {"call": 0, "of": "returned", "path": [0]}}]}

`replay(recipe, root)` reports `reproduced` (a check fails), `fixed` (all hold), `changed` (there is no check, and the
numbers differ from the recorded ones) or `could not run`.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.findings.decode import Data, Decoder, NotData, finite_or_word
from trimtab.sentinel.findings.walk import at, flat, numbers_in
from trimtab.sentinel.loading.boundary import Boundary
from trimtab.sentinel.loading.load import load
from trimtab.sentinel.loading.tree import CouldNotLoad, Spec, Tree, git

KIND = "rl_sentinel_training_signal_validation"
EXIT = {"reproduced": 1, "fixed": 0, "changed": 2, "could not run": 2}


# --- places: where a number is read ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Called:
    """One call: its arguments (now and before the call), its return value, and leaves by path."""

    arguments: Mapping[str | int, Any]
    before: Mapping[str | int, Any]
    leaves: Mapping[tuple[str | int, ...], Tensor]
    returned: Any

    def gradient(self, place: Data) -> Tensor:
        """The gradient of the sum of some returned numbers with respect to the leaves below a path."""
        wanted = tuple(place["with_respect_to"])
        under = [path for path, _ in numbers_in(at(self.before, wanted), wanted)]
        leaves = [self.leaves[path] for path in under if path in self.leaves]
        if not leaves:
            raise NotData(f"no argument below {list(wanted)} has a gradient")
        source = self.arguments if place.get("from") == "argument" else self.returned
        summed = flat(at(source, place["path"]))
        summed = summed if place.get("elements") is None else summed[place["elements"]]
        gradients = {path: torch.zeros_like(one) for path, one in numbers_in(at(self.before, wanted), wanted)}
        if summed.requires_grad:
            found = torch.autograd.grad(summed.sum(), leaves, retain_graph=True, materialize_grads=True)
            gradients |= dict(zip([path for path in under if path in self.leaves], found, strict=True))
        return flat(list(gradients.values()))

    def read(self, place: Data, *, before: bool = False) -> Tensor:
        if place["of"] == "gradient":
            values = self.gradient(place)
        else:
            source = self.returned if place["of"] == "returned" else self.before if before else self.arguments
            values = flat(at(source, place["path"]))
        return (values if place.get("index") is None else values[place["index"]]).detach()


# --- checks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One check: the observed and the expected numbers, and the positions at which they differ."""

    op: str
    observed: Tensor
    expected: Tensor | None
    apart: Tensor

    @property
    def holds(self) -> bool:
        return not bool(self.apart.any())


def read(place: Data, calls: Sequence[Called]) -> Tensor:
    """The numbers at a place, or the weighted sum of several: {"sum": [place, …], "factors": [1.0, …]}."""
    if "sum" in place:
        parts = zip(place["sum"], place["factors"], strict=True)
        return torch.stack([factor * read(part, calls) for part, factor in parts]).sum(0)
    return calls[int(place["call"])].read(place)


def examined(check: Data, calls: Sequence[Called]) -> Outcome:
    """Apply one check to the results of the calls."""
    op, place = check["op"], check["of"]
    seen = read(place, calls)
    owed = _owed(check, seen, calls)
    if op == "finite":
        return Outcome(op, seen, None, ~seen.isfinite())
    if op == "at_most":
        return Outcome(op, seen, owed, ~(seen <= owed))
    if op == "connected":
        return Outcome(op, seen, None, (seen == 0).all().expand(seen.shape) if seen.numel() else torch.ones(1))
    if owed.shape != seen.shape:
        owed = owed.expand_as(seen) if owed.numel() == 1 else owed
    if owed.shape != seen.shape:
        return Outcome(op, seen, owed, torch.ones_like(seen, dtype=torch.bool))
    tolerance = float(check.get("tolerance", 1e-6))
    return Outcome(op, seen, owed, ~torch.isclose(seen, owed, rtol=tolerance, atol=tolerance, equal_nan=True))


def _owed(check: Data, seen: Tensor, calls: Sequence[Called]) -> Tensor:
    """The expected numbers."""
    op, place = check["op"], check["of"]
    if op == "equal" and "with" in check:
        return read(check["with"], calls) * float(check.get("factor", 1.0))
    if op in ("equal", "at_most"):
        return torch.tensor(check["value"], dtype=torch.float64).reshape(-1)
    if op == "unchanged":
        return calls[int(place["call"])].read(place, before=True)
    if op == "constant":
        # The most common value, the first one of several: positions with another value are reported.
        return (max(seen, key=lambda one: int((seen == one).sum())) if seen.numel() else seen.sum()).reshape(1)
    if op in ("zero", "finite", "connected"):
        return torch.zeros(1, dtype=torch.float64)
    raise NotData(f"no check is called {op!r}; there are equal, constant, unchanged, finite, zero, at_most, connected")


# --- the replay --------------------------------------------------------------------------------------------------


def replay(recipe: Data, target: Tree | Path | str) -> Data:
    """Make the calls of a reproduction file against the target and judge them; return the payload."""
    try:
        root = target if isinstance(target, Tree) else Tree.folder(target)
    except CouldNotLoad as error:
        return _payload(recipe, None, "could not run", [], {}) | {"reason": str(error)}
    try:
        calls = make_calls(recipe, root)
        outcomes = [examined(check, calls) for check in recipe.get("checks", [])]
        observed = {name: shown(_observation(way, calls)) for name, way in recipe.get("observations", {}).items()}
    except Exception as error:  # foreign code may raise anything, and the payload reports it
        reason = recipe.get("cannot_replay") or f"{type(error).__name__}: {error}"
        return _payload(recipe, root, "could not run", [], {}) | {"reason": reason}
    if recipe.get("cannot_replay") or not calls:
        return _payload(recipe, root, "could not run", [], {}) | {"reason": recipe.get("cannot_replay", "no calls")}
    if outcomes:
        status = "fixed" if all(outcome.holds for outcome in outcomes) else "reproduced"
        return _payload(recipe, root, status, outcomes, observed)
    same = recorded(calls) == recipe["observed"]
    note = "no check could be written on the boundary's own numbers; judge with: trimtab check --recipe recipe.json"
    return _payload(recipe, root, "reproduced" if same else "changed", [], observed) | {"note": note}


def make_calls(recipe: Data, tree: Tree) -> list[Called]:
    """Make the calls of a reproduction file."""
    return [_make_call(recipe, tree, call) for call in recipe["scenario"]["calls"]]


def recorded(calls: Sequence[Called]) -> list[Data]:
    """All return values as data. They represent the wrong answer when there is no check."""
    return [{"returned": shown(flat(call.returned)), "arguments": shown(flat(call.arguments))} for call in calls]


def shown(values: Tensor) -> list[float | str]:
    """Numbers for JSON, in a readable precision."""
    return [finite_or_word(float(f"{float(value):.8g}")) for value in values.detach().double().reshape(-1)]


def _make_call(recipe: Data, tree: Tree, call: Data) -> Called:
    spec = dict(recipe["boundary"] if "boundary" not in call else recipe["other_boundaries"][call["boundary"]])
    given = Decoder().value({"dict": spec.pop("given", {})})
    return made_call(load(Spec.from_data(spec), tree, given), call)


def made_call(boundary: Boundary, call: Data) -> Called:
    """Decode the arguments twice (once to pass, once to compare with) and call."""
    decoder = Decoder(boundary.get)
    arguments, before = _arguments(decoder, call), _arguments(Decoder(boundary.get), call)
    behind = {id(passed): leaf for leaf, passed in decoder.leaves.values()}
    leaves = {path: behind[id(one)] for path, one in numbers_in(arguments) if id(one) in behind}
    positional = [value for key, value in arguments.items() if isinstance(key, int)]
    named = {key: value for key, value in arguments.items() if isinstance(key, str)}
    return Called(arguments, before, leaves, boundary(*positional, **named))


def _arguments(decoder: Decoder, call: Data) -> dict[str | int, Any]:
    positional = {i: decoder.value(one) for i, one in enumerate(call.get("args", []))}
    return {**positional, **{name: decoder.value(one) for name, one in call.get("kwargs", {}).items()}}


def _observation(way: Data, calls: Sequence[Called]) -> Tensor:
    """A place, or a product or mean of places: enough to follow a decision into the loss that it affects."""
    if "product" in way:
        return torch.stack([_observation(one, calls) for one in way["product"]]).prod(0)
    if "mean" in way:
        return _observation(way["mean"], calls).mean().reshape(1)
    return read(way, calls)


def _payload(recipe: Data, tree: Tree | None, status: str, outcomes: Sequence[Outcome], observed: Data) -> Data:
    worst = next((outcome for outcome in outcomes if not outcome.holds), outcomes[0] if outcomes else None)
    leaked = [int(i) for i in worst.apart.nonzero().reshape(-1)] if worst else []
    return {
        "kind": KIND,
        "candidate_id": recipe["bug_id"],
        "target": recipe["target"]["name"],
        "target_commit": commit_of(tree, str(recipe["boundary"].get("file", "."))) if tree else "unknown",
        "boundary": f"{recipe['boundary'].get('file', '')}:{recipe['boundary']['name']}",
        "expected_invariant": recipe["expected_invariant"],
        **_sides(worst, status),
        "quiet_training_signal_bug": {"reproduced": True, "fixed": False}.get(status),
        "status": status,
        "observed": observed,
        "checks": [{"op": one.op, "holds": one.holds, "observed": shown(one.observed)} for one in outcomes],
        "training_signal_effect": {
            "leaked_positions": leaked,
            "leaked_token_count": len(leaked),
            "non_crash": status != "could not run",
        },
    }


OWED = {"finite": "a finite number", "connected": "a gradient other than 0"}
"""What a check without an expected number asks for."""


def _sides(worst: Outcome | None, status: str) -> Data:
    """What is owed, what was seen and their difference; in words where there are no two numbers."""
    if worst is None:
        why = "not measured: it could not run" if status == "could not run" else "no check compares two numbers"
        return {"observed_baseline": why, "observed_with_perturbation": why, "difference": why}
    seen, expected = shown(worst.observed), worst.expected
    owed = OWED.get(worst.op, "") if expected is None else shown(expected)
    apart = f"{seen} is not {owed}"
    if expected is not None and (expected.shape == worst.observed.shape or expected.numel() == 1):
        apart = shown(worst.observed - expected)
    return {"observed_baseline": owed, "observed_with_perturbation": seen, "difference": apart}


def commit_of(tree: Tree, file: str) -> str:
    """The commit of a checkout, with `+changed` if the file of the boundary differs; `unknown` without git."""
    if tree.commit:
        return tree.commit
    try:
        git(tree.root, "ls-files", "--error-unmatch", file)
        head = git(tree.root, "rev-parse", "HEAD").decode().strip()
        return head + ("+changed" if git(tree.root, "diff", "--name-only", "HEAD", "--", file).strip() else "")
    except (CouldNotLoad, OSError):
        return "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """`run_validation.py [RECIPE [TARGET_REPO [OUTPUT_JSON]]]`, each also read from the environment."""
    words = sys.argv[1:] if arguments is None else arguments
    given = dict(zip(("RECIPE", "TARGET_REPO", "OUTPUT_JSON"), words, strict=False))
    beside = str(Path(__file__).with_name("recipe.json"))
    recipe = json.loads(Path(given.get("RECIPE") or os.environ.get("RECIPE") or beside).read_text())
    root = Path(given.get("TARGET_REPO") or os.environ.get("TARGET_REPO") or ".")
    payload = replay(recipe, root)
    text = json.dumps(payload, indent=2, sort_keys=True) + "\n"
    Path(given.get("OUTPUT_JSON") or os.environ.get("OUTPUT_JSON") or "validation-output.json").write_text(text)
    print(text, end="")
    return EXIT[payload["status"]]


if __name__ == "__main__":
    sys.exit(main())
