"""A wheel that cannot be had is a sentence, not a silence; a file that is not the release is not used."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.sentinel.examination import wheels

NOBODY = wheels.Wheel("trimtab-no-such-package", "0.0.0", "0" * 64)


def test_a_missing_wheel_fails_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("TRIMTAB_OFFLINE", raising=False)
    with pytest.raises(wheels.WheelError, match=r"could not be downloaded .* or set TRIMTAB_OFFLINE=1 to skip"):
        wheels.unpack(NOBODY)


def test_offline_says_so_and_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path))
    monkeypatch.setenv("TRIMTAB_OFFLINE", "1")
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("it went to the network"))
    with pytest.raises(wheels.WheelError, match="TRIMTAB_OFFLINE=1 forbids fetching it"):
        wheels.unpack(NOBODY)


def test_a_file_with_another_hash_is_refused_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path))
    forged = tmp_path / "peers" / NOBODY.file
    forged.parent.mkdir()
    forged.write_bytes(b"not the release")
    with pytest.raises(wheels.WheelError, match="is not the release these checks were written for"):
        wheels.unpack(NOBODY)
    assert not forged.exists()


def test_a_wheel_in_the_cache_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path))
    path = tmp_path / "peers" / NOBODY.file
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/__init__.py", "answer = 42\n")
    wheel = replace(NOBODY, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    folder = wheels.unpack(wheel)
    assert (folder / "package" / "__init__.py").read_text() == "answer = 42\n"
    path.unlink()
    assert wheels.unpack(wheel) == folder


def test_the_cache_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert wheels.cache() == Path("/somewhere/trimtab/peers")
    monkeypatch.setenv("TRIMTAB_CACHE", "/elsewhere")
    assert wheels.cache() == Path("/elsewhere/peers")
