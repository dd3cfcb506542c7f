"""Our reductions, whitening, credit and metrics over rows that hold more than trainable tokens.

A flag a token (`keep`, `votes`, `among`) is then the mask, as in a framework that does not drop at the door.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Case, Out, Result, Subject
from trimtab.sentinel.of import kl, log_ratio
from trimtab.signal.advantage import gae, reward_to_go
from trimtab.signal.cell import padded_cells
from trimtab.signal.diagnostics import drift
from trimtab.signal.layout import Segments
from trimtab.signal.metric_kind import Extremum, Mean, SampleSize, Spread
from trimtab.signal.normalize import whiten
from trimtab.signal.ratio import Ratio
from trimtab.signal.reduce import bounded_exp, sequence_mean, to_tokens
from trimtab.signal.reward import token_rewards


def _all(case: Case) -> tuple[Segments, Tensor]:
    """Every token's sequence, and which tokens train."""
    lengths = torch.tensor(case.lengths, dtype=torch.long)
    return Segments.from_counts(lengths, int(lengths.sum())), case.packed("trainable", dtype=torch.bool)


@cache
def masked_mean(field: str = "logp_current") -> Subject:
    """`sequence_mean` under a mask, one number a sequence."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        segments, trains = _all(case)
        return {"mean": Result.sequence(sequence_mean(case.packed(field), segments, trains), "term")}

    return Subject("masked_mean", call)


@cache
def centred() -> Subject:
    """Advantages less their sequence's mean, handed back to every token."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        segments, trains = _all(case)
        advantage = case.packed("advantage")
        value = advantage - to_tokens(sequence_mean(advantage, segments, trains), segments)
        value = torch.where(trains, value, torch.zeros_like(value))
        return {"advantage": Result.token(case, value, "advantage", layout="packed")}

    return Subject("centred", call)


@cache
def whitened() -> Subject:
    """`whiten` over packed rows, the mask as the voters."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        _, trains = _all(case)
        with torch.no_grad():  # as prepare runs it
            value = whiten(case.packed("advantage"), trains)
        value = torch.where(trains, value, torch.zeros_like(value))
        return {"advantage": Result.token(case, value, "advantage", layout="packed")}

    return Subject("whitened", call, couples="batch")


@cache
def credited(how: str = "reward_to_go", *, kind: Any = "return", **settings: Any) -> Subject:
    """Padded token rewards through the door, credited over trainable tokens, and back into their cells."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        cells, segments = padded_cells(case.padded("trainable", dtype=torch.bool))
        reward = cells.gather(case.padded("token_reward"))
        if how == "reward_to_go":
            value, _ = reward_to_go(reward, segments, **options)
        else:
            old = cells.gather(case.padded("value_old"))
            value, _ = gae(reward, old, case.sequence("value_after"), case.sequence("ended"), segments, **options)
        return {"credit": Result.token(case, cells.scatter(value, fill=0.0), kind)}

    return Subject(f"credited({how})", call, options=settings)


@cache
def shaped(**facts: Any) -> Subject:
    """Token rewards: minus the KL everywhere, the outcome on the last trainable token."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        value = token_rewards(case.flat("kl"), case.sequence("reward"), case.segments, **options)
        return {"reward": Result(value, "token", "reward")}

    return Subject("token_rewards", call, options={"kl_coef": 0.1}, penalties={"kl_coef": "kl"}, **facts)


_OF = {
    "token_mean": (Mean.of, "mean"), "token_max": (lambda v, among: Extremum.of(v, 1, among), "max"),
    "token_min": (lambda v, among: Extremum.of(v, -1, among), "min"),
}  # fmt: skip


@cache
def masked_metrics(field: str = "kl") -> Subject:
    """Mean, maximum and minimum of a field under a mask."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        _, trains = _all(case)
        if not bool(trains.any()):
            raise case.cannot("a metric of nothing is left out")
        values = case.packed(field)
        made = {n: (how(values, trains).value()[0], reduction) for n, (how, reduction) in _OF.items()}
        return {n: Result.scalar(v, "metric", of=field, reduction=r) for n, (v, r) in made.items()}

    return Subject("masked_metrics", call, couples="batch")


@cache
def masked_spread() -> Subject:
    """Standard deviation and effective sample size under a mask, of which nobody told what they are of."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        _, trains = _all(case)
        weights = bounded_exp(case.packed("logp_current") - case.packed("logp_old"))
        size = SampleSize.of(weights, trains).value()[0]
        spread = Spread.of(weights, trains).value()[0]
        return {
            "ess": Result.scalar(size, "metric", range=(0.0, 1.0)),
            "std": Result.scalar(spread, "metric", agreed=0.0),
        }

    return Subject("masked_spread", call, couples="batch")


def _bounded(case: Case) -> Tensor:
    return bounded_exp(log_ratio()(case))


MEASURED: dict[str, dict[str, Any]] = {
    "logratio_update/token_abs_mean": {"of": kl("|k1|", "logp_current", "logp_old"), "reduction": "mean"},
    "logratio_update/token_abs_max": {"of": kl("|k1|", "logp_current", "logp_old"), "reduction": "max"},
    "ratio_update/token_mean": {"of": _bounded, "reduction": "mean", "agreed": 1.0},
    "ratio_update/token_min": {"of": _bounded, "reduction": "min", "agreed": 1.0},
    "ratio_update/token_max": {"of": _bounded, "reduction": "max", "agreed": 1.0},
    "k1_update/token_mean": {"of": kl("k1", "logp_old", "logp_current"), "reduction": "mean", "agreed": 0.0},
    "k3_update/token_mean": {
        "of": lambda case: _bounded(case) - 1 - log_ratio()(case), "reduction": "mean", "agreed": 0.0,
    },
}  # fmt: skip


@cache
def drifting(*, pieces: int = 1, named: bool = True) -> Subject:
    """`drift` of the current policy from the old one, from one piece or merged from several.

    named=False leaves out what each metric is of: only how it reduces is then known.
    """

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not bool(case.trainable.any()):
            raise case.cannot("a metric of nothing is left out")
        logratio = case.flat("logp_current") - case.flat("logp_old")
        metrics = None
        for rows in _halves(case, pieces):
            counts = case.segments.token_counts[rows]
            segments = Segments.from_counts(counts, int(counts.sum()))
            own = drift({"update": Ratio(logratio[case.token_places(rows)], segments)}, segments)
            metrics = own if metrics is None else metrics.merge(own)
        assert metrics is not None
        return {n: _read(metrics[n].value()[0], facts, named) for n, facts in MEASURED.items()}

    return Subject(f"drift in {pieces}", call, couples="batch")


def _read(value: float | Tensor, facts: Mapping[str, Any], named: bool) -> Result:
    return Result.scalar(
        torch.as_tensor(value, dtype=torch.float64), "metric", **(facts if named else {"reduction": facts["reduction"]})
    )


def _halves(case: Case, pieces: int) -> list[list[int]]:
    rows = list(range(case.num_sequences))
    if pieces == 1 or len(rows) < 2:
        return [rows]
    half = max(1, len(rows) // 3)
    return [rows[:half], rows[half:]]
