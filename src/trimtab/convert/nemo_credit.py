"""NeMo-RL's advantage estimators in our names."""

from trimtab.convert.built import Built, group
from trimtab.convert.estimators import each_key, unknown_estimator
from trimtab.convert.options import Options
from trimtab.signal import Part, Term, part


def advantage(options: Options, built: Built, start: str) -> None:
    """Baseline and credit; `start` is the section of the algorithm, grpo or ppo."""
    at = f"{start}adv_estimator."
    std = options.switch(f"{start}normalize_rewards", True, "normalize", status="changed")
    is_apart = options.switch(f"{start}use_leave_one_out_baseline", True, "normalize", status="changed")
    name = str(options.get(f"{at}name", start[:-1].replace("ppo", "gae"), "normalize, advantage", status="changed"))
    std = options.switch(f"{at}normalize_rewards", std, "normalize", status="changed")
    is_apart = options.switch(f"{at}use_leave_one_out_baseline", is_apart, "normalize", status="changed")
    minus = options.switch(f"{at}minus_baseline", True, "normalize", status="changed")
    match name:
        case "reinforce_plus_plus":
            built.normalize, built.fields["whiten"] = group("none") if minus else part("normalize.raw"), True
        case "grpo" if is_apart:
            built.normalize = part("normalize.leave_one_out", std="others" if std else "none", eps=1e-6)
        case "grpo":
            built.normalize = group("group" if std else "none")
        case "gdpo":
            _each_key(options, at, built, std=std, is_apart=is_apart)
        case "opd":
            built.advantage = part("advantage.plus_teacher", coef=1.0, outcome_coef=0.0)
        case "gae":
            _gae(options, at, built)
        case "raw_reward":
            built.fields["whiten"] = options.switch(f"{at}normalize_advantages", True, "whiten", status="changed")
        case _:
            unknown_estimator(options, f"{at}name", built, name)
    if name != "reinforce_plus_plus":
        options.inert(f"{at}minus_baseline", "it is read by reinforce_plus_plus alone")
    if name not in ("grpo", "gdpo"):
        for place in (start, at):
            for key in ("normalize_rewards", "use_leave_one_out_baseline"):
                options.inert(place + key, f"adv_estimator.name = {name} does not read it")
    _clip(options, built, start)


def _each_key(options: Options, at: str, built: Built, *, std: bool, is_apart: bool) -> None:
    weights = options.get(f"{at}reward_weights", None, "normalize.each_key, weights", status="changed")
    each_key(options, f"{at}name", built, weights, None, eps=1e-6, said="keys stand in the order of their names")
    for is_other, key, what in (
        (is_apart, "use_leave_one_out_baseline", "compares each reward with those of the other answers"),
        (not std, "normalize_rewards", "divides no reward by its spread"),
    ):
        if is_other and built.normalize.formula.name == "normalize.each_key":
            options.lost(
                at + key,
                "normalize.each_key has the group's mean and spread",
                f"{at}name = gdpo {what}: normalize.each_key has the group's mean and spread. Check it.",
            )


def _gae(options: Options, at: str, built: Built) -> None:
    """GAE, with a lambda of its own for the returns, or one that grows with the length (VAPO)."""
    lam, gamma = options.number(f"{at}gae_lambda", 0.95), options.number(f"{at}gae_gamma", 1.0)
    of_value = options.number(f"{at}gae_lambda_value", None, "lam_value")
    of_policy = options.number(f"{at}gae_lambda_policy", None, "lam")
    alpha = options.number(f"{at}length_adaptive_alpha", 0.0, "advantage.gae_by_length, alpha")
    lam_value = lam if of_value is None else of_value
    if alpha:
        options.inert(f"{at}gae_lambda_policy", "length_adaptive_alpha is set")
        options.differs(f"{at}length_adaptive_alpha", "advantage.gae_by_length, alpha")
        made: Part = part("advantage.gae_by_length", alpha=float(alpha), gamma=gamma, lam_value=lam_value)
    else:
        policy = lam if of_policy is None else of_policy
        own = {} if lam_value == policy else {"lam_value": lam_value}
        made = part("advantage.gae", gamma=gamma, lam=policy, **own)
    built.advantage = made
    built.fields["whiten"] = options.switch(f"{at}normalize_advantages", True, "whiten", status="changed")
    coef = options.number("value_loss_fn.scale", 1.0, "value.coef")
    reach = options.number("value_loss_fn.cliprange", None, "value_loss.squared_clipped, reach")
    loss = part("value_loss.squared_clipped", reach=float(reach)) if reach else part("value_loss.squared")
    built.fields["value"] = Term(coef=coef, part=loss)


def _clip(options: Options, built: Built, start: str) -> None:
    low, high = (
        options.number(f"{start}advantage_clip_{side}", None, "clip_advantage", status="changed")
        for side in ("low", "high")
    )
    if high is None:
        return
    built.fields["clip_advantage"] = float(high)
    if low is not None and low != -high:
        options.warn(
            "advantage_clip_low and advantage_clip_high differ in size: the upper bound is written for both sides. "
            "Check it."
        )
