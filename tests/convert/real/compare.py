"""A file's converted recipe beside the framework's own reading of that file: loss and gradient on the same batch."""

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.convert.real.reading import READERS, Nested, NotCompared, put
from tests.peers.padded import Padded, padded
from tests.peers.peer import Peer
from torch import Tensor

import trimtab
from trimtab.convert import convert
from trimtab.signal import Recipe

TOLERANCE = 2e-5
"""The largest relative difference that is none: float32, and an eps of up to 1e-5 beside a spread (AReaL's)."""


WITHOUT_KL = {"skyrl": "trainer.algorithm.use_kl_loss"}
"""The switch of a KL whose mean is another one than the loss's. A recipe here has one weighting for all its terms."""


@dataclass(frozen=True)
class Compared:
    """What was compared of one file, and how far apart the two sides are."""

    framework: str
    file: str
    parts: tuple[str, ...]
    loss: float
    gradient: float
    left_out: tuple[str, ...] = ()
    """Terms that both sides leave out."""
    rejects: bool = False
    """Whether our corrections reject an answer of the batch whole."""

    @property
    def agrees(self) -> bool:
        return max(self.loss, self.gradient) <= TOLERANCE


def compare(
    framework: str, path: Path, peer: Peer, root: Path, *, recipe: Recipe | None = None, leave_out_kl: bool = False
) -> Compared:
    """Both sides of one file. `recipe` stands in for the converted one."""
    options = READERS[framework](path, peer, root)
    made = convert(framework, path).recipe if recipe is None else recipe
    if made.value:
        raise NotCompared("a critic: its values are another model's")
    made = dataclasses.replace(made, group_mean_band=None)  # a filter of the sampler: the other side has no part in it
    left_out = _left_out(framework, options)
    if leave_out_kl:
        put(options, WITHOUT_KL[framework], False)
        made, left_out = dataclasses.replace(made, kl=None), (*left_out, "without the KL")
    drawn = padded(3, holes=False, dtype=torch.float32)
    batch = _wide(dataclasses.replace(drawn, reward=drawn.reward.abs()), made)  # some baselines divide by the mean
    theirs = _theirs(framework, peer, options, batch)
    mine, rejects = _ours(made, batch)
    return Compared(framework, path.as_posix(), _parts(made) + left_out, *_apart(mine, theirs), left_out, rejects)


def _left_out(framework: str, options: Nested) -> tuple[str, ...]:
    """Terms of a file that neither side computes here, because a teacher's numbers would be needed."""
    asked = options.get("distillation", {}) if framework == "verl" else options
    has_teacher = asked.get("enabled") if framework == "verl" else asked.get("teacher")
    return ("without the distillation",) if has_teacher else ()


def _wide(batch: Padded, made: Recipe) -> Padded:
    """Rows as wide as the divisor of the weighting, where a framework divides by their width."""
    divisor = made.weighting.settings.get("divisor")
    if not divisor:
        return batch
    more = int(divisor) - batch.mask.shape[1]
    wide = {
        one.name: torch.nn.functional.pad(getattr(batch, one.name), (0, more))
        for one in dataclasses.fields(batch)
        if getattr(batch, one.name).ndim == 2
    }
    return dataclasses.replace(batch, **wide)


def _theirs(framework: str, peer: Peer, options: Nested, batch: Padded) -> tuple[Tensor, Tensor]:
    found, gradient = peer.call(
        f"calls:{framework}", gradient=("logp",), logp=batch.current, options=options, mask=batch.mask, old=batch.old,
        rollout=batch.rollout, ref=batch.ref, token_reward=reward_at_the_end(batch), group=np.array([*"aaabbb"]),
        width=batch.mask.shape[1],
    )  # fmt: skip
    return found[0], gradient["logp"]


def reward_at_the_end(batch: Padded) -> Tensor:
    last = batch.mask.sum(1).long() - 1
    return torch.zeros_like(batch.mask).index_put((torch.arange(len(last)), last), batch.reward)


def _ours(made: Recipe, batch: Padded) -> tuple[tuple[Tensor, Tensor], bool]:
    leaf = batch.current.clone().requires_grad_()
    fields: dict[str, Any] = {"logp_old": batch.old, "logp_rollout": batch.rollout, "logp_ref": batch.ref,
                              "ended": [True] * len(batch.mask)}  # fmt: skip
    given = {name: found for name, found in fields.items() if name in made.needs or name == "ended"}
    entropy = 0.5 + 0.1 * leaf * leaf if made.entropy else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few rows draw warnings of their own
        loss, metrics = trimtab.loss(
            leaf, recipe=made, mask=batch.mask, reward=batch.reward, group=batch.group, entropy=entropy,
            grad_scale=None, **given,
        )  # fmt: skip
    loss.backward()
    assert leaf.grad is not None
    rejects = any(share > 0 for name, share in metrics.items() if name.endswith("/rejected_sequences"))
    return (loss.detach(), leaf.grad), rejects


def _apart(mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """How far apart loss and gradient are. The terms of a loss cancel, so its scale is the sum of |gradient|."""
    (loss, gradient), (their_loss, their_gradient) = ((a.double(), b.double()) for a, b in (mine, theirs))
    if not float(their_gradient.abs().max()):
        raise NotCompared("no token of the batch trains")
    scale = torch.maximum(their_loss.abs(), their_gradient.abs().sum())
    apart = (gradient - their_gradient).abs().max() / their_gradient.abs().max()
    return float((loss - their_loss).abs() / scale), float(apart)


def _parts(made: Recipe) -> tuple[str, ...]:
    stages = [made.normalize.formula.name, made.advantage.formula.name, *(s.part.formula.name for s in made.correction)]
    stages += ["whiten"] if made.whiten else []
    stages += [made.loss.part.formula.name, made.weighting.formula.name]
    stages += [f"{made.kl.part.formula.name} in {made.kl.into}"] if made.kl else []
    return tuple(stages + (["entropy"] if made.entropy else []))
