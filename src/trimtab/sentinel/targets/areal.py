"""AReaL (areal-project/AReaL): advantages from rewards, normalisation, KL, actor and critic losses, rejection, log-probs.

What its trainer guarantees, and the bindings rely on: batches are padded on the right to their longest sequence, what
belongs to a token stands one cell before it, the sequences of a prompt are next to each other, and micro-batch losses
are means that the engine weighs by their tokens.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.like import like, scored
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.role import at, bind
from trimtab.sentinel.subject import Call, Out, Result, Subject
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.stand_in import Settings, bounded, contiguous_groups
from trimtab.sentinel.targets.target import Binding, Target

ACTOR = ("areal/trainer/ppo/actor.py", "areal/engine/ppo/actor.py")
FUNCTIONAL = ("areal/utils/functional/functional.py", "areal/utils/functional.py")
DATA = "areal/utils/data.py"
SHIFTED: dict[str, Any] = {"side": "right", "shift": True}
"""Cell t holds what belongs to token t + 1."""
OWN_FORWARD = (
    "log-probs at untrainable cells are the trainer's own forward pass or the 0 that rollouts write for prompts "
    "and tool output"
)
OWN = {"nonfinite_isolation": OWN_FORWARD}


def _places(name: str, files: tuple[str, ...]) -> tuple[Spec, ...]:
    return tuple(Spec(name, file=file) for file in files)


# --- advantages ---------------------------------------------------------------------------------------------------


def _longest_did_not_end(case: Case) -> Case:
    """Who filled the row is taken for not ended, and with the option on gets no task reward: nobody told who ended."""
    width = max((len(row) for row in case.kinds), default=0) + case.extra_columns
    shorter = torch.tensor([len(row) < width for row in case.kinds], dtype=torch.bool)
    return case.with_sequences(votes=shorter, ended=shorter)


def _norm(boundary: Boundary, case: Case, mean: str | None, std: str | None) -> Any:
    if mean is None and std is None:
        return None
    size = max((len(rows) for rows in contiguous_groups(case)), default=1)
    settings = Settings(mean_level=mean, std_level=std, mean_leave1out=False, std_unbiased=True, group_size=size, eps=1e-5)
    return boundary.get("Normalization")(settings)


def _actor(boundary: Boundary, case: Case, chosen: Mapping[str, Any]) -> Any:
    """An actor as its constructor leaves it, without an engine."""
    config = Settings(use_decoupled_loss=True, recompute_logprob=True, overlong_reward_penalty=False)
    made: dict[str, Any] = {
        "config": config, "reward_bias": 0.0, "reward_scaling": 1.0, "reward_clip": 1000.0,
        "kl_ctl": chosen["kl_ctl"], "kl_estimator": boundary.get("KLEstimator")("k1"),
        "adv_norm": _norm(boundary, case, chosen.get("adv_norm"), chosen.get("adv_norm")),
        "reward_norm": _norm(boundary, case, chosen.get("reward_mean"), chosen.get("reward_std")),
        "discount": chosen["discount"], "gae_lambda": chosen["gae_lambda"], "gae_timestep_unit": "token",
        "_gae_lambda_is_custom": False, "mask_no_eos_with_zero": chosen["mask_no_eos_with_zero"],
    }  # fmt: skip
    return boundary.made(**made)


def _batch(case: Case, *, values: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {"side": "right"}
    found = {
        "input_ids": case.padded("token_id", **plain), "attention_mask": case.padded("attention", dtype=torch.long, **plain),
        "loss_mask": case.padded("trainable", **plain), "rewards": case.sequence("reward").float(),
        "logprobs": case.padded("logp_rollout", **plain).float(), "prox_logp": case.padded("logp_old", **SHIFTED).float(),
        "ref_logp": case.padded("logp_ref", **SHIFTED).float(),
    }  # fmt: skip
    return found | ({"values": _values(case)} if values else {})


def _values(case: Case) -> Tensor:
    """A critic's output: at each token the value of what follows it, at the last that of the state it ends in."""
    found = case.padded("value_old", **SHIFTED).float()
    rows = torch.arange(case.num_sequences)
    ends = torch.tensor([len(row) - 1 for row in case.kinds])
    return found.index_put((rows, ends), case.sequence("value_after").float())


