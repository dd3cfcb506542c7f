"""Recipes, generated: every setting and every field × what it cannot hold, and the short ways to write one."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.bad_input.row import Row

import trimtab
from trimtab.signal import KL, Stage, Term, part, recipe

NAN, INF = float("nan"), float("inf")

SETTINGS = {
    "policy_loss.clipped": {
        "band": [
            (1.2, 0.8),
            (0.2, 0.28),
            "0.2",
            0.2,
            (0.8,),
            (0.8, 1.0, 1.2),
            (NAN, 1.2),
            ("0.8", "1.2"),
            (True, 2),
            None,
            {},
            (-1, 2),
        ]
    },
    "reward.clip": {"low,high": [(1, 0), (1, 1), ("a", 1), (None, 1), (True, 2), (NAN, 1)]},
    "keep.veto": {
        "low,high": [(5, 1), (None, None), (2.0, None), (None, 0.5), (-1, None), ("1", None), (True, None), (INF, None)]
    },
    "advantage.gae": {"gamma": [1.5, -0.1, NAN, "0.9", True, None, [0.9]], "lam": [1.5, -0.1, NAN, "0.9", True]},
    "normalize.mean_std": {
        "mean": ["grp", None, 1, True],
        "std": ["seq", 0],
        "ddof": [2, -1, "1", True, 0.5],
        "eps": [-1, NAN, INF, "0", True],
    },
    "importance.truncated": {"level": ["turn", None, 1], "band": [(2, 1), (1.5, 2), "2", 2.0]},
    "keep.negative_drift": {"delta": [NAN, "0.1", True, None, (0.1,)]},
    "weighting.token_mean": {"over": ["kep", True, None, 1]},
    "weighting.constant_divisor": {"divisor": [0, -1, NAN, INF, "8", True, None]},
    "reward.soft_overlong": {"max_length,buffer": [(8, 9), (0, 1), (-8, 2), ("8", 2), (8, 0)]},
    "policy_loss.covariance_clipped": {
        "covariance_low,covariance_high": [(5, 1)],
        "fraction": [1.5, -0.1, "0.1", True],
    },
    "value_loss.squared_clipped": {"reach": [0, -1, NAN, "0.2", True]},
}
"""Settings that no formula takes, by formula."""

FIELDS: dict[str, list[tuple[Any, str]]] = {
    "not_ended": [
        ("supress", "'suppress'"),
        ("drop", "not_ended = 'drop'"),
        (None, "not_ended"),
        (True, "not_ended"),
        (1, "not_ended"),
        (["zero"], "not_ended"),
    ],
    "whiten": [
        ("no", "whiten = 'no'"),
        ("false", "whiten"),
        (0, "whiten"),
        (1, "whiten"),
        (None, "whiten"),
        ([], "whiten"),
        ({}, "whiten"),
    ],
    "filter_constant_groups": [
        ("false", "filter_constant_groups = 'false'"),
        (1, "filter_constant_groups"),
        (None, "filter_constant_groups"),
        (0.0, "filter_constant_groups"),
    ],
    "allow_double_count": [
        ("no", "allow_double_count = 'no'"),
        (0, "allow_double_count"),
        (None, "allow_double_count"),
    ],
    "old": [("recomputed", "'recompute'"), ("now", "old = 'now'"), (None, "old"), (True, "old"), (3, "old")],
    "clip_advantage": [
        ("5", "clip_advantage = '5'"),
        (0, "clip_advantage"),
        (-1.0, "clip_advantage"),
        (NAN, "clip_advantage"),
        (INF, "clip_advantage"),
        (True, "clip_advantage"),
        ([5], "clip_advantage"),
        ("off", "clip_advantage"),
    ],
    "kl": [
        ("k3", "kl = 'k3'"),
        (True, "kl = True"),
        (-0.1, "coef = -0.1"),
        (NAN, "coef = nan"),
        (INF, "coef = inf"),
        ([0.1], "kl"),
        ({"into": "reward"}, "into = 'reward'"),
        ({"on": "everything"}, "on = 'everything'"),
        ({"coef": "0.1"}, "coef = '0.1'"),
        ({"coef": True}, "coef = True"),
        ({"anchor": "old"}, "anchor = 'old'"),
        ({"anchor": "new"}, "anchor = 'new'"),
        ({"formula": "k4"}, "'k4'"),
        ({"formula": 3}, "not 3"),
        ({"beta": 0.1}, "has no setting ['beta']"),
        ({"formula": "clipped"}, "'clipped'"),
        ({"formula": "policy_loss.clipped"}, "which is a policy_loss formula"),
    ],
    "entropy": [
        ("low", "entropy = 'low'"),
        (True, "entropy = True"),
        (-0.1, "coef = -0.1"),
        (NAN, "coef"),
        ({}, "has no coef"),
        ({"coef": 0.1, "formula": "squared"}, "entropy"),
        ({"coef": 0.1, "on": "some"}, "on = 'some'"),
        ([0.1], "entropy"),
    ],
    "nll": [("yes", "nll = 'yes'"), (-1, "coef"), ({"weight": 1}, "nll"), (True, "nll")],
    "value": [
        (0.5, "the value term names no formula"),
        ("squared", "value = 'squared'"),
        ({"formula": "squared"}, "has no coef"),
        ({"coef": 0.5, "formula": "huber"}, "'huber'"),
        (True, "value"),
    ],
    "weighting": [
        ("token_men", "'weighting.token_mean'"),
        ("seq-mean-token-mean", "sequence_mean_token_mean"),
        (None, "weighting = None"),
        ("none", "weighting = 'none'"),
        (3, "weighting = 3"),
        ([], "weighting"),
        ({"over": "kep"}, "over = 'kep'"),
        ({"ovr": "all"}, "has no setting ['ovr']"),
        ("constant_divisor", "divisor"),
        ("policy_loss.clipped", "which is a policy_loss formula"),
        ({"formula": None, "over": 1}, "over = 1"),
    ],
    "normalize": [
        (None, "normalize = None"),
        ("none", "normalize = 'none'"),
        ("grpo", "'grpo'"),
        (1, "normalize = 1"),
        ({"mean": "grop"}, "mean = 'grop'"),
        ({"std": True}, "std = True"),
    ],
    "advantage": [
        (None, "advantage = None"),
        ("gea", "'advantage.gae'"),
        (2.0, "advantage = 2.0"),
        ({"gamma": 0.9}, "has no setting ['gamma']"),
    ],
    "loss": [
        ("clip", "'policy_loss.clipped'"),
        (None, "loss = None"),
        ("none", "loss = 'none'"),
        (0.2, "loss = 0.2"),
        ({"band": 0.2}, "band = 0.2"),
        ({"band": [1.2, 0.8]}, "band"),
        ({"clip": 0.2}, "has no setting ['clip']"),
        ({"anchor": "ref"}, "anchor = 'ref'"),
        ({"ratio": "engine"}, "leave ratio out"),
        ({"formula": "reinforce", "anchor": "old"}, "leave anchor out"),
        ({"formula": "importance.truncated"}, "needs ratio"),
        ([], "loss"),
        (True, "loss = True"),
    ],
    "correction": [
        ("tsi", "'tis'"),
        ("grpo", "correction = 'grpo'"),
        (["tis", "tis"], "count that factor twice"),
        (3, "correction"),
        (True, "correction = True"),
        ({"formula": "truncated"}, "needs ratio"),
        ({"formula": "truncated", "ratio": "motor"}, "ratio = 'motor'"),
        ({"formula": "truncated", "ratio": "engine", "bnd": [0, 2]}, "has no setting ['bnd']"),
        ([{}], "names no formula"),
        ({"formula": "clipped", "ratio": "engine"}, "'clipped'"),
        ("truncated", "needs ratio"),
        ([None], "correction"),
    ],
    "reward": [
        ("clip", "low"),
        ({"formula": "clip", "low": 1, "high": 0}, "low is below high"),
        ({"formula": "clp"}, "'reward.clip'"),
        (3, "reward = 3"),
        ([{"low": 0}], "names no formula"),
        (True, "reward = True"),
        ([None], "reward"),
    ],
}
"""Values that a field of a recipe cannot hold, and what the refusal names. Run files are held to the same rows."""

SHORT: dict[str, tuple[str, Any, Any]] = {
    "a KL switched off": ("kl", None, None),
    "a KL switched off by word": ("kl", "none", None),
    "a KL's coefficient": ("kl", 0.1, KL(part("kl.k3"), 0.1, "loss")),
    "a KL's estimator": ("kl", {"formula": "k2"}, KL(part("kl.k2"), 0.04, "loss")),
    "an entropy bonus": ("entropy", 0.01, Term(0.01)),
    "an entropy table": ("entropy", {"coef": 0.01, "on": "kept"}, Term(0.01, None, "kept")),
    "a whole number": ("nll", 1, Term(1.0)),
    "a weighting by name": ("weighting", "token_mean", part("weighting.token_mean")),
    "a weighting by its whole name": ("weighting", "weighting.token_mean", part("weighting.token_mean")),
    "one setting of a weighting": (
        "weighting",
        {"over": "kept"},
        part("weighting.sequence_mean_token_mean", over="kept"),
    ),
    "a normalisation by name": ("normalize", "raw", part("normalize.raw")),
    "one setting of a loss": (
        "loss",
        {"band": [0.8, 1.3]},
        Stage(part("policy_loss.clipped", band=(0.8, 1.3)), anchor="old"),
    ),
    "a loss by name": ("loss", "reinforce", Stage(part("policy_loss.reinforce"))),
    "an anchor": ("loss", {"anchor": "rollout"}, Stage(part("policy_loss.clipped"), anchor="rollout")),
    "a correction by its recipe": ("correction", "tis", recipe("tis").correction),
    "a list of one": ("correction", ["tis"], recipe("tis").correction),
    "a table": ("correction", {"formula": "truncated", "ratio": "engine"}, recipe("tis").correction),
    "no correction": ("correction", None, ()),
    "an empty correction": ("correction", [], ()),
    "no correction by word": ("correction", "none", ()),
    "a reward step": ("reward", {"formula": "clip", "low": -1, "high": 1}, (part("reward.clip", low=-1.0, high=1.0),)),
    "no shaping": ("reward", None, ()),
    "no clipping": ("clip_advantage", None, None),
    "no clipping by word": ("clip_advantage", "none", None),
    "clipping": ("clip_advantage", 5, 5),
}
"""Short ways to write a field of grpo, and what they stand for."""


def setting_rows() -> Iterator[Row]:
    for name, settings in SETTINGS.items():
        for keys, values in settings.items():
            for value in values:
                given = dict(zip(keys.split(","), value if "," in keys else (value,), strict=True))
                says = name if "," in keys else keys
                yield Row(f"{name}({given})", lambda name=name, given=given: part(name, **given), says=says)


def recipe_rows() -> Iterator[Row]:
    for name, values in FIELDS.items():
        for value, says in values:
            yield Row(
                f"grpo, {name} = {value!r}", lambda name=name, value=value: recipe("grpo", **{name: value}), says=says
            )
    for label, (name, value, means) in SHORT.items():
        yield Row(label, lambda name=name, value=value: getattr(recipe("grpo", **{name: value}), name), means=means)
    base = recipe("grpo")
    made: dict[str, tuple[Callable[[], Any], str]] = {
        "Stage of a text": (lambda: Stage("clipped", anchor="old"), "part = 'clipped'"),
        "Stage, ratio motor": (lambda: Stage(part("importance.truncated"), ratio="motor"), "ratio = 'motor'"),
        "Stage, anchor new": (lambda: Stage(part("policy_loss.clipped"), anchor="new"), "anchor = 'new'"),
        "Stage without a pair": (lambda: Stage(part("importance.truncated")), "needs ratio"),
        "KL of a text": (lambda: KL("k3", 0.1, "loss"), "formula = 'k3'"),
        "KL into reward": (lambda: KL(part("kl.k3"), 0.1, "reward"), "into = 'reward'"),
        "KL on everything": (lambda: KL(part("kl.k3"), 0.1, "loss", on="everything"), "on = 'everything'"),
        "KL, coef a text": (lambda: KL(part("kl.k3"), "0.1", "loss"), "coef = '0.1'"),
        "KL, coef True": (lambda: KL(part("kl.k3"), True, "loss"), "coef = True"),
        "KL with an anchor": (lambda: KL(part("kl.k3"), 0.1, "loss", anchor="old"), "do not fit"),
        "Term, coef None": (lambda: Term(None), "coef = None"),
        "Term on some": (lambda: Term(0.1, on="some"), "on = 'some'"),
        "Term of a text": (lambda: Term(0.1, "squared"), "formula = 'squared'"),
        "Recipe, loss a text": (
            lambda: trimtab.Recipe("x", "clipped", base.weighting, base.normalize),
            "loss = 'clipped'",
        ),
        "Recipe, loss a part": (
            lambda: trimtab.Recipe("x", part("policy_loss.reinforce"), base.weighting, base.normalize),
            "loss = part(",
        ),
        "Recipe, weighting a text": (
            lambda: trimtab.Recipe("x", base.loss, "token_mean", base.normalize),
            "weighting = 'token_mean'",
        ),
        "Recipe, normalize None": (lambda: trimtab.Recipe("x", base.loss, base.weighting, None), "normalize = None"),
        "Recipe, correction a stage": (
            lambda: trimtab.Recipe("x", base.loss, base.weighting, base.normalize, correction=base.loss),
            "correction = ",
        ),
        "Recipe, correction a list": (
            lambda: trimtab.Recipe("x", base.loss, base.weighting, base.normalize, correction=[1]),
            "correction = [1]",
        ),
        "Recipe, kl a number": (
            lambda: trimtab.Recipe("x", base.loss, base.weighting, base.normalize, kl=0.1),
            "kl = 0.1",
        ),
        "Recipe, name a number": (lambda: trimtab.Recipe(3, base.loss, base.weighting, base.normalize), "name = 3"),
        "recipe None": (lambda: recipe(None), "a name is a text, not None"),
        "recipe 3": (lambda: recipe(3), "a name is a text, not 3"),
        "recipe gpro": (lambda: recipe("gpro"), "did you mean 'grpo'"),
        "recipe DAPO": (lambda: recipe("DAPO"), "did you mean 'dapo'"),
        "recipe '' ": (lambda: recipe(""), "no entry is called ''"),
        "recipe field beta": (lambda: recipe("grpo", beta=0.1), "'signal.kl.coef'"),
        "field clip_ratio": (lambda: recipe("grpo", clip_ratio=0.2), "'signal.loss.band'"),
        "field kll": (lambda: recipe("grpo", kll=0.1), "did you mean 'kl'"),
        "field epsilon_high": (lambda: recipe("grpo", epsilon_high=0.28), "'signal.loss.band'"),
    }
    for name, (make, says) in made.items():
        yield Row(name, make, says=says)
