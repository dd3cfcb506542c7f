"""TRL (huggingface/trl): the losses of the GRPO and RLOO trainers, rewards to advantages, masks, log-probs, distillation.

What its trainers guarantee, and the bindings rely on: completions are padded on the right, prompts apart; an advantage
belongs to a completion; the completions of a prompt are equally many and next to each other; micro-batches have equally
many completions, so a mean over completions is weighed by them; a reward that no function gave is NaN.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.like import divergence, like, scored
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.role import at, bind
from trimtab.sentinel.subject import Call, Out, Result, Subject
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.stand_in import Settings, bounded, contiguous_groups
from trimtab.sentinel.targets.target import Binding, Target

GRPO, RLOO, UTILS = "trl/trainer/grpo_trainer.py", "trl/trainer/rloo_trainer.py", "trl/trainer/utils.py"
RIGHT: dict[str, Any] = {"with_prompt": False}
OWN_FORWARD = "log-probs at untrainable cells are the trainer's own forward pass, and padding of sampled ones is 0"
OWN = {"nonfinite_isolation": OWN_FORWARD}


class Alone:
    """An accelerator of one process."""

    num_processes, process_index, sync_gradients, device = 1, 0, True, torch.device("cpu")

    def gather(self, values: Tensor) -> Tensor:
        return values

    gather_for_metrics = gather

    def reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        return values

    def pad_across_processes(self, values: Tensor, dim: int = 0, pad_index: float = 0.0) -> Tensor:
        return values


def by_row(values: list[Tensor], parts: list[Case]) -> Tensor:
    """As equal micro-batches add up when each is a mean over its completions."""
    rows = [float(part.num_sequences) for part in parts]
    return torch.stack([v * (n / max(sum(rows), 1.0)) for v, n in zip(values, rows, strict=True)]).sum()


# --- the trainers' losses -----------------------------------------------------------------------------------------

ARGS: dict[str, Any] = {
    "delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
    "steps_per_generation": 1, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
    "gradient_accumulation_steps": 1, "report_to": (),
}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "beta": 0.0, "loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28, "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None, "importance_sampling_level": "token", "use_vllm": False,
    "vllm_importance_sampling_correction": False, "max_completion_length": 8, "temperature": 1.0,
    "_entropy_bonus_enabled": False, "entropy_coef": 0.0, "use_adaptive_entropy": False, "aux_loss_enabled": False,
    "current_gradient_accumulation_steps": 1, "use_liger_kernel": False, "scale_rewards": "group", "num_iterations": 1,
}  # fmt: skip


def _trainer(boundary: Boundary, case: Case, chosen: Mapping[str, Any]) -> Any:
    """A trainer as its constructor leaves it, whose model gives the case's log-probs."""
    own = {n: v for n, v in chosen.items() if n not in ARGS}
    told = Settings(**{**ARGS, **{n: v for n, v in chosen.items() if n in ARGS}})
    logp, entropy = case.padded("logp_current", **RIGHT), case.padded("entropy", **RIGHT)
    given = {**OPTIONS, **own, "args": told, "accelerator": Alone(), "model": Settings(training=True)}
    trainer = boundary.made(**given, _metrics={"train": defaultdict(list), "eval": defaultdict(list)}, _step=0,
                            _metric_events=defaultdict(list), state=Settings(global_step=0),
                            control=Settings(should_evaluate=False))  # fmt: skip
    scored_by = (logp, entropy, None) if "entropies, aux_loss = " in boundary.source else (logp, entropy)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: scored_by
    trainer._get_per_token_logps = lambda *_, **__: logp
    return trainer


def _inputs(case: Case) -> dict[str, Any]:
    ids, mask = case.padded("token_id", **RIGHT), case.padded("response", dtype=torch.long, **RIGHT)
    old = case.padded("logp_old", **RIGHT)
    tokens = torch.tensor(float(handed.counts(case)[0]))
    return {
        "prompt_ids": torch.zeros(len(ids), 1, dtype=torch.long), "prompt_mask": torch.ones(len(ids), 1, dtype=torch.long),
        "completion_ids": ids, "completion_mask": mask.double(), "tool_mask": case.padded("trainable", **RIGHT),
        "advantages": case.sequence("outcome"), "old_per_token_logps": old, "num_items_in_batch": tokens,
        "ref_per_token_logps": case.padded("logp_ref", **RIGHT), "old_logps": (old * mask).sum(1),
        "sampling_per_token_logps": case.padded("logp_rollout", **RIGHT),
    }  # fmt: skip


