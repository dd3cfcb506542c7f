"""OpenRLHF (OpenRLHF/OpenRLHF): policy, value and SFT losses, KL, rewards, advantages, length penalties, log-probs.

What its trainer guarantees, and the bindings rely on: everything a token has stands in [rows, width - 1] without the
first token, prompts included and masked; counts of the whole batch are handed to every micro-batch's loss; the samples
of a prompt are equally many and next to each other.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.like import average, like, scored
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.role import at, bind
from trimtab.sentinel.subject import Call, Out, Result, Subject
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.stand_in import Settings, bounded, contiguous_groups
from trimtab.sentinel.targets.target import Binding, CouldNotBind, Target

LOSS, UTILS = "openrlhf/models/loss.py", "openrlhf/models/utils.py"
MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"
PENALTY = "openrlhf/trainer/ppo_utils/length_penalty.py"
NEXT: dict[str, Any] = {"side": "right", "drop_first": True}
"""Everything but the first token."""
OWN_FORWARD = "log-probs and values at untrainable cells are the trainer's own forward pass, and padding is 0"
OWN = {"nonfinite_isolation": OWN_FORWARD}


def _made(boundary: Boundary, owner: str, settings: Mapping[str, Any]) -> Any:
    """An object of a class of the file by its constructor, with those of the settings that this version takes."""
    from inspect import signature

    build = boundary.get(owner)
    known = signature(build.__init__).parameters
    if unknown := sorted(set(settings) - set(known)):
        raise CouldNotBind(f"{owner} takes no {', '.join(unknown)}; it takes {', '.join(list(known)[1:])}")
    return build(**settings)


def _counts(boundary: Boundary, case: Case) -> dict[str, Any]:
    tokens, rows = handed.counts(case)
    return handed.accepted(boundary, batch_num_tokens=float(tokens), global_batch_size=float(rows))


def _summed(boundary: Boundary) -> str | None:
    return "sum" if "batch_num_tokens" in handed.parameters(boundary) else None


MEANS = {True: "token_mean", False: "sequence_mean_token_mean"}

# --- losses -------------------------------------------------------------------------------------------------------


def _kl_of(case: Case) -> Tensor:
    return case.flat("logp_old") - case.flat("logp_current")


def policy_loss(boundary: Boundary, options: Mapping[str, Any], **facts: Any) -> Subject:
    """The policy loss with its metrics; settings go to the constructor."""
    _made(boundary, "PolicyLoss", options)

    def loss(case: Case, **chosen: Any) -> Any:
        module = _made(boundary, "PolicyLoss", chosen)
        tensors = {"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage"}
        given = {n: case.padded(field, **NEXT) for n, field in tensors.items()}
        if "rollout_log_probs" in handed.parameters(boundary) and _corrects(chosen):
            given["rollout_log_probs"] = case.padded("logp_rollout", **NEXT)
        return boundary(module, **given, action_mask=case.padded("trainable", **NEXT), **_counts(boundary, case))

    returns = {
        "loss": at(0, "loss"),
        "clip_ratio": at(1, "metric", range=(0.0, 1.0), agreed=0.0, reduction="mean"),
        "ppo_kl": at(2, "metric", of=_kl_of, agreed=0.0, reduction="mean"),
    }
    facts = {"combine": _summed(boundary), "waived": OWN, **facts}
    return bind(loss, role="policy_loss", name=boundary.spec.name, args={"case": lambda c: c}, options=options,
                returns=returns, **facts)  # fmt: skip


def _corrects(chosen: Mapping[str, Any]) -> bool:
    return bool(chosen.get("enable_vllm_is_correction")) or chosen.get("is_correction_level", "off") != "off"


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["clip_eps_low"], 1 + options["clip_eps_high"]


CLIPS = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
OTHER_CLIPS = {"clip_eps_low": (0.5,), "clip_eps_high": (0.9,)}


def _averaged(formula: str, by_token: bool, **settings: Any) -> Call:
    return bounded(handed.simply(like(formula, mean=MEANS[by_token], **settings)), "logp_current", "logp_old")


def _policy(boundary: Boundary) -> list[Subject]:
    found: list[Subject] = []
    for by_token in (True, False):
        found.append(policy_loss(
            boundary, {**CLIPS, "token_level_loss": by_token}, variants={**OTHER_CLIPS, "token_level_loss": (not by_token,)},
            definition=_averaged("policy_loss.clipped", by_token, band=_band),
        ))  # fmt: skip
    dual = _averaged("policy_loss.dual_clipped", True, band=_band, cap=lambda o: o["dual_clip"])
    found.append(policy_loss(boundary, {**CLIPS, "dual_clip": 3.0}, definition=dual,
                             variants={"dual_clip": (1.5, None)}, impossible={"dual_clip": (0.5,)}))  # fmt: skip
    return found


def _gspo(boundary: Boundary) -> Subject:
    return policy_loss(
        boundary, {**CLIPS, "policy_loss_type": "gspo"}, variants=OTHER_CLIPS,
        adapt=handed.one_per_sequence("advantage"), impossible={"policy_loss_type": ("grpo",)},
        definition=_averaged("policy_loss.geometric_clipped", False, band=_band),
    )  # fmt: skip


def _settings(boundary: Boundary) -> dict[str, dict[str, Any]]:
    """The corrections this version knows, by its own names."""
    try:
        threshold = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.5, 2.0]}
        _made(boundary, "PolicyLoss", threshold | {"vllm_is_correction_type": "tis"})
    except CouldNotBind:
        level = {"is_correction_threshold": [0.5, 2.0]}
        return {
            "tis": {**level, "is_correction_level": "token", "is_correction_mode": "clip"},
            "icepop": {**level, "is_correction_level": "token", "is_correction_mode": "mask"},
            "sequence mask": {**level, "is_correction_level": "seq", "is_correction_mode": "mask"},
        }
    return {kind: {**threshold, "vllm_is_correction_type": kind} for kind in ("tis", "icepop", "seq-mask-tis")}


def _importance(boundary: Boundary) -> list[Subject]:
    """The correction's factor a token: the corrected loss's gradient over the plain one's, on-policy and with A = 1."""

    def weight(case: Case, chosen: Mapping[str, Any]) -> Tensor:
        slopes: list[Tensor] = []
        old, mask = case.padded("logp_old", **NEXT).detach(), case.padded("trainable", **NEXT)
        for settings in ({}, chosen):
            logp = old.clone().requires_grad_()
            given = {"log_probs": logp, "old_log_probs": old, "advantages": torch.ones_like(old), "action_mask": mask}
            if settings:
                given["rollout_log_probs"] = case.padded("logp_rollout", **NEXT).detach()
            with torch.enable_grad():
                loss = boundary(_made(boundary, "PolicyLoss", settings), **given)[0]
                slopes.append(torch.autograd.grad(loss, logp)[0] if loss.requires_grad else torch.zeros_like(old))
        plain, corrected = (case.from_padded(slope, **NEXT) for slope in slopes)
        return corrected / plain

    found: list[Subject] = []
    for kind, settings in _settings(boundary).items():
        # The comment beside seq-mask-tis promises the truncated factor; the later options promise the raw one.
        ceiling = float("inf") if kind == "sequence mask" else 2.0
        facts: dict[str, Any] = {"range": (0.5 if kind == "tis" else 0.0, ceiling), "pair": ("logp_old", "logp_rollout")}

        def call(case: Case, chosen: Mapping[str, Any], facts: dict[str, Any] = facts) -> Out:
            return {"importance": Result(weight(case, chosen), "token", "importance", **facts)}

        define = like("importance.truncated", level="token", band=(0.5, 2.0)) if kind == "tis" else None
        found.append(Subject(f"PolicyLoss[{kind}]", call, options=settings, boundary=boundary, waived=OWN,
                             definition=define))  # fmt: skip
    return found


