"""Reports are made from plain data, so plain data is all these tests need."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.sentinel.made import FINE, IDLE, TEACHING, case, crowd, sample, subject, verdict

from trimtab.errors import ConfigError
from trimtab.sentinel.reports import RENDERERS, compare, dump, evidence, exit_code, load
from trimtab.sentinel.reports import text as terminal
from trimtab.sentinel.reports.drawing import drawn, places
from trimtab.sentinel.reports.summary import found_line, ran_line, summary
from trimtab.sentinel.reports.wording import ranges, words


class Parsed(HTMLParser):
    """Checks that elements nest; collects names, links, text, and what a browser would fetch or run."""

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.cells: dict[str, str] = {}
        self.said = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.open += [] if tag in self.VOID else [tag]
        self.ids += [str(found["id"])] if "id" in found else []
        if tag == "a":
            self.links.append(str(found["href"]))
            self.cells |= {str(found["href"]): str(found["class"])} if "class" in found else {}
        elif tag in ("script", "iframe", "object") or "src" in found or "href" in found:
            self.fetched.append(str(found.get("src") or found.get("href") or tag))
        assert not any(name.startswith("on") for name in found)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


# --- storing ---------------------------------------------------------------------------------------------------------


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    _ = path.write_text(dump(sample()), encoding="utf-8")
    back = load(path)
    assert dump(back) == dump(sample())
    assert dump(back).endswith("}\n")
    assert back["verdicts"][3]["violation"]["observed"][19] == "nan"  # type: ignore[index]
    assert back["verdicts"][3]["case"]["fill"] == "nan"  # type: ignore[index]


def test_json_is_sorted_and_has_no_word_that_json_lacks() -> None:
    report = sample()
    text = dump(dict(reversed(report.items())))  # type: ignore[arg-type]
    assert text == dump(report)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "its kind is None"),
        ('{"kind": "trimtab_run"}', "its kind is 'trimtab_run', not 'trimtab_check'"),
        (dump(sample(version=2)), "its version is 2; this trimtab reads version 1"),
        (dump(sample([verdict("f", "split", "perhaps")])), r"verdicts\.0\.status: Input should be 'holds'"),
        (dump({k: v for k, v in sample().items() if k != "subjects"}), "subjects: Field required"),  # type: ignore[arg-type]
    ],
)
def test_foreign_and_damaged_files_are_refused_with_the_place(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "check.json"
    _ = path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read"):
        load(tmp_path / "none.json")


# --- words -----------------------------------------------------------------------------------------------------------


def test_executed_lines_become_ranges_that_only_missed_lines_break() -> None:
    assert ranges([100, 102, 103, 107, 109], [105]) == "100–103, 107–109"
    assert ranges([], [3]) == "none"


def test_long_lists_are_shortened_and_keep_what_differs() -> None:
    assert words(list(range(30))) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … 18 more]"
    assert words([0.0] * 29 + [float("inf")], [29]) == "[at 29: inf, … 29 more]"
    assert words({"rank 0": [0.5, "nan"], "ok": True}) == "{rank 0: [0.5, nan], ok: true}"
    assert len(words("x" * 10_000)) < 500
    assert words([-0.0, -1.0]) == "[0, -1]"


def test_the_summary_counts_findings_checks_functions_and_cases() -> None:
    many = [verdict("advantages(norm=batch)", f"i{i}") for i in range(4)] + [verdict("ppo_loss", "i0", "bug")]
    assert summary(sample(many, could_not_bind=[])) == (
        "areal 1.0.4: 1 bug; 2 functions held to 4 invariants: 4 checks hold, 1 finds something "
        "(150 cases, seed 0, 41.2 s)"
    )
    at = {"name": "slime", "version": None, "commit": "045310b2b1234", "path": None}
    assert summary(sample([], target=at)).startswith(
        "slime at 045310b2b: no bugs, 1 could not be bound; no functions held to no invariants: no checks hold"
    )


def test_the_summary_counts_a_function_once_and_only_when_it_was_checked() -> None:
    verdicts = [verdict("gae(lam=0)", "split"), verdict("gae(lam=1)", "split"), IDLE | {"subject": "ppo_loss"}]
    subjects = [subject(label) for label in ("gae(lam=0)", "gae(lam=1)", "ppo_loss")]
    said = summary(sample(verdicts, subjects=subjects))
    assert "1 function (2 with their options) held to 1 invariant: 2 checks hold, 1 does not apply (60 cases" in said


def test_a_case_is_drawn_with_the_fields_that_matter() -> None:
    drawing = drawn(case())  # type: ignore[arg-type]
    assert drawing.per_sequence == {"reward": ["1", "100"], "ended": ["true", "false"]}
    assert drawing.per_token == {"logp_old": [["-1", "-0.5"], ["-1", "-0.25", "-2"]]}
    assert drawing.everywhere == {"logp_ref": "-0.125"}
    groups = case(sequences={"group": [0, 1], "reward": [0.0, 0.0]})
    assert drawn(groups).per_sequence == {"group": ["0", "1"]}  # type: ignore[arg-type]
    assert drawn(case(side="left", extra_columns=2, fill="nan")).padding == (  # type: ignore[arg-type]
        "padding: on the left, 2 more columns, filled with nan"
    )


def test_positions_that_differ_are_marked_as_reported_or_as_seen() -> None:
    said = {"what": "", "observed": [1.0, "nan", 2.0], "expected": [1.0, "nan", 3.0], "positions": [], "effect": None}
    assert [place.differs for place in places(said)] == [False, False, True]  # type: ignore[arg-type]
    assert [place.differs for place in places({**said, "positions": [0]})] == [True, False, False]  # type: ignore[typeddict-item]
    assert places({**said, "expected": "finite"}) == []  # type: ignore[typeddict-item]
    assert [place.expected for place in places({**said, "expected": 0.0})] == ["0", "0", "0"]  # type: ignore[typeddict-item]


# --- text and Markdown -----------------------------------------------------------------------------------------------


def test_text_begins_with_what_ran_and_ends_with_the_worst_bug_and_the_summary() -> None:
    said = RENDERERS["text"](sample(), TEACHING, None)
    order = ["conventions: 1 check on 1 function\n", "waived: 1 check", "does not apply: 1 check", "COULD NOT BIND",
             "COULD NOT RUN", "HYGIENE (1)", "BUG medium  ppo_loss", "BUG high  advantages"]  # fmt: skip
    places = [said.index(word) for word in order]
    assert places == sorted(places)
    assert "\033" not in said
    assert said.splitlines()[0] == ran_line(sample())
    assert (
        said.splitlines()[-1]
        == found_line(sample())
        == ("areal 1.0.4: 2 bugs, 1 hygiene, 1 convention, 1 could not run, 1 could not be bound")
    )


def test_details_of_what_needs_nobody_are_counted_and_listed_on_request() -> None:
    quiet = RENDERERS["text"](sample(), TEACHING, None)
    loud = terminal.render(sample(), TEACHING, verbose=True)
    told = ["nothing of the kind to look at", "takes no rewards", "lines 100–143 of 100–180", "last value bootstraps",
            "stubs: ray, transformers; used while running: ray", "advantages(norm=batch) · 1.2 s"]  # fmt: skip
    assert [word in quiet for word in told] == [False] * len(told)
    assert [word in loud for word in told] == [True] * len(told)
    assert "--verbose lists them" in quiet
    assert "--verbose lists them" not in loud


def test_severity_goes_before_the_size_of_the_effect() -> None:
    huge, grave = verdict("a", "split", "bug", severity="low"), verdict("b", "split", "bug", severity="high")
    grave["violation"]["effect"]["relative_change"] = 0.01
    said = RENDERERS["text"](sample([huge, grave]), TEACHING, None)
    assert said.index("BUG low  a") < said.index("BUG high  b")


def test_text_draws_the_smallest_case_as_a_table() -> None:
    said = RENDERERS["text"](sample(), TEACHING, None)
    table = """
            row   tokens   reward   ended   logp_old
            0     p a      1        true       -1  -0.5
            1     p a a    100      false      -1 -0.25    -2
