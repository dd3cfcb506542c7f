"""Run files and overrides, generated: every setting × what it cannot hold, every recipe row of the library once more as
a run file, and files that are no run files at all."""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from tests.bad_input import recipes
from tests.bad_input.row import Row

from trimtab.config import load_run, parse_run
from trimtab.config.correction import OffPolicyCorrection
from trimtab.config.train import TrainSettings
from trimtab.errors import SignalError
from trimtab.signal import recipe

SCRATCH = Path(tempfile.mkdtemp(prefix="trimtab-bad-input-"))


def settings(model: type[BaseModel], above: str) -> Iterator[tuple[str, Any]]:
    """Every key of a table with its type, tables inside included."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings(field.annotation, f"{above}.{name}")
        else:
            yield f"{above}.{name}", field.annotation


NEVER = {"a table": {"a": 1}, "a list of tables": [{}], "a list of lists": [[]], "a date": "1979-05-27T07:32:00Z"}
NUMBERS = {"true": True, "false": False, "text": "many", "nan": float("nan"), "infinity": float("inf"), "minus one": -1,
           "a list": [1], "empty text": "", "a huge number": 10**30}  # fmt: skip
BOOLS = {"a word": "maybe", "two": 2, "a list": [True], "a fraction": 0.5}
WORDS = {"another word": "sideways", "a number": 3, "true": True, "a list": ["a", "b"]}
TEXTS = {"a number": 3, "true": True, "a list": ["a"]}
PATHS = {"a number": 3, "true": True, "a list": ["a"], "NUL": "a\0b", "too long": "x" * 5000}


def malformed(key: str, annotation: Any) -> dict[str, Any]:
    """What a setting of this type cannot hold."""
    inner = set(get_args(annotation)) or {annotation}
    if annotation in (int, float):
        return {**NEVER, **NUMBERS, **({"a fraction": 1.5} if annotation is int else {})}
    if annotation is bool:
        return {**NEVER, **BOOLS}
    if annotation is str:
        return {**NEVER, **TEXTS} if key != "train.task.options" else {}
    if get_origin(annotation) is tuple:
        return {"another word": "sideways", "a number": 3, "a table": {"a": 1}, "one wrong of two": ["wandb", "wand"]}
    if any("Path" in str(one) for one in inner):
        return {**{k: v for k, v in NEVER.items() if k != "a date"}, **PATHS}
    if get_origin(annotation) is dict:
        return {"text": "abc", "a number": 3, "a list inside": {"a": []}, "a table inside": {"a": {}}}
    return {**NEVER, **WORDS}


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def setting_rows() -> Iterator[Row]:
    for key, annotation in settings(TrainSettings, "train"):
        for kind, value in malformed(key, annotation).items():
            leaf = key.rpartition(".")[2]
            if kind == "a date" and annotation is str:
                continue
            yield Row(f"{key}: {kind}", lambda key=key, value=value: parse_run(nested(key, value)), says=leaf)
            if kind != "a huge number":  # a file has 64 bits; in Python 10**30 is a float like any other
                yield Row(
                    f"Python {key}: {kind}",
                    lambda key=key, value=value: TrainSettings(**nested(key, value)["train"]),
                    says=leaf,
                )
        leaf, table = key.rpartition(".")[2], key.rpartition(".")[0]
        yield Row(f"{key}, misspelled", lambda t=table, n=leaf: parse_run(nested(f"{t}.{n}x", 1)), says=f"{leaf}x")
    for key in OffPolicyCorrection.model_fields:
        for kind, value in (
            ("true", True),
            ("text", "many"),
            ("minus one", -1),
            ("nan", float("nan")),
            ("a list", [1]),
        ):
            where = f"off_policy_correction.{key}"
            yield Row(f"{where}: {kind}", lambda w=where, value=value: parse_run(nested(w, value)), says=key)


def recipe_rows() -> Iterator[Row]:
    """The same values in a run file as in Python: refused with the same sentence, or meaning the same."""
    for name, values in recipes.FIELDS.items():
        for value, says in values:
            yield Row(f"signal.{name} = {value!r}", lambda n=name, v=value: _same_refusal(n, v), says=says)
    for label, (name, value, means) in recipes.SHORT.items():
        yield Row(f"signal: {label}", lambda n=name, v=value: getattr(_built(n, v), n), means=means)


def _built(name: str, value: Any) -> Any:
    return parse_run({"recipe": "grpo", "signal": {name: value}}).build_recipe()


def _same_refusal(name: str, value: Any) -> Any:
    try:
        recipe("grpo", **{name: value})
    except SignalError as error:
        spoken = str(error)
    else:
        return "Python accepts it"
    try:
        return _built(name, value)
    except SignalError:
        raise
    except ValueError as error:
        if spoken not in str(error):
            raise RuntimeError(f"Python says {spoken!r}, the run file {error!s}") from error
        raise


def file_rows() -> Iterator[Row]:
    def written(content: bytes, name: str) -> Callable[[], Any]:
        def load() -> Any:
            path = SCRATCH / name
            path.write_bytes(content)
            return load_run(path).recipe

        return load

    count = itertools.count()
    bad = {
        "no TOML": b"recipe: dapo",
        "an open text": b'recipe = "dapo',
        "binary": bytes(range(256)),
        "latin-1": "recipe = 'dépô'".encode("latin-1"),
        "a key twice": b'recipe = "dapo"\nrecipe = "grpo"',
        "a table twice": b"[train]\n[train]",
        "deep lists": b"x = " + b"[" * 3000 + b"]" * 3000,
        "deep tables": b"x = " + b"{a=" * 3000 + b"1" + b"}" * 3000,
        "5000 digits": b"train.steps = " + b"9" * 5000,
        "a deep dotted key": b".".join([b"a"] * 3000) + b" = 1",
        "an unknown table": b"[trian]\nsteps = 3",
        "a list of recipes": b'recipe = ["dapo"]',
        "a recipe that is a number": b"recipe = 3",
        "train is a number": b"train = 3",
        "signal is a list": b"signal = []",
        "an array of tables": b"[[train]]",
        "a YAML file": b"train:\n  steps: 3",
        "JSON": b'{"train": {"steps": 3}}',
        "UTF-16": 'recipe = "dapo"'.encode("utf-16"),
    }
    for kind, content in bad.items():
        yield Row(f"file: {kind}", written(content, f"{next(count)}.toml"), says="")
    good = {
        "with a byte-order mark": b"\xef\xbb\xbf" + b'recipe = "dapo"',
        "with Windows line ends": b'recipe = "dapo"\r\n[train]\r\nsteps = 3\r\n',
        "with comments": b'# a run\nrecipe = "dapo" # DAPO\n',
    }
    for kind, content in good.items():
        yield Row(f"file: {kind}", written(content, f"{next(count)}.toml"), means="dapo")
    yield Row("file: empty", written(b"", "empty.toml"), means="start_async")
    loop = SCRATCH / "loop.toml"
    os.symlink(loop, loop)
    for kind, path in {
        "absent": SCRATCH / "absent.toml",
        "a folder": SCRATCH,
        "NUL in its name": "a\0.toml",
        "a long name": "x" * 5000 + ".toml",
        "a loop of links": loop,
        "under a file": SCRATCH / "empty.toml" / "x.toml",
    }.items():
        yield Row(f"file: {kind}", lambda path=path: load_run(path), says="")


def override_rows() -> Iterator[Row]:
    bad = {
        "train.steps": "train.steps",
        "=3": "=3",
        "": "",
        "train.=3": "train.",
        ".steps=3": ".steps",
        "train..steps=3": "train..steps",
        "train.steps=": "train.steps",
        "train.steps=true": "train.steps",
        "train.lr=true": "train.lr",
        "train.lr=1e999": "train.lr",
        "train.weight_decay=inf": "weight_decay",
        "train.steps=3\ntrain.lr=1": "",
        "train.steps=[3": "train.steps",
        "train.steps={": "train.steps",
        "train.steps=3=4": "train.steps",
        "train.steps.x=3": "train.steps",
        "recipe.x=3": "recipe",
        "recipe=": "recipe",
        "recipe=gpro": "did you mean 'grpo'",
        "recipe=DAPO": "did you mean 'dapo'",
        "train.learning_rate=1e-4": "train.lr",
        "train.num_generations=8": "samples_per_prompt",
        "train.epsilon_high=0.28": "signal.loss.band",
        "train.beta=0.1": "signal.kl.coef",
        "signal.beta=0.1": "signal.kl.coef",
        "signal.clip_ratio=0.2": "signal.loss.band",
        "signal.kll=0.1": "did you mean 'kl'",
        "learning_rate=1e-4": "train.lr",
        "lr=1e-4": "train.lr",
        "steps=3": "train.steps",
        "whiten=true": "signal.whiten",
        "train.steps=" + "9" * 5000: "train.steps",
        "train.steps=" + "[" * 3000 + "]" * 3000: "",
        "x" * 5000 + "=1": "",
        "train.threads=100000": "threads",
        "train.task.size=100000": "size",
        "train.samples_per_prompt=0": "samples_per_prompt",
        "train.log_to=wand": "log_to",
        "train.updates_per_batch=99": "updates_per_batch",
        "train.model.hidden_size=65": "hidden_size",
        "train.task.name=file": "file",
        "off_policy_correction.use_tis=banana": "use_tis",
        "off_policy_correction.tis_imp_ratio_cap=[2]": "tis_imp_ratio_cap",
        "off_policy_correction.tis_ratio_type=tokens": "tis_ratio_type",
        "off_policy_correction.geo_mask_hihg=1": "geo_mask_high",
    }
    for text, says in bad.items():
        yield Row(f"override {text[:60]!r} ({len(text)})", lambda text=text: load_run(None, [text]), says=says)
    good: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "train.log_to=wandb": (lambda run: run.train.log_to, ("wandb",)),
        'train.log_to=["wandb", "tensorboard"]': (lambda run: run.train.log_to, ("wandb", "tensorboard")),
        "train.task=reverse": (lambda run: run.train.task.name, "reverse"),
        "train.lr=1e-4": (lambda run: run.train.lr, 1e-4),
        "train.steps = 3": (lambda run: run.train.steps, 3),
        "train.early_stop=never": (lambda run: run.train.early_stop, "never"),
        "recipe=dapo": (lambda run: run.recipe, "dapo"),
        "signal.whiten=true": (lambda run: run.build_recipe().whiten, True),
        "signal.weighting=token_mean": (lambda run: run.build_recipe().weighting.formula.name, "weighting.token_mean"),
        "signal.clip_advantage=null": (lambda run: run.build_recipe().clip_advantage, None),
        "off_policy_correction.tis_ratio_type=null": (lambda run: run.off_policy_correction.tis_ratio_type, None),
    }
    for text, (read, means) in good.items():
        yield Row(f"override {text!r}", lambda text=text, read=read: read(load_run(None, [text])), means=means)


def rows() -> list[Row]:
    return [row for part in (setting_rows, recipe_rows, file_rows, override_rows) for row in part()]