def _value(boundary: Boundary) -> list[Subject]:
    def loss(case: Case, **chosen: Any) -> Any:
        module = _made(boundary, "ValueLoss", chosen)
        fields = {"values": "value", "old_values": "value_old", "returns": "returns", "action_mask": "trainable"}
        return boundary(module, **{n: case.padded(f, **NEXT) for n, f in fields.items()}, **_counts(boundary, case))

    return [
        bind(
            loss, role="value_loss", name=boundary.spec.name, args={"case": lambda c: c},
            options={"clip_eps": 0.5, "token_level_loss": by_token}, waived=OWN, combine=_summed(boundary),
            definition=like("value_loss.squared_clipped", mean=MEANS[by_token], reach=lambda o: o["clip_eps"]),
            variants={"clip_eps": (0.1, None), "token_level_loss": (not by_token,)},
        )
        for by_token in (True, False)
    ]  # fmt: skip


def _aggregate(boundary: Boundary) -> list[Subject]:
    args: dict[str, Any] = {"loss": "token_loss", "loss_mask": "trainable"}
    told: dict[str, Callable[[Case], Any]] = {
        "batch_num_tokens": lambda c: handed.counts(c)[0], "global_batch_size": lambda c: handed.counts(c)[1]
    }  # fmt: skip
    return [
        bind(boundary, role="aggregation", args=args | told, options={"token_level_loss": by_token}, combine="sum",
             definition=average(MEANS[by_token]), variants={"token_level_loss": (not by_token,)})
        for by_token in (True, False)
    ]  # fmt: skip