def _advantages(boundary: Boundary) -> list[Subject]:
    def subject(options: Mapping[str, Any], **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            if any(len(row) < 2 or row[0] != "p" or row[-1] != "a" for row in case.kinds) or not case.kinds:
                raise case.cannot("a sequence has a prompt, and ends with what the policy wrote")
            if chosen["mask_no_eos_with_zero"]:
                case.sequence("votes")
            groups = contiguous_groups(case)
            data = _batch(case, values=bool(chosen.get("critic")))
            told = {"meta": Settings(traj_group_sizes=[len(g) for g in groups])}
            kept = handed.accepted(boundary, **told)
            done = boundary(_actor(boundary, case, chosen), data, **kept)
            return {
                "advantage": Result.token(case, done["advantages"], "advantage", **SHIFTED),
                "returns": Result(case.from_padded(done["returns"], **SHIFTED), "token", "return"),
            }

        base = {"kl_ctl": 0.0, "discount": 1.0, "gae_lambda": 1.0, "mask_no_eos_with_zero": False}
        return Subject(
            boundary.spec.name, call, options={**base, **options}, boundary=boundary,
            adapt=_longest_did_not_end, waived=OWN, **facts,
        )  # fmt: skip

    suppressed = {"reward_mean": "batch", "mask_no_eos_with_zero": True}
    return [
        subject({"kl_ctl": 0.1}, couples="sequence", penalties={"kl_ctl": "logp_ref"}, variants={"kl_ctl": (0.5,)}),
        subject({"critic": True, "discount": 0.9, "gae_lambda": 0.8}, couples="sequence",
                variants={"discount": (1.0,), "gae_lambda": (1.0,), "mask_no_eos_with_zero": (True,)}),
        subject({"reward_mean": "group", "reward_std": "group"}, couples="group", variants={"reward_std": (None,)}),
        subject(suppressed, couples="batch", variants={"reward_mean": ("group",), "mask_no_eos_with_zero": (False,)}),
        subject({"adv_norm": "batch"}, couples="batch", variants={"adv_norm": (None,)}),
    ]  # fmt: skip


def _normalization(boundary: Boundary) -> list[Subject]:
    """Reward normalisation by its own class, with the sizes of the groups where a version takes them."""
    from inspect import signature

    def subject(mean: str | None, std: str | None, *, leave_one_out: bool = False, **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            sizes = [len(rows) for rows in contiguous_groups(case)]
            config = Settings(group_size=max(sizes, default=1), eps=1e-5, std_unbiased=True, **chosen)
            norm = boundary.made(boundary.owner)
            boundary.get("Normalization.__init__")(norm, config)
            takes = signature(boundary.function).parameters
            extra = {"group_sizes": sizes} if "group_sizes" in takes else {}
            return {"advantage": Result.sequence(boundary(norm, case.sequence("reward").float(), **extra), "advantage")}

        options = {"mean_level": mean, "std_level": std, "mean_leave1out": leave_one_out}
        couples = "batch" if "batch" in (mean, std) else "group"
        return Subject(boundary.spec.name, call, options=options, couples=couples, boundary=boundary, **facts)

    by_group = handed.normalised(tokens=False, mean="group", std="group", ddof=1, eps=1e-5)
    centred = handed.normalised(tokens=False, mean="group", std="none", ddof=1, eps=0.0)
    return [
        subject("group", "group", definition=_no_lone(by_group), variants={"std_level": (None,)}),
        subject("group", None, definition=_no_lone(centred), variants={"mean_leave1out": (True,)}),
        subject("group", None, leave_one_out=True,
                definition=_no_lone(handed.simply(like("normalize.leave_one_out", result="advantage")))),
        subject("batch", "batch", definition=_no_lone(
            handed.normalised(tokens=False, mean="batch", std="batch", ddof=1, eps=1e-5))),
    ]  # fmt: skip


def _no_lone(define: Call) -> Call:
    """What a sequence alone in its group gets is a rule of its own, and has changed between releases."""
    return lambda case, options: define(handed.no_lone(case), options)


def _kl(boundary: Boundary) -> list[Subject]:
    no_mask = "it takes no mask: what it reads was multiplied by the loss mask before"
    waived = {"mask_content": no_mask, "nonfinite_isolation": no_mask}
    return [
        bind(
            boundary, role="kl", name=boundary.spec.name, args={"log_probs": "logp_old", "log_probs_base": "logp_ref"},
            options={"kl_estimator": kind, "apply_clamp": False}, waived=waived,
            definition=bounded(like(f"kl.{kind}", fields={"logp_current": "logp_old"}), "logp_old", "logp_ref"),
            variants={"kl_estimator": tuple({"k1", "k2", "k3"} - {kind})},
        )
        for kind in ("k1", "k2", "k3")
    ]  # fmt: skip


def _overlong(boundary: Boundary) -> Subject:
    def shaped(case: Case, **chosen: Any) -> Tensor:
        data = {"rewards": case.sequence("reward"), "input_ids": case.padded("token_id", side="right"),
                "loss_mask": case.padded("trainable", side="right")}  # fmt: skip
        return boundary(data, **chosen)["rewards"]

    return bind(
        shaped, name=boundary.spec.name, args={"case": lambda c: c},
        options={"overlong_tokens": 2, "overlong_penalty_factor": 1.0, "max_response_length": 4},
        returns={"reward": at((), "reward", level="sequence")},
        variants={"overlong_tokens": (3,), "overlong_penalty_factor": (0.5,), "max_response_length": (3,)},
        waived={"credit_over_trainable": "a length is of what was generated"},
    )  # fmt: skip


# --- losses -------------------------------------------------------------------------------------------------------


def _weighed(values: list[Tensor], parts: list[Case]) -> Tensor:
    """As the engine puts micro-batches together: each loss by its share of trainable tokens."""
    tokens = [float(part.segments.num_tokens) for part in parts]
    return torch.stack([v * (n / max(sum(tokens), 1.0)) for v, n in zip(values, tokens, strict=True)]).sum()


def _packed(case: Case, names: Mapping[str, str]) -> dict[str, Any]:
    """One row of every token, each field at the cell before its token, as micro-batches are packed."""
    shifted = {n: _before(case, case.packed(field)) for n, field in names.items()}
    return {**shifted, "loss_mask": _before(case, case.packed("trainable", dtype=torch.bool)),
            "cu_seqlens": case.cu_seqlens}  # fmt: skip


def _before(case: Case, values: Tensor) -> Tensor:
    pieces = [torch.cat([piece[1:], torch.zeros_like(piece[:1])]) for piece in values.split(case.lengths)]
    return torch.cat(pieces) if pieces else values


def _trained(case: Case, values: Tensor) -> Tensor:
    """From cells before their tokens back to the tokens."""
    pieces = [torch.cat([torch.zeros_like(piece[:1]), piece[:-1]]) for piece in values.split(case.lengths)]
    return torch.cat(pieces)[case.trainable]


def _prompted(case: Case) -> Case:
    if any(not row or row[0] != "p" for row in case.kinds):
        raise case.cannot("a sequence starts with its prompt")
    return case


FIELDS = {"logprobs": "logp_current", "proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout", "advantages": "advantage"}


def _ppo(boundary: Boundary) -> list[Subject]:
    def subject(options: Mapping[str, Any], fields: Mapping[str, str] = FIELDS, **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            told = dict(chosen)
            if (rejection := _rejecting(told)) is not None:
                told["rejection_sampling"] = rejection
            loss, seen = boundary(**handed.accepted(boundary, **_packed(_prompted(case), fields)), **told)
            clip = _trained(case, seen["clip_mask"])
            out = {"loss": Result.scalar(loss, "loss")}
            return out | ({"clipped": Result(clip, "token", "observation", agreed=0.0)} if "eps_clip" in chosen else {})

        facts = {"combine": _weighed, "waived": OWN, **facts}
        return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, role="policy_loss", **facts)

    if "tau_pos" in handed.parameters(boundary):
        gated = like("policy_loss.soft_gated", mean="token_mean", temperature_positive=lambda o: o["tau_pos"],
                     temperature_negative=lambda o: o["tau_neg"])  # fmt: skip
        old = {"logprobs": "logp_current", "old_logprobs": "logp_old", "advantages": "advantage"}
        return [subject({"tau_pos": 1.0, "tau_neg": 1.05}, old, definition=bounded(gated, "logp_current", "logp_old"),
                        variants={"tau_pos": (2.0,), "tau_neg": (2.0,)}, impossible={"tau_pos": (0.0,), "tau_neg": (-1.0,)})]  # fmt: skip
    clips: dict[str, Any] = {"eps_clip": 0.2, "eps_clip_higher": 0.28}
    clipped = like("policy_loss.clipped", mean="token_mean", band=_band)
    dual = like("policy_loss.dual_clipped", mean="token_mean", band=_band, cap=lambda o: o["c_clip"])
    apart = ("logp_current", "logp_old")
    other = {"eps_clip": (0.5,), "eps_clip_higher": (0.9,)}
    return [
        subject(clips, definition=bounded(clipped, *apart), variants=other, impossible={"importance_sampling_level": ("turn",)}),
        subject({**clips, "c_clip": 3.0}, definition=bounded(dual, *apart), variants={**other, "c_clip": (1.5, None)},
                impossible={"c_clip": (0.5,)}),
        subject({**clips, "importance_sampling_level": "sequence"}, variants=other, adapt=handed.one_per_sequence("advantage")),
        subject({**clips, "level": "token", "action": "clamp", "metric": "ratio", "upper": 2.0},
                variants={"upper": (1.1,), "action": ("mask",), "level": ("sequence",)}),
    ]  # fmt: skip


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["eps_clip"], 1 + options["eps_clip_higher"]


def _rejecting(chosen: dict[str, Any]) -> Settings | None:
    """The rejection config among a subject's options, taken out of them."""
    names = ("level", "action", "metric", "agg", "upper", "lower")
    found = {n: chosen.pop(n) for n in names if n in chosen}
    return Settings(**{"agg": "mean", "lower": None, **found}) if found else None


def _rejection(boundary: Boundary) -> list[Subject]:
    def subject(kind: str, options: Mapping[str, Any], **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            fields = {"proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout"}
            found = boundary(**_packed(_prompted(case), fields), config=_rejecting(dict(chosen)))
            scope = str(chosen["level"])
            if kind == "keep":
                return {"keep": Result(_trained(case, found.loss_mask), "token", "keep", scope)}
            weight = _trained(case, found.behave_imp_weight)
            facts_of: dict[str, Any] = {"pair": ("logp_old", "logp_rollout"), "range": (chosen.get("lower") or 0.0, chosen["upper"])}
            return {"importance": Result(weight, "token", "importance", scope, **facts_of)}

        return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, **facts)

    band = {"upper": (1.1,)}
    return [
        subject("keep", {"level": "token", "action": "mask", "metric": "ratio", "upper": 2.0, "lower": 0.5}, variants=band,
                definition=like("keep.token_band", band=lambda o: (o["lower"], o["upper"])), impossible={"metric": ("kl",)}),
        subject("keep", {"level": "sequence", "action": "mask", "metric": "ratio", "upper": 1.25, "lower": 0.8}, variants=band,
                definition=like("keep.geometric_band", band=lambda o: (o["lower"], o["upper"])), impossible={"agg": ("median",)}),
        subject("keep", {"level": "sequence", "action": "mask", "metric": "kl_k2", "upper": 0.1}, variants={"upper": (1e-4,)}),
        subject("importance", {"level": "token", "action": "clamp", "metric": "ratio", "upper": 2.0}, variants=band,
                definition=like("importance.truncated", level="token", band=lambda o: (0.0, o["upper"]))),
    ]  # fmt: skip


def _critic(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        fields = {"value": "value", "old_value": "value_old", "target_value": "returns"}
        given = _packed(_prompted(case), fields)
        tensors = {n: given[n].float() for n in fields}
        loss, seen = boundary(**tensors, loss_mask=given["loss_mask"], **chosen)
        return {"loss": Result.scalar(loss, "loss"),
                "clipped": Result(_trained(case, seen["clip_mask"]), "token", "observation")}  # fmt: skip

    define = like("value_loss.squared_clipped", mean="token_mean", reach=lambda o: o["value_eps_clip"])
    return Subject(
        boundary.spec.name, call, options={"value_eps_clip": 0.5}, definition=define, boundary=boundary, role="value_loss",
        waived=OWN, variants={"value_eps_clip": (0.1,)}, impossible={"loss_fn_type": ("l1",)},
        combine=_weighed,
    )  # fmt: skip


def _m2po(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        given = _packed(_prompted(case), {"old_logp": "logp_rollout", "prox_logp": "logp_old"})
        keep = boundary(given["old_logp"], given["prox_logp"], given["loss_mask"], **chosen)
        return {"keep": Result(_trained(case, keep), "token", "keep", scope="batch")}

    why = "torch.sort breaks ties between equal differences by position"
    return Subject(boundary.spec.name, call, options={"m2_threshold": 0.04}, couples="batch", boundary=boundary,
                   variants={"m2_threshold": (0.001,)}, waived={"permutation": why})  # fmt: skip


def _gather(boundary: Boundary) -> Subject:
    names = ("logp", "entropy") if "entropy" in boundary.spec.name else ("logp",)

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        found = boundary(case.packed("logits"), case.packed("token_id"), **chosen)
        found = found if isinstance(found, tuple) else (found,)
        return {n: Result.token(case, v, n, layout="packed") for n, v in zip(names, found, strict=True)}  # type: ignore[arg-type]

    return Subject(
        boundary.spec.name, call, options={"temperature": 0.7, "chunk_size": 2}, boundary=boundary, couples="token",
        definition=scored(temperature="temperature", names=names), variants={"temperature": (1.0,)},
    )  # fmt: skip


def _eager() -> dict[str, object]:
    """No accelerator here, and nothing to compile for."""
    return {"is_npu_available": True}


def functional(name: str, make: Any) -> Binding:
    """A function of areal.utils.functional."""
    return Binding(name, _places(name, FUNCTIONAL), make)


VOCABULARY = ("areal/utils/functional/vocab_parallel.py", "areal/utils/functional.py")
TARGET = Target(
    "areal",
    "areal-project/AReaL",
    bindings=(
        Binding("_compute_advantages", (*_places("PPOActor._compute_advantages", ACTOR),
                                        *_places("PPOActor.compute_advantages", ACTOR)), _advantages),
        Binding("Normalization", (Spec("Normalization.__call__", file=DATA),), _normalization),
        Binding("KLEstimator", (Spec("KLEstimator._compute_approx_kl", file=DATA),), _kl),
        functional("reward_overlong_penalty", _overlong),
        functional("ppo_actor_loss_fn", _ppo),
        functional("sapo_loss_fn", _ppo),
        functional("apply_rejection_sampling", _rejection),
        functional("ppo_critic_loss_fn", _critic),
        Binding("_apply_m2po_masking", _places("_apply_m2po_masking", ACTOR), _m2po),
        Binding("gather_logprobs", _places("gather_logprobs", VOCABULARY), _gather, _eager),
        Binding("gather_logprobs_entropy", _places("gather_logprobs_entropy", VOCABULARY), _gather, _eager),
    ),
    wheel="areal",
)  # fmt: skip
