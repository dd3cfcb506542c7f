"""Which verdicts are one finding: one function, one result, one kind of trigger."""

import json
from typing import Any

import pytest
from tests.sentinel.made import ACTOR, TEACHING, case, sample, subject, verdict

from trimtab.sentinel import INVARIANTS
from trimtab.sentinel.reports import RENDERERS, compare, exit_code, findings
from trimtab.sentinel.reports.causes import OF_INVARIANT, TRIGGERS, result_of
from trimtab.sentinel.reports.replay import binding_lines, chosen, command_of, place_of
from trimtab.sentinel.reports.summary import found_line, meaning


def broken(
    invariant: str, what: str = "a change changes loss", label: str = "f", status: str = "bug", **more: Any
) -> dict[str, Any]:
    said = {"what": what, "observed": 1.0, "expected": 0.0, "positions": [],
            "effect": {"on": "value", "leaked_positions": [], "relative_change": 0.5}}  # fmt: skip
    told: dict[str, Any] = {"severity": "high" if status == "bug" else "low", "case": case(), "exercised": 30}
    return verdict(label, invariant, status, **{**told, "violation": said, **more})


def report_of(*verdicts: dict[str, Any], **changed: Any) -> Any:
    labels = dict.fromkeys(one["subject"] for one in verdicts)
    subjects = [subject(label, boundary=f"pkg/losses.py:{label.partition('(')[0]}") for label in labels]
    return sample(list(verdicts), **{"subjects": subjects, "could_not_bind": [], **changed})


def told(report: Any) -> list[tuple[str, list[str]]]:
    return [(one.status, one.invariants) for one in findings(report)]


def test_laws_that_one_change_breaks_on_one_result_are_one_finding() -> None:
    report = report_of(
        broken("nonfinite_isolation", "putting nan into untrainable cells changes loss", status="latent"),
        broken("mask_content", "filling untrainable cells with 3.5 changes d loss / d logp_current"),
        broken("credit_over_trainable", "tool output in a sequence changes loss"),
    )
    assert told(report) == [("bug", ["credit_over_trainable", "mask_content", "nonfinite_isolation"])]
    (finding,) = findings(report)
    assert finding.headline == "loss depends on padding or on tokens that do not train"
    assert finding.broken == ["credit_over_trainable", "mask_content", "nonfinite_isolation (latent)"]
    assert finding.needs == "a batch with padding, a prompt or tool output"
    assert found_line(report) == "areal 1.0.4: 1 bug"


def test_other_results_other_triggers_and_other_functions_are_other_findings() -> None:
    report = report_of(
        broken("mask_content", "a filling changes loss"),
        broken("mask_content", "a filling changes clipfrac", id="x"),
        broken("clip_geometry", "loss is flat outside its band"),
        broken("mask_content", "a filling changes loss", label="g"),
    )
    assert len(findings(report)) == 4


def test_option_sets_of_one_function_are_one_finding_with_all_of_them_listed() -> None:
    report = report_of(broken("split", label="f(mean=token)"), broken("split", label="f(mean=sequence)"))
    (finding,) = findings(report)
    assert finding.subjects == ["f(mean=sequence)", "f(mean=token)"]
    said = RENDERERS["text"](report, TEACHING, None)
    assert "  function  f(mean=sequence), f(mean=token) at pkg/losses.py:f" in said


def test_functions_without_a_file_are_told_apart_by_name() -> None:
    report = sample([broken("split", label="f(a=1)"), broken("split", label="f(a=2)"), broken("split", label="g")])
    assert len(findings(report)) == 2


def test_a_split_belongs_to_the_samples_that_it_separates() -> None:
    report = report_of(broken("group_isolation"), broken("split"), broken("mean_is_a_mean"))
    assert len(findings(report)) == 1


def test_a_definition_joins_a_law_only_if_its_case_can_show_what_broke_the_law() -> None:
    law = broken("sample_isolation", "changing sequences [0] changes loss of others")
    alone = broken("equals_definition", "loss differs from its definition", case=case(kinds=["pa"]))
    together = broken("equals_definition", "loss differs from its definition")
    assert len(findings(report_of(law, alone))) == 2
    assert told(report_of(law, together)) == [("bug", ["equals_definition", "sample_isolation"])]
    latent = broken("nonfinite_isolation", status="latent")
    assert len(findings(report_of(latent, together))) == 2  # a bug is not hidden behind something that is latent


def test_a_metric_that_reads_padding_is_one_finding() -> None:
    told_by = [broken("mask_content", "a filling changes kl_min"), broken("metric_truth", "kl_min is not what it says")]
    assert told(report_of(*told_by)) == [("bug", ["mask_content", "metric_truth"])]
    of_actions = broken("metric_truth", "kl_min is not what it says", case=case(kinds=["aa", "aa"]))
    assert len(findings(report_of(told_by[0], of_actions))) == 2