READ: dict[str, dict[str, Any]] = {
    "clip_ratio/region_mean": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
    "clip_ratio/low_mean": {"agreed": 0.0, "reduction": "mean"},
    "clip_ratio/high_mean": {"agreed": 0.0, "reduction": "mean"},
    "clip_ratio": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
    "kl": {"agreed": 0.0, "reduction": "mean"},
    "entropy": {"of": "entropy", "reduction": "mean"},
}
CLIPPED = ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean")


def loss(
    boundary: Boundary,
    options: Mapping[str, Any],
    *,
    read: tuple[str, ...] = (),
    population: str = "token",
    **facts: Any,
) -> Subject:
    """A trainer's loss over one micro-batch; metrics are read from what it appends to its own record."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        if not case.padded("response", **RIGHT).shape[1]:
            raise case.cannot("a completion has a token")
        if "tool_mask" not in boundary.source and any("o" in row for row in case.kinds):
            raise case.cannot("this version has no tools")
        trainer = _trainer(boundary, case, chosen)
        found = boundary(trainer, None, _inputs(case))
        out = {"loss": Result.scalar(found, "loss")}
        metrics = {n: trainer._metrics["train"][n] for n in read if n in trainer._metrics["train"]}
        facts_of = {n: {**READ[n], "population": population} for n in metrics}
        if population == "token" and str(options.get("importance_sampling_level", "token")) == "token":
            for n in {"clip_ratio/region_mean", "clip_ratio"} & metrics.keys():
                facts_of[n]["of"] = lambda one: _clips(one, chosen)
        return out | {n: Result.scalar(v[-1], "metric", **facts_of[n]) for n, v in metrics.items()}

    facts = {"waived": OWN, **facts}
    return Subject(f"{boundary.spec.name}[{options.get('loss_type', 'rloo')}]", call, options=dict(options),
                   boundary=boundary, role="policy_loss", **facts)  # fmt: skip


def _clips(case: Case, options: Mapping[str, Any]) -> Tensor:
    """Tokens at which the minimum takes the bounded side."""
    low, high = band(options)
    ratio, credit = (case.flat("logp_current") - case.flat("logp_old")).exp(), case.flat("outcome")
    return (((ratio < low) & (credit < 0)) | ((ratio > high) & (credit > 0))).double()


def band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["epsilon_low"], 1 + options["epsilon_high"]


def one_advantage(define: Call, *names: str) -> Call:
    """A definition with one advantage a sequence."""
    held = handed.simply(define)
    return bounded(lambda case, o: held(handed.one_per_sequence("advantage")(case), o), *(names or ("logp_current", "logp_old")))


CLIPS = {"epsilon_low": 0.2, "epsilon_high": 0.28}
OTHER = {"epsilon_low": (0.5,), "epsilon_high": (0.9,)}


def _grpo(boundary: Boundary) -> list[Subject]:
    rows = "sequence_mean_token_mean over all rows"
    clipped = {m: one_advantage(like("policy_loss.clipped", mean=m, band=band)) for m in ("token_mean", rows)}
    gated = one_advantage(like("policy_loss.soft_gated", mean=rows, temperature_positive=lambda o: o["sapo_temperature_pos"],
                           temperature_negative=lambda o: o["sapo_temperature_neg"]))  # fmt: skip
    weighed = one_advantage(like("policy_loss.clipped_importance", mean="token_mean", band=lambda o: (0.0, o["epsilon_high"])))
    local = {**OWN, "split": "bnpo is a mean over the tokens of each micro-batch, as its name and the documentation say"}
    return [
        loss(boundary, {**CLIPS, "loss_type": "dapo"}, read=(*CLIPPED, "entropy"), combine="sum", variants={**OTHER, "delta": (1.5,)},
             definition=clipped["token_mean"], impossible={"loss_type": ("ppo",), "importance_sampling_level": ("turn",)}),
        loss(boundary, {**CLIPS, "loss_type": "grpo", "beta": 0.1}, read=(*CLIPPED, "kl"), combine=by_row,
             penalties={"beta": "logp_ref"}, variants={**OTHER, "beta": (0.5,)}),
        loss(boundary, {**CLIPS, "loss_type": "grpo"}, combine=by_row, definition=clipped[rows], variants={"loss_type": ("dapo", "sapo")}),
        loss(boundary, {**CLIPS, "loss_type": "bnpo"}, waived=local, definition=clipped["token_mean"]),
        loss(boundary, {**CLIPS, "loss_type": "dr_grpo", "max_completion_length": 8}, combine=by_row,
             variants={"max_completion_length": (4,)}),
        loss(boundary, {"epsilon_high": 2.0, "loss_type": "cispo"}, combine="sum", definition=weighed, stops_gradient=True,
             variants={"epsilon_high": (1.1,)}),
        loss(boundary, {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "loss_type": "sapo"}, combine=by_row,
             definition=gated, variants={"sapo_temperature_pos": (2.0,), "sapo_temperature_neg": (2.0,)}),
        loss(boundary, {**CLIPS, "importance_sampling_level": "sequence", "loss_type": "grpo"}, combine=by_row, variants=OTHER,
             definition=one_advantage(like("policy_loss.geometric_clipped", mean=rows, band=band))),
        loss(boundary, {"loss_type": "vespo"}, combine="sum", stops_gradient=True),
        loss(boundary, {**CLIPS, "off_policy_mask_threshold": 0.5, "loss_type": "dapo"}, combine="sum",
             variants={"off_policy_mask_threshold": (0.01,)}),
        loss(boundary, {**CLIPS, "_entropy_bonus_enabled": True, "entropy_coef": 0.1, "loss_type": "grpo"}, combine=by_row,
             waived={**OWN, "split": "its entropy bonus is a mean over the tokens of each micro-batch, as a comment says"},
             penalties={"entropy_coef": "entropy"}, variants={"entropy_coef": (0.5,)}),
    ]  # fmt: skip


def _rloo(boundary: Boundary) -> Subject:
    return loss(boundary, CLIPS, read=("clip_ratio/region_mean",), population="sequence", combine=by_row, variants=OTHER,
                waived={**OWN, "mask_content": "it has no tool output, so the mask of the completion is that of what trains"},
                adapt=_without_tools)  # fmt: skip


def _without_tools(case: Case) -> Case:
    if any("o" in row for row in case.kinds):
        raise case.cannot("this trainer has no tools")
    return case


# --- rewards to advantages ----------------------------------------------------------------------------------------


def _advantages(boundary: Boundary, options: Mapping[str, Any], **facts: Any) -> Subject:
    """The statements between the rewards of every function and the advantages; a reward nobody gave is NaN."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        groups = contiguous_groups(case)
        if len({len(g) for g in groups}) != 1:
            raise case.cannot("prompts have equally many completions")
        votes = case.sequence("votes")
        given = torch.where(votes, case.sequence("reward"), float("nan"))[:, None].clone()
        trainer = Settings(**{
            "reward_weights": torch.ones(1, dtype=torch.float64), "multi_objective_aggregation": "sum_then_normalize",
            "reward_clip_range": None, "beta": 0.0, "normalize_advantages": False, "num_generations": len(groups[0]),
            "reward_funcs": [None], "accelerator": Alone(), **chosen,
        })  # fmt: skip
        found = boundary(self=trainer, rewards_per_func=given, device=torch.device("cpu"), num_generations=len(groups[0]),
                         mode="train")  # fmt: skip
        return {"advantage": Result.sequence(found["advantages"], "advantage")}

    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, **facts)


