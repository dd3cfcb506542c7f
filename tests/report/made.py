"""Made run folders: a small generator of what a trainer writes, healthy or in a way in which runs go wrong."""

import json
import math
import random
from pathlib import Path
from typing import Any

from trimtab.config.train import TrainSettings

Line = dict[str, Any]
RECIPE = {
    "name": "start_async",
    "summary": "Start here, step 3: rollouts are stale.",
    "source": "Liu et al. 2025",
    "parts": [
        {"does": "compare answers", "formula": "normalize.mean_std", "settings": {"mean": "group"}, "how": "",
         "means": "Mean and std of a group.", "source": "Shao et al. 2024"},
        {"does": "correct", "formula": "importance.truncated", "settings": {"level": "sequence", "band": "(0.0, 2.0)"},
         "how": "ratio total", "means": "The <ratio>, truncated.", "source": "Yao et al. 2025"},
        {"does": "policy loss", "formula": "policy_loss.clipped", "settings": {"band": "(0.8, 1.2)"},
         "how": "against old", "means": "The <PPO> surrogate.", "source": "Schulman et al. 2017"},
    ],
}  # fmt: skip
EDGES = (-10.0, -3.0, -1.0, -0.3, -0.1, -0.03, -0.01, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def write_run(folder: Path, kind: str = "healthy", *, steps: int = 100, seed: int = 0, **changed: Any) -> Path:
    """A run folder of one kind: healthy, collapsing (stale), interrupted, broken_reward. `changed` replaces files."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(f"{kind} {seed}")
    metrics = [metric_line(kind, step, steps, chance) for step in range(steps)]
    accuracies = [line["eval/accuracy"] for line in metrics if "eval/accuracy" in line]
    evaluated = range(0, steps, 10)
    files: dict[str, Any] = {
        "config": config(seed) | {"recipe": RECIPE},
        "manifest": manifest(seed),
        "summary": summary(kind, steps, seed, accuracies) | changed.pop("summary_changes", {}),
        "metrics": metrics,
        "samples": [line for step in (*evaluated, steps) for line in sample_lines(step, steps)],
        "transcripts": [line for step in evaluated for line in transcript_lines(kind, step)],
        "diagnostics": [diagnostic_line(kind, step, steps) for step in evaluated],
    } | changed
    if kind == "interrupted":
        files["summary"] = None
    for name in ("config", "manifest", "summary"):
        if files[name] is not None:
            _ = (folder / f"{name}.json").write_text(json.dumps(files[name], indent=2))
    for name in ("metrics", "samples", "transcripts", "diagnostics"):
        if files[name] is not None:
            _ = (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in files[name]))
    if kind == "interrupted":  # killed in the middle of a line
        with (folder / "metrics.jsonl").open("a") as file:
            _ = file.write('{"step": 100, "rollout/reward_m')
    return folder


def progress(kind: str, step: int, steps: int) -> float:
    """How good the policy is, 0 to 1: healthy ones rise, collapsing ones rise and fall from two fifths on."""
    rise = 0.5 + 0.48 * (1 - math.exp(-4 * step / steps))
    return rise if kind != "collapsing" or step < 0.4 * steps else max(0.05, rise - 1.6 * (step / steps - 0.4))


def drifted(kind: str, step: int, steps: int) -> tuple[float, float]:
    """Mean drift per token of engine and staleness."""
    late = max(0.0, step / steps - 0.3)
    return 0.004, 0.008 + (0.6 * late if kind == "collapsing" else 0.0)


def metric_line(kind: str, step: int, steps: int, chance: random.Random) -> Line:
    good, (engine, stale) = progress(kind, step, steps), drifted(kind, step, steps)
    near = chance.uniform(0.85, 1.15)
    failed = 40 if kind == "broken_reward" else 0
    line = {
        "step": step, "version": step,
        "rollout/reward_mean": min(1.0, good + chance.gauss(0, 0.02)), "rollout/ended_fraction": 0.995,
        "rollout/tokens": 1536, "rollout/groups_refilled": 1, "rollout/groups_dropped": 0,
        "reward/ok": 256 - failed, "reward/error": failed // 2, "reward/timeout": failed // 2, "reward/abstain": 0,
        "staleness/mean": 6.2, "staleness/max": 8, "publish/lag_seconds": 0.1, "publish/lag_versions": 1,
        "buffer/groups": 64,
        "drift/engine_abs_mean": near * engine, "drift/staleness_abs_mean": near * stale,
        "drift/total_abs_mean": near * (engine + stale),
        "logratio_total/token_abs_mean": near * (engine + stale),
        "logratio_total/token_abs_max": 40 * near * (engine + stale),
        "ess_total/token": 1 / (1 + 2 * stale), "ess_total/sequence": 1 / (1 + 40 * stale**1.5) * near ** 0.1,
        "kept/token_fraction": 1.0, "effective_batch/token_fraction": max(0.15, 1 - good) * near,
        "constant_groups/group_fraction": good * 0.8,
        "importance.truncated/alone": 3 * stale, "importance.truncated/on_top": 3 * stale,
        "importance.truncated/importance_mean": 1 - stale, "importance.truncated/over_high_tokens": min(1, 2 * stale),
        "importance.truncated/under_low_tokens": 0.0, "policy_loss.clipped/clipped_tokens": 0.0,
        "entropy/token_mean": 0.05 + 0.5 * (1 - good) * near, "train/grad_norm": 0.6 * near + 3 * max(0.0, stale - 0.1),
        "train/loss": -0.01 * near, "train/lr": 2e-4, "train/updates": 1, "train/skipped_updates": 0,
        "train/nonfinite": 0,
        "time/sample_seconds": 0.12 * near, "time/learn_seconds": 0.16, "time/wait_seconds": 0.02,
        "time/eval_seconds": 0.3 if step % 10 == 0 else 0.0, "time/elapsed_seconds": 8 + 0.33 * step,
        "time/tokens_per_second": 5400 * near,
    }  # fmt: skip
    return line | ({"eval/accuracy": round(good * 512) / 512} if step % 10 == 0 else {})


def config(seed: int) -> Line:
    """Settings as a run writes them, from the real class, so that a renamed key shows up here."""
    given = {"seed": seed, "staleness": 8, "engine": {"format": "int4"}, "task": "sort", "steps": 100}
    return TrainSettings.model_validate(given).model_dump(mode="json")


def manifest(seed: int) -> Line:
    return {
        "started": "2026-01-01T00:00:00+00:00", "seed": seed, "versions": {"torch": "2.13.0"},
        "hardware": {"processor": "a & b", "cores": 2, "threads": 1},
        "dtype_pair": {"trainer": "fp32", "engine": "int4"},
    }  # fmt: skip


def summary(kind: str, steps: int, seed: int, accuracies: list[float]) -> Line:
    failed = 20 * steps if kind == "broken_reward" else 0
    end = progress(kind, steps, steps)
    return {
        "held_out_accuracy": end, "validation_accuracy": end, "start_accuracy": accuracies[0], "seconds": 48.0,
        "tokens_per_second": 5300.0, "warnings": [], "steps": steps, "seed": seed, "outcome": "finished",
        "tokens": 1536 * steps, "skipped_updates": 0, "num_parameters": 133_248, "recipe": "start_async",
        "task": "sort",
        "avg_at_k": end - 0.03, "pass_at_k": min(1.0, end + 0.02), "eval_samples": 8,
        "best_step": 10 * accuracies.index(max(accuracies)), "best_accuracy": max(accuracies),
        "reward_status": {"ok": 256 * steps - 2 * failed, "error": failed, "timeout": failed, "abstain": 0},
        "staleness": {"mean": 6.2, "max": 8}, "runtime": "inline", "format": "int4", "nonfinite": 0, "resumed": 1,
    }  # fmt: skip


def sample_lines(step: int, steps: int) -> list[Line]:
    right = step > steps // 2
    return [
        {"step": step, "prompt": f"5821{i}=", "answer": f"1258{i}" if right else f"5812{i}", "is_right": right}
        for i in range(4)
    ]


def transcript_lines(kind: str, step: int) -> list[Line]:
    """One right single-turn episode and one of two turns; a broken reward leaves no reward for the second."""
    status = "timeout" if kind == "broken_reward" else "ok"
    return [
        {"step": step, "ticket": 32 * step, "version": max(0, step - 8), "prompt": "sort 31254 =",
         "turns": [{"by": "policy", "text": "12345"}], "reward": 1.0, "status": "ok", "advantage": 0.8,
         "kept_fraction": 1.0},
        {"step": step, "ticket": 32 * step + 1, "version": max(0, step - 3), "prompt": "17 * 23 + 5 =",
         "turns": [{"by": "policy", "text": "calc(17 * 23)"}, {"by": "environment", "text": "391"},
                   {"by": "policy", "text": "395"}],
         "reward": 0.0 if status == "ok" else None, "status": status, "advantage": -0.9, "kept_fraction": 0.5},
    ]  # fmt: skip


def diagnostic_line(kind: str, step: int, steps: int) -> Line:
    engine, stale = drifted(kind, step, steps)
    scale = engine + stale
    heights = [math.exp(-abs(i - 7) * 0.03 / scale) for i in range(len(EDGES) + 1)]
    return {
        "step": step,
        "ratio_histogram": {"edges": list(EDGES), "counts": [int(9000 * h / sum(heights)) for h in heights]},
        "drift_by_position": [
            {"from": i, "to": i + 1, "abs_mean": scale * (0.6 + 0.2 * i), "tokens": 256} for i in range(6)
        ],
        "drift_by_age": [{"age": age, "abs_mean": engine + stale * age / 6, "tokens": 170} for age in range(9)],
        "staleness_histogram": [{"age": age, "tokens": 50 + 60 * age} for age in range(9)],
    }
