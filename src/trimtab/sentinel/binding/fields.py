"""Which field each argument of an unbound function takes: from its name, from its use, and from the other arguments.

The only place that weighs names against use.
"""

from collections.abc import Mapping, Sequence

from trimtab.sentinel.binding.callable import CannotCall, Found
from trimtab.sentinel.binding.usage import fields_by_use
from trimtab.sentinel.binding.words import SHORT, fields_of, is_of_a_pair, is_told, words_of

BATCHES = frozenset({
    "data", "inputs", "batch", "experience", "samples", "rollouts", "sample", "experiences", "trajectories", "episodes",
    "items", "records", "minibatch", "micro_batch", "mini_batch",
})  # fmt: skip
"""Arguments that hold fields by key or attribute."""
LOOSE = {"token_id": "trainable", "reward": "logits", "value": "logits", "token_loss": "logits"}
"""A field that a name tells only loosely, and what its use may tell instead."""


def fields_to_fill(found: Found, *, by_size: bool) -> tuple[dict[str, str], frozenset[str]]:
    """The field of every argument, and those that only their use tells."""
    names = list(found.arguments)
    needed = [n for n in names if found.arguments[n].default is found.arguments[n].empty]
    _refuse_pairs(found, needed)
    fields = fields_of(names)
    for name in names:
        if name in BATCHES or (name not in fields and set(words_of(name)) & BATCHES):
            fields[name] = "batch"
    fields |= _overruled(found, fields, needed)
    used = fields_by_use(found.function, [n for n in needed if n not in fields], fields)
    weak = [n for n, f in fields.items() if f == "token_loss" and n in needed and n in SHORT["token_loss"]]
    if weak and any(n not in fields and n not in used for n in needed):
        # A single letter is any numbers, unless its use says more.
        rest = {n: f for n, f in fields.items() if n not in weak}
        told = fields_by_use(found.function, [n for n in needed if n not in rest], rest)
        used = told if set(weak) <= told.keys() else used
    fields |= used
    fields = _settled(fields, by_size=by_size)
    unknown = [n for n in needed if n not in fields]
    if unknown:
        raise CannotCall(f"nothing is known about {', '.join(unknown)}")
    return fields, frozenset(used.values())


def _refuse_pairs(found: Found, needed: Sequence[str]) -> None:
    """Two answers that are compared have a role of their own, which takes more than names."""
    of_pairs = [n for n in needed if is_of_a_pair(n)]
    if of_pairs:
        raise CannotCall(f"one of a pair of answers ({', '.join(of_pairs)}): bind it with role='preference'")
    inside = getattr(getattr(found.function, "__code__", None), "co_varnames", ())
    words = {word for name in inside if is_of_a_pair(name) for word in words_of(name)}
    if {"chosen", "rejected"} <= words:
        raise CannotCall("its rows are pairs of answers (chosen, rejected): bind it with role='preference'")


def _overruled(found: Found, fields: Mapping[str, str], needed: Sequence[str]) -> dict[str, str]:
    """Fields whose use says more than a loose name: ids that are a mask, and scores that are logits."""
    told: dict[str, str] = {}
    for name in (n for n in needed if fields.get(n) in LOOSE and not set(words_of(n)) & {"ids", "id", "labels"}):
        rest = {n: f for n, f in fields.items() if n != name}
        by_use = fields_by_use(found.function, [name], rest).get(name, "")
        if by_use == LOOSE[fields[name]] and (by_use != "logits" or _has_a_vocabulary(found, rest)):
            told[name] = by_use
    return told


def _has_a_vocabulary(found: Found, fields: Mapping[str, str]) -> bool:
    """Whether a softmax is taken over ids. Rewards of a group are turned into weights by one, too."""
    names = getattr(getattr(found.function, "__code__", None), "co_names", ())
    return "log_softmax" in names or "token_id" in fields.values()


def _settled(fields: dict[str, str], *, by_size: bool) -> dict[str, str]:
    """The same fields, where one of them says what another must be."""
    if {"reward", "token_reward"} & set(fields.values()) and not {"advantage", "logp_ref"} & set(fields.values()):
        # What rewards are charged for is the distance from a reference, unless a name says otherwise.
        fields = fields | {n: "logp_ref" for n, f in fields.items() if f == "logp_old" and not is_told(n)}
    if "group" in fields.values() and not {"value", "reward", "token_reward"} & set(fields.values()):
        fields = {n: "reward" if f == "returns" else f for n, f in fields.items()}  # what is compared inside a group
    beside = {"trainable", "count", "rows", "in_use", "boundaries"}
    if set(fields.values()) - beside == {"value"} and "trainable" in fields.values():  # a masked mean of any numbers
        fields = {n: "token_loss" if f == "value" else f for n, f in fields.items()}
    if by_size and set(fields.values()) == {"token_loss"}:  # any numbers, one per row
        fields = dict.fromkeys(fields, "reward")
    return fields
