"""Reports as plain data, made by hand, for the tests of reports."""

from typing import Any

ACTOR = "areal/trainer/ppo/actor.py:PPOActor._compute_advantages"
TEACHING = {
    "suppressed_votes": {
        "statement": "A sample suppressed before advantages exist moves nobody.",
        "why": "A cut-off answer's reward says nothing about the answers that ended.",
        "bug": "AReaL #1351: rows without EOS entered the statistics of reward normalisation.",
        "repair": "Take suppressed rows out of mean and std, and set their reward to 0 afterwards.",
    },
    "mask_content": {
        "statement": "Values at padded positions change no result & no gradient.",
        "why": "What stands there is an accident of the batch.",
        "bug": "SkyRL #1305.",
        "repair": "Gather the trainable tokens first; never x * mask where x < inf is not known.",
    },
    "no_aliasing": {
        "statement": "A call leaves its inputs as they were.",
        "why": "What is logged afterwards is read from the same tensors.",
        "bug": "slime #2114.",
        "repair": "Build results out of place.",
    },
}


def case(**changed: Any) -> dict[str, Any]:
    """Two answers to one prompt; the second filled its row without an end."""
    return {
        "kinds": ["pa", "paa"],
        "tokens": {"logp_old": [-1.0, -0.5, -1.0, -0.25, -2.0], "value": [0.0] * 5, "logp_ref": [-0.125] * 5,
                   "token_key": [0, 1, 2, 3, 4]},
        "sequences": {"reward": [1.0, 100.0], "ended": [True, False], "group": [0, 0], "length": [2.0, 3.0]},
        "fill": 0.0, "side": "right", "extra_columns": 0, **changed,
    }  # fmt: skip


def verdict(subject: str, invariant: str, status: str = "holds", **changed: Any) -> dict[str, Any]:
    found = status in ("bug", "hygiene", "convention")
    violation = {
        "what": "changing the reward of a suppressed row moves another row's advantage",
        "observed": [-49.5, 0.0, 0.0], "expected": [0.0, 0.0, 0.0], "positions": [0],
        "effect": {"on": "value", "leaked_positions": [0], "relative_change": "inf"},
    }  # fmt: skip
    return {
        "id": f"{subject}/{invariant}", "subject": subject, "invariant": invariant, "status": status,
        "exercised": 30 if status in ("holds", "bug", "hygiene", "convention") else 0, "seconds": 0.4, "reason": "",
        "severity": "high" if status == "bug" else "none", "violation": violation if found else None,
        "case": case() if found else None, **changed,
    }  # fmt: skip


def subject(label: str, **changed: Any) -> dict[str, Any]:
    return {"label": label, "name": label.partition("(")[0], "role": "policy_loss", "boundary": None, "options": {},
            "conventions": {}, "waived": {}, **changed}  # fmt: skip


IDLE = verdict("gae", "split", "could not exercise", reason="too few cases")
FINE = verdict("gae", "mask_content")


def sample(verdicts: list[dict[str, Any]] | None = None, **changed: Any) -> Any:
    """A report of areal 1.0.4 with one of everything."""
    advantages, loss, gae = "advantages(norm=batch)", "ppo_loss", "gae"
    default = [
        verdict(advantages, "suppressed_votes", "bug"),
        verdict(advantages, "mask_content"),
        verdict(advantages, "no_aliasing", "hygiene", severity="low",
                violation={"what": "the call wrote to its input rewards", "observed": [0.5], "expected": [1.0],
                           "positions": [],
                           "effect": {"on": "metric", "leaked_positions": [], "relative_change": None}}),
        verdict(loss, "mask_content", "bug", severity="medium", case=case(fill=float("nan"), extra_columns=2),
                violation={"what": "putting <nan> into untrainable cells changes d loss / d logp_current",
                           "observed": [0.0] * 19 + [float("nan")], "expected": [0.0] * 20, "positions": [19],
                           "effect": {"on": "gradient", "leaked_positions": [19], "relative_change": 0.25}}),
        verdict(loss, "no_aliasing"),
        verdict(loss, "suppressed_votes", "waived", reason="takes no rewards"),
        verdict(gae, "mask_content", "convention", reason="",
                violation={"what": "the last value bootstraps", "observed": 1.0, "expected": 0.0, "positions": [],
                           "effect": None}),
        verdict(gae, "suppressed_votes", "could not exercise", reason="nothing of the kind to look at"),
        verdict(gae, "no_aliasing", "could not run", reason="RuntimeError: expected 3 arguments"),
    ]  # fmt: skip
    boundary = {"boundary": ACTOR, "how": "stubs", "stubs": ["ray", "transformers"], "stubs_used": ["ray"],
                "first_line": 100, "last_line": 180, "executed": [100, 102, 103, 143], "missed": [150]}  # fmt: skip
    report = {
        "kind": "trimtab_check", "version": 1,
        "target": {"name": "areal", "version": "1.0.4", "commit": None, "path": None},
        "trimtab": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "seed": 0, "examples": 25,
        "command": "trimtab check areal --seed 0", "seconds": 41.2, "boundaries": [boundary],
        "subjects": [
            subject(advantages, boundary=ACTOR, role="group_advantage", options={"norm": "batch"},
                    conventions={"ddof": 1, "denominator": "token_mean"}),
            subject(loss, waived={"suppressed_votes": "takes no rewards"}),
            subject(gae),
        ],
        "could_not_bind": [
            {"subject": "kl_reward", "looked_for": "areal/utils/kl.py:kl_in_reward", "reason": "no such file"},
        ],
        "verdicts": default if verdicts is None else verdicts,
    }  # fmt: skip
    return {**report, **changed}


def crowd(count: int = 2000, invariants: int = 40, every: int = 10) -> Any:
    """A large report: every tenth check finds something."""
    verdicts = [
        verdict(
            f"function_{i // invariants}(option=value)", f"invariant_{i % invariants}", "holds" if i % every else "bug"
        )
        for i in range(count)
    ]
    labels = sorted({v["subject"] for v in verdicts})
    return sample(verdicts, subjects=[subject(label, boundary=f"{ACTOR}_{label}") for label in labels])