"""
    assert table in said
    assert "  more      trimtab explain suppressed_votes" in said
    assert "  repair    Take suppressed rows out" in said


def test_text_of_wide_cases_stays_inside_the_terminal() -> None:
    kinds = ["p" + "a" * 30] * 3
    fields = {f"field_number_{i}": [-0.123456 * (t + i) for t in range(93)] for i in range(6)}
    wide = verdict("f", "split", "bug", case=case(kinds=kinds, tokens=fields, sequences={"group": [0, 0, 0]}))
    lines = RENDERERS["text"](sample([wide], could_not_bind=[]), TEACHING, None).splitlines()
    assert max(len(line) for line in lines if line.startswith(" ")) <= evidence.WIDTH + 2
    assert sum("field_number_" in line for line in lines) >= 3
    assert any("more" in line for line in lines)


def test_text_is_coloured_only_on_request_and_never_by_the_target() -> None:
    hostile = verdict("f\033[2J", "split", "bug", reason="\x07")
    assert "\033" not in RENDERERS["text"](sample([hostile]), TEACHING, None)
    assert "\033[1;31mBUG" in terminal.render(sample(), TEACHING, colour=True)


def test_markdown_has_a_fold_for_each_finding_and_lets_no_foreign_text_act() -> None:
    hostile = verdict("f`</details>", "split", "bug")
    hostile["violation"]["what"] = "ping @someone <img src=x> [a](http://b) ```"
    said = RENDERERS["markdown"](sample([hostile, *sample()["verdicts"]]), TEACHING, None)
    lines = said.splitlines()
    assert sum(line.startswith("<details>") for line in lines) == lines.count("</details>") == 4 + 6
    assert "@someone" not in said
    assert "<img" not in said
    assert not re.search(r"(?<!\\)\]\(", said)
    assert "row   tokens   reward   ended   logp_old" in said


def test_markdown_fits_into_a_comment() -> None:
    said = RENDERERS["markdown"](crowd(), TEACHING, None)
    assert len(said) < 65_536
    assert re.search(r"… \d+ more findings are in the full report", said)
    assert said.count("<details>") == said.count("</details>")


# --- page ------------------------------------------------------------------------------------------------------------


def test_page_nests_fetches_nothing_and_every_link_arrives() -> None:
    for report in (sample(), sample([]), crowd(200)):
        parsed = Parsed(RENDERERS["html"](report, TEACHING, compare(report, report)))
        assert not parsed.open
        assert parsed.fetched == ["data:,"]
        assert len(parsed.ids) == len(set(parsed.ids))
        assert {link.removeprefix("#") for link in parsed.links} <= set(parsed.ids)


def test_a_finding_has_the_same_place_on_every_page_and_no_two_share_one() -> None:
    twice = [verdict("gae", "split", "bug"), verdict("gae", "other", "bug", id="gae/split")]
    found = Parsed(RENDERERS["html"](sample([FINE, *twice]), TEACHING, None)).ids
    assert "f-gae-split" in found
    assert len(found) == len(set(found))
    assert "f-gae-split" in Parsed(RENDERERS["html"](sample(twice[:1]), TEACHING, None)).ids


def test_page_has_a_lettered_cell_for_every_verdict() -> None:
    page = RENDERERS["html"](sample(), TEACHING, None)
    parsed = Parsed(page)
    assert len(parsed.cells) == len(sample()["verdicts"])
    letters = re.findall(r'<a class="cell [^>]*>(.)</a>', page)
    assert sorted(letters) == sorted("B✓HB✓WC–!")


def test_page_begins_with_the_verdict_and_the_findings_and_folds_the_rest() -> None:
    page = RENDERERS["html"](sample(), TEACHING, None)
    order = ["2 bugs, 1 hygiene", 'id="findings"', 'class="card bug" open', "trimtab check areal --function",
             'class="card hygiene">', '<details class="fold">', 'id="matrix"']  # fmt: skip
    assert [page.index(word) for word in order[:5]] == sorted(page.index(word) for word in order[:5])
    assert page.index(order[4]) < page.index(order[6]) < page.index(order[5])
    after = page[page.index('id="matrix"') :]
    assert " open>" not in after
    assert after.count("<section") == after.count('<details class="fold">') - 1


def test_page_escapes_whatever_the_target_says() -> None:
    evil = "<script>alert('x')</script>\" onload=\"x"
    hostile = verdict(evil, evil, "bug", id=evil, reason=evil)
    hostile["violation"] |= {"what": evil, "observed": {evil: evil}, "expected": evil}
    hostile["case"] = case(kinds=["<p"], tokens={evil: [1, 2]}, sequences={evil: [evil], "group": [0]})
    report = sample([hostile], subjects=[subject(evil, options={evil: evil}, conventions={evil: evil}, boundary=evil)])
    report |= {"command": evil, "could_not_bind": [{"subject": evil, "looked_for": evil, "reason": evil}]}
    report["target"] = {"name": evil, "version": evil, "commit": evil, "path": evil}
    parsed = Parsed(RENDERERS["html"](report, {evil: dict.fromkeys(("statement", "why", "bug", "repair"), evil)}, None))
    assert not parsed.open
    assert parsed.fetched == ["data:,"]
    assert evil in parsed.said


def test_page_marks_the_positions_that_differ_and_teaches() -> None:
    page = RENDERERS["html"](sample(), TEACHING, None)
    assert '<td class="apart">-49.5</td><td>0</td><td>0</td>' in page
    said = Parsed(page).said
    for text in (TEACHING["suppressed_votes"]["bug"], "lines that ran: 100–143 of 100–180", "used while running: ray"):
        assert text in said


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_page_of_two_thousand_verdicts_stays_below_two_megabytes(every: int) -> None:
    assert len(RENDERERS["html"](crowd(every=every), TEACHING, None).encode()) < 2_000_000


# --- SARIF and JUnit -------------------------------------------------------------------------------------------------


def test_sarif_has_a_result_for_each_finding_with_its_rule_place_and_fingerprint() -> None:
    log = json.loads(RENDERERS["sarif"](sample(), TEACHING, None))
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0"
    assert [result["level"] for result in run["results"]] == ["error", "error", "note"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
    first = run["results"][0]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "areal/trainer/ppo/actor.py"
    assert place["region"] == {"startLine": 100}
    assert first["fingerprints"] == {"trimtabFinding/v1": "advantages(norm=batch)/suppressed_votes"}
    assert "Take suppressed rows out" in rules[first["ruleIndex"]]["help"]["text"]
    assert "physicalLocation" not in run["results"][1]["locations"][0]


def test_sarif_says_what_could_not_be_checked() -> None:
    (run,) = json.loads(RENDERERS["sarif"](sample(), TEACHING, None))["runs"]
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    told = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert told[0] == "could not run no_aliasing on gae: RuntimeError: expected 3 arguments"
    assert "areal/utils/kl.py:kl_in_reward" in told[1]


def test_sarif_messages_hold_no_placeholders_and_no_links() -> None:
    odd = verdict("f", "split", "bug")
    odd["violation"] |= {"what": "see [this](http://x)", "observed": {"0": 1}}
    (run,) = json.loads(RENDERERS["sarif"](sample([odd]), TEACHING, None))["runs"]
    assert not re.search(r"[{}]|\]\(", run["results"][0]["message"]["text"])


def test_junit_has_a_suite_for_each_function_and_counts_what_did_not_pass() -> None:
    root = ElementTree.fromstring(RENDERERS["junit"](sample(), TEACHING, None))
    assert [suite.get("name") for suite in root] == ["advantages(norm=batch)", "ppo_loss", "gae", "kl_reward"]
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "10", "failures": "2", "errors": "2", "skipped": "2",
    }  # fmt: skip
    assert [one.get("message") for one in root.iter("skipped")] == [
        "waived: takes no rewards",
        "could not exercise: nothing of the kind to look at",
    ]
    assert [one.get("type") for one in root.iter("error")] == ["could not run", "could not bind"]
    assert "row   tokens" in str(next(root.iter("failure")).text)


def test_junit_survives_characters_that_xml_lacks() -> None:
    odd = verdict("f\x00\x1b", "split", "could not run", reason="bad \x08 byte \ud800 & <tag>")
    root = ElementTree.fromstring(RENDERERS["junit"](sample([odd]), TEACHING, None))
    assert next(root.iter("error")).get("message") == "bad byte & <tag>"


# --- comparing and exit codes ----------------------------------------------------------------------------------------


def test_a_finding_is_fixed_only_when_its_check_ran_and_found_nothing() -> None:
    names = ["holds", "waived", "idle", "crashed", "other", "absent", "still"]
    before = sample([verdict("ppo_loss", name, "bug") for name in names])
    after = sample([
        verdict("ppo_loss", "holds"),
        verdict("ppo_loss", "waived", "waived", reason="on purpose"),
        verdict("ppo_loss", "idle", "could not exercise", reason="too few cases"),
        verdict("ppo_loss", "crashed", "could not run", reason="TypeError: f"),
        verdict("ppo_loss", "other", "bug", id="another"),
        verdict("ppo_loss", "still", "bug"),
    ])  # fmt: skip
    found = compare(before, after)
    assert [v["invariant"] for v in found.fixed] == ["holds"]
    assert [v["id"] for v in found.new] == ["another"]
    assert [v["invariant"] for v in found.still] == ["still"]
    assert {one.verdict["invariant"]: one.reason for one in found.gone_unchecked} == {
        "waived": "waived: on purpose",
        "idle": "could not exercise: too few cases",
        "crashed": "could not run: TypeError: f",
        "other": "the check now stops at another finding, which may hide this one",
        "absent": "the invariant was not run on this function",
    }


def test_a_function_that_went_away_is_not_fixed() -> None:
    before = sample([verdict("kl_reward(x=1)", "split", "bug"), verdict("gone", "split", "hygiene")])
    reasons = [one.reason for one in compare(before, sample([])).gone_unchecked]
    assert reasons == ["could not bind: no such file", "the function is not in this report"]


def test_hygiene_that_became_a_bug_is_new_and_less_search_is_said() -> None:
    before, after = sample([verdict("gae", "split", "hygiene")], examples=100), sample([verdict("gae", "split", "bug")])
    found = compare(before, after)
    assert (len(found.new), len(found.still)) == (1, 0)
    assert found.remark.startswith("the baseline tried 100 examples per check and this run only 25")


def test_reports_of_two_targets_are_not_compared() -> None:
    other = sample(target={"name": "slime", "version": None, "commit": None, "path": None})
    with pytest.raises(ConfigError, match="the baseline is a report on 'slime', and this one is on 'areal'"):
        compare(other, sample())


def test_every_format_takes_a_comparison_and_people_see_it() -> None:
    before = sample([verdict("ppo_loss", "mask_content", "bug"), verdict("ppo_loss", "no_aliasing", "bug")])
    found = compare(before, sample())
    line = "against the baseline: 2 new, 1 fixed, 1 still there, 0 not checked any more"
    made = {name: render(sample(), TEACHING, found) for name, render in RENDERERS.items()}
    assert line in made["text"]
    assert "BUG high (new)" in made["text"]
    assert line[1:] in made["markdown"]
    assert line[1:] in made["html"]
    assert json.loads(made["json"])["comparison"]["fixed"] == ["ppo_loss/no_aliasing"]
    states = [result["baselineState"] for result in json.loads(made["sarif"])["runs"][0]["results"]]
    assert states == ["new", "unchanged", "new"]
    assert 'message="known in the baseline: putting' in made["junit"]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([FINE], 0),
        ([FINE, verdict("gae", "split", "bug")], 1),
        ([FINE, verdict("gae", "split", "hygiene"), verdict("gae", "x", "convention")], 0),
        ([FINE, IDLE], 0),
        ([IDLE], 2),
        ([FINE, {**IDLE, "subject": "ppo_loss"}], 2),
        ([FINE, verdict("gae", "split", "could not run")], 2),
        ([FINE, verdict("ppo_loss", "split", "waived", reason="why")], 0),
        ([verdict("gae", "split", "waived", reason="why")], 2),
        ([], 2),
        ([verdict("gae", "split", "bug"), verdict("gae", "x", "could not run")], 1),
    ],
)
def test_exit_codes(verdicts: list[dict[str, Any]], expected: int) -> None:
    assert exit_code(sample(verdicts, could_not_bind=[])) == expected


def test_a_function_that_could_not_be_bound_is_exit_code_2() -> None:
    assert exit_code(sample([FINE])) == 2


def test_with_a_baseline_only_new_bugs_count() -> None:
    known = sample([FINE, verdict("gae", "split", "bug")], could_not_bind=[])
    assert exit_code(known, compare(copy.deepcopy(known), known)) == 0
    assert exit_code(known, compare(sample([FINE], could_not_bind=[]), known)) == 1