def normalized(std: str) -> Call:
    define = handed.normalised(tokens=False, mean="group", std=std, ddof=1, eps=1e-4)

    def everybody(case: Case, options: Mapping[str, Any]) -> Out:
        if not bool(case.sequences["votes"].all()):
            raise case.cannot("the plain definition is for batches in which everybody was scored")
        return define(handed.no_lone(case), options)

    return everybody


def _grpo_advantages(boundary: Boundary) -> list[Subject]:
    others = {"group": ("none", "batch"), "batch": ("none", "group"), "none": ("group", "batch")}
    return [
        _advantages(boundary, {"scale_rewards": kind}, couples="batch" if kind == "batch" else "group",
                    definition=normalized(kind), variants={"scale_rewards": others[kind]},
                    impossible={"scale_rewards": ("groups",), "multi_objective_aggregation": ("sum",)})
        for kind in ("group", "none", "batch")
    ]  # fmt: skip


def _rloo_advantages(boundary: Boundary) -> list[Subject]:
    plain = like("normalize.leave_one_out", result="advantage")
    return [
        _advantages(boundary, {"normalize_advantages": False}, couples="group",
                    definition=lambda case, o: plain(handed.no_lone(case), o), variants={"normalize_advantages": (True,)}),
        _advantages(boundary, {"normalize_advantages": True}, couples="batch"),
    ]  # fmt: skip


