"""SkyRL's off-policy-correction block, key for key: the only place that knows the source's names.

The block says which correction stages are on; it becomes stages of a recipe, so it works with every policy loss.
"""

import warnings
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, model_validator

from trimtab.config.table import Table
from trimtab.errors import ConfigError
from trimtab.signal import Stage, part


def _none(value: object) -> object:
    return None if isinstance(value, str) and value in ("null", "none", "None") else value


def refuse_bool(value: object) -> object:
    """True is not 1."""
    if isinstance(value, bool):
        raise ValueError("a number is due, not true or false")
    return value


Null = Annotated[None, BeforeValidator(_none)]
Bound = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(refuse_bool)]


def _refuse_two_answers(keys: dict[str, Any], use: bool | None, cap: float | None) -> None:
    """A deprecated key beside its successor: fine while both say the same, refused when one would be dropped unsaid."""
    kind, high = keys.get("tis_ratio_type"), keys.get("token_tis_ratio_clip_high")
    if "tis_ratio_type" in keys and use is not None and (kind == "token") != use:
        raise ConfigError(
            f"off_policy_correction: use_tis = {use} and tis_ratio_type = {kind!r} ask for two different things. "
            "Keep tis_ratio_type and drop use_tis."
        )
    if cap is not None and high is not None and high != cap:
        raise ConfigError(
            f"off_policy_correction: tis_imp_ratio_cap = {cap} and token_tis_ratio_clip_high = {high} are two caps for "
            "one ratio. Keep token_tis_ratio_clip_high."
        )


class OffPolicyCorrection(Table):
    """The ten keys of SkyRL #849, with its defaults. A group that is null is off."""

    tis_ratio_type: Literal["token", "sequence"] | Null = None
    """Truncated importance sampling: each token's ratio, the product over a sequence, or null for off."""
    token_tis_ratio_clip_high: Bound = 2.0
    """Cap of the token ratio; 1.5 to 5."""
    sequence_tis_ratio_clip_high: Bound = 5.0
    """Cap of the sequence ratio; 2 to 10."""
    sequence_mask_metric: Literal["product", "geometric"] | Null = None
    """Reject whole sequences by the product or the geometric mean of their ratios, or null for off."""
    geo_mask_low: Bound = 0.99
    """Lower bound of the geometric mean; 0.99 to 0.999."""
    geo_mask_high: Bound = 1.01
    """Upper bound of the geometric mean; 1.001 to 1.01."""
    product_mask_low: Bound = 0.5
    """Lower bound of the product; near 0.5."""
    product_mask_high: Bound = 2.0
    """Upper bound of the product; near 2."""
    outlier_token_is_threshold_low: Bound | Null = None
    """A token below rejects its sequence; suggested 1e-4, null for no lower bound."""
    outlier_token_is_threshold_high: Bound | Null = None
    """A token above rejects its sequence; suggested 100, null for no upper bound."""

    @model_validator(mode="before")
    @classmethod
    def _translate_deprecated(cls, given: Any) -> Any:
        """`use_tis` and `tis_imp_ratio_cap` still load, and say what to write."""
        if not isinstance(given, dict):
            return given
        keys = dict(cast("dict[str, Any]", given))
        use, cap = keys.pop("use_tis", None), keys.pop("tis_imp_ratio_cap", None)
        if use is not None and not isinstance(use, bool):
            raise ConfigError(
                f"off_policy_correction: use_tis = {use!r} is not possible. It is true or false; "
                'write tis_ratio_type = "token" instead.'
            )
        number = isinstance(cap, int | float) and not isinstance(cap, bool)
        if cap is not None and not (number and 0 < cap < float("inf")):
            raise ConfigError(
                f"off_policy_correction: tis_imp_ratio_cap = {cap!r}, so every token would weigh nothing. "
                "It is a number above 0, and finite; write token_tis_ratio_clip_high = 2.0."
            )
        _refuse_two_answers(keys, use, cap)
        if use is not None or cap is not None:
            written = 'tis_ratio_type = "token"' if use else "leave tis_ratio_type out"
            written += f", token_tis_ratio_clip_high = {cap}" if cap is not None else ""
            warnings.warn(
                f"off_policy_correction: use_tis and tis_imp_ratio_cap are deprecated. Write instead: {written}.",
                DeprecationWarning,
                stacklevel=2,
            )
        if use:
            keys.setdefault("tis_ratio_type", "token")
        if cap is not None:
            keys.setdefault("token_tis_ratio_clip_high", cap)
        return keys

    def stages(self) -> tuple[Stage, ...]:
        """The correction stages that are on; all compare the old policy with the rollout."""
        found: list[Stage] = []
        low, high = self.outlier_token_is_threshold_low, self.outlier_token_is_threshold_high
        if low is not None or high is not None:
            found.append(Stage(part("keep.veto", low=low, high=high), ratio="engine"))
        if self.tis_ratio_type is not None:
            cap = (
                self.token_tis_ratio_clip_high if self.tis_ratio_type == "token" else self.sequence_tis_ratio_clip_high
            )
            found.append(
                Stage(part("importance.truncated", level=self.tis_ratio_type, band=(0.0, cap)), ratio="engine")
            )
        if self.sequence_mask_metric == "geometric":
            band = (self.geo_mask_low, self.geo_mask_high)
            found.append(Stage(part("keep.geometric_band", band=band), ratio="engine"))
        if self.sequence_mask_metric == "product":
            band = (self.product_mask_low, self.product_mask_high)
            found.append(Stage(part("keep.product_band", band=band), ratio="engine"))
        return tuple(found)


SOURCE_NAMES = {
    "is_ratio_mean": "ratio_engine/token_mean",
    "is_ratio_std": "ratio_engine/token_std",
    "is_ratio_max": "ratio_engine/token_max",
    "is_ratio_min": "ratio_engine/token_min",
    "tis_token_clip_high_ratio": "importance.truncated/over_high_tokens",
    "tis_seq_clip_high_ratio": "importance.truncated/over_high_sequences",
    "outlier_seq_masked_ratio": "keep.veto/rejected_sequences",
    "outlier_seq_over_high_ratio": "keep.veto/over_high_sequences",
    "outlier_seq_under_low_ratio": "keep.veto/under_low_sequences",
    "geo_sequence_mask_masked_ratio": "keep.geometric_band/rejected_sequences",
    "geo_sequence_mask_over_high_ratio": "keep.geometric_band/over_high_sequences",
    "geo_sequence_mask_under_low_ratio": "keep.geometric_band/under_low_sequences",
    "product_sequence_mask_masked_ratio": "keep.product_band/rejected_sequences",
    "product_sequence_mask_over_high_ratio": "keep.product_band/over_high_sequences",
    "product_sequence_mask_under_low_ratio": "keep.product_band/under_low_sequences",
}
"""The block's metrics: the source's name, and ours."""


def source_metrics(values: dict[str, float]) -> dict[str, float]:
    """Our metric values under the source's names; `clip_ratio` for every loss, 0 where a loss clips nothing."""
    named = {theirs: values[ours] for theirs, ours in SOURCE_NAMES.items() if ours in values}
    if named.get("tis_seq_clip_high_ratio") is not None:
        named.pop("tis_token_clip_high_ratio", None)
    clipped = [
        value for name, value in values.items() if name.startswith("policy_loss.") and name.endswith("/clipped_tokens")
    ]
    return {**named, "clip_ratio": clipped[0] if clipped else 0.0}
