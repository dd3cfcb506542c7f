"""The command line as a person meets it: help that teaches, output that reads, refusals without a traceback."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from tests.fork import run_in_fork
from tests.sentinel.made import sample
from typer.testing import CliRunner, Result

from trimtab.cli import app, main
from trimtab.cli.catalog import show_catalog
from trimtab.cli.console import plain_console
from trimtab.cli.explain import show_formula, show_recipe
from trimtab.config.train import TaskSettings, TrainSettings
from trimtab.errors import AdapterError, ConfigError
from trimtab.sentinel import INVARIANTS
from trimtab.sentinel.examination.record import teaching
from trimtab.sentinel.reports import RENDERERS, dump, load
from trimtab.sentinel.reports.replay import binding_lines
from trimtab.signal import METRICS, catalog, names, recipe
from trimtab.train.show.progress import Live


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("command", [[], ["train"], ["check"], ["catalog"], ["explain"]])
def test_every_command_teaches_itself(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert len(result.output.splitlines()) > 8


def test_the_catalogue_as_json_holds_everything() -> None:
    data = json.loads(invoke("catalog", "--format", "json").output)
    assert {entry["name"] for entry in data["formulas"]} == set(catalog())
    assert [entry["name"] for entry in data["recipes"]] == names()
    assert {entry["name"] for entry in data["invariants"]} == set(INVARIANTS)
    assert len(data["metrics"]) == len(METRICS)


def test_the_catalogue_as_text_names_every_formula() -> None:
    output = invoke("catalog").output
    assert all(name in output for name in (*catalog(), *names(), *INVARIANTS))


@pytest.mark.parametrize(
    "name", [*names(), *catalog(), *INVARIANTS, "ess_engine/token", "keep.veto/rejected_sequences", "TIS", "gae"]
)
def test_everything_can_be_explained(name: str) -> None:
    result = invoke("explain", name)
    assert result.exit_code == 0
    assert len(result.output) > 80


def test_explaining_a_run_file_shows_what_will_run(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(
        'recipe = "dapo"\n[off_policy_correction]\noutlier_token_is_threshold_high = 100.0\n', encoding="utf-8"
    )
    output = " ".join(invoke("explain", str(run)).output.split())
    assert "keep.veto" in output
    assert "stands alone" in output
    assert "needs: logp_old, logp_rollout" in output


def test_explain_announces_the_extra_forward_pass(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(
        'recipe = "tis"\nsignal.loss = { formula = "covariance_clipped", anchor = "old" }\n', encoding="utf-8"
    )
    assert "decide: one without gradient per optimiser step after the first" in " ".join(
        invoke("explain", str(run)).output.split()
    )


def test_one_setting_of_a_recipe_is_changed_by_one_key() -> None:
    output = " ".join(
        invoke("explain", "dapo", "signal.loss.band=[0.8,1.3]", "signal.weighting.over=kept").output.split()
    )
    assert "policy_loss.clipped(band=(0.8, 1.3)) against old" in output
    assert "weighting.token_mean(over=kept)" in output
    changed = " ".join(invoke("explain", "grpo", "signal.kl.coef=0.01").output.split())
    assert "0.01 x kl.k3() on all" in changed


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"nothing is called 'geometic_band'; did you mean 'geometric_band'"):
        CliRunner().invoke(app, ["explain", "geometic_band"], catch_exceptions=False)


@pytest.mark.slow
def test_check_holds_and_says_on_how_many_cases() -> None:
    result = invoke("check", "keep.token_band", "--examples", "3", "--jobs", "1")
    assert result.exit_code == 0
    assert "keep.token_band: 1 function held to 8 invariants: 8 checks hold (" in result.output
    assert result.output.rstrip().endswith("keep.token_band: no bugs")


def test_check_reports_a_finding_with_exit_code_one_and_the_smallest_case(tmp_path: Path) -> None:
    out = tmp_path / "verdicts.json"
    result = invoke("check", "outside_formulas.leaky", "--format", "json", "--out", str(out), "--jobs", "1")
    assert result.exit_code == 1
    found = [v for v in json.loads(out.read_text(encoding="utf-8"))["verdicts"] if v["status"] == "bug"]
    assert [v["invariant"] for v in found] == ["on_policy_identity"]
    assert len(found[0]["case"]["kinds"]) <= 2
    shown = invoke("check", "--render", str(out))
    assert shown.exit_code == 1
    assert "\nBUG high  policy_loss.leaky: " in shown.stdout
    assert "\n  breaks    on_policy_identity\n" in shown.stdout
    assert shown.stdout.rstrip().endswith("outside_formulas.leaky: 1 bug")


@pytest.mark.slow
def test_the_same_seed_finds_the_same_counter_example() -> None:
    words = ("check", "outside_formulas.leaky", "--format", "json", "--seed", "5", "--jobs", "1")
    first, second = (json.loads(invoke(*words).stdout)["verdicts"] for _ in range(2))
    assert [{**v, "seconds": 0} for v in first] == [{**v, "seconds": 0} for v in second]


@pytest.mark.slow
def test_a_baseline_takes_known_bugs_out_of_the_exit_code(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    words = ("check", "outside_formulas.leaky", "--jobs", "1")
    invoke(*words, "--format", "json", "--out", str(known))
    result = invoke(*words, "--baseline", str(known))
    assert result.exit_code == 0
    assert "still" in result.stdout


@pytest.mark.slow
def test_a_module_of_ones_own_is_checked_by_its_argument_names(tmp_path: Path) -> None:
    losses = tmp_path / "losses.py"
    losses.write_text(
        "def my_loss(log_probs, advantages, mask):\n"
        "    return (-advantages * log_probs * mask).sum() / mask.shape[1]\n\n"
        "def my_other_loss(log_probs, advantages, mask):\n    raise SystemExit\n"
    )
    words = ("--function", "my_loss", "--invariant", "split", "--format", "json", "--jobs", "1")
    result = invoke("check", "losses.py", "--path", str(tmp_path), *words)
    assert result.exit_code == 0  # a binding that was guessed gives a suspect
    told = [(v["subject"], v["invariant"], v["status"]) for v in json.loads(result.stdout)["verdicts"]]
    assert told == [("my_loss", "split", "suspect")]


@pytest.mark.slow
@pytest.mark.parametrize("touched", ["notes.md", "losses.py"])
def test_a_change_that_touches_no_function_passes_with_a_sentence(tmp_path: Path, touched: str) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.email=a@b.c", "-c", "user.name=a"]
        subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True)

    # A function that was not touched is not even called.
    (tmp_path / "losses.py").write_text("import os\n\ndef loss(log_probs, advantages):\n    os._exit(3)\n")
    git("init", "-q")
    for text in ("", "\n\nWORDS = 1\n"):
        with (tmp_path / touched).open("a") as file:
            file.write(text)
        git("add", ".")
        git("commit", "-qm", "x", "--allow-empty")
    report = tmp_path / "report.json"
    words = ("--changed", "HEAD~1..HEAD", "--format", "json", "--out", str(report), "--jobs", "1")
    result = invoke("check", "losses.py", "--path", str(tmp_path), *words)
    assert result.exit_code == 0
    assert "HEAD~1..HEAD touched no function of losses.py: nothing to check." in result.stderr
    assert json.loads(report.read_text())["verdicts"] == []


def test_a_search_without_bindings_needs_a_repository_and_no_target() -> None:
    for words in (["--discover"], ["verl", "--discover", "--path", "."]):
        with pytest.raises(AdapterError, match=r"--discover searches a whole repository .* Name it with --path DIR"):
            CliRunner().invoke(app, ["check", *words], catch_exceptions=False)


@pytest.mark.slow
def test_a_report_says_how_a_function_was_bound_and_how_to_bind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = tmp_path / "losses.py"
    losses.write_text("def my_loss(log_probs, advantages, mask):\n    return (-advantages * log_probs * mask).sum()\n")
    words = ("check", str(losses), "--invariant", "nonfinite_isolation", "--jobs", "1")
    out = tmp_path / "report.json"
    result = invoke(*words, "--strict", "--format", "json", "--out", str(out))
    assert result.exit_code == 1  # hygiene: it needs NaN in padding
    shown = invoke("check", "--render", str(out))
    assert shown.exit_code == 0
    assert "my_loss: NaN or infinity in padding" in shown.stdout
    assert (
        "guessed: role policy_loss; log_probs = logp_current [rows, width]"
        in invoke("check", "--render", str(out), "--verbose").stdout
    )
    report, own = load(out), dict[str, Any]()
    monkeypatch.syspath_prepend(str(tmp_path))
    exec("\n".join(binding_lines(report, report["subjects"][0])), own)
    assert own["bound"].role == "policy_loss"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.json"
    path.write_text(dump(sample()), encoding="utf-8")
    return path


def test_a_saved_report_is_shown_again_in_every_format_without_running_anything(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.cli.check._examine", lambda _: pytest.fail("something ran"))
    for name, render in RENDERERS.items():
        out = saved.with_suffix(f".{name}")
        result = invoke("check", "--render", str(saved), "--format", name, "--out", str(out))
        assert result.exit_code == 1
        assert out.read_text(encoding="utf-8") == render(load(saved), teaching(), None)
    assert "areal 1.0.4: 2 bugs" in result.output


def test_a_saved_report_is_compared_with_a_baseline(saved: Path) -> None:
    result = invoke("check", "--render", str(saved), "--baseline", str(saved))
    assert "0 new, 0 fixed, 3 still there" in result.output
    assert result.exit_code == 2  # no new bug, but the report has checks that could not run


def test_a_saved_report_names_its_own_target(saved: Path) -> None:
    result = invoke("check", "areal", "--render", str(saved))
    assert result.exit_code == 2
    assert "names its own target" in " ".join(result.output.split())
    with pytest.raises(ConfigError, match="cannot be read"):
        CliRunner().invoke(app, ["check", "--render", "none.json"], catch_exceptions=False)


def test_a_framework_without_a_wheel_asks_for_a_checkout() -> None:
    with pytest.raises(AdapterError, match=r"slime has no released wheel .* --path DIR"):
        CliRunner().invoke(app, ["check", "slime"], catch_exceptions=False)


def test_a_refusal_is_one_message_on_stderr_and_exit_code_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trimtab", "explain", "no_such.toml"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "trimtab: no_such.toml: there is no such file. Name a TOML run file.\n"


WITHOUT_EXTRAS = """
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys(("hypothesis", "transformers", "matplotlib", "tokenizers", "safetensors")))
from trimtab.cli import main
told = []
for words in (["check", "trimtab"], ["train"], ["catalog", "--format", "json"]):
    sys.argv, code = ["trimtab", *words], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    told.append([code, err.getvalue(), out.getvalue()])
