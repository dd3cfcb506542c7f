"""The only place that says which run a folder holds: its config, and a manifest that seals it.

`run_id` is a hash of all that the manifest says, the hash of config.json included, and every checkpoint carries it:
a setting that was edited after the start is noticed.
"""

import hashlib
import json
import os
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from trimtab.errors import CheckpointError, ConfigError
from trimtab.train.record.disk import plain, write_json
from trimtab.train.record.inputs import Inputs, changed_inputs, refuse_changed

CONFIG, MANIFEST = "config.json", "manifest.json"
UNSEALED = ("run_id", "started_by", "accepted")
"""Parts of a manifest outside of its seal: the seal itself, the mark made with it, and what is added later."""
MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True)
class Identity:
    """A run folder's config and manifest, as they were written."""

    folder: Path
    config: dict[str, Any]
    manifest: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    @property
    def is_own(self) -> bool:
        """Whether this user started the run on this machine."""
        return self.manifest.get("started_by") == _mark(self.run_id)

    @property
    def inputs(self) -> Inputs:
        """The files that the run depends on, with the changes that were accepted since."""
        known: Inputs = dict(self.manifest["inputs"])
        for entry in self.manifest.get("accepted", ()):
            for key, one in entry["changed"].items():
                known[key] = {"named": one["named"], "sha256": one["now"]}
        return known

    def compare_inputs(self, now: Inputs, *, accept: bool) -> None:
        """Refuse files that changed since; or accept them, and write that down."""
        changed = changed_inputs(self.inputs, now)
        if not accept:
            refuse_changed(changed)
        elif changed:
            entry = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "changed": changed}
            self.manifest["accepted"] = [*self.manifest.get("accepted", ()), entry]
            write_json(self.folder / MANIFEST, self.manifest)


def write_identity(folder: Path, config: Mapping[str, object], facts: Mapping[str, object], inputs: Inputs) -> Identity:
    """Config first, then the manifest that seals it: a folder without a manifest holds no run yet."""
    write_json(folder / CONFIG, config)
    sealed = {
        **facts,
        "config_sha256": hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest(),
        "inputs": inputs,
        "nonce": secrets.token_hex(8),
    }
    run_id = _fingerprint(sealed)
    write_json(folder / MANIFEST, {**sealed, "run_id": run_id, "started_by": _mark(run_id)})
    return read_identity(folder)


def read_identity(folder: Path) -> Identity:
    """The run of a folder, if config and manifest are what was written at its start."""
    config, manifest = _read(folder / CONFIG), _read(folder / MANIFEST)
    parsed = parse_json(folder / MANIFEST, manifest)
    if "config_sha256" not in parsed or "inputs" not in parsed:
        raise CheckpointError(
            f"resume: {folder / MANIFEST} has no hash of the run's settings, so it was written by an older version of "
            "trimtab, or a part was removed. Resume it with the version that wrote it."
        )
    if parsed.get("run_id") != _fingerprint({key: value for key, value in parsed.items() if key not in UNSEALED}):
        raise CheckpointError(
            f"resume: {folder / MANIFEST} does not match its own run_id, so it was changed after the run was started. "
            "Put the file back."
        )
    if parsed["config_sha256"] != hashlib.sha256(config).hexdigest():
        raise CheckpointError(
            f"resume: {folder / CONFIG} is not what the run was started with (its sha256 is not that of "
            f"{MANIFEST}), so the run would go on with other settings than it began with. Put the file back; settings "
            "that may change are given on the command line: train.steps=300."
        )
    return Identity(folder, parse_json(folder / CONFIG, config), parsed)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run folder. A file that cannot be read is refused."""
    return parse_json(path, _read(path))


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"resume: {path} is not JSON ({error}), so the run is not known. Put it back.") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"resume: {path} holds no settings, so the run is not known. Put the file back.")
    return cast("dict[str, Any]", parsed)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"resume: {path} is missing, so {path.parent} is not the folder of a run. "
            "Give one that `trimtab train` made."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"resume: {path} cannot be read ({error.strerror}), so the run is not known. Look at its permissions."
        ) from error


def _fingerprint(content: Mapping[str, object]) -> str:
    """A short name for plain content: equal content, equal name."""
    return hashlib.sha256(json.dumps(plain(content), sort_keys=True).encode()).hexdigest()[:16]


def _mark(run_id: str) -> str:
    """A hash of who started a run and where. Only the same user on the same machine can make it again."""
    machine = next((text for path in MACHINE_IDS if (text := _text(Path(path)))), "")
    return hashlib.sha256(f"{run_id} {machine} {platform.node()} {os.getuid()}".encode()).hexdigest()[:32]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
