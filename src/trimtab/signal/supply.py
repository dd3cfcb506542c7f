"""What a batch supplies: the only place that says which token fields formulas may read and which go with an update."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.catalogue import INPUTS
from trimtab.signal.composition import Recipe
from trimtab.signal.fast.choice import is_all_watched, is_fast
from trimtab.signal.fields import Field
from trimtab.signal.ingredient import REWARDED
from trimtab.signal.layout import Segments
from trimtab.signal.proximal import CURRENT_SHARE, current_share
from trimtab.signal.ratio import EXACT_RATIO, EXACT_TOTAL, Ratio
from trimtab.signal.update import OBSERVED, token_key


def token_fields(batch: SignalBatch) -> dict[str, Any]:
    """What the batch carries of every token."""
    return {
        "logp_old": batch.logp_old, "logp_rollout": batch.logp_rollout, "logp_ref": batch.logp_ref,
        "value_old": batch.value_old, "position": batch.position, "turn": batch.turn, "version": batch.version,
        "segments": batch.segments, **batch.extra,
    }  # fmt: skip


def available_early(batch: SignalBatch, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What a correction can read before anything was decided."""
    key = token_key(batch.segments, batch.sequence_id, seed) if recipe.reads_token_key else None
    return {**dict.fromkeys(INPUTS["keep"]), **token_fields(batch), "token_key": key}


def carried(batch: SignalBatch) -> dict[str, Field]:
    """The token fields of the batch that an update may read."""
    held = {
        "logp_old": batch.logp_old, "logp_rollout": batch.logp_rollout, "logp_ref": batch.logp_ref,
        "value_old": batch.value_old, "position": batch.position, "turn": batch.turn, "version": batch.version,
        **batch.extra,
    }  # fmt: skip
    return {name: Field(values, batch.segments) for name, values in held.items() if values is not None}


def owners(batch: SignalBatch) -> dict[str, Field]:
    """The episode and the group of each token, for weightings that count these."""
    levels = batch.levels
    group_of_sequence = levels.to_sequences(levels.group_of_episode)
    return {
        "episode_of_token": Field(levels.episode_of_sequence, batch.segments, True),
        "group_of_token": Field(group_of_sequence, batch.segments, True),
    }


def populations(batch: SignalBatch, recipe: Recipe) -> dict[str, Field]:
    """Whom a term of its own population acts on: answers with a reward above 0, tokens of the environment."""
    found: dict[str, Field] = {}
    if recipe.nll is not None and recipe.nll.on == "rewarded":
        right = batch.scored & (batch.reward > 0)
        found[REWARDED] = Field(batch.levels.to_sequences(right), batch.segments, True)
    if recipe.observed is not None:
        found[OBSERVED] = Field(cast("Tensor", batch.observed), batch.segments, True)
    return found


def shares(batch: SignalBatch, recipe: Recipe, version: int | None) -> dict[str, Field]:
    """Where the old policy of each token lies between sampler and current policy, if the recipe puts it there."""
    if recipe.old != "interpolated" or batch.version is None:
        return {}
    if version is None:
        raise SignalError(
            f"prepare: recipe {recipe.name!r} has old = 'interpolated', which goes by the age of each token, and "
            "nobody said which version trains. Give prepare(…, version=…), the number of the parameters to update."
        )
    return {CURRENT_SHARE: Field(current_share(batch.version, version, batch.dtype), batch.segments)}


def engine_ratio(batch: SignalBatch) -> dict[str, Ratio]:
    """old / rollout, where the batch carries both."""
    if batch.logp_old is None or batch.logp_rollout is None:
        return {}
    is_factor = is_fast() and is_all_watched()
    return {"engine": Ratio(batch.logp_old - batch.logp_rollout, batch.segments, is_factor=is_factor)}


def exact_engine(ratios: Mapping[str, Ratio], segments: Segments) -> dict[str, Field]:
    """ratio_engine as it was computed: ratio_total is its product with ratio_update. No formula can name these."""
    exact = ratios["engine"].exact() if "engine" in ratios else None
    if exact is None:
        return {}
    return {EXACT_RATIO: Field(exact.value, segments), EXACT_TOTAL: Field(exact.total, segments, True)}
