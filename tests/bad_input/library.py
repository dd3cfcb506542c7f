"""Library inputs, generated: every field of a batch × every malformation, and every short way to write a recipe."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from tests.bad_input import recipes
from tests.bad_input.row import Row
from torch import Tensor

import trimtab
from trimtab.signal import Part, SignalBatch, decide, part, prepare, recipe, step, token_loss

F64 = torch.float64
NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [0, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def field(seed: int, low: float = -1.5, high: float = -0.1) -> Tensor:
    return low + (high - low) * torch.rand(4, 5, generator=torch.Generator().manual_seed(seed), dtype=F64)


CANONICAL: dict[str, Any] = {
    "mask": MASK,
    "reward": torch.tensor([1.0, 0.25, 0.5, 0.0], dtype=F64),
    "group": torch.tensor([3, 3, 8, 8]),
    "logp_old": field(1),
    "logp_rollout": field(2),
    "logp_ref": field(3),
    "value_old": field(4),
    "token_reward": 0.1 * field(5) * MASK,
    "attention": MASK.clone(),
    "ended": torch.tensor([True, False, True, True]),
    "value_after": torch.tensor([0.0, 0.3, 0.0, 0.0], dtype=F64),
    "scored": torch.tensor([True, True, True, True]),
    "length": torch.tensor([4, 2, 5, 3]),
    "sequence_id": torch.tensor([5, 6, 7, 9]),
    "episode": torch.tensor([0, 1, 2, 3]),
    "version": torch.full((4, 5), 2),
    "turn": torch.zeros(4, 5, dtype=torch.long),
    "position": torch.arange(5).expand(4, 5).clone(),
    "extra": {"own": field(6)},
}
CURRENT = {"logp": field(7), "entropy": -field(8), "value": field(9)}
RECIPE = recipe(
    "ppo",
    normalize="mean_std",
    correction="tis",
    entropy=0.01,
    whiten=False,
    reward={"formula": "soft_overlong", "max_length": 6, "buffer": 4},
)
"""A recipe that reads every field but the names of sequences and the integers per token."""


def call(**changes: Any) -> tuple[float, list[list[float]]]:
    """The loss and the gradient of `trimtab.loss` on the canonical batch, with some fields replaced."""
    given = {**CANONICAL, **CURRENT, **changes}
    leaf = given.pop("logp")
    if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point and leaf.layout == torch.strided and not leaf.is_meta:
        leaf = leaf.clone().requires_grad_()
    loss, _ = trimtab.loss(leaf, recipe=given.pop("recipe", RECIPE), **given)
    loss.backward()
    return loss.item(), leaf.grad.tolist()


BASE = call()


def with_cell(values: Tensor, value: float, *, trainable: bool) -> Tensor:
    changed = values.clone()
    changed[0, 1 if trainable else 4] = value
    return changed


# --- token fields -------------------------------------------------------------------------------------------------


def _in_itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


NONSENSE: dict[str, Callable[[], Any]] = {
    "text": lambda: "abc",
    "bytes": lambda: b"abc",
    "dict": lambda: {"a": 1},
    "set": lambda: {1.0},
    "generator": lambda: (x for x in [1.0]),
    "object": object,
    "function": lambda: len,
    "class": lambda: int,
    "one number": lambda: 0.5,
    "one bool": lambda: True,
    "list of texts": lambda: ["a", "b"],
    "list of None": lambda: [None, None, None, None],
    "array of objects": lambda: numpy.array([{}, {}, {}, {}], dtype=object),
    "array of dates": lambda: numpy.array(["2026-01-01"] * 4, dtype="datetime64[D]"),
    "a list in itself": lambda: _in_itself(),
    "huge integers": lambda: [10**400, 1, 1, 1],
}
"""What no field can be."""

BAD_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
    "complex": lambda t: t.to(torch.complex128),
    "nested": lambda t: torch.nested.nested_tensor([t.reshape(-1)]),
    "scalar tensor": lambda t: t.reshape(-1)[0],
    "one entry too many": lambda t: torch.cat([t, t[:1]]),
    "one entry too few": lambda t: t[:-1],
    "one more dimension": lambda t: t[None],
    "empty": lambda t: t[:0],
    "ragged list": lambda t: [*t.tolist()[:-1], [[0.0]]],
}
"""Ways to break a tensor of any field."""

BAD_TOKENS: dict[str, Callable[[Tensor], Any]] = {
    **BAD_TENSORS,
    "transposed": lambda t: t.T,
    "flat": lambda t: t.reshape(-1),
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "other precision": lambda t: t.float(),
    "nan": lambda t: with_cell(t, NAN, trainable=True),
    "infinity": lambda t: with_cell(t, INF, trainable=True),
    "minus infinity": lambda t: with_cell(t, -INF, trainable=True),
    "1e30": lambda t: with_cell(t, -1e30, trainable=True),
}
GOOD_TOKENS: dict[str, Callable[[Tensor], Any]] = {
    "list": lambda t: t.tolist(),
    "tuple": lambda t: tuple(tuple(row) for row in t.tolist()),
    "array": lambda t: t.numpy().copy(),
    "fortran array": lambda t: numpy.asfortranarray(t.numpy()),
    "reversed array": lambda t: t.flip(1).numpy()[:, ::-1],
    "list of rows": lambda t: list(t),
    "list of arrays": lambda t: list(t.numpy()),
    "view": lambda t: t.T.contiguous().T,
    "with gradient": lambda t: t.clone().requires_grad_(),
}
TOKENS = ("logp_old", "logp_rollout", "logp_ref", "value_old", "token_reward")


def token_rows() -> Iterator[Row]:
    for name in TOKENS:
        for kind, make in {**NONSENSE, **{k: _bound(f, CANONICAL[name]) for k, f in BAD_TOKENS.items()}}.items():
            yield Row(f"{name}: {kind}", lambda name=name, make=make: call(**{name: make()}), says=name)
        for kind, change in GOOD_TOKENS.items():
            yield Row(
                f"{name}: {kind}", lambda name=name, change=change: call(**{name: change(CANONICAL[name])}), means=BASE
            )
        if name != "token_reward":
            for kind, value in (("nan", NAN), ("infinity", INF), ("1e300", 1e300)):
                odd = with_cell(CANONICAL[name], value, trainable=False)
                yield Row(f"{name}: {kind} in padding", lambda name=name, odd=odd: call(**{name: odd}), means=BASE)
        if name.startswith("logp"):
            odd = with_cell(CANONICAL[name], 0.5, trainable=True)
            yield Row(f"{name}: a probability", lambda name=name, odd=odd: call(**{name: odd}), says=name)
        if name in ("logp_old", "logp_rollout", "logp_ref", "value_old"):
            for kind, odd in (("integers", CANONICAL[name].long()), ("bools", CANONICAL[name] > 0)):
                yield Row(f"{name}: {kind}", lambda name=name, odd=odd: call(**{name: odd}), says=name)
            yield Row(f"{name}: missing", lambda name=name: call(**{name: None}), says=name)


def _bound(change: Callable[[Any], Any], values: Any) -> Callable[[], Any]:
    return lambda: change(values)


def integer_rows() -> Iterator[Row]:
    for name in ("version", "turn", "position"):
        good = CANONICAL[name]
        bad = {**NONSENSE, **{kind: _bound(change, good) for kind, change in BAD_TENSORS.items()}}
        bad |= {"floats": _bound(lambda t: t.double(), good), "fractions": _bound(lambda t: t + 0.5, good)}
        bad |= {"bools": _bound(lambda t: t > 0, good)}
        for kind, make in bad.items():
            yield Row(f"{name}: {kind}", lambda name=name, make=make: call(**{name: make()}), says=name)
        for kind, value in (
            ("list", good.tolist()),
            ("array", good.numpy()),
            ("int32", good.int()),
            ("left out", None),
        ):
            yield Row(f"{name}: {kind}", lambda name=name, value=value: call(**{name: value}), means=BASE)


# --- fields per sequence and per episode --------------------------------------------------------------------------

FLAGS = ("ended", "scored")
COUNTS = ("length", "sequence_id", "episode")


def vector_rows() -> Iterator[Row]:
    for name in ("reward", "group", "value_after", *FLAGS, *COUNTS):
        good = CANONICAL[name]
        bad = {**NONSENSE, **{kind: _bound(change, good) for kind, change in BAD_TENSORS.items()}}
        bad["as a column"] = _bound(lambda t: t[:, None], good)
        if name == "group":
            del bad["list of texts"]  # two names for four answers: refused below, by count
        for kind, make in bad.items():
            says = (
                "reward"
                if name in ("reward", "group") and kind in ("one entry too many", "one entry too few")
                else name
            )
            yield Row(f"{name}: {kind}", lambda name=name, make=make: call(**{name: make()}), says=says)
        for kind, value in (("list", good.tolist()), ("tuple", tuple(good.tolist())), ("array", good.numpy())):
            yield Row(f"{name}: {kind}", lambda name=name, value=value: call(**{name: value}), means=BASE)
    for name, value, says in (
        ("reward", [1.0, NAN, 0.5, 0.0], "reward is nan at episode 1"),
        ("reward", [1.0, INF, 0.5, 0.0], "reward is inf at episode 1"),
        ("reward", [1.0, 1e308, 0.5, 0.0], "reward is 1e+308 at episode 1"),
        ("reward", torch.ones(6), "reward has shape [6] and group [4]"),
        ("group", ["a", "b"], "group [2]"),
        ("group", [0.0, 0.0, 1.0, 1.0], "group: holds float32"),
        ("group", [0.5, 0.5, 1.0, 1.0], "group: holds float32 (0.5 at 0)"),
        ("ended", ["stop", "length", "stop", "stop"], "ended holds texts"),
        ("ended", [0.5, 0, 1, 1], "ended: is 0.5 at [0]"),
        ("ended", [2, 0, 1, 1], "ended: is 2 at [0]"),
        ("ended", "guess", "ended = 'guess' cannot be read"),
        ("scored", [NAN, 1, 1, 1], "scored: is nan at [0]"),
        ("length", [4, -2, 5, 3], "length is -2 at 1"),
        ("length", [4, 2.7, 5, 3], "length: holds float32 (2.7"),
        ("length", [4, NAN, 5, 3], "length: holds float32"),
        ("length", [True, True, True, True], "length: holds bool"),
        ("sequence_id", [1, 1, 2, 3], "sequence_id names two sequences alike"),
        ("sequence_id", [1.5, 1.0, 2.0, 3.0], "sequence_id: holds float32 (1.5 at 0)"),
        ("episode", [0, 1, 2, 9], "sequence 3 names episode 9 but there are 4"),
        ("episode", [0, 1, 2, -1], "sequence 3 names episode -1 but there are 4"),
        ("episode", [0.0, 1.0, 2.0, 3.0], "episode: holds float32"),
        ("value_after", [0, NAN, 0, 0], "value_after"),
        ("value_after", [0, INF, 0, 0], "value_after"),
        ("value_after", CANONICAL["value_after"].half(), "value_after is float16"),
        ("value_after", CANONICAL["value_after"].float(), "fields differ in precision"),
    ):
        yield Row(f"{name} = {value!r:.60}", lambda name=name, value=value: call(**{name: value}), says=says)
    for name, value in (
        ("group", ["p", "p", "q", "q"]),
        ("group", numpy.array(["p", "p", "q", "q"])),
        ("group", numpy.array(["p", "p", "q", "q"], dtype=object)),
        ("group", [-7, -7, 1000, 1000]),
        ("group", [True, True, False, False]),
        ("reward", [torch.tensor(1.0), torch.tensor(0.25), torch.tensor(0.5), torch.tensor(0.0)]),
        ("reward", CANONICAL["reward"].float()),
        ("ended", [1, 0, 1, 1]),
        ("ended", torch.tensor([1.0, 0.0, 1.0, 1.0])),
        ("length", [4.0, 2.0, 5.0, 3.0]),
        ("length", CANONICAL["length"].int()),
        ("value_after", [NAN, 0.3, NAN, NAN]),
        ("scored", None),
        ("episode", None),
        ("sequence_id", None),
        ("extra", None),
    ):
        yield Row(f"{name} = {value!r:.60}", lambda name=name, value=value: call(**{name: value}), means=BASE)


# --- masks --------------------------------------------------------------------------------------------------------


def mask_rows() -> Iterator[Row]:
    for name, says in (("mask", "trainable"), ("attention", "attention")):
        good = CANONICAL[name]
        bad = {**NONSENSE, **{kind: _bound(change, good) for kind, change in BAD_TENSORS.items()}}
        for kind in ("one entry too many", "one entry too few", "empty"):
            if name == "mask":
                del bad[kind]
        bad |= {
            "transposed": lambda good=good: good.T,
            "flat": lambda good=good: good.reshape(-1),
            "soft": lambda good=good: good.double() * 0.5,
            "minus one": lambda good=good: -good.long(),
            "nan": lambda good=good: torch.where(good, NAN, 0.0),
            "two": lambda good=good: 2 * good.long(),
        }
        if name == "mask":
            del bad["transposed"]
        for kind, make in bad.items():
            yield Row(f"{name}: {kind}", lambda name=name, make=make: call(**{name: make()}), says=says)
        for kind, change in {
            **{k: v for k, v in GOOD_TOKENS.items() if k != "with gradient"},
            "0/1 integers": lambda t: t.long(),
            "0/1 floats": lambda t: t.double(),
            "uint8": lambda t: t.to(torch.uint8),
            "list of bools": lambda t: t.tolist(),
        }.items():
            yield Row(
                f"{name}: {kind}", lambda name=name, change=change: call(**{name: change(CANONICAL[name])}), means=BASE
            )
    for kind in ("one entry too many", "one entry too few", "transposed"):
        change = {**BAD_TENSORS, "transposed": lambda t: t.T}[kind]
        yield Row(f"mask: {kind}", lambda change=change: call(mask=change(MASK)), says="trainable")
    blind = MASK.clone()
    blind[0, 0] = False
    yield Row(
        "attention: false at a trainable token", lambda: call(attention=blind), says="attention is 0 at row 0, column 0"
    )
    yield Row(
        "attention: missing", lambda: call(attention=None), says="token_reward on padded rows needs the attention"
    )
    yield Row("mask: nothing trains", lambda: call(mask=MASK & False, attention=None, token_reward=None)[0], means=0.0)


# --- the current policy -------------------------------------------------------------------------------------------


def current_rows() -> Iterator[Row]:
    for name in CURRENT:
        good = CURRENT[name]
        bad = {
            **NONSENSE,
            **{kind: _bound(change, good) for kind, change in BAD_TOKENS.items() if kind != "ragged list"},
        }
        bad |= {"list": good.tolist, "array": good.numpy, "integers": good.long, "bools": _bound(lambda t: t > 0, good)}
        if name == "logp":
            bad["missing"] = lambda: None
            bad["a probability"] = lambda: with_cell(CURRENT["logp"], 0.5, trainable=True)
        else:
            bad["missing"] = lambda: None
        for kind, make in bad.items():
            yield Row(f"{name}: {kind}", lambda name=name, make=make: call(**{name: make()}), says=name)
        odd = with_cell(good, NAN if name == "logp" else INF, trainable=False)
        yield Row(f"{name}: undefined in padding", lambda name=name, odd=odd: call(**{name: odd}), means=BASE)
        yield Row(f"{name}: view", lambda name=name, good=good: call(**{name: good.T.contiguous().T}), means=BASE)


# --- names and other layouts --------------------------------------------------------------------------------------

FOREIGN = {
    "old_log_prob": "logp_old",
    "old_per_token_logps": "logp_old",
    "ref_log_probs": "logp_ref",
    "ref_per_token_logps": "logp_ref",
    "rollout_log_probs": "logp_rollout",
    "response_mask": "trainable",
    "completion_mask": "trainable",
    "rewards": "reward",
    "logp_olld": "logp_old",
    "logprob_ref": "logp_ref",
    "vesion": "version",
    "seq_id": "sequence_id",
    "levels": "has no field 'levels'",
    "cells": "has no field 'cells'",
    "dtype": "has no field 'dtype'",
    "learning_rate": "train.lr",
    "beta": "signal.kl.coef",
    "value_olds": "value_old",
}
"""A field nobody here knows, and what the refusal must name."""


def door_rows() -> Iterator[Row]:
    for name, says in FOREIGN.items():
        yield Row(f"field {name}", lambda name=name: call(**{name: field(1)}), says=says)
    for kind, extra in {
        "a list": [field(1)],
        "a text": "own",
        "a number": 3,
        "a key that is no name": {"my field": field(1)},
        "a key that is a number": {3: field(1)},
        "another shape": {"own": field(1)[:2]},
        "nan": {"own": field(1) * NAN},
        "half": {"own": field(1).half()},
        "a text inside": {"own": "abc"},
        "a name of ours": {"advantage": field(1)},
        "a weight": {"weight_policy": field(1)},
        "None inside": {"own": None},
    }.items():
        says = (
            "extra"
            if kind in ("a list", "a text", "a number") or "key" in kind or "name" in kind or "weight" in kind
            else "own"
        )
        yield Row(f"extra: {kind}", lambda extra=extra: call(extra=extra), says=says)
    rows, ends = [row[keep] for row, keep in zip(field(1), MASK, strict=True)], [0, 4, 6, 10, 13]
    ones = [[1] * len(row) for row in rows]
    packed = torch.cat(rows)

    def flat(batch: SignalBatch) -> list[list[float]]:
        return [batch.logp_old.tolist(), batch.levels.token_counts.tolist(), batch.reward.tolist()]

    both = {"reward": [1.0, 0.0, 0.5, 1.0], "group": [0, 0, 1, 1]}
    base = flat(SignalBatch.from_list([torch.ones(len(r)) for r in rows], logp_old=rows, **both))
    for kind, trainable in {
        "lists": ones,
        "tuples": tuple(map(tuple, ones)),
        "arrays": [numpy.array(o) for o in ones],
    }.items():
        yield Row(
            f"list layout: {kind}",
            lambda t=trainable: flat(SignalBatch.from_list(t, logp_old=rows, **both)),
            means=base,
        )
    for kind, logp in {
        "arrays": [r.numpy() for r in rows],
        "flat": packed,
    }.items():
        ones_of = [torch.ones(len(r)) for r in rows]
        yield Row(
            f"list layout: logp as {kind}",
            lambda logp=logp, ones_of=ones_of: flat(SignalBatch.from_list(ones_of, logp_old=logp, **both)),
            means=base,
        )
    for kind, trainable, says in (
        ("a tensor", torch.ones(4, 5), "trainable is a Tensor"),
        ("a text", "abc", "trainable is a str"),
        ("None", None, "trainable is a NoneType"),
        ("matrices", [torch.ones(2, 2)] * 4, "trainable[0] has shape [2, 2]"),
        ("numbers", [1, 1, 1, 1], "trainable[0]"),
        ("soft", [[0.5]] * 4, "trainable[0]: is 0.5"),
    ):
        yield Row(f"list layout: {kind}", lambda t=trainable: SignalBatch.from_list(t, **both), says=says)
    for kind, logp, says in (
        ("other lengths", [r[:1] for r in rows], "logp_old does not match trainable at entry 0"),
        ("fewer entries", rows[:3], "logp_old does not match trainable at entry 3"),
        ("a text", "abc", "logp_old is str"),
        ("None inside", [None] * 4, "logp_old[0]"),
        ("matrices", [r[None] for r in rows], "logp_old does not match"),
    ):
        yield Row(
            f"list layout: logp {kind}", lambda logp=logp: SignalBatch.from_list(ones, logp_old=logp, **both), says=says
        )
    for kind, cu in {
        "list": ends,
        "tensor": torch.tensor(ends),
        "int32": torch.tensor(ends).int(),
        "array": numpy.array(ends),
    }.items():
        yield Row(
            f"packed: {kind}",
            lambda cu=cu: flat(SignalBatch.from_packed([1] * 13, cu, logp_old=packed, **both)),
            means=base,
        )
    for kind, cu in {
        "fractions": [0, 2.7, 4, 9, 13],
        "floats": [0.0, 4.0, 6.0, 10.0, 13.0],
        "empty": [],
        "a number": 13,
        "a text": "0,4",
        "None": None,
        "decreasing": [0, 6, 4, 10, 13],
        "not from 0": [1, 4, 6, 10, 13],
        "too short": [0, 4, 6, 10, 12],
        "too long": [0, 4, 6, 10, 14],
        "bools": [True, False, True, True, True],
        "a column": [[0], [4], [6], [10], [13]],
    }.items():
        yield Row(
            f"packed: cu_seqlens {kind}", lambda cu=cu: SignalBatch.from_packed([1] * 13, cu, **both), says="cu_seqlens"
        )
    for extra_rewards in (3, 5, 6, 0):
        given = {"reward": [1.0] * extra_rewards, "group": list(range(extra_rewards))}
        says = f"there are {extra_rewards} rewards for 4 sequences"
        yield Row(f"padded: {extra_rewards} rewards", lambda g=given: SignalBatch.from_padded(MASK, **g), says=says)
        yield Row(f"list: {extra_rewards} rewards", lambda g=given: SignalBatch.from_list(ones, **g), says=says)
        yield Row(
            f"packed: {extra_rewards} rewards", lambda g=given: SignalBatch.from_packed([1] * 13, ends, **g), says=says
        )


# --- calls --------------------------------------------------------------------------------------------------------


def prepared(**changes: Any) -> Any:
    given = {**CANONICAL, **changes}
    return prepare(SignalBatch.from_padded(given.pop("mask"), **given), RECIPE)[0]


def call_rows() -> Iterator[Row]:
    one = prepared()
    update = next(one.updates(1))
    decided = decide(update)
    (micro,) = decided.split(num=1)
    logp = torch.full((13,), -0.5, dtype=F64)
    done = token_loss(micro, logp.clone().requires_grad_(), entropy=-logp, value=logp)
    calls: dict[str, tuple[Callable[[], Any], str]] = {
        "prepare None": (lambda: prepare(None, "tis"), "prepare: takes a batch, not NoneType"),
        "prepare a dict": (lambda: prepare({}, "tis"), "prepare: takes a batch, not dict"),
        "prepare with a dict": (lambda: prepare(one.batch, {}), "prepare: recipe is a dict"),
        "prepare with None": (lambda: prepare(one.batch, None), "prepare: recipe is a NoneType"),
        "prepare with a number": (lambda: prepare(one.batch, 3), "prepare: recipe is a int"),
        "prepare, version a text": (lambda: prepare(one.batch, RECIPE, version="3"), "version = '3'"),
        "prepare, version 1.5": (lambda: prepare(one.batch, RECIPE, version=1.5), "version = 1.5"),
        "prepare, seed a text": (lambda: prepare(one.batch, RECIPE, seed="a"), "seed = 'a'"),
        "prepare, seed None": (lambda: prepare(one.batch, RECIPE, seed=None), "seed = None"),
        "prepare, seed -1": (lambda: prepare(one.batch, RECIPE, seed=-1), "seed = -1"),
        "prepare, state a dict": (lambda: prepare(one.batch, RECIPE, {}), "state is a dict"),
        "decide a batch": (lambda: decide(one.batch), "decide: takes an update, not SignalBatch"),
        "decide prepared": (lambda: decide(one), "decide: takes an update, not Prepared"),
        "decide None": (lambda: decide(None), "decide: takes an update, not NoneType"),
        "decide with a list": (lambda: decide(update, [0.0] * 13), "logp_now is list"),
        "decide with another length": (lambda: decide(update, logp[:4]), "logp_now has shape [4]"),
        "decide with integers": (lambda: decide(update, logp.long()), "logp_now holds torch.int64"),
        "token_loss of an update": (lambda: token_loss(update, logp), "takes a micro-batch, not Update"),
        "token_loss of a list": (lambda: token_loss([micro], logp), "takes a micro-batch, not list"),
        "token_loss with a list": (lambda: token_loss(micro, [0.0] * 13), "logp_current is list"),
        "token_loss with None": (lambda: token_loss(micro, None), "logp_current is NoneType"),
        "token_loss with integers": (lambda: token_loss(micro, logp.long()), "logp_current holds torch.int64"),
        "token_loss with halves": (lambda: token_loss(micro, logp.half()), "logp_current is float16"),
        "token_loss in float32": (lambda: token_loss(micro, logp.float()), "one side of every log-ratio is rounded"),
        "token_loss without entropy": (lambda: token_loss(micro, logp), "has a term on entropy"),
        "token_loss without value": (lambda: token_loss(micro, logp, entropy=logp), "has a term on value"),
        "token_loss, a column": (lambda: token_loss(micro, logp[:, None]), "logp_current has shape [13, 1]"),
        "token_loss, meta": (lambda: token_loss(micro, logp.to("meta")), "logp_current"),
        "token_loss, sparse": (lambda: token_loss(micro, logp.to_sparse()), "logp_current"),
        "step of None": (lambda: step(None), "step: takes a list of what token_loss returned"),
        "step of losses": (lambda: step([done.loss]), "it holds a Tensor"),
        "step of nothing": (lambda: step([]), "there is no micro-batch"),
        "updates 0": (lambda: one.updates(0), "num = 0"),
        "updates -1": (lambda: one.updates(-1), "num = -1"),
        "updates 1.5": (lambda: one.updates(1.5), "num = 1.5"),
        "updates a text": (lambda: one.updates("2"), "num = '2'"),
        "updates True": (lambda: one.updates(True), "num = True"),
        "updates 99": (lambda: one.updates(99), "99 optimiser steps from 2 groups"),
        "updates together": (lambda: one.updates(1, together="row"), "together = 'row'"),
        "split by nothing": (lambda: decided.split(), "name one of max_tokens, num and parts"),
        "split by both": (lambda: decided.split(num=1, max_tokens=3), "name one of max_tokens, num and parts"),
        "split with a sequence twice": (lambda: decided.split(parts=[[0, 0]]), "not each of them once"),
        "split 0": (lambda: decided.split(num=0), "num = 0"),
        "split 1.5": (lambda: decided.split(num=1.5), "num = 1.5"),
        "split max_tokens 0": (lambda: decided.split(max_tokens=0), "max_tokens = 0"),
        "split max_tokens a text": (lambda: decided.split(max_tokens="9"), "max_tokens = '9'"),
        "shard 2 of 2": (lambda: decided.shard(2, 2), "rank 2 of 2 does not exist"),
        "shard of 0": (lambda: decided.shard(0, 0), "ranks = 0"),
        "shard -1": (lambda: decided.shard(-1, 2), "rank = -1"),
        "shard 0.5": (lambda: decided.shard(0.5, 2), "rank = 0.5"),
        "own of 0 ranks": (lambda: decided.own(torch.tensor([0]), 0), "ranks = 0"),
        "own of -2 ranks": (lambda: decided.own(torch.tensor([0]), -2), "ranks = -2"),
        "own -1": (lambda: decided.own([-1], 1), "sequences names -1"),
        "own floats": (lambda: decided.own([0.5], 1), "own: sequences: holds float32"),
        "own None": (lambda: decided.own(None, 1), "own: sequences: is None"),
        "check_spent scale 0": (lambda: decided.check_spent(grad_scale=0), "grad_scale = 0"),
        "check_spent scale nan": (lambda: decided.check_spent(grad_scale=NAN), "grad_scale = nan"),
        "check_spent scale a text": (lambda: decided.check_spent(grad_scale="1"), "grad_scale = '1'"),
        "check_spent tolerance -1": (lambda: decided.check_spent(tolerance=-1.0), "tolerance = -1.0"),
        "check_spent, nothing spent": (lambda: decided.check_spent(), "add up to"),
        "loss, recipe None": (lambda: call(recipe=None), "recipe is NoneType"),
        "loss, recipe a dict": (lambda: call(recipe={}), "recipe is dict"),
        "loss, recipe unknown": (lambda: call(recipe="gpro"), "did you mean 'grpo'"),
        "loss, counts a number": (lambda: call(counts=13), "counts is int"),
        "loss, counts too small": (lambda: call(counts=trimtab.Counts(1, 1)), "this call alone has 13"),
        "loss, ranks a text": (lambda: call(ranks="2"), "ranks = '2'"),
        "loss, scale 0": (lambda: call(grad_scale=0), "grad_scale = 0"),
        "Counts of fractions": (lambda: trimtab.Counts(1.5, 1), "tokens = 1.5"),
        "Counts below 0": (lambda: trimtab.Counts(-1, 1), "tokens = -1"),
        "Counts of a list": (lambda: trimtab.Counts(1, 1, [3]), "groups = [3] is not a mapping"),
        "part of None": (lambda: part(None), "a name is a text, not None"),
        "part of a number": (lambda: part(3), "a name is a text, not 3"),
        "part of an empty text": (lambda: part(""), "no entry is called ''"),
        "part of a dot": (lambda: part("."), "cannot be imported"),
        "part of nothing there": (lambda: part("nowhere.loss"), "'nowhere.loss' cannot be imported"),
        "Part of a text": (lambda: Part("policy_loss.clipped"), "Make one by name"),
        "Part with a list": (lambda: Part(part("kl.k3").formula, [1]), "settings are [1]"),
        "Part with a wrong setting": (lambda: Part(part("kl.k3").formula, {"a": 1}), "has no setting ['a']"),
    }
    for name, (make, says) in calls.items():
        yield Row(name, make, says=says)
    yield Row("step of one", lambda: float(step(done).loss), means=float(done.loss))
    yield Row("own of a list", lambda: decided.own([0, 1], 1).whole.num_tokens, means=6)
    yield Row("loss, counts of itself", lambda: call(counts=trimtab.Counts(13, 4)), means=BASE)


def rows() -> list[Row]:
    parts = (
        token_rows,
        integer_rows,
        vector_rows,
        mask_rows,
        current_rows,
        door_rows,
        call_rows,
        recipes.setting_rows,
        recipes.recipe_rows,
    )
    return [row for part_of in parts for row in part_of()]
