"""verl's rollout correction (0.9.1) in our names: weights, rejections, and the mode that has two policies only."""

from dataclasses import replace
from typing import Any

from trimtab.convert.band import inverse, ratio_band
from trimtab.convert.built import Built, counting, loss_of
from trimtab.convert.options import Options
from trimtab.convert.verl_loss import ACTOR, MODE, vanilla
from trimtab.convert.verl_trainer import AT, is_before_v1, is_bypassed
from trimtab.errors import ConfigError
from trimtab.signal import Stage, Term, part

FREE = (0.0, float("inf"))
BANDS = {"token": "keep.token_band", "seq_sum": "keep.product_band", "seq_mean": "keep.geometric_band"}


def correct(options: Options, built: Built) -> None:
    """Add the stages that these options switch on."""
    block = {key.removeprefix(AT): one.value for key, one in options.given.items() if key.startswith(AT)}
    for key in block:
        options.tell(AT + key, "changed", "correction")
    with_two = is_bypassed(options)
    if with_two and not is_before_v1(options):
        _only_anchored(options, built, block)
        return
    if block.get("rollout_is") is None:
        options.inert(f"{AT}rollout_is_threshold", "rollout_is is not set")
        options.inert(f"{AT}rollout_is_batch_normalize", "rollout_is is not set")
    if block.get("rollout_rs") is None:
        options.inert(f"{AT}rollout_rs_threshold", "rollout_rs is not set")
    ratio, is_weighed = "engine", block.get("rollout_is") is not None
    if with_two:
        ratio = "total"
        is_weighed = _bypass(options, built, str(block.get("loss_type", "ppo_clip"))) and is_weighed
    else:
        options.inert(f"{AT}loss_type", "bypass_mode is off")
    if is_weighed:
        built.correct(*_weights(options, built, block, ratio))
    rejections = [Stage(one, ratio=ratio) for one in _rejections(block)]  # pyright: ignore[reportArgumentType]
    built.correct(*rejections)
    if rejections:
        _count(options, built, rejections, is_early=not with_two)


def _only_anchored(options: Options, built: Built, block: dict[str, Any]) -> None:
    """Two policies in verl's default trainer: its loss_mode with the sampler for the old policy, and no correction."""
    options.differs(f"{AT}bypass_mode", 'loss.anchor = "rollout", old = "absent"')
    built.fields["old"] = "absent"
    if built.loss.anchor:
        built.loss = Stage(built.loss.part, anchor="rollout")
    stages: tuple[Stage, ...] = built.fields.get("correction", ())
    built.fields["correction"] = tuple(Stage(one.part, ratio="total") for one in stages)
    for key in block:
        if key != "bypass_mode":
            options.inert(AT + key, "with bypass_mode, verl's default trainer (use_v1) does not read it")


def _bypass(options: Options, built: Built, kind: str) -> bool:
    """Two policies in the other trainers: loss_type is read, and not loss_mode. True: its weights act."""
    options.differs(f"{AT}bypass_mode", 'old = "absent"; the sampler is the anchor')
    options.inert(MODE, "bypass_mode is on, and its loss_type decides")
    built.fields["old"] = "absent"
    built.fields["correction"] = ()
    is_reinforce = kind == "reinforce"
    built.loss = loss_of("reinforce", anchor=None) if is_reinforce else vanilla(options, "rollout")
    if is_reinforce:
        for key in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"):
            options.inert(ACTOR + key, "bypass_mode with loss_type = reinforce does not clip")
    else:
        options.inert(f"{AT}rollout_is", "bypass_mode with loss_type = ppo_clip has its ratio in the loss")
    return is_reinforce