def _sft(boundary: Boundary) -> Subject:
    def loss(case: Case, **chosen: Any) -> Any:
        mask = case.padded("trainable", **NEXT)
        return boundary(_made(boundary, "SFTLoss", chosen), case.padded("logp_current", **NEXT), mask,
                        **_counts(boundary, case))  # fmt: skip

    return bind(
        loss, role="policy_loss", name=boundary.spec.name, args={"case": lambda c: c}, waived=OWN,
        options={"token_level_loss": True}, variants={"token_level_loss": (False,)}, combine=_summed(boundary),
        definition=like("policy_loss.cross_entropy", mean="token_mean"),
    )  # fmt: skip


# --- KL, rewards, advantages --------------------------------------------------------------------------------------


def _kl(boundary: Boundary) -> list[Subject]:
    no_mask = "it takes no mask: its readers mask what it returns"
    waived = {"mask_content": no_mask, "nonfinite_isolation": no_mask}
    args = {"log_probs": "logp_current", "log_probs_base": "logp_ref"}
    if "use_kl_estimator_k3" in handed.parameters(boundary):
        return [
            bind(boundary, role="kl", args=args, options={"use_kl_estimator_k3": third}, waived=waived,
                 definition=bounded(like("kl.k3" if third else "kl.k1"), "logp_current", "logp_ref"),
                 variants={"use_kl_estimator_k3": (not third,)})
            for third in (True, False)
        ]  # fmt: skip
    small = lambda kind: _within(like(f"kl.{kind}"), 3.0)  # noqa: E731  beyond, it bounds the estimate at 10
    return [
        bind(boundary, role="kl", args=args, options={"kl_estimator": kind}, waived=waived, definition=small(kind),
             variants={"kl_estimator": tuple({"k1", "k2", "k3"} - {kind})}, impossible={"kl_estimator": ("k4",)})
        for kind in ("k1", "k2", "k3")
    ]  # fmt: skip


def _within(define: Call, reach: float) -> Call:
    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        gap = (case.flat("logp_current") - case.flat("logp_ref")).abs()
        if gap.numel() and float(gap.max()) > reach:
            raise case.cannot("the estimate is bounded there")
        return define(case, options)

    return defined


def _reward(boundary: Boundary) -> Subject:
    def shaped(case: Case, kl_coef: float) -> Any:
        if any("a" not in row or row[0] != "p" for row in case.kinds):
            raise case.cannot("a rollout has a prompt and an answer")
        kl = case.padded("kl", **NEXT) * case.padded("trainable", **NEXT)  # the maker masks it
        return boundary(case.sequence("reward"), kl_coef, kl, action_mask=case.padded("trainable", **NEXT))

    return bind(
        shaped, role="kl_in_reward", name=boundary.spec.name, args={"case": lambda c: c}, view={"with_prompt": True, **NEXT},
        options={"kl_coef": 0.1}, penalties={"kl_coef": "kl"}, variants={"kl_coef": (0.5,)}, waived=OWN,
        returns={"reward": at((), "reward", level="token")},
    )  # fmt: skip


