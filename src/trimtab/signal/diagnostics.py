"""What is measured along the way: the only place that turns log-ratios, decisions and observations into metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trimtab.signal.fields import Field
from trimtab.signal.layout import PerSequence, PerToken, Scalar, Segments, SequenceFlag
from trimtab.signal.metrics import Extremum, Histogram, Mean, Metric, Metrics, SampleSize, Spread
from trimtab.signal.reduce import LOG_BOUND, bounded_exp, sequence_sum
from trimtab.signal.stages import Decisions, conjunction
from trimtab.signal.tally import Tally, read_now


@dataclass(frozen=True)
class RatioSums:
    """One ratio in a few sums over its tokens, in float64: everything that is measured of it is made of these."""

    tokens: tuple[Scalar, Scalar, Scalar, Scalar, Scalar]
    """Sum of |log-ratio|, smallest and largest log-ratio, sum of ratio - 1, and of its squares around its mean."""
    log_product: PerSequence
    histogram: Histogram


def measure(logratio: PerToken, segments: Segments, *, ratio_too: bool = False) -> tuple[RatioSums, PerToken | None]:
    """One pass over the tokens of a ratio, before any truncation; and the ratio itself, bounded, where it is wanted."""
    exact = logratio.detach().to(torch.float64, copy=True)
    if not exact.numel():
        nothing = exact.sum()
        sums = RatioSums((nothing, nothing + torch.inf, nothing - torch.inf, nothing, nothing),
            sequence_sum(exact, segments), Histogram.of(logratio))  # fmt: skip
        return sums, logratio.detach().clone() if ratio_too else None
    low, high = torch.aminmax(exact)
    far, log_product = exact.abs().sum(), sequence_sum(exact, segments)
    # From here on in place: the ratio, then ratio - 1, whose sums lose nothing where the policies are close.
    value = exact.clamp_(-LOG_BOUND, LOG_BOUND).exp_()
    ratio = value.to(logratio.dtype, copy=True) if ratio_too else None
    moved = value.sub_(1).sum()
    around = value.sub_(moved / value.numel())
    return RatioSums((far, low, high, moved, torch.dot(around, around)), log_product, Histogram.of(logratio)), ratio


def drift(measured: Mapping[str, RatioSums], segments: Segments) -> Metrics:
    """Everything about some ratios, over all tokens given, before any truncation.

    logratio = later - earlier policy, on tokens sampled from (near) the earlier, so
    k1 and k3 estimate KL(earlier || later).
    """
    if not measured:
        return Metrics.empty()
    table = read_now(_summary(list(measured.values()), segments).flatten())
    width = len(table) // len(measured)
    entries: dict[str, Metric] = {}
    for place, name in enumerate(measured):
        far, farthest, least, most, total, moved, around, sequences, *products = table[place * width :][:width]
        product, square, mean, m2, lowest, highest = products
        count = float(segments.num_tokens)
        share = moved / max(count, 1.0)
        entries |= {
            f"logratio_{name}/token_abs_mean": Mean(far, count),
            f"logratio_{name}/token_abs_max": Extremum(farthest, 1),
            f"ratio_{name}/token_mean": Mean(count + moved, count),
            f"ratio_{name}/token_std": Spread(count, 1 + share, around),
            f"ratio_{name}/token_min": Extremum(-least, -1),
            f"ratio_{name}/token_max": Extremum(most, 1),
            f"ratio_{name}/sequence_mean": Mean(product, sequences),
            f"ratio_{name}/sequence_std": Spread(sequences, mean, m2),
            f"ratio_{name}/sequence_min": Extremum(-lowest, -1),
            f"ratio_{name}/sequence_max": Extremum(highest, 1),
            f"ess_{name}/token": SampleSize(count + moved, count + 2 * moved + around + share * moved, count),
            f"ess_{name}/sequence": SampleSize(product, square, sequences),
            f"k1_{name}/token_mean": Mean(-total, count),
            f"k3_{name}/token_mean": Mean(moved - total, count),
        }
    return Metrics(entries, {f"logratio_{name}": one.histogram for name, one in measured.items()})


def _summary(measured: list[RatioSums], segments: Segments) -> Tensor:
    """One row per ratio: its sums over tokens, and those of the products over sequences that have tokens."""
    far, low, high, moved, around = torch.stack([torch.stack(one.tokens) for one in measured], 1)
    logs = torch.stack([one.log_product for one in measured])
    filled, counted = segments.filled, segments.filled.double()
    product = bounded_exp(logs)
    total, square, sequences = product @ counted, product.square() @ counted, counted.sum().expand(len(measured))
    mean = total / sequences.clamp(min=1)
    around_mean = (product - mean[:, None]).mul_(counted)
    lowest = highest = torch.full_like(mean, -torch.inf)
    if segments.num_sequences:
        lowest = torch.where(filled, product, torch.inf).amin(1)
        highest = torch.where(filled, product, -torch.inf).amax(1)
    least, most = bounded_exp(low), bounded_exp(high)
    if not segments.num_tokens:
        least, most, lowest, highest = low, high, low, high
    rows = (far, torch.maximum(high, -low), least, most, logs.sum(1), moved, around, sequences, total, square, mean,
        around_mean.square_().sum(1), lowest, highest)  # fmt: skip
    return torch.stack(rows, 1)


def drift_by_age(logratio: PerToken, version: Tensor, now: int) -> dict[str, Metric]:
    """old - rollout, split: tokens of the current version show the engine alone, older ones engine and staleness."""
    stale = version < now
    gap = logratio.abs()
    return {
        "drift/engine_token_abs_mean": Mean.of(gap, ~stale),
        "drift/staleness_token_abs_mean": Mean.of(gap, stale),
        "drift/stale_token_fraction": Mean.fraction(stale),
    }


@dataclass(frozen=True)
class Population:
    """The tokens that metrics are about; `is_everything`: they are all there are."""

    tokens: Field
    advantage: Field
    is_everything: bool = False

    @property
    def among(self) -> Field | None:
        return None if self.is_everything else self.tokens

    @cached_property
    def positive(self) -> Field:
        return self._of_sign(torch.gt)

    @cached_property
    def negative(self) -> Field:
        return self._of_sign(torch.lt)

    def _of_sign(self, than: "type[torch.gt]") -> Field:  # pyright: ignore[reportGeneralTypeIssues]
        flags = self.advantage.map(lambda values: than(values, 0))
        return flags if self.is_everything else flags & self.tokens


def observe(tally: Tally, label: str, seen: Mapping[str, Field | SequenceFlag], population: Population) -> None:
    """A formula's observations as fractions: `_tokens` among the given tokens, `_sequences` among those they lie in."""
    for name, flags in seen.items():
        if isinstance(flags, Field):
            tally.share(f"{label}/{name}", flags, population.among)
        else:
            tally.share_of_sequences(f"{label}/{name}", flags, population.tokens.sequences)


