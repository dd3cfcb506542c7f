"""prime-rl's TOML in our names."""

from trimtab.convert.built import Built, common, group, loss_of, sampled
from trimtab.convert.options import Options
from trimtab.signal import KL, Stage, Term, part

CENTRED = ("normalize.mean_std", "normalize.minus_role_average")
"""Here a baseline is subtracted and nothing is divided."""


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
        options.differs(f"{at}kl_tau", "kl.anchor_square, anchor = rollout, on all tokens")
        built.fields["kl"] = KL(part("kl.anchor_square"), coef=float(tau), into="loss", anchor="rollout", on="all")
    _advantage(options, built)
    _scaled(options, built, f"{at}adv_tau", float(advantage))
    built.fields["filter_constant_groups"] = (
        options.switch("orchestrator.filter_zero_advantages", True, "filter_constant_groups", status="changed")
        and built.advantage.formula.name == "advantage.broadcast"
    )
    common(
        built,
        {
            "orchestrator.batch_size": "prompts_per_step",
            "orchestrator.rollouts_per_example": "samples_per_prompt",
            "orchestrator.group_size": "samples_per_prompt",
            "batch_size": "prompts_per_step",
            "rollouts_per_example": "samples_per_prompt",
            "orchestrator.sampling.max_tokens": "max_new_tokens",
            "orchestrator.sampling.max_completion_tokens": "max_new_tokens",
            "orchestrator.sampling.temperature": "temperature",
            "orchestrator.train.sampling.max_completion_tokens": "max_new_tokens",
            "orchestrator.train.sampling.temperature": "temperature",
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
    train = "orchestrator.train.sampling."
    place = train if any(key.startswith(train) for key in options.given) else "orchestrator.sampling."
    sampled(built, f"{place}top_p", f"{place}top_k")
    if "prompts_per_step" in built.train:
        answers = built.train.get("samples_per_prompt", 1)
        built.train["prompts_per_step"] = max(1, int(built.train["prompts_per_step"]) // int(answers))
        for key in ("orchestrator.batch_size", "batch_size"):
            if key in options.told:
                options.told[key] = type(options.told[key])(
                    options.given[key], "changed", "train.prompts_per_step = it / answers to a prompt"
                )
    options.rest()
    return built


def _advantage(options: Options, built: Built) -> None:
    """The algorithm's credit: GRPO's, MaxRL's, or that of a teacher."""
    at = "orchestrator.algo."
    kind = str(options.get(f"{at}type", options.get("orchestrator.advantage.type", "grpo", "normalize",
                                                    status="changed"), "normalize", status="changed"))  # fmt: skip
    if kind == "max_rl":
        built.normalize = part("normalize.over_mean")
        options.differs(f"{at}type", "normalize.over_mean; it refuses rewards below 0, where theirs gives 0")
    elif kind == "opd":
        _distilled(options, built)
    elif kind == "rae":
        decay = options.number(f"{at}decay", 0.95, "normalize.minus_role_average, decay", status="changed")
        built.normalize = part("normalize.minus_role_average", decay=float(decay))
        options.differs(f"{at}type", "normalize.minus_role_average; a batch moves the averages once, not each answer")
    elif kind == "echo":
        _observing(options, built, at)
    elif kind not in ("grpo", "default"):
        key = f"{at}type" if options.has(f"{at}type") else "orchestrator.advantage.type"
        options.lost(
            key, "normalize.mean_std without a spread is written instead",
            f"{key} = {kind} has no equivalent in this converter: GRPO's advantage is written. Check it.",
        )  # fmt: skip
    penalty = f"{at}length_penalty."
    if kind in ("grpo", "default", "echo") and any(key.startswith(penalty) for key in options.given):
        _ = options.get(f"{penalty}type", "linear", "reward.relative_length", status="changed")
        factor, *others = (
            options.number(f"{penalty}num_{of}_weight", usual, "reward.relative_length, factor", status="changed")
            for of, usual in (("output_tokens", 0.25), ("input_tokens", 0.1), ("turns", 0.1))
        )
        built.fields["reward"] = (part("reward.relative_length", factor=float(factor)),)
        if any(others):
            options.warn(
                f"{penalty[:-1]}: reward.relative_length counts the tokens that were written. The shares of input "
                "tokens and turns are not written. Check it."
            )


def _observing(options: Options, built: Built, at: str) -> None:
    """ECHO: what the environment wrote is learned too, with one weight for all of its roles."""
    weights = {
        role: options.number(f"{at}roles.{role}.alpha", 0.1, "observed.coef", status="changed")
        for role in ("system", "user", "assistant", "tool")
        if any(key.startswith(f"{at}roles.{role}") for key in options.given)
    } or {"tool": 0.1}
    if len(set(weights.values())) > 1:
        options.lost(
            f"{at}type", "observed has one weight", f"{at}roles: weights {weights}: observed has one weight for all "
            "that the environment wrote, and the largest is written. Check it.",
        )  # fmt: skip
    built.fields["observed"] = Term(coef=float(max(weights.values())))
    options.differs(f"{at}type", f"observed; {' and '.join(weights)} alone are in it if your batches say so")
    for key in [one for one in options.given if one.startswith(f"{at}filter.")]:
        options.lost(key, "a function of yours is not read", f"{key}: which tokens are learned is yours to say.")


def _distilled(options: Options, built: Built) -> None:
    """The teacher's log-prob over the student's is the whole advantage; trainer.loss is not read."""
    built.normalize = part("normalize.raw")
    built.advantage = part("advantage.plus_teacher", coef=1.0, outcome_coef=0.0)
    built.fields |= {
        "old": "recompute",
        "correction": (Stage(part("keep.probability_band", low=0.2, high=1.0, by_sign=False), ratio="total"),),
        "kl": KL(part("kl.anchor_square"), coef=1e-3, into="loss", anchor="rollout"),
    }
    options.differs("orchestrator.algo.type", "advantage.plus_teacher; over the old policy, not the current one")
    for key in [one for one in options.given if one.startswith(("trainer.loss.", "loss."))]:
        options.inert(key, "algo.type = opd has a loss of its own")


def _scaled(options: Options, built: Built, key: str, factor: float) -> None:
    """The advantage times a factor is the reward times it, where the reward is centred and not divided."""
    if factor == 1.0 or built.advantage.formula.name == "advantage.plus_teacher":
        return
    if built.normalize.formula.name in CENTRED and built.advantage.formula.name == "advantage.broadcast":
        built.fields["reward"] = (*built.fields.get("reward", ()), part("reward.affine", scale=factor))
        options.differs(key, "reward.affine, scale; the mean is subtracted and nothing is divided, so it is the same")
    else:
        options.lost(key, "the advantage has no factor here, and a reward's factor is divided out",
                     f"{key} = {factor:g} multiplies the advantage: not written. Check it.")  # fmt: skip