def _returns(boundary: Boundary) -> Subject:
    critic = "values" in handed.parameters(boundary)

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        reward = handed.reward_on_last(case, trained=True, with_prompt=True, **NEXT)
        mask = case.padded("trainable", **NEXT)
        made = boundary.made()
        if not critic:
            found = boundary(made, reward.float(), mask.float(), **chosen)
            return {"returns": Result(case.from_padded(found, **NEXT), "token", "return")}
        both = boundary(made, case.padded("value_old", **NEXT), reward, mask, **chosen)
        return {"advantage": Result(case.from_padded(both[0], **NEXT), "token", "advantage"),
                "returns": Result(case.from_padded(both[1], **NEXT), "token", "return")}  # fmt: skip

    options = {"gamma": 0.9, "lambd": 0.8} if critic else {"gamma": 0.9}
    gae = handed.simply(like("advantage.gae", gamma=lambda o: o["gamma"], lam=lambda o: o["lambd"]))
    togo = handed.simply(like("advantage.reward_to_go", gamma=lambda o: o["gamma"], result="returns"))
    return Subject(
        boundary.spec.name, call, options=options, boundary=boundary, definition=gae if critic else togo,
        variants={n: (1.0,) for n in options}, waived=OWN,
    )  # fmt: skip


def _shaping(boundary: Boundary) -> list[Subject]:
    """All of it: penalties, baseline, KL, returns and normalisation, over a batch of experiences."""

    def subject(estimator: str, couples: str, **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            groups = contiguous_groups(case)
            if len({len(g) for g in groups}) != 1 or any("a" not in row or row[0] != "p" for row in case.kinds):
                raise case.cannot("prompts have equally many samples, and every sample a prompt and an answer")
            if estimator != "gae" and len(groups[0]) < 2:
                raise case.cannot("the command line refuses one sample a prompt for this estimator")
            mask = case.padded("trainable", **NEXT)
            one = Settings(
                rewards=case.sequence("reward"), index=list(range(case.num_sequences)), kl=case.padded("kl", **NEXT) * mask,
                action_mask=mask, values=case.padded("value_old", **NEXT), info={}, truncated=~case.sequence("ended"),
                response_length=mask.sum(-1),
            )  # fmt: skip
            advantage = Settings(estimator=estimator, gamma=1.0, lambd=0.9, no_std_norm=False)
            args = Settings(
                rollout=Settings(n_samples_per_prompt=len(groups[0])), algo=Settings(advantage=advantage),
                reward=Settings(), data=Settings(), n_samples_per_prompt=len(groups[0]), advantage_estimator=estimator,
                gamma=1.0, lambd=0.9,
            )  # fmt: skip
            maker = boundary.made(strategy=Settings(args=args), kl_ctl=Settings(value=chosen["kl_coef"]),
                                  advantage_estimator=estimator, args=args)  # fmt: skip
            done = boundary(maker, [one])
            got = done[0] if isinstance(done, list) else one
            return {"advantage": Result(case.from_padded(got.advantages, **NEXT), "token", "advantage")}

        return Subject(
            f"compute_advantages_and_returns[{estimator}]", call, options={"kl_coef": 0.0}, boundary=boundary,
            couples=couples, waived=OWN, **facts,
        )  # fmt: skip

    mean_only = handed.normalised(mean="group", std="none", ddof=1, eps=0.0)
    return [
        subject("rloo", "group", definition=handed.simply(like("normalize.leave_one_out", tokens=True, result="advantage"))),
        subject("dr_grpo", "group", definition=mean_only),
        subject("group_norm", "group", definition=handed.normalised(mean="group", std="group", ddof=1, eps=1e-9)),
        subject("reinforce_baseline", "batch"),
        subject("gae", "batch"),
    ]  # fmt: skip


def _overlong(boundary: Boundary) -> Subject:
    def shaped(case: Case, **chosen: Any) -> Any:
        one = Settings(rewards=case.sequence("reward").clone(), response_length=torch.tensor(case.response_lengths))
        boundary([one], **chosen)
        return one.rewards

    define = like("reward.soft_overlong", max_length=lambda o: float(o["max_new_tokens"]),
                  buffer=lambda o: float(o["overlong_buffer_len"]), factor=lambda o: o["overlong_penalty_factor"])  # fmt: skip

    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        lengths = torch.tensor([float(n) for n in case.response_lengths], dtype=torch.float64)
        return define(case.with_sequences(length=lengths), options)

    return bind(
        shaped, name=boundary.spec.name, args={"case": lambda c: c}, definition=defined,
        options={"max_new_tokens": 4, "overlong_buffer_len": 2, "overlong_penalty_factor": 1.0},
        returns={"reward": at((), "reward", level="sequence")},
        variants={"max_new_tokens": (3,), "overlong_buffer_len": (3,), "overlong_penalty_factor": (0.5,)},
        waived={"credit_over_trainable": "a length is of everything after the prompt"},
    )  # fmt: skip


def _stop_properly(boundary: Boundary) -> Subject:
    def shaped(case: Case, stop_properly_penalty_coef: float) -> Any:
        one = Settings(rewards=case.sequence("reward").clone(), truncated=~case.sequence("ended"))
        boundary([one], stop_properly_penalty_coef)
        return one.rewards

    return bind(
        shaped, name=boundary.spec.name, args={"case": lambda c: c}, options={"stop_properly_penalty_coef": 0.25},
        definition=like("reward.not_ended_scale", factor=lambda o: o["stop_properly_penalty_coef"]),
        returns={"reward": at((), "reward", level="sequence")}, variants={"stop_properly_penalty_coef": (0.5,)},
        impossible={"stop_properly_penalty_coef": (2.0,)},
    )  # fmt: skip


# --- statistics and log-probs -------------------------------------------------------------------------------------


def _masked_mean(boundary: Boundary) -> Subject:
    returns = {"mean": at((), "statistic", level="scalar", of="token_loss", reduction="mean")}
    return bind(boundary, role="statistic", args={"tensor": "token_loss", "mask": "trainable"}, returns=returns,
                definition=average("token_mean", result="mean"))  # fmt: skip


def _masked_normalize(boundary: Boundary) -> Subject:
    return bind(torch.no_grad()(boundary), role="whitening", name=boundary.spec.name, couples="sequence",
                args={"tensor": "advantage", "mask": "trainable"})  # fmt: skip


def _logp(boundary: Boundary) -> Subject:
    def score(case: Case, temperature: float) -> Any:
        # The caller hands over a model's output, which nobody reads again: dividing it in place is its own affair.
        return boundary(case.padded("logits", side="right").clone(), case.padded("token_id", side="right"),
                        temperature=temperature)  # fmt: skip

    return bind(
        score, role="logp", name=boundary.spec.name, args={"case": lambda c: c}, view={"with_prompt": True, "side": "right"},
        options={"temperature": 0.7}, definition=scored(temperature="temperature", names=("logp",)),
        returns={"logp": at((), "logp", level="token")}, variants={"temperature": (1.0,)},
    )  # fmt: skip


def _entropy(boundary: Boundary) -> Subject:
    return bind(boundary, role="entropy", args={"logits": "logits"}, definition=scored(names=("entropy",)),
                returns={"entropy": at((), "entropy", level="token")})  # fmt: skip


def _in(file: str, name: str, make: Any, label: str | None = None) -> Binding:
    return Binding(label or name, (Spec(name, file=file),), make)


TARGET = Target(
    "openrlhf",
    "OpenRLHF/OpenRLHF",
    bindings=(
        _in(LOSS, "PolicyLoss.forward", _policy),
        _in(LOSS, "PolicyLoss.forward", _gspo, "PolicyLoss.forward[gspo]"),
        _in(LOSS, "PolicyLoss.forward", _importance, "PolicyLoss.forward[correction]"),
        _in(LOSS, "ValueLoss.forward", _value),
        _in(LOSS, "aggregate_loss", _aggregate),
        _in(LOSS, "SFTLoss.forward", _sft),
        _in(UTILS, "compute_approx_kl", _kl),
        _in(UTILS, "compute_reward", _reward),
        _in(UTILS, "masked_mean", _masked_mean),
        _in(UTILS, "masked_normalize", _masked_normalize),
        _in(UTILS, "log_probs_from_logits", _logp),
        _in(UTILS, "compute_entropy", _entropy),
        _in(MAKER, "RemoteExperienceMaker.get_advantages_and_returns", _returns),
        _in(MAKER, "RemoteExperienceMaker.get_cumulative_returns", _returns),
        _in(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", _shaping),
        _in(PENALTY, "apply_overlong_penalty", _overlong),
        _in(PENALTY, "apply_stop_properly_penalty", _stop_properly),
    ),
    wheel="openrlhf",
)  # fmt: skip
