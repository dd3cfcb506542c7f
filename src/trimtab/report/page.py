"""The only place that lays out the page of a run: one self-contained file of questions, sentences and figures."""

from html import escape
from pathlib import Path

from trimtab.report import course, drift, facts, fault, foreign, transcript, verdict, watched, work
from trimtab.report.data import RunData, read_run
from trimtab.report.logs import read_log
from trimtab.report.section import question
from trimtab.report.style import CSS
from trimtab.report.symptom import link
from trimtab.report.symptoms import SYMPTOMS
from trimtab.report.words import percent

SHORT = {"fine": "no", "corrected": "no", "watch": "perhaps", "fault": "probably", "unknown": "not known"}
NOT_LEARNED = {"worse": "accuracy-falls", "same": "accuracy-stays"}
LEARNED = {"better": "yes", "worse": "no, it got worse", "same": "not beyond noise", "unknown": "not known"}


def write_report(folder: Path) -> Path:
    """Write `report.html` from the other files of a run folder, without network access."""
    return write_page(folder / "report.html", page(read_run(folder), folder))


def write_log_report(log: Path, framework: str, out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the page of another framework's log beside it; the page, and the same in a few sentences."""
    run = read_log(log, framework)
    path = out or log.with_name(f"{log.stem}.html")
    told = [f"Is the signal at fault? {verdict.answer(run)[1]}", *foreign.told(run)]
    return write_page(path, page(run)), told


def write_page(path: Path, text: str) -> Path:
    """Replace the page in one step, so a reader sees the old page or the new one, never half of one."""
    draft = path.with_name(f".{path.name}.draft")
    _ = draft.write_text(text, encoding="utf-8", errors="replace")
    return draft.replace(path)


def page(run: RunData, folder: Path | None = None) -> str:
    """The whole page as text. `folder` is where it will be stored, for links into a checkout."""
    return document(
        run.label,
        _head(run),
        _glance(run),
        facts.warnings(run),
        foreign.held(run),
        watched.findings(run),
        _learned(run),
        fault.is_the_signal_at_fault(run),
        fault.since_which_step(run),
        fault.which_stage(run),
        drift.agreement(run),
        drift.ratios(run),
        drift.sample_size(run),
        drift.by_position(run),
        drift.by_age(run),
        drift.staleness(run),
        work.use_of_data(run),
        question("steady", "Is training steady?", course.steady(run), course.steadiness(run)),
        work.rewards(run),
        work.time(run),
        transcript.episodes(run),
        transcript.answers(run),
        facts.recipe(run),
        facts.facts(run),
        facts.explanations(_anchors(run), folder),
    )


def document(title: str, *blocks: str) -> str:
    """A page that runs no script and loads nothing, even if a text of the run were interpreted as HTML."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{''.join(blocks)}</main>\n</body>\n</html>\n"
    )


def _learned(run: RunData) -> str:
    told = "\n".join(text for text in (course.learned(run), course.beside_twin(run)) if text)
    more = f"<p>{link(SYMPTOMS[anchor])}</p>" if (anchor := NOT_LEARNED.get(course.verdict(run))) else ""
    return question("learned", "Did it learn?", told, more, course.learning_curve(run))


def _head(run: RunData) -> str:
    started = str(run.manifest.get("started", "")).replace("T", " ").removesuffix("+00:00")
    seed = run.summary.get("seed", run.setting("seed"))
    when = f" · {escape(started)} UTC" if started else ""
    title = f"{run.label}, seed {seed}" if seed is not None else run.label
    log = foreign.log_of(run)
    command = f"report --from {log['framework']}" if log else "watch" if watched.is_watched(run) else "train"
    return (
        f'<header><p class="over">trimtab {command} · {escape(run.name)}{when}</p>'
        f'<h1>{escape(title)}</h1><p class="lead">{escape(_lead(run))}</p></header>\n'
    )


def _lead(run: RunData) -> str:
    size, last = run.result("num_parameters"), course.end(run)
    who = f"A model of {size:,.0f} parameters" if size else "The policy"
    if last is None:
        return f"{who}; its accuracy was never measured."
    seen = "prompts it has never seen" if last.split == "test" else "validation prompts"
    return f"{who} answers {percent(last.share)} of the {seen}."


def _glance(run: RunData) -> str:
    """The four questions with short answers, and the main numbers."""
    status, _ = verdict.answer(run)
    found = fault.changes(run)
    asked = [
        ("learned", "Did it learn?", LEARNED[course.verdict(run)], course.verdict(run)),
        ("signal", "Is the signal at fault?", SHORT[status], status),
        ("since", "Since which step?", f"step {found[0][2].step}" if found else fault.no_change(run), ""),
        ("stage", "Which stage?", fault.in_short(run), ""),
    ]
    links = "".join(
        f'<a class="ask {kind}" href="#{anchor}"><span>{title}</span><b>{_breakable(short)}</b></a>'
        for anchor, title, short, kind in asked
    )
    return f'<nav class="asks">{links}</nav><div class="tiles">{_tiles(run)}</div>\n'


def _breakable(name: str) -> str:
    """Allow line breaks in a name of code after dots and underscores."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _tiles(run: RunData) -> str:
    last, speed, seconds = course.end(run), run.result("tokens_per_second"), work.elapsed(run)
    tiles = [
        ("main", f"{last.share:.3f}" if last else "–", f"{last.split} accuracy" if last else "no accuracy"),
        ("", f"{run.num_steps:,}" if run.num_steps else "–", "steps"),
        ("", f"{seconds // 60:.0f}:{seconds % 60:02.0f}" if seconds else "–", "minutes in all"),
        ("", f"{speed:,.0f}" if speed else "–", "tokens per second"),
        ("", f"{len(facts.told(run))}", "warning" if len(facts.told(run)) == 1 else "warnings"),
    ]
    if watched.is_watched(run):
        tiles.append(("", f"{len(run.findings)}", "finding" if len(run.findings) == 1 else "findings"))
    return "".join(
        f'<div class="tile {kind}"><b>{escape(value)}</b><span>{text}</span></div>' for kind, value, text in tiles
    )


def _anchors(run: RunData) -> list[str]:
    """Every symptom the page links to, causes before effects."""
    judged = [check.anchor for check in verdict.checks(run) if check.status in ("watch", "fault")]
    named = [anchor for text in facts.told(run) if (anchor := facts.anchor_of(text))]
    fell = [anchor] if (anchor := NOT_LEARNED.get(course.verdict(run))) else []
    cut_off = ["interrupted"] if not run.summary else []
    return [*cut_off, *named, *judged, *fell]