# --- masks, factors, log-probs ------------------------------------------------------------------------------------


def _off_policy_mask(boundary: Boundary) -> Subject:
    def keep(case: Case, off_policy_threshold: float) -> Any:
        found = boundary(
            case.sequence("outcome")[:, None], case.padded("logp_current", **RIGHT), case.padded("logp_rollout", **RIGHT),
            case.padded("trainable", **RIGHT), off_policy_threshold,
        )  # fmt: skip
        return found[:, 0]

    return bind(
        keep, role="keep", name=boundary.spec.name, args={"case": lambda c: c}, options={"off_policy_threshold": 0.05},
        returns={"keep": at((), "keep", level="sequence", scope="sequence")}, variants={"off_policy_threshold": (1e-6,)},
    )  # fmt: skip


def _entropy_mask(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        trainer = boundary.made(accelerator=Alone())
        found = boundary(trainer, case.padded("entropy", **RIGHT), case.padded("trainable", **RIGHT), **chosen)
        return {"keep": Result.token(case, found, "keep", scope="batch", **RIGHT)}

    return Subject(boundary.spec.name, call, options={"threshold": 0.5}, boundary=boundary, couples="batch",
                   variants={"threshold": (0.1,)})  # fmt: skip


def _sampling_ratio(boundary: Boundary) -> list[Subject]:
    """The statements that make the correction for the sampler's log-probs."""

    def subject(mode: str, **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            trainer = Settings(vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=None, **chosen)
            mask = case.padded("trainable", **RIGHT)
            found = torch.no_grad()(boundary)(  # as the trainer does, before any loss
                self=trainer, completion_mask=mask, tool_mask=None, mask=mask, old_per_token_logps=case.padded("logp_old", **RIGHT),
                sampling_per_token_logps=case.padded("logp_rollout", **RIGHT),
            )["vllm_importance_sampling_ratio"]  # fmt: skip
            of: dict[str, Any] = {"pair": ("logp_old", "logp_rollout"), "range": (0.0, chosen["vllm_importance_sampling_clip_max"])}
            if mode.startswith("sequence"):
                return {"importance": Result.sequence(found[:, 0], "importance", scope="sequence", **of)}
            return {"importance": Result(case.from_padded(found, **RIGHT), "token", "importance", **of)}

        return Subject(f"{boundary.spec.name}[{mode}]", call, options={"vllm_importance_sampling_clip_max": 2.0},
                       boundary=boundary, variants={"vllm_importance_sampling_clip_max": (1.1,)}, waived=OWN, **facts)  # fmt: skip

    truncated = like("importance.truncated", level="token", band=lambda o: (0.0, o["vllm_importance_sampling_clip_max"]))
    return [subject("token_truncate", definition=bounded(truncated, "logp_old", "logp_rollout")), subject("token_mask"),
            subject("sequence_truncate"), subject("sequence_mask")]  # fmt: skip


def _logp(boundary: Boundary) -> Subject:
    own = handed.parameters(boundary)
    options = {"temperature": 0.7} if "temperature" in own else {}
    facts: dict[str, Any] = {"variants": {"temperature": (1.0,)}, "impossible": {"temperature": (0.0,)}} if options else {}
    names = ("logp", "entropy") if "entropy" in boundary.spec.name else ("logp",)
    return bind(
        boundary, role="logp", args={"logits": "logits", "index": "token_id"}, options=options,
        definition=scored(temperature="temperature", names=names),
        returns={n: at((i,) if len(names) > 1 else (), n, level="token") for i, n in enumerate(names)}, **facts,  # type: ignore[arg-type]
    )  # fmt: skip


def _entropy(boundary: Boundary) -> Subject:
    options = {"chunk_size": 2} if "chunk_size" in handed.parameters(boundary) else {}
    return bind(boundary, role="entropy", args={"logits": "logits"}, options=options, definition=scored(names=("entropy",)),
                returns={"entropy": at((), "entropy", level="token")})  # fmt: skip


def _flush_left(boundary: Boundary) -> Subject:
    def call(case: Case, _: Mapping[str, Any]) -> Out:
        if not case.kinds or any(not row for row in case.kinds):
            raise case.cannot("a sequence has a token")
        mask = case.padded("attention", dtype=torch.long, side="left")
        flushed = boundary(mask, case.padded("logp_old", side="left"), case.padded("token_reward", side="left"))
        rows = [torch.arange(len(row)) for row in case.kinds]
        carried = {
            n: torch.cat([flushed[i + 1][row][place] for row, place in enumerate(rows)])
            for i, n in enumerate(("logp_old", "token_reward"))
        }
        return {n: Result(v[case.trainable], "token", "carried", of=n) for n, v in carried.items()}

    return Subject(boundary.spec.name, call, boundary=boundary)


def _jsd(boundary: Boundary) -> list[Subject]:
    def each(case: Case, beta: float, temperature: float) -> Any:
        student, teacher = case.padded("logits", **RIGHT), case.padded("teacher_logits", **RIGHT)
        return boundary(student, teacher, beta=beta, temperature=temperature, reduction="none").sum(-1)

    return [
        bind(each, role="distillation", name=boundary.spec.name, args={"case": lambda c: c}, returns={"kl": at((), "kl")},
             options={"beta": beta, "temperature": 1.0}, definition=divergence(kind, weight=beta),
             variants={"beta": (0.3,), "temperature": (2.0,)},
             waived={n: "without labels it takes no mask" for n in ("mask_content", "nonfinite_isolation")})
        for kind, beta in (("jsd", 0.5), ("forward", 0.0), ("reverse", 1.0))
    ]  # fmt: skip


_SCORE = "_generate_and_score_completions"
_FROM_REWARDS = {"first": "unscorable_mask = torch.isnan", "last": "advantages = torch.nan_to_num", "results": ("advantages",)}
_RATIO = {"first": "per_token_logps_diff = (old_per_token_logps", "last": "if self.vllm_importance_sampling_mode in"}
GKD = ("trl/experimental/gkd/gkd_trainer.py", "trl/trainer/gkd_trainer.py")


def _in(file: str, name: str, make: Any, label: str | None = None, **cut: Any) -> Binding:
    return Binding(label or name, (Spec(name, file=file, **cut),), make)


TARGET = Target(
    "trl",
    "huggingface/trl",
    bindings=(
        Binding("GRPOTrainer._compute_loss", tuple(Spec(f"GRPOTrainer.{n}", file=GRPO) for n in ("_compute_loss", "compute_loss")), _grpo),
        _in(RLOO, "RLOOTrainer._compute_loss", _rloo),
        _in(GRPO, f"GRPOTrainer.{_SCORE}", _grpo_advantages, "GRPOTrainer advantages", **_FROM_REWARDS),
        _in(RLOO, f"RLOOTrainer.{_SCORE}", _rloo_advantages, "RLOOTrainer advantages", **_FROM_REWARDS),
        _in(GRPO, f"GRPOTrainer.{_SCORE}", _sampling_ratio, "GRPOTrainer sampling ratio", **_RATIO,
            results=("vllm_importance_sampling_ratio",)),
        _in(GRPO, "GRPOTrainer.get_off_policy_mask", _off_policy_mask),
        _in(GRPO, "GRPOTrainer.get_high_entropy_mask", _entropy_mask),
        _in(UTILS, "selective_log_softmax", _logp),
        _in(UTILS, "selective_log_softmax_and_entropy", _logp),
        _in(UTILS, "entropy_from_logits", _entropy),
        _in(UTILS, "flush_left", _flush_left),
        Binding("generalized_jsd_loss", tuple(Spec("GKDTrainer.generalized_jsd_loss", file=f) for f in GKD), _jsd),
    ),
    wheel="trl",
)  # fmt: skip
