"""prime-rl's TOML in our names."""

from trimtab.convert.built import Built, common, group, loss_of
from trimtab.convert.options import Options
from trimtab.signal import Stage, part


def read(options: Options) -> Built:
    """What this file trains with. A file of the trainer alone has the same names without `trainer.`."""
    at = "trainer.loss." if any(key.startswith("trainer.") for key in options.given) else "loss."
    kind = str(options.get(f"{at}type", "default", "loss and correction", status="changed"))
    built = Built(
        "prime-rl",
        options,
        loss_of("clipped", anchor="rollout", band=(0.0, float("inf"))),
        part("weighting.token_mean"),
        group("none"),
    )
    built.fields["old"] = "absent"
    low, high = (
        options.number(f"{at}dppo_mask_low", 0.2, "keep.probability_band, low", status="changed"),
        options.number(f"{at}dppo_mask_high", 0.2, "keep.probability_band, high", status="changed"),
    )
    limit = options.number(f"{at}ipo_threshold", 0.1, "keep.probability_band, low and high", status="changed")
    tau = options.number(f"{at}kl_tau", 1e-3, "a penalty on the distance to the sampler", status="changed")
    advantage = options.number(f"{at}adv_tau", 1.0, "the advantage's factor")
    if kind == "default":
        built.correct(
            Stage(part("keep.probability_band", low=float(low), high=float(high), by_sign=True), ratio="total")
        )
    elif kind == "ipo":
        built.correct(
            Stage(part("keep.probability_band", low=float(limit), high=float(limit), by_sign=False), ratio="total")
        )
    else:
        options.tell(f"{at}type", "no equivalent", "a loss of yours: docs/concepts.md says how to write one here")
        options.warn(f"{at}type = {kind} is a loss of yours: the plain ratio is written. Check it.")
    if kind in ("default", "ipo") and tau:
        options.tell(f"{at}kl_tau", "no equivalent", "the squared distance to the sampler is not written")
        options.warn(
            f"{at}kl_tau = {tau:g}: prime-rl adds tau x (log current/rollout)² on every token. It is not written "
            f"here. Check it."
        )
    if advantage != 1.0:
        options.tell(f"{at}adv_tau", "no equivalent", "scale rewards with reward.affine")
        options.warn(f"{at}adv_tau = {advantage:g} multiplies the advantage: not written. Check it.")
    _ = options.get("orchestrator.advantage.type", None, "normalize", status="changed")
    built.fields["filter_constant_groups"] = options.switch(
        "orchestrator.filter_zero_advantages", True, "filter_constant_groups", status="changed"
    )
    common(
        built,
        {
            "orchestrator.batch_size": "prompts_per_step",
            "orchestrator.rollouts_per_example": "samples_per_prompt",
            "batch_size": "prompts_per_step",
            "rollouts_per_example": "samples_per_prompt",
            "orchestrator.sampling.max_tokens": "max_new_tokens",
            "orchestrator.sampling.max_completion_tokens": "max_new_tokens",
            "orchestrator.sampling.temperature": "temperature",
            "trainer.optim.lr": "lr",
            "optim.lr": "lr",
            "trainer.optim.max_norm": "grad_clip",
            "optim.max_norm": "grad_clip",
            "trainer.optim.weight_decay": "weight_decay",
            "max_steps": "steps",
            "max_async_level": "staleness",
            "orchestrator.max_off_policy_steps": "staleness",
        },
    )
    if "prompts_per_step" in built.train:
        answers = built.train.get("samples_per_prompt", 1)
        built.train["prompts_per_step"] = max(1, int(built.train["prompts_per_step"]) // int(answers))
        for key in ("orchestrator.batch_size", "batch_size"):
            if key in options.told:
                options.told[key] = type(options.told[key])(
                    options.given[key], "changed", "train.prompts_per_step = it / rollouts_per_example"
                )
    options.rest()
    return built
