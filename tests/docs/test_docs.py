"""The docs are true: their code runs, their tables name what exists, the generated pages are current."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import trimtab
from trimtab.cli import app
from trimtab.cli.catalog import catalog_data, catalogue_page, roles_table
from trimtab.cli.paper_index import WITHOUT_RECIPE, paper_page
from trimtab.config import TrainSettings, parse_run
from trimtab.config.study import load_study
from trimtab.sentinel import INVARIANTS
from trimtab.sentinel.binding.bind import FIELDS as CASE_FIELDS
from trimtab.signal import catalog, names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = re.findall(rf"^[ ]*```{language}\n(.*?)^[ ]*```", text, re.S | re.M)
        for i, block in enumerate(code):
            before = code[i - 1] if block.startswith("# continues the example above") else ""
            found.append(pytest.param(before + block, id=f"{page.name}-{i}"))
    return found


def dedent(block: str) -> str:
    import textwrap

    return textwrap.dedent(block)


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script of its own, with nothing else imported."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    known = set(INVARIANTS)
    exec(compile(dedent(block), "example", "exec"), namespace)
    for declared in set(INVARIANTS) - known:  # the page that declares one
        del INVARIANTS[declared]
    assert len(namespace) > 2


@pytest.mark.slow
def test_the_example_for_torchrun_gives_two_ranks_the_gradient_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run as it is on two processes; then in this one, which has the sequences of both."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python torchrun\n(.*?)```", text, re.S)
    rewards = "reward=torch.rand(len(lengths))"
    assert rewards in block
    (tmp_path / "two.py").write_text(block.replace(rewards, "reward=[0.9, 0.1, 0.4] if rank == 0 else [0.8]"))
    one = block.replace("[3, 5, 2] if rank == 0 else [4]", "[3, 5, 2, 4]").replace(
        rewards, "reward=[0.9, 0.1, 0.4, 0.8]"
    )
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    exec(compile(one, "example", "exec"), {"__name__": "example"})
    expected = [float(number) for number in capsys.readouterr().out.split()[1:]]
    told = _torchrun(tmp_path / "two.py", tmp_path / "logs")
    assert len(told) == 2
    for line in told:
        assert [float(number) for number in line.split()[1:]] == pytest.approx(expected, rel=1e-5)
    assert expected[0] != 0


def _torchrun(script: Path, logs: Path) -> list[str]:
    """What each of two ranks printed; into a file each, for in one pipe their lines may meet."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--redirects", "1"]
    words = [sys.executable, "-m", *torchrun, "--log-dir", str(logs), str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [path.read_text() for path in sorted(logs.glob("**/stdout.log"))]


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_toml_block_loads_and_trains_a_gradient(block: str, tmp_path: Path) -> None:
    if "arms" in tomllib.loads(block):  # a study's protocol, not a run file
        _ = (tmp_path / "study.toml").write_text(block)
        assert load_study(tmp_path / "study.toml").arms
        return
    chosen = parse_run(tomllib.loads(block)).build_recipe()
    torch.manual_seed(0)
    old = -0.1 - torch.rand(4, 6, dtype=torch.float64)
    logp = (old - 0.01).clone().requires_grad_()
    loss, metrics = trimtab.loss(
        logp, recipe=chosen, mask=torch.ones(4, 6), logp_old=old, logp_rollout=old - 0.002, logp_ref=old,
        reward=torch.tensor([1.0, 0, 0, 1]), group=torch.tensor([0, 0, 1, 1]), ended=torch.ones(4, dtype=torch.bool),
    )  # fmt: skip
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.abs().sum() > 0
    assert metrics["kept/token_fraction"] == 1.0


def test_the_generated_pages_are_current() -> None:
    assert (ROOT / "docs/catalogue.md").read_text(encoding="utf-8") == catalogue_page()
    assert (ROOT / "docs/paper_index.md").read_text(encoding="utf-8") == paper_page(catalog_data())


def test_every_paper_has_a_recipe_or_a_reason_why_not() -> None:
    data = catalog_data()
    papers = {kind: {number for one in data[kind] for number in re.findall(r"arXiv:([\d.]+\d)", one["source"])}
              for kind in ("recipes", "formulas")}  # fmt: skip
    assert papers["formulas"] - papers["recipes"] == set(WITHOUT_RECIPE)
    page = paper_page(data)
    assert all(f"- no recipe: {reason}" in page for reason in WITHOUT_RECIPE.values())


def test_the_table_of_roles_is_current() -> None:
    assert roles_table() in (ROOT / "docs/binding.md").read_text(encoding="utf-8")


def test_every_field_of_a_case_is_in_the_table_of_fields() -> None:
    text = (ROOT / "docs/sentinel.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]*)`", text.partition("Token fields:")[2].partition("\n\n")[0]))
    assert set(CASE_FIELDS) - {"token_key"} <= {word for words in named for word in words.split()}


def test_the_readme_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(catalog())} formulas, {len(names())} recipes" in text
    assert f"{len(INVARIANTS)} invariants" in text


def test_the_table_of_training_keys_is_complete() -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*) \|$", text, re.M)
    expected: list[tuple[str, str]] = []
    for name, field in TrainSettings.model_fields.items():
        expected.append((name, field.description or ""))
    for table in ("task", "model", "engine", "cluster"):
        for name, field in type(getattr(TrainSettings(), table)).model_fields.items():
            expected.append((f"{table}.{name}", field.description or ""))
    assert [(name, what) for name, _, what in rows] == expected
    defaults = {name: default for name, default, _ in rows}
    for name in ("steps", "staleness", "lr", "engine.format", "model.hidden_size", "runtime"):
        value: object = TrainSettings()
        for part in name.split("."):
            value = getattr(value, part)
        assert defaults[name] == str(value), name


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_page_holds_a_placeholder_for_an_address() -> None:
    for page in [*PAGES, ROOT / "action.yml"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(this|your)[^>]*>|git\+<|example\.com", text), page.name


def origin_rows() -> list[object]:
    text = (ROOT / "docs/origins.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")
    ]
    found = [row for row in rows if row[0].strip("| ") != "requirement"]
    return [pytest.param(*[c.strip("`| ") for c in row[1:]], id=row[0].strip("| ")[:60]) for row in found]


@pytest.mark.parametrize(("function", "test", "command", "page"), origin_rows())
def test_every_row_of_the_origins_names_what_exists(function: str, test: str, command: str, page: str) -> None:
    assert resolve(function) is not None
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.M)
    assert (ROOT / page).exists()
    words = shlex.split(command)
    assert words[0] == "trimtab"
    assert words[1] in {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}


def resolve(path: str) -> object:
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize("command", sorted({p.values[2] for p in origin_rows() if " explain " in p.values[2]}))  # type: ignore[attr-defined]
def test_every_explain_command_of_the_origins_answers(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert len(result.output) > 60


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_every_example_run_file_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    assert parse_run(tomllib.loads(path.read_text(encoding="utf-8"))).build_recipe().name