def test_a_consequence_is_no_finding_of_its_own() -> None:
    cause = broken("degenerate_bounded", "loss is not finite although no token is trainable", status="latent")
    after = broken("split", status="latent", consequence_of="degenerate_bounded")
    report = report_of(cause, after)
    assert told(report) == [("latent", ["degenerate_bounded", "split"])]
    assert findings(report)[0].headline == "loss is not finite where no token trains"
    del after["consequence_of"]
    assert len(findings(report_of(cause, after))) == 2


def test_a_finding_keeps_its_id_when_another_law_leads_it() -> None:
    first = report_of(broken("mask_content"), broken("credit_over_trainable", severity="low"))
    second = report_of(broken("mask_content", severity="low"), broken("credit_over_trainable"))
    assert [one.lead["invariant"] for report in (first, second) for one in findings(report)] == [
        "mask_content", "credit_over_trainable",
    ]  # fmt: skip
    assert findings(first)[0].id == findings(second)[0].id == "pkg-losses-py-f-loss-content"


def test_every_invariant_has_a_kind_of_trigger() -> None:
    ours = {name for name, one in INVARIANTS.items() if one.check.__module__.startswith("trimtab.")}
    assert {*OF_INVARIANT, "degenerate_bounded"} == ours
    assert {kind for kinds in OF_INVARIANT.values() for kind in kinds} <= set(TRIGGERS)


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("splitting 2 sequences into [1, 1] changes d loss / d advantage", "loss"),
        ("changing sequences [0] changes advantage of others", "advantage"),
        ("value explodes although rewards almost agree", "value"),
        ("loss: some tokens are not trained exactly once", "loss"),
        ("options that do nothing", ""),
        ("kl differs from its definition", "kl"),
        ("sequences twice as long multiplies loss by 0.75", "loss"),
    ],
)
def test_the_result_is_read_from_the_sentence_unless_the_report_names_it(what: str, result: str) -> None:
    one = broken("split", what)
    assert result_of(one) == result  # type: ignore[arg-type]
    one["violation"]["result"] = "named"
    assert result_of(one) == "named"  # type: ignore[arg-type]


# --- in the formats --------------------------------------------------------------------------------------------------


def test_json_lists_findings_by_cause_and_times_by_function_and_keeps_every_key() -> None:
    report = report_of(broken("mask_content"), broken("credit_over_trainable"))
    made = json.loads(RENDERERS["json"](report, TEACHING, None))
    assert set(report) <= set(made)
    (finding,) = made["findings"]
    assert finding["verdicts"] == ["f/credit_over_trainable", "f/mask_content"]
    assert finding["cause"] == "content"
    assert made["subjects"][0]["seconds"] == 0.8


def test_sarif_and_markdown_have_one_entry_per_cause() -> None:
    report = report_of(broken("mask_content"), broken("credit_over_trainable"), broken("no_aliasing", status="hygiene"))
    (run,) = json.loads(RENDERERS["sarif"](report, TEACHING, None))["runs"]
    assert [one["properties"]["invariants"] for one in run["results"]] == [
        ["credit_over_trainable", "mask_content"], ["no_aliasing"],
    ]  # fmt: skip
    assert "It breaks credit_over_trainable, mask_content." in run["results"][0]["message"]["text"]
    assert RENDERERS["markdown"](report, TEACHING, None).count("<details><summary><b>") == 2


def test_latent_findings_with_one_condition_are_told_together() -> None:
    found = [broken("nonfinite_isolation", label=name, status="latent") for name in ("f", "g", "h")]
    for one in found:
        one["violation"]["condition"] = "padding holds NaN"
    said = RENDERERS["text"](report_of(*found), TEACHING, None)
    assert said.count("padding holds NaN") == 1
    assert "3 findings, only if padding holds NaN" in said
    assert "--function f --function g --function h --invariant nonfinite_isolation" in said


def test_a_finding_is_new_if_one_of_its_verdicts_is() -> None:
    before, after = report_of(broken("mask_content")), report_of(broken("mask_content"), broken("split", label="g"))
    said = RENDERERS["text"](after, TEACHING, compare(before, after))
    assert "BUG high (known)  f: loss depends on padding" in said
    assert "BUG high (new)  g: loss depends on how the batch is split" in said


