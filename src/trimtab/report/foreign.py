"""The only place that lays out what another framework's log holds, and what it does not."""

from html import escape
from typing import cast

from trimtab.report import verdict
from trimtab.report.data import Json, RunData, objects
from trimtab.report.section import question, table
from trimtab.report.words import counted

LOGGED_BY = {
    "trl": {
        "engine drift": "vllm_importance_sampling_correction=True logs sampling/sampling_logp_difference/mean",
        "kept tokens": "vllm_importance_sampling_mode=token_mask masks tokens and does not log how many",
        "entropy": "TRL logs it by itself: give a log of the trainer, not of the evaluation",
    },
    "verl": {
        "engine drift": "actor_rollout_ref.rollout.calculate_log_probs=True logs rollout_corr/kl, which is signed",
        "kept tokens": "algorithm.rollout_correction.rollout_rs logs rollout_corr/rollout_rs_masked_fraction",
    },
}
"""Which option of theirs writes what a check needs."""


def log_of(run: RunData) -> Json | None:
    """What the log of another framework held; None for a run of ours."""
    held = run.config.get("log")
    return cast(Json, held) if isinstance(held, dict) else None


def held(run: RunData) -> str:
    """Which of their names were read as what; what was left out; which checks nothing could be said about."""
    log = log_of(run)
    if log is None:
        return ""
    known = objects(log.get("known"))
    rows = [
        [
            f"<th><code>{escape(str(one['theirs']))}</code></th>",
            f"<code>{escape(str(one['ours']))}</code>",
            escape(str(one["note"])),
            f"{int(one['count']):,}",
        ]
        for one in known
    ]
    return question(
        "log", "What does this log hold?", "\n".join(told(run)),
        table((f"{log['name']} calls it", "here", "difference", "steps"), rows),
    )  # fmt: skip


def told(run: RunData) -> list[str]:
    """The same in sentences, for the page and the terminal."""
    log = log_of(run)
    if log is None:
        return []
    name, known = str(log["name"]), objects(log.get("known"))
    unknown = [str(one) for one in cast("list[object]", log.get("unknown") or [])]
    unclear = [str(one) for one in cast("list[object]", log.get("unclear") or [])]
    said = [f"{counted(len(known), 'name')} of {name} are known here and were read."]
    if unclear:
        said.append(f"Left out, because the name has two meanings in {name}: {', '.join(unclear)}.")
    if unknown:
        more = f" and {len(unknown) - 12} more" if len(unknown) > 12 else ""
        said.append(f"Left out, because the lexicon does not know them: {', '.join(unknown[:12])}{more}.")
    missing = [check.name for check in verdict.checks(run) if check.status == "unknown"]
    if missing:
        said.append(
            f"Not in the log, so nothing is said about: {', '.join(missing)}. `trimtab integrate {log['framework']}` "
            "prints the line that lets Trimtab watch the run itself; then all of it is measured."
        )
    options = LOGGED_BY[str(log["framework"])]
    said += [f"For {check}: {option}." for check, option in options.items() if check in missing]
    return said