def by_sign(tally: Tally, label: str, what: str, flags: Field, population: Population) -> None:
    """A token flag among the given tokens of positive, and of negative, advantage."""
    tally.share(f"{label}/{what}_positive_tokens", flags, population.positive)
    tally.share(f"{label}/{what}_negative_tokens", flags, population.negative)


def stage_metrics(tally: Tally, decisions: Decisions, trains: Population, *, before: Field | None = None) -> None:
    """What each correction stage saw and did: alone, and on top of the others and of earlier rejections."""
    start = trains.tokens if before is None else trains.tokens & before
    for label, keep in decisions.keeps.items():
        others = {other: decision for other, decision in decisions.keeps.items() if other != label}
        rejected = ~keep if trains.is_everything else trains.tokens & ~keep
        left = (keep if trains.is_everything else trains.tokens & keep).sequences
        tally.share(f"{label}/rejected_tokens", rejected, trains.among, within=True)
        tally.share_of_sequences(f"{label}/rejected_sequences", ~left, trains.tokens.sequences)
        by_sign(tally, label, "rejected", rejected, trains)
        tally.same(f"{label}/alone", f"{label}/rejected_tokens")
        tally.share(f"{label}/on_top", rejected & conjunction(start, others), trains.among, within=True)
    kept = conjunction(start, decisions.keeps) if decisions.importances else None
    for label, importance in decisions.importances.items():
        effect = importance.map(lambda factor: (factor - 1).abs())
        tally.mean(f"{label}/importance_mean", importance, trains.among)
        tally.mean(f"{label}/alone", effect, trains.among)
        tally.mean(f"{label}/on_top", effect, kept)
    for label, flags in decisions.seen.items():
        observe(tally, label, flags, trains)


def kept_share(tally: Tally, kept: Population, trains: Population) -> None:
    """What is left of the update after every correction; what is kept trains."""
    effective = kept.tokens & kept.advantage.map(lambda values: values != 0)
    tally.share("kept/token_fraction", kept.tokens, trains.among, within=True)
    tally.share_of_sequences("kept/sequence_fraction", kept.tokens.sequences, trains.tokens.sequences, within=True)
    tally.sum_of_count("effective_batch/tokens", effective)
    tally.sum_of_sequences("effective_batch/sequences", effective.sequences)
    tally.share("effective_batch/token_fraction", effective, trains.among, within=True)
