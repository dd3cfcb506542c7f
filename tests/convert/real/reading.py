"""A framework's own reading of a file: the file's options on the framework's own defaults. The converter has no part.

Scripts are read by bash (`shell.py`), YAML by its own library; defaults come out of the framework's released files.
"""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.convert.real import shell
from tests.peers.peer import Peer

ENTRIES = {"verl": r"main_ppo|fully_async_main", "skyrl": r"^(skyrl|examples)\.[\w.]+$|main_\w+|run_\w+\.sh$",
           "openrlhf": r"train_ppo_ray$", "slime": r"train(_async)?\.py$"}  # fmt: skip
"""What starts training, in the words of a command."""
Nested = dict[str, Any]


class NotCompared(Exception):
    """The framework's side of a file cannot be had here, or has nothing to compare."""


def value(word: str | list[str]) -> Any:
    """A word of a command as hydra and argparse take it."""
    if isinstance(word, list):
        return True if not word else value(word[0]) if len(word) == 1 else [value(one) for one in word]
    try:
        return float(word) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)", word) else yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def put(tree: Nested, key: str, found: Any) -> None:
    """Set a dotted name in nested tables."""
    *path, name = key.split(".")
    for part in path:
        held = tree.get(part)
        tree[part] = held if isinstance(held, dict) else {}
        tree = tree[part]
    tree[name] = found


def over(tree: Nested, more: Nested) -> Nested:
    """`more` laid over `tree`."""
    merged = dict(tree)
    for name, found in more.items():
        held = merged.get(name)
        merged[name] = over(held, found) if isinstance(held, dict) and isinstance(found, dict) else found
    return merged


def resolved(tree: Nested, whole: Nested) -> Nested:
    """`${a.b}` and `${oc.select:a.b,default}` by what stands there."""

    def look(found: Any, depth: int = 0) -> Any:
        if isinstance(found, dict):
            return {name: look(one) for name, one in found.items()}
        if not isinstance(found, str) or depth > 5:
            return found
        named = re.fullmatch(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^}]*))?\}", found)
        if named is None:
            return found
        held: Any = whole
        for part in named[1].split("."):
            held = held.get(part) if isinstance(held, dict) else None
        return look(value(named[2]) if held is None and named[2] else held, depth + 1)

    return look(tree)


def verl(path: Path, peer: Peer, root: Path) -> Nested:
    """verl composes its defaults when it is released; `_generated_ppo_trainer.yaml` is what hydra makes of them."""
    given = handed(path, "verl")
    trainer = "ppo_megatron_trainer" if "megatron" in str(given.get("model_engine", "")) else "ppo_trainer"
    tree = yaml.safe_load((root / f"verl/trainer/config/_generated_{trainer}.yaml").read_text())
    for folder in ("fully_async_policy", "one_step_off_policy"):
        own = root / f"verl/experimental/{folder}/config/{given.get('config-name', '')}"
        if own.with_suffix(".yaml").is_file():
            tree = over(tree, yaml.safe_load(own.with_suffix(".yaml").read_text()))
            put(tree, "trainer.use_v1", False)  # a trainer of its own, built on the one before V1
    return _set(tree, given)


def handed(path: Path, framework: str) -> dict[str, Any]:
    """The words that a script hands to the trainer."""
    given = shell.read(path, ENTRIES[framework])
    if not given:
        raise NotCompared("bash does not get to the trainer in its cage")
    return given


def _set(tree: Nested, given: dict[str, Any]) -> Nested:
    for key, word in given.items():
        put(tree, key, value(word))
    return resolved(tree, tree)


def skyrl(path: Path, peer: Peer, root: Path) -> Nested:
    """SkyRL's dataclasses, and the words of the script."""
    return _set(peer.call("calls:skyrl_defaults"), handed(path, "skyrl"))


def openrlhf(path: Path, peer: Peer, root: Path) -> Nested:
    """OpenRLHF's parser, and the words of the script; a name with dots becomes a table, as its `hierarchize` has it."""
    return _set(arguments(root / "openrlhf/cli/train_ppo_ray.py"), _listed(handed(path, "openrlhf")))


def _listed(given: dict[str, Any]) -> dict[str, Any]:
    key = "algo.advantage.is_correction_threshold"
    return {name: (f"[{', '.join(word)}]" if name == key else word) for name, word in given.items()}


def arguments(path: Path) -> Nested:
    """Names and defaults of every `add_argument` in a file."""
    tree: Nested = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument" and node.args:
            flag = node.args[0]
            if not isinstance(flag, ast.Constant):
                continue
            name = str(flag.value).removeprefix("--").replace("-", "_")
            keywords = {one.arg: one.value for one in node.keywords}
            stored = keywords.get("action")
            default = False if isinstance(stored, ast.Constant) and stored.value == "store_true" else None
            try:
                default = ast.literal_eval(keywords["default"]) if "default" in keywords else default
            except ValueError:
                default = None  # worked out when it runs; none of the loss's options are
            put(tree, name, default)
    return tree


def areal(path: Path, peer: Peer, root: Path) -> Nested:
    """AReaL's dataclasses, and the YAML on top; a block that is not there is None, as its class says."""
    kinds = {"actor": "PPOActorConfig", "reward_norm": "NormConfig", "adv_norm": "NormConfig",
             "rejection_sampling": "RejectionSamplingConfig"}  # fmt: skip
    defaults = fields(root / "areal/api/cli_args.py")
    whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    actor = over(defaults["PPOActorConfig"], resolved(whole, whole)["actor"])
    for name, kind in kinds.items():
        if name != "actor" and isinstance(actor[name], dict):
            actor[name] = over(defaults[kind], actor[name])
            if "group_size" in actor[name]:
                actor[name]["group_size"] = 3  # the answers to a prompt in the batch of the comparison
    return actor | {"teacher": whole.get("teacher")}


def fields(path: Path) -> dict[str, Nested]:
    """Every class of a file: its fields, and their defaults where they are plain values."""
    return {
        node.name: {one.target.id: _default(one.value) for one in node.body if isinstance(one, ast.AnnAssign)}
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def _default(node: ast.AST | None) -> Any:
    if isinstance(node, ast.Call):
        node = next((one.value for one in node.keywords if one.arg == "default"), None)
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None  # worked out when it runs; none of the loss's fields is


READERS: dict[str, Callable[[Path, Peer, Path], Nested]] = {
    "verl": verl, "skyrl": skyrl, "openrlhf": openrlhf, "areal": areal,
}  # fmt: skip
