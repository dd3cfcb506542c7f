"""The only place that tells from log-probs which parameters a server computed with, and at which temperature.

Where we hold the memory, a checksum proves a delivery. Where we do not, only behaviour can. "Equal within a tolerance"
is no proof: an engine's rounding is larger than one step of training, so old parameters would pass. What tells them
apart is the *direction*: how far along the way from old to new log-probs the server's lie. This file is arithmetic; it
knows neither servers nor models.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trimtab.errors import EngineError

Verdict = Literal["proven", "unproven", "refused"]
NEAR = 0.05
"""How far from 1 a share may be where it is known exactly."""
SIGMAS, FAR = 3.0, 5.0
"""Standard errors within which a share is believed to be a value, and beyond which it is not. In between, neither."""
BLUNT = 0.25
"""A standard error above which 0 and 1 are too close to each other to be told apart."""
LOUD = 4.0
"""How many times more than before a server's log-probs may differ from ours; rounding does not grow like that."""
QUIET = 1e-4
"""A drift (in nats) that needs no cause: batches of another size move log-probs in float32 by 1e-5."""
UNRELATED = 0.5
"""The part of the log-probs' variance that the new parameters must explain; below it they are not the server's."""


@dataclass(frozen=True)
class Proof:
    """What a probe showed about one version. `share` is 0 for the old parameters and 1 for the new ones.

    Old log-probs [-1.0, -2.0], new [-1.2, -1.6], server [-1.19, -1.61]: the server went 0.97 of the way.
    """

    version: int
    share: float
    """<server - old, new - old> / |new - old|^2; nan where old and new are equal."""
    error: float
    """The standard error of `share`, from tokens or from whole answers, whichever is larger."""
    drift: float
    """Root mean square of server - new: how the engine's rounding differs from ours."""
    moved: float
    """Root mean square of new - old."""
    tokens: int
    verdict: Verdict

    @property
    def sentence(self) -> str:
        if self.moved == 0:
            return (
                f"version {self.version} gives the same log-probs as the one before it, over {self.tokens} tokens, so "
                f"they cannot be told apart; drift {self.drift:.2g}"
            )
        return (
            f"its log-probs went {self.share:.2f} ± {self.error:.2f} of the way from the old parameters (0) to version "
            f"{self.version} (1), over {self.tokens} tokens; moved {self.moved:.2g}, drift {self.drift:.2g}"
        )


def judge(
    version: int, server: Tensor, old: Tensor, new: Tensor, lengths: list[int], noise: float | None = None
) -> Proof:
    """Hold the server's log-probs against ours under the old and under the new parameters.

    c = <server - old, new - old> / |new - old|^2

    Proven: c is near 1 and the old parameters (c = 0) are ruled out. Refused: the new ones (c = 1) are ruled out, or
    explain less than half of the variance, or are much farther from the server than its `noise`, the drift of an
    earlier proof. Unproven: the step is too small to be seen beneath the engine's rounding.
    `lengths` are the tokens of each answer: errors within one answer go together.
    """
    server, old, new = _checked(server, old, new, lengths)
    step = new - old
    drift, moved = _rms(server - new), _rms(step)
    if moved == 0:
        share, error = math.nan, math.inf
    else:
        share = float((server - old) @ step / (step @ step))
        error = _error(server - old, step, share, lengths)
    return Proof(version, share, error, drift, moved, len(server), _verdict(share, error, drift, noise, server))


def _verdict(share: float, error: float, drift: float, noise: float | None, server: Tensor) -> Verdict:
    is_loud = noise is not None and drift > LOUD * max(noise, QUIET)
    if is_loud or (drift > QUIET and drift**2 > UNRELATED * float(server.var())):
        return "refused"
    if math.isnan(share):
        return "unproven"
    off = abs(share - 1)
    if off > max(NEAR, FAR * error):
        return "refused"
    return "proven" if off <= max(NEAR, SIGMAS * error) and error < BLUNT and share > SIGMAS * error else "unproven"


def _error(change: Tensor, step: Tensor, share: float, lengths: list[int]) -> float:
    """The larger of two standard errors: tokens as independent, and the jackknife that leaves out whole answers."""
    left = change - share * step
    by_token = math.sqrt(float(left @ left) / max(len(left) - 1, 1) / float(step @ step))
    if len(lengths) < 2:
        return by_token
    dots = torch.stack([part.sum() for part in (change * step).split(lengths)])
    norms = torch.stack([part.sum() for part in (step * step).split(lengths)])
    without = (dots.sum() - dots) / (norms.sum() - norms).clamp_min(torch.finfo(torch.float64).tiny)
    count = len(lengths)
    by_answer = math.sqrt(float((without - without.mean()).square().sum()) * (count - 1) / count)
    return max(by_token, by_answer)


def _checked(server: Tensor, old: Tensor, new: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    named = {"the server's": server, "the old": old, "the new": new}
    for name, values in named.items():
        if values.shape != server.shape or values.ndim != 1 or sum(lengths) != len(values) or len(values) < 2:
            raise EngineError(
                f"proof: {name} log-probs have shape {list(values.shape)} where the server's have "
                f"{list(server.shape)} and answers have {sum(lengths)} tokens in all, so they cannot be compared. "
                "Give one log-prob per generated token, two or more."
            )
        if not bool(values.isfinite().all()):
            raise EngineError(
                f"proof: {name} log-probs are not finite at {int((~values.isfinite()).sum())} of {len(values)} "
                "tokens, so nothing can be proven. Publish finite parameters."
            )
    return server.double(), old.double(), new.double()


def temperature_between(server: Tensor, lower: Tensor, upper: Tensor, span: tuple[float, float]) -> float:
    """The temperature at which the server's log-probs lie on the way between ours at the two ends of `span`."""
    step = (upper - lower).double()
    norm = float(step @ step)
    if norm == 0:
        return math.nan
    share = float((server.double() - lower.double()) @ step) / norm
    return span[0] + share * (span[1] - span[0])


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
