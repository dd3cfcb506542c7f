"""Micro-batches made by hand for the watch: a healthy one, and the same with one fault in it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.watch import Watch

GROUPS, SIZE, WIDTH, VOCAB = 8, 8, 12, 40
ROWS = GROUPS * SIZE
NORMALIZE = {"mean": "group", "std": "group", "ddof": 1, "eps": 1e-4}


def fields(seed: int = 0, *, shift: int = 0, temperature: float = 1.0, noise: float = 1e-6) -> dict[str, Any]:
    """What a trainer holds of one batch: sampled tokens, their log-probs, rewards and advantages."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(ROWS, WIDTH, VOCAB, generator=draw)
    logp = logits.log_softmax(-1)
    ids = torch.multinomial(logp.exp().view(-1, VOCAB), 1, generator=draw).view(ROWS, WIDTH)
    lengths = torch.randint(4, WIDTH + 1, (ROWS, 1), generator=draw)
    old = logp.gather(-1, ids[..., None])[..., 0]
    rollout = (logits / temperature).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    rollout = (rollout + noise * torch.randn(ROWS, WIDTH, generator=draw)).clamp(max=0).roll(shift, 1)
    reward = torch.randint(0, 4, (ROWS,), generator=draw).double()
    group = torch.arange(ROWS) // SIZE
    grouped = reward.view(GROUPS, SIZE)
    spread = grouped.std(1).repeat_interleave(SIZE)
    advantage = (reward - grouped.mean(1).repeat_interleave(SIZE)) / (spread + 1e-4)
    return {
        "mask": torch.arange(WIDTH) < lengths, "ids": ids, "logp_old": old, "logp_rollout": rollout,
        "entropy": -(logp.exp() * logp).sum(-1), "reward": reward, "group": group, "spread": spread,
        "advantage": advantage.float(), "row": torch.arange(ROWS),
    }  # fmt: skip


def play(watch: Watch, held: dict[str, Any], *, parts: int = 1, factor: float = 1.0, **facts: Any) -> None:
    """One optimiser step on a batch, cut into parts; the loss is the token mean, times a factor."""
    watch.batch(
        reward=held["reward"], group=held["group"], row=held["row"], advantage=held["advantage"], normalize=NORMALIZE
    )
    tokens = float(held["mask"].sum())
    for rows in torch.arange(ROWS).chunk(parts):
        micro(watch, held, rows, tokens, factor, {"accumulation": parts, **facts})
    watch.step()


def micro(
    watch: Watch, held: dict[str, Any], rows: Tensor, tokens: float, factor: float, facts: dict[str, Any]
) -> None:
    current = held.get("logp_current", held["logp_old"] + 1e-7)[rows].clone().requires_grad_()
    named = {name: held[name][rows] for name in ("logp_old", "logp_rollout", "entropy", "advantage", "ids", "row")}
    denominator = torch.full((len(rows),), tokens, dtype=torch.float64)
    extra = {name: held[name][rows] for name in ("importance", "keep") if name in held}
    watch.micro_batch(mask=held["mask"][rows], logp_current=current, denominator=denominator, **named, **extra, **facts)
    used = held.get("mask_of_loss", held["mask"])[rows]
    ratio = (current - held["logp_old"][rows]).exp()
    loss = -(ratio * held.get("advantage_of_loss", held["advantage"])[rows][:, None] * used).sum() / tokens
    (loss * factor).backward()


def watch_of(folder: Path, **given: Any) -> Watch:
    return Watch(folder, **{"strict": False, **given})
