"""The lock names exact releases; a user's own wheel is announced; nothing is written outside the cache."""

import base64
import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from trimtab.sentinel.examination import wheels

download = wheels._download  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRIMTAB_OFFLINE", raising=False)
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("it went to the network"))


def written(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_the_lock_names_each_release_by_version_and_sha256() -> None:
    versions = {name: wheel.version for name, wheel in wheels.locked().items()}
    assert versions == {"verl": "0.9.1", "skyrl": "0.3.0", "areal": "1.0.4", "openrlhf": "0.11.2", "trl": "1.16.0"}
    assert all(re.fullmatch("[0-9a-f]{64}", wheel.sha256) for wheel in wheels.locked().values())
    assert wheels.locked()["openrlhf"].file == "openrlhf-0.11.2-cp311-cp311-manylinux1_x86_64.whl"


def test_offline_fetches_nothing_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        wheels.WheelError, match=r"--offline forbids fetching it. Run once with a package index, or put"
    ):
        wheels.wheel("trl", offline=True)
    monkeypatch.setenv("TRIMTAB_OFFLINE", "1")
    with pytest.raises(wheels.WheelError, match="TRIMTAB_OFFLINE=1 forbids"):
        wheels.wheel("trl")


def test_an_unknown_framework_is_answered_with_the_known_ones() -> None:
    with pytest.raises(wheels.WheelError, match=r"did you mean 'verl'\? There are: areal, openrlhf, skyrl, trl, verl"):
        wheels.wheel("vrel")


def test_a_users_own_wheel_is_announced_as_not_the_locked_release(tmp_path: Path) -> None:
    file = written(tmp_path / "trl-9.9.9-py3-none-any.whl", **{"trl/__init__.py": "x = 1\n"})
    taken = wheels.wheel("trl", file=file)
    assert (taken.folder / "trl" / "__init__.py").read_text() == "x = 1\n"
    assert (taken.wheel.version, taken.is_locked) == ("9.9.9", False)
    assert taken.wheel.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert "is not the locked release trl-1.16.0-py3-none-any.whl" in taken.note


def test_a_wheel_of_another_framework_or_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelError, match="is a wheel of verl, not of trl"):
        wheels.wheel("trl", file=written(tmp_path / "verl-1-py3-none-any.whl", **{"a.py": ""}))
    with pytest.raises(wheels.WheelError, match="not a wheel file"):
        wheels.wheel("trl", file=tmp_path / "absent.whl")
    broken = tmp_path / "trl-1-py3-none-any.whl"
    broken.write_bytes(b"nothing of the kind")
    with pytest.raises(wheels.WheelError, match="is not a zip archive"):
        wheels.wheel("trl", file=broken)


@pytest.mark.parametrize("member", ["../out.py", "/out.py", "trl/../../out.py", "C:/out.py", "..\\out.py"])
def test_a_member_that_leaves_its_folder_is_refused(tmp_path: Path, member: str) -> None:
    with pytest.raises(wheels.WheelError, match="leaves its folder"):
        wheels.wheel("trl", file=written(tmp_path / "trl-1-py3-none-any.whl", **{member: "x = 1\n"}))
    assert not list(tmp_path.rglob("out.py"))


def test_code_kept_in_purelib_is_where_an_installer_would_put_it(tmp_path: Path) -> None:
    files = {"trl/__init__.py": "", "trl-2.data/purelib/trl/loss.py": "x = 2\n"}
    taken = wheels.wheel("trl", file=written(tmp_path / "trl-2-py3-none-any.whl", **files))
    assert (taken.folder / "trl" / "loss.py").read_text() == "x = 2\n"


def test_a_release_for_other_pythons_is_fetched_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl 0.9.1 asks for a Python below 3.13; we read its files and install nothing. The real pip, from a folder."""
    metadata = "Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\nRequires-Python: <3.0\n"
    files = {"verl/__init__.py": "", "verl-0.9.1.dist-info/METADATA": metadata}
    files["verl-0.9.1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    index = tmp_path / "index"
    index.mkdir()
    _ = written(index / "verl-0.9.1-py3-none-any.whl", **files)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    download(wheels.locked()["verl"], tmp_path)
    assert (tmp_path / "verl-0.9.1-py3-none-any.whl").is_file()


def test_the_locked_hash_is_held_to(tmp_path: Path) -> None:
    forged = tmp_path / "cache" / "peers" / wheels.locked()["trl"].file
    forged.parent.mkdir(parents=True)
    forged.write_bytes(b"another file")
    with pytest.raises(wheels.WheelError, match="so it is not the release"):
        wheels.wheel("trl")
    assert not forged.exists()


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def test_an_edited_copy_of_a_release_is_unpacked_again_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x = 1\n"
    files = {"trl/a.py": text, "trl-3.data/purelib/trl/b.py": text}
    lines = [f"{name},sha256={digest(text)},{len(text)}" for name in files]
    record = "\n".join([*lines, "trl-3.dist-info/RECORD,,"]) + "\n"
    (tmp_path / "cache" / "peers").mkdir(parents=True)
    name = "trl-3-py3-none-any.whl"
    file = written(tmp_path / "cache" / "peers" / name, **files, **{"trl-3.dist-info/RECORD": record})
    release = wheels.Wheel("trl", "3", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(wheels, "locked", lambda: {"trl": release})
    taken = wheels.wheel("trl")
    (taken.folder / "trl" / "__pycache__").mkdir()
    (taken.folder / "trl" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"")
    assert wheels.wheel("trl").note == ""  # Python's own files are no change
    for part in ("a.py", "b.py"):
        (taken.folder / "trl" / part).write_text("x = 2\n")
        (taken.folder / "trl" / "c.py").write_text("")
        again = wheels.wheel("trl", offline=True)
        assert again.note == f"its unpacked copy was changed, so it was unpacked again: trl/{part}, trl/c.py"
        assert (again.folder / "trl" / part).read_text() == text
        assert not (again.folder / "trl" / "c.py").exists()
        assert (again.folder.with_name(f"{again.folder.name}.changed") / "trl" / part).read_text() == "x = 2\n"
    (taken.folder / "trl" / "a.py").unlink()
    assert wheels.wheel("trl", file=file).folder.joinpath("trl", "a.py").read_text() == text