def _weights(options: Options, built: Built, block: dict[str, Any], ratio: Any) -> tuple[Stage, ...]:
    """Truncated weights; `lower_upper` drops what is outside instead (IcePop)."""
    level = str(block["rollout_is"])
    bound = str(block.get("rollout_is_threshold") or 2.0)
    low, _, high = bound.rpartition("_")
    band = (float(low or 0.0), float(high))
    key = f"{AT}rollout_is"
    if built.loss.part.formula.constant_advantage and level == "token":
        level = "geometric"
        options.differs(key, "importance.truncated, level = geometric: the mean is truncated, and not each token")
    stages = (_weight(options, block, level, FREE if low else band, ratio),)
    if low and level == "geometric":
        options.warn(f"{key} with {bound} and loss_mode = geo_mean: the sequence's geometric mean is held to it.")
    if low:
        formula = {"token": "keep.token_band", "sequence": "keep.product_band", "geometric": "keep.geometric_band"}
        stages = (Stage(part(formula[level], band=band), ratio=ratio), *stages)
    return stages


def _weight(options: Options, block: dict[str, Any], level: str, band: tuple[float, float], ratio: Any) -> Stage:
    if not block.get("rollout_is_batch_normalize"):
        return Stage(part("importance.truncated", level=level, band=band), ratio=ratio)
    options.differs(
        f"{AT}rollout_is_batch_normalize",
        "importance.self_normalised; the mean is of the batch"
        if ratio == "engine"
        else "importance.self_normalised; the mean is of the optimiser step, theirs of a micro-batch",
    )
    return Stage(part("importance.self_normalised", level=level, band=band), ratio=ratio)


def _rejections(block: dict[str, Any]) -> list[Any]:
    """Every criterion of rollout_rs as a keep; all have to pass."""
    names = [one.strip() for one in str(block.get("rollout_rs") or "").split(",") if one.strip()]
    limits = [one.strip() for one in str(block.get("rollout_rs_threshold") or "").split(",") if one.strip()]
    if names and len(limits) not in (1, len(names)):
        raise ConfigError(
            f"convert: {len(names)} criteria in rollout_rs and {len(limits)} in rollout_rs_threshold. Give as many."
        )
    limits = limits * len(names) if len(limits) == 1 else limits
    return [_rejection(name, limit) for name, limit in zip(names, limits, strict=True)]


def _rejection(name: str, limit: str) -> Any:
    where, _, measure = name.rpartition("_")
    if measure == "k1" and where in BANDS:
        low, _, high = limit.rpartition("_")
        # Their bounds are of rollout/old, ours of old/rollout.
        return part(BANDS[where], band=inverse((float(low) if low else 1 / float(high), float(high))))
    if measure not in ("k2", "k3") or where not in ("token", "seq_sum", "seq_mean", "seq_max"):
        raise ConfigError(f"convert: rollout_rs = {name!r} is no criterion of verl 0.9.1.")
    if where == "token":
        return part("keep.token_band", band=ratio_band(measure, float(limit)))
    if where == "seq_max":
        low, high = ratio_band(measure, float(limit))
        return part("keep.veto", low=low, high=high)
    return part("keep.divergence", limit=float(limit), measure=measure, total=where.removeprefix("seq_"))


def _count(options: Options, built: Built, rejections: list[Stage], *, is_early: bool) -> None:
    """What is rejected before the update leaves verl's KL and entropy too, and each sequence's own mean.

    The default trainer counts the tokens of a step with what was rejected (loss_mask), the one before it without. The
    count of sequences stays in both; a sequence that is rejected whole leaves no token to average.
    """
    by_token = any(one.part.formula.name == "keep.token_band" for one in rejections)
    name = built.weighting.formula.name
    of_tokens = name == "weighting.token_mean" and is_early and is_before_v1(options)
    if of_tokens or (name == "weighting.sequence_mean_token_mean" and by_token):
        built.weighting = counting(built.weighting, "kept")
    if not is_early:
        return
    if built.fields.get("kl") and built.fields["kl"].into == "loss":
        built.fields["kl"] = replace(built.fields["kl"], on="kept")
    for term in ("entropy", "value"):
        held = built.fields.get(term)
        if isinstance(held, Term):
            built.fields[term] = replace(held, on="kept")
    also = " and the number of tokens" if of_tokens else ""
    options.differs(f"{AT}rollout_rs", f"keep; a rejected token leaves the KL and the entropy too{also}")
