"""The only place that lays out a run's page: one self-contained file, a question, a sentence and a figure at a time."""

import json
from html import escape
from pathlib import Path
from typing import Any

from trimtab.report import figure, sentence
from trimtab.report.data import RunData, read_run
from trimtab.report.style import CSS

SHARE_ROLES = ("first", "second", "faint")


def write_report(folder: Path) -> Path:
    """Make `report.html` from the other files of a run folder; it asks nothing of the network."""
    path = folder / "report.html"
    draft = folder / ".report.html.draft"
    _ = draft.write_text(page(read_run(folder)), encoding="utf-8")
    return draft.replace(path)


def page(run: RunData) -> str:
    """The whole page as text."""
    title = f"{run.summary['task']} · {run.summary['recipe']} · seed {run.summary['seed']}"
    blocks = [
        _head(run),
        _tiles(run),
        _warnings(run),
        _question("Did it learn?", sentence.learned(run), figure.learning_curve(run)),
        _agreement(run),
        _use(run),
        _steadiness(run),
        _question("Where did the time go?", sentence.timed(run), _time_bar(run)),
        _answers(run),
        _recipe(run),
        _facts(run),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{''.join(blocks)}</main>\n</body>\n</html>\n"
    )


def _head(run: RunData) -> str:
    summary = run.summary
    gained = float(summary["held_out_accuracy"])
    started = str(run.manifest.get("started", "")).replace("T", " ").removesuffix("+00:00")
    return (
        f'<header><p class="over">trimtab train · {escape(started)} UTC</p>'
        f"<h1>Task {escape(str(summary['task']))}, recipe {escape(str(summary['recipe']))}, seed {summary['seed']}</h1>"
        f'<p class="lead">A model of {int(summary["num_parameters"]):,} parameters answers {sentence.percent(gained)} '
        "of the prompts it has never seen.</p></header>\n"
    )


def _tiles(run: RunData) -> str:
    summary = run.summary
    tiles = [
        ("main", f"{float(summary['held_out_accuracy']):.3f}", "held-out accuracy"),
        ("", f"{summary['steps']}", "steps"),
        ("", f"{float(summary['seconds']):.1f} s", "in all"),
        ("", f"{float(summary['tokens_per_second']):,.0f}", "tokens a second"),
        ("", f"{len(summary['warnings'])}", "warning" if len(summary["warnings"]) == 1 else "warnings"),
    ]
    cells = "".join(f'<div class="tile {kind}"><b>{value}</b><span>{text}</span></div>' for kind, value, text in tiles)
    return f'<div class="tiles">{cells}</div>\n'


def _warnings(run: RunData) -> str:
    if not run.summary["warnings"]:
        return ""
    items = "".join(f"<li>{escape(str(text))}</li>" for text in run.summary["warnings"])
    return f'<section class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>\n'


def _question(title: str, said: str, drawing: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(said)}</p>{drawing}</section>\n"


def _agreement(run: RunData) -> str:
    measured = run.gap("mean")
    return _question("Do sampler and trainer agree?", sentence.agreed(run), figure.agreement(run) if measured else "")


def _use(run: RunData) -> str:
    """Kept, clipped and effective shares; a share that never moves is said, not drawn."""
    kept, effective = run.series("kept/token_fraction"), run.series("effective_batch/token_fraction")
    clipped = {name.removesuffix("/clipped_tokens"): run.series(name) for name in run.names("/clipped_tokens")}
    if not kept and not clipped and not effective:
        return ""
    said = " ".join(text for text in (sentence.used(run), sentence.rejected(run, kept, clipped)) if text)
    lines = [("tokens with a gradient", "third", effective), ("tokens kept by corrections", "first", kept)]
    lines += [(f"tokens clipped by {name}", "second", series) for name, series in clipped.items()]
    moving = [line for line in lines if not line[2].is_constant]
    return _question("How much of the data was used?", said, figure.use_of_data(moving) if moving else "")


def _steadiness(run: RunData) -> str:
    if not run.series("entropy/token_mean") or not run.series("train/grad_norm"):
        return ""
    return _question("Is training steady?", sentence.settled(run), figure.steadiness(run))


def _time_bar(run: RunData) -> str:
    shares = sentence.spent(run)
    bar = "".join(
        f'<i style="flex: {share:.4f}; background: var(--{role})"></i>'
        for role, share in zip(SHARE_ROLES, shares.values(), strict=True)
    )
    names = [
        (role, f"{name} {sentence.percent(share)}")
        for role, (name, share) in zip(SHARE_ROLES, shares.items(), strict=True)
    ]
    return f'<div class="bar">{bar}</div>{figure.key(names)}'


def _answers(run: RunData) -> str:
    """The same held-out prompts, answered at the first evaluation and at the last one that asked them."""
    if not run.samples:
        return ""
    first = {str(sample["prompt"]): sample for sample in reversed(run.samples)}
    last = {str(sample["prompt"]): sample for sample in run.samples}
    start = int(run.samples[0]["step"])
    prompts = [str(sample["prompt"]) for sample in run.samples if int(sample["step"]) == start]
    end = int(last[prompts[0]]["step"])
    rows = "".join(
        f'<tr><td class="code">{escape(prompt)}</td>{_answer(first[prompt])}{_answer(last[prompt])}</tr>'
        for prompt in prompts
    )
    said = f"Greedy answers to {len(prompts)} validation prompts, those first that it got wrong after the warm start."
    top = f"<tr><th>prompt</th><th>step {start}</th><th>step {end}</th></tr>"
    return _question("What does it write?", said, f'<div class="scroll"><table>{top}{rows}</table></div>')


def _answer(sample: dict[str, Any]) -> str:
    kind, sign = ("right", "✓") if sample["is_right"] else ("wrong", "✗")
    return f'<td class="code {kind}">{escape(str(sample["answer"]))} {sign}</td>'


def _recipe(run: RunData) -> str:
    recipe = run.config["recipe"]
    rows = "".join(
        f"<tr><th>{escape(part['does'])}</th><td><code>{escape(part['formula'])}</code>{_settings(part)}"
        f"<small>{escape(part['means'])}</small></td><td><small>{escape(part['source'])}</small></td></tr>"
        for part in recipe.get("parts", [])
    )
    said = str(recipe.get("summary", "")) + (f" Source: {recipe['source']}." if recipe.get("source") else "")
    return _question(f"What is {recipe['name']}?", said, f'<div class="scroll"><table>{rows}</table></div>')


def _settings(part: dict[str, Any]) -> str:
    pairs = [f"{name} = {value}" for name, value in part["settings"].items()]
    if part["how"]:
        pairs.append(str(part["how"]))
    return f" · {escape(', '.join(pairs))}" if pairs else ""


def _facts(run: RunData) -> str:
    """Everything else, folded away: the numbers, the settings, the machine."""
    hardware, pair = run.manifest.get("hardware", {}), run.manifest.get("dtype_pair", {})
    machine = f"{hardware.get('processor', '')}, {hardware.get('threads', '')} of {hardware.get('cores', '')} cores"
    said = f"{machine}; trainer {pair.get('trainer', '')}, sampler {pair.get('engine', '')}."
    folded = "".join(
        f"<details><summary>{name}</summary><pre>{escape(json.dumps(content, indent=2))}</pre></details>"
        for name, content in (
            ("summary.json", run.summary),
            ("config.json", run.config),
            ("manifest.json", run.manifest),
        )
    )
    return _question("How can it be repeated?", said, folded)