@pytest.mark.parametrize("status", ["suspect", "latent", "hygiene"])
def test_strict_fails_on_what_is_else_only_counted(status: str) -> None:
    report = report_of(verdict("f", "permutation"), broken("split", status=status))
    assert exit_code(report) == 0
    assert exit_code(report, strict=True) == 1
    assert exit_code(report, compare(report, report), strict=True) == 0
    assert exit_code(report_of(verdict("f", "permutation", "convention")), strict=True) == 0
    assert exit_code(report_of(verdict("f", "permutation", "could not run")), strict=True) == 2


# --- replay and binding ----------------------------------------------------------------------------------------------


def at(**changed: Any) -> dict[str, Any]:
    return {"name": "slime", "version": None, "commit": None, "path": None, **changed}


@pytest.mark.parametrize(
    ("changed", "command"),
    [
        ({"target": at(name="losses.py")}, "trimtab check losses.py --function f --invariant split --examples 25"),
        ({"target": at(path="/a b", commit="045"), "examples": 12},
         "trimtab check slime --path '/a b@045' --function f --invariant split"),
        ({"target": at(version="1.0", path="/cache"), "examples": 12, "seed": 7},
         "trimtab check slime --function f --invariant split --seed 7"),
        ({"target": at(version="1.0"), "examples": 12, "command": "trimtab check slime --wheel x.whl --format json"},
         "trimtab check slime --wheel x.whl --function f --invariant split"),
    ],
)  # fmt: skip
def test_the_replay_command_checks_one_function_of_the_same_target(changed: dict[str, Any], command: str) -> None:
    report = report_of(broken("split"), **changed)
    assert command_of(report, *findings(report)) == command


def test_the_replay_command_names_the_options_only_where_others_do_not_show_it() -> None:
    report = report_of(broken("split", label="f(a=1)"), verdict("f(a=2)", "split"), examples=12)
    assert "--function 'f(a=1)' " in command_of(report, *findings(report))


def test_the_place_is_the_line_of_the_function_where_it_is_known() -> None:
    bug = verdict("advantages(norm=batch)", "suppressed_votes", "bug")
    report = sample([bug])
    assert place_of(report, findings(report)[0]) == "areal/trainer/ppo/actor.py:100"
    report["boundaries"] = []
    assert place_of(report, findings(report)[0]) == ACTOR


GUESSED = (
    "guessed: role policy_loss; log_probs = logp_current [rows, width]. "
    "bind(my_loss, role='policy_loss', args={'log_probs': 'logp_current'})"
)


def test_a_guessed_binding_is_printed_with_the_lines_that_make_it_ones_own() -> None:
    guess = subject("my_loss", guessed=GUESSED)
    report = sample(
        [broken("split", label="my_loss", status="suspect")], subjects=[guess], target=at(name="a/losses.py")
    )
    assert chosen(report["subjects"][0]) == "guessed: role policy_loss; log_probs = logp_current [rows, width]"
    lines = binding_lines(report, report["subjects"][0])
    assert lines == [
        "from trimtab.sentinel import bind",
        "from losses import my_loss",
        "bound = bind(my_loss, role='policy_loss', args={'log_probs': 'logp_current'})",
    ]
    for name in ("text", "html"):
        said = RENDERERS[name](report, TEACHING, None)
        assert "role policy_loss; log_probs = logp_current [rows, width]" in said
        assert "from losses import my_loss" in said
    assert binding_lines(report, subject("f")) == []
    assert chosen(subject("f")) == ""


def test_a_binding_is_told_once_per_function() -> None:
    guess = subject("my_loss", guessed=GUESSED)
    found = [broken("split", label="my_loss", status="suspect"), broken("mask_content", label="my_loss")]
    said = RENDERERS["text"](sample(found, subjects=[guess], target=at(name="losses.py")), TEACHING, None)
    assert said.count("from losses import my_loss") == 1


def test_counts_that_change_nothing_and_a_split_that_shows_it_are_one_cause() -> None:
    counts = broken("options_live", "the counts of the whole batch change nothing in loss")
    [one] = findings(report_of(broken("split", "splitting the batch in 2 changes loss"), counts))
    assert sorted(one.invariants) == ["options_live", "split"]


def test_the_first_screen_says_what_its_words_mean_and_whether_the_update_is_touched() -> None:
    quiet = report_of(broken("metric_truth", severity="low"), broken("no_aliasing", status="hygiene"))
    assert meaning(quiet).startswith("Each function was called with small made-up batches")
    assert meaning(quiet).endswith(
        "No model was trained. A bug is wrong on ordinary batches of a run that uses the function with these options; "
        "hygiene is harmless as long as every caller is careful. "
        "The bug is in numbers that people read: no update is touched."
    )
    assert "no update is touched" not in meaning(report_of(broken("mask_content")))
    assert meaning(report_of()) == ""
    assert "no update is touched" in RENDERERS["html"](quiet, TEACHING, None)