print(json.dumps(told))
"""


def test_a_missing_extra_is_one_sentence_with_the_line_to_install() -> None:
    """Where no optional package can be imported; the catalogue needs none."""
    check, train, catalogue = json.loads(run_in_fork(WITHOUT_EXTRAS))
    assert check[:2] == [2, 'trimtab: the sentinel needs hypothesis: pip install "trimtab[sentinel]"\n']
    assert train[:2] == [2, 'trimtab: trimtab train needs transformers: pip install "trimtab[train]"\n']
    assert catalogue[0] in (0, None)
    assert json.loads(catalogue[2])["recipes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.stepz=3"], "there is no key 'train.stepz'; did you mean 'steps'"),
        (["train.steps=zero"], "train.steps = 'zero' is not possible"),
        (["train.steps=0"], "train.steps = 0 is not possible"),
        (["recipe=daapo"], "no entry is called 'daapo'; did you mean 'dapo'"),
        (["no_such_file.toml"], "there is no such file"),
        (["train.steps"], "to change a setting, write train.steps=VALUE"),
        (["dapo"], "to train this recipe, write recipe=dapo"),
        (["steps=3"], "there is no key 'steps'; did you mean 'train.steps'"),
        (["train.updates_per_batch=99"], "^override: train: updates_per_batch 99 is more than prompts_per_step 32"),
        (["signal.loss=clip"], "formula: no entry is called 'clip'; did you mean 'policy_loss.clipped'"),
        (["signal.kl.coef=0.1"], "recipe 'start_async': kl: the recipe has no KL to change"),
        (["recipe=dapo", "signal.weighting.formula=token_mena"], "did you mean 'weighting.token_mean'"),
        (["signal.loss={formula='clipped', anchor='old', clip=3}"], r"has no setting \['clip'\]; it takes \['band'\]"),
        (["signal.not_ended=drop"], "recipe 'start_async': not_ended = 'drop' is not possible"),
        (["off_policy_correction.tis_ratio_type=tokens"], "tis_ratio_type = 'tokens' is not possible"),
        (["train=3"], "train = 3 is not a table of keys"),
        (["recipe.x=3", "recipe.y=4"], "recipe = .* is not possible"),
    ],
)  # fmt: skip
def test_a_bad_run_is_refused_before_anything_is_written(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["train", *words, "--run-dir", str(tmp_path / "run")], catch_exceptions=False)
    assert not (tmp_path / "run").exists()


MARKED = "[/] [red]x[/red] [0, 1] :smile:"
"""Text that rich would take for markup, and end in an error or eat."""


def test_the_catalogue_keeps_square_brackets() -> None:
    assert "Bound the reward to [low, high]" in " ".join(invoke("catalog").output.split())


def printed(show: Callable[[Console], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a function prints on a console of ours, on a terminal too."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = plain_console()
    console.file, console.width = io.StringIO(), 300
    show(console)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def test_text_with_square_brackets_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(recipe("dapo"), name=MARKED, summary=MARKED, source=MARKED)
    out = printed(lambda console: show_recipe(one, console, title=MARKED), monkeypatch)
    assert out.count(MARKED) == 4
    entry = replace(catalog()["reward.clip"], name=MARKED, known_as=(MARKED,), promises=(MARKED,))
    assert printed(lambda console: show_formula(entry, console), monkeypatch).count(MARKED) == 3
    monkeypatch.setattr("trimtab.cli.catalog.catalog_data", lambda: {
        kind: [{"name": MARKED, "summary": MARKED, "statement": MARKED, "means": MARKED}]
        for kind in ("recipes", "formulas", "invariants", "metrics")
    })  # fmt: skip
    assert printed(lambda console: show_catalog("text", console), monkeypatch).count(MARKED) == 8


@pytest.mark.parametrize(
    "words", [["explain", MARKED], ["train", f"recipe={MARKED}"], ["train", MARKED], ["init", MARKED]]
)
def test_a_name_with_square_brackets_is_refused_as_it_is(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trimtab", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert MARKED in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "report", "eval", "replay", "init", "study", "explain"])
@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".toml", "loop.toml"])
def test_a_name_that_no_file_can_have_is_one_sentence(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.toml").symlink_to("loop.toml")
    monkeypatch.setattr(sys, "argv", ["trimtab", command, name])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("trimtab: ")


def test_a_run_whose_names_hold_square_brackets_tells_its_course() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=300)
    folder = Path("runs") / MARKED
    live = Live(console)
    live.opened(TrainSettings(task=TaskSettings(name=f"{MARKED}:f")), MARKED, folder)
    summary = SimpleNamespace(
        held_out_accuracy=0.5, steps=3, seconds=1.0, outcome="interrupted", run_dir=folder, warnings=(MARKED,)
    )
    live.finished(cast("Any", summary))
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", cast("io.StringIO", console.file).getvalue())
    assert told.count("[/] [red]x[/red] [0, 1]") == 6
