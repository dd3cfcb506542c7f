"""slime's options in our names: the only place that maps them, or refuses them by name."""

from typing import Any

from trimtab.errors import AdapterError
from trimtab.signal import KL, Recipe, Stage, Term, part

MEANS = {False: part("weighting.sequence_mean_token_mean"), True: part("weighting.token_sum")}
"""By --calculate-per-token-loss: the sum of sample means, or the sum of tokens. slime divides both by the step's."""


def only(correction: tuple[Stage, ...], **settings: Any) -> Recipe:
    return Recipe(
        name="slime correction", loss=Stage(part("policy_loss.reinforce")), correction=correction,
        weighting=part("weighting.token_mean"), normalize=part("normalize.raw"), **settings,
    )  # fmt: skip


def own_tis(args: Any) -> Recipe:
    """What slime's `vanilla_tis_function` computes."""
    band = (args.tis_clip_low, args.tis_clip)
    return only((Stage(part("importance.truncated", level="token", band=band), ratio="engine"),))


def own_rewards(args: Any) -> Recipe:
    """What slime does with rewards: group mean, and std with --grpo-std-normalization."""
    if not args.rewards_normalization:
        return Recipe(
            name="slime raw", loss=Stage(part("policy_loss.reinforce")), weighting=part("weighting.token_mean"),
            normalize=part("normalize.raw"),
        )  # fmt: skip
    has_std = args.grpo_std_normalization and args.advantage_estimator in ("grpo", "gspo", "cispo")
    return Recipe(
        name="slime rewards", loss=Stage(part("policy_loss.reinforce")), weighting=part("weighting.token_mean"),
        normalize=part("normalize.mean_std", mean="group", std="group" if has_std else "none", ddof=1, eps=1e-6),
    )  # fmt: skip


def own_advantages(args: Any) -> Recipe:
    """What slime's `--advantage-estimator` computes, for those that are mapped."""
    spread = {
        "ppo": lambda: part("advantage.gae", gamma=args.gamma, lam=args.lambd),
        "grpo": lambda: part("advantage.broadcast"),
        "gspo": lambda: part("advantage.broadcast"),
        "cispo": lambda: part("advantage.broadcast"),
    }
    if args.advantage_estimator not in spread:
        raise AdapterError(
            f"slime: --advantage-estimator {args.advantage_estimator} is not mapped. There are {', '.join(spread)}."
        )
    has_kl = args.advantage_estimator == "ppo" and args.kl_coef != 0
    return Recipe(
        name=f"slime {args.advantage_estimator}", loss=Stage(part("policy_loss.reinforce")),
        weighting=part("weighting.token_mean"), normalize=part("normalize.raw"),
        advantage=spread[args.advantage_estimator](),
        kl=KL(_kl(args), coef=args.kl_coef, into="token_reward") if has_kl else None,
    )  # fmt: skip


def _kl(args: Any) -> Any:
    if args.kl_loss_type not in ("k1", "k2", "k3"):
        raise AdapterError(
            f"slime: --kl-loss-type {args.kl_loss_type} bounds the estimate to ±10, which is not mapped. Say k3."
        )
    return part(f"kl.{args.kl_loss_type}")


def own_recipe(args: Any) -> Recipe:
    """What slime's `policy_loss` computes with these options; one that has no equivalent is refused."""
    refused = [
        name
        for name in ("use_unbiased_kl", "custom_pg_loss_reducer_function_path", "custom_tis_function_path")
        if getattr(args, name, None)
    ]
    if refused:
        raise AdapterError(f"slime: {', '.join(refused)} is not mapped, so it would be lost. Leave it out.")
    band = (1 - args.eps_clip, 1 + args.eps_clip_high)
    match args.advantage_estimator:
        case "gspo":
            loss = part("policy_loss.geometric_clipped", band=band)
        case "cispo":
            raise AdapterError("slime: --advantage-estimator cispo is not mapped. Use TRIMTAB_RECIPE=cispo.")
        case _:
            loss = part("policy_loss.clipped", band=band)
    if getattr(args, "eps_clip_c", None) is not None:
        if args.advantage_estimator == "gspo":
            raise AdapterError("slime: --eps-clip-c with gspo is not mapped. Leave one out.")
        loss = part("policy_loss.dual_clipped", band=band, cap=args.eps_clip_c)
    correction = own_tis(args).correction if args.use_tis else ()
    if args.use_opsm:
        correction += (Stage(part("keep.negative_drift", delta=args.opsm_delta), anchor="old"),)
    return Recipe(
        name=f"slime {args.advantage_estimator}", loss=Stage(loss, anchor="old"), correction=correction,
        weighting=MEANS[bool(args.calculate_per_token_loss)], normalize=part("normalize.raw"),
        kl=KL(_kl(args), coef=args.kl_loss_coef, into="loss") if args.use_kl_loss and args.kl_loss_coef else None,
        entropy=Term(coef=args.entropy_coef) if args.entropy_coef else None,
    )  # fmt: skip
