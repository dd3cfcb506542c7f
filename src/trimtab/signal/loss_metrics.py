"""What is measured of a loss: the only place that turns its terms, weights and late decisions into metrics."""

from collections.abc import Mapping

from trimtab.signal.diagnostics import Population, by_sign, kept_share, observe, stage_metrics
from trimtab.signal.fast.fused import Term as PolicyTerm
from trimtab.signal.fields import Field, everything
from trimtab.signal.layout import PerToken, Scalar
from trimtab.signal.metric_kind import Mean, Metric, Sum
from trimtab.signal.stages import Decisions, observations
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import Number, read_if_plain
from trimtab.signal.update import Slice


def loss_metrics(
    part: Slice, terms: Mapping[str, Scalar], weights: Mapping[str, Number], keep: Field, importance: Field,
    policy: PolicyTerm, late: Decisions,
) -> dict[str, Metric]:  # fmt: skip
    segments, fields = part.segments, part.fields
    label, tally = part.recipe.loss.part.formula.name, Tally(segments)
    for name, value in terms.items():
        tally.number(f"loss/{name}", Sum, read_if_plain(value.detach()))
    for name, value in weights.items():
        tally.number(f"weight/{name.removeprefix('weight_')}", Sum, value)
    tally.sum("weight/policy", fields.held("weight_policy"), keep)
    trains, kept = population_of(part), Population(keep, fields.held("advantage"))
    seen = observations(policy.seen, segments)
    observe(tally, label, seen, kept)
    clipped = seen.get("clipped_tokens")
    if isinstance(clipped, Field):
        by_sign(tally, label, "clipped", clipped, kept)
    kept_share(tally, kept, trains)
    stage_metrics(tally, late, trains, before=fields.held("keep"))
    stood = fields.held("voted").sequences
    tally.share_of_sequences("voted_then_rejected/sequence_fraction", stood & ~keep.sequences)
    tally.mean("importance/token_mean", importance, keep)
    return tally.entries()


def token_means(kl: PerToken | None, entropy: PerToken | None) -> dict[str, Metric]:
    given = {"kl_ref/token_mean": kl, "entropy/token_mean": entropy}
    return {name: Mean.of(values) for name, values in given.items() if values is not None}


def population_of(part: Slice) -> Population:
    return Population(everything(part.segments), part.fields.held("advantage"), is_everything=True)
