"""open-instruct (allenai/open-instruct): GRPO over packed rows; losses are summed over a count of the whole step."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, like, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.stand_in import Settings, bounded
from trimtab.sentinel.targets.target import Binding, Target

LOGITS = {"nonfinite_isolation": "logits that are not finite are a broken model, not the content of a masked cell"}


def masked_mean(fn: Boundary) -> list[Subject]:
    """A mean over a mask, or a sum divided by the count of the whole step, as in the loss."""
    taken = inspect.signature(fn.function).parameters

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        told = {"denominator": float(case.whole.segments.num_tokens)} if options["whole"] else {}
        values, mask = (case.padded(n, with_prompt=False) for n in ("token_loss", "trainable"))
        return {"loss": Result.scalar(fn(values, mask, **told), "loss")}

    return [
        Subject(
            "masked_mean", call, options={"whole": whole}, role="aggregation", combine="sum" if whole else None,
            definition=average("token_mean"), conventions={"denominator": "token_mean"},
        )
        for whole in ((True, False) if "denominator" in taken else (False,))
    ]  # fmt: skip


def grpo_loss(fn: Boundary) -> list[Subject]:
    """Surrogate and KL of each token; the caller masks."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        kind = fn.get("GRPOLossType")(options["loss_fn"])
        now = case.flat("logp_current")
        ratio = torch.exp(now - case.flat("logp_old").detach())
        config = Settings(**{**options, "loss_fn": kind})
        term, clipfrac, kl = fn(
            now, ratio, case.flat("advantage").detach(), case.flat("logp_ref").detach(), config, torch.ones_like(now)
        )
        return {
            "term": Result(term, "token", "term"), "kl": Result(kl, "token", "kl"),
            "clipfrac": Result(clipfrac, "token", "metric", range=(0, 1), agreed=0.0),
        }  # fmt: skip

    band = lambda o: (1 - o["clip_lower"], 1 + o["clip_higher"])  # noqa: E731
    options = {"clip_lower": 0.2, "clip_higher": 0.28, "kl_estimator": 2}
    single_sided = lambda o: (0.0, 1 + o["clip_higher"])  # noqa: E731
    return [
        Subject("compute_grpo_loss", call, options={"loss_fn": "dapo", **options}, couples="token", role="policy_loss",
                definition=bounded(like("policy_loss.clipped", result="term", band=band)),
                variants={"clip_lower": (0.5,), "clip_higher": (0.6,), "kl_estimator": (0, 1, 3)}),
        Subject("compute_grpo_loss", call, options={"loss_fn": "cispo", **options}, couples="token", role="policy_loss",
                definition=bounded(like("policy_loss.clipped_importance", result="term", band=single_sided)),
                stops_gradient=True, variants={"clip_higher": (0.1,)}, impossible={"loss_fn": ("ppo",)}),
    ]  # fmt: skip


def kl_estimators(fn: Boundary) -> list[Subject]:
    """Four estimators at once."""
    names = {0: "kl.k1", 1: "kl.k2", 2: "kl.k3"}

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        now = case.flat("logp_current")
        ratio = torch.exp(now - case.flat("logp_old").detach())
        values = fn((now - case.flat("logp_ref").detach()).clamp(-40, 40), ratio)[options["estimator"]]
        return {"kl": Result(values, "token", "kl")}

    return [
        Subject("estimate_kl", call, options={"estimator": i}, couples="token", role="kl",
                definition=bounded(like(name)), variants={"estimator": tuple(j for j in range(3) if j != i)})
        for i, name in names.items()
    ]  # fmt: skip


def correction(fn: Boundary) -> list[Subject]:
    """The factor against the sampler: clamped, and zero where masked out."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        mask = case.padded("trainable", with_prompt=False, dtype=torch.bool)
        old, rollout, credit = (
            case.padded(n, with_prompt=False) for n in ("logp_old", "logp_rollout", "advantage")
        )  # fmt: skip
        found = fn(old.detach(), rollout.detach(), mask, credit.detach(), Settings(use_rho_correction=True, **options))
        low = 0.0 if options["rho_mask_upper_bound"] else options["rho_clamp_lower_bound"]
        facts: dict[str, Any] = {
            "range": (low, options["rho_clamp_upper_bound"]), "pair": ("logp_old", "logp_rollout"),
        }  # fmt: skip
        out = {"importance": Result.token(case, found.weights, "importance", with_prompt=False, **facts)}
        dropped = found.metrics["val/rho_drop_frac"]
        told: dict[str, Any] = {"range": (0, 1), "agreed": 0.0, "with_prompt": False}
        return {**out, "drop_frac": Result.token(case, dropped, "metric", **told)}

    bounds = {"rho_clamp_lower_bound": 0.5, "rho_clamp_upper_bound": 2.0, "rho_mask_sequence_level": False,
              "rho_mask_tv_divergence": False, "rho_mask_lower_bound": 0.0, "rho_mask_upper_bound": 0.0}  # fmt: skip
    masked = {"rho_mask_lower_bound": 0.6, "rho_mask_upper_bound": 1.6}
    return [
        Subject("compute_rho_correction", call, options={**bounds, **more}, role="importance",
                variants={"rho_clamp_upper_bound": (1.1,)})
        for more in ({}, masked, {"rho_mask_sequence_level": True, **masked})
    ]  # fmt: skip


def gae(fn: Boundary) -> Subject:
    """GAE over one packed row; two masks mark boundaries and prompts."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        dones = torch.zeros(case.trainable.numel(), dtype=torch.long)
        for i in range(case.num_sequences):
            dones[int(case.cu_seqlens[i + 1]) - 1] = i + 1
        values, rewards = (case.packed(n).detach()[None].numpy() for n in ("value_old", "token_reward"))
        mask = case.packed("trainable", dtype=torch.long)[None].numpy()
        advantages, returns = fn(values, rewards, dones=dones[None].numpy(), response_masks=mask, **options)
        found = [torch.as_tensor(one[0])[case.trainable] for one in (advantages, returns)]
        return {"advantage": Result(found[0], "token", "advantage"), "returns": Result(found[1], "token", "return")}

    return Subject(
        "calculate_advantages_packed", call, role="returns", options={"gamma": 1.0, "lam": 0.95},
        variants={"gamma": (0.5,), "lam": (0.5,)},
    )  # fmt: skip


def packed(fn: Boundary) -> Subject:
    """Prompts and responses in rows: log-probs and masks stay with their tokens."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        prompts = [kinds.count("p") for kinds in case.kinds]
        if any("p" in kinds[p:] for kinds, p in zip(case.kinds, prompts, strict=True)):
            raise case.cannot("a prompt comes first")
        ids = [[10 + i] * len(kinds) for i, kinds in enumerate(case.kinds)]
        logp = case.list("logp_rollout", with_prompt=False)
        masks = [m.tolist() for m in case.list("trainable", with_prompt=False, dtype=torch.long)]
        found = fn(
            queries=[row[:p] for row, p in zip(ids, prompts, strict=True)],
            responses=[row[p:] for row, p in zip(ids, prompts, strict=True)], masks=masks, pack_length=8,
            pad_token_id=0, vllm_logprobs=[v.tolist() for v in logp], mask_tool_use=True,
        )  # fmt: skip
        flat, owner = torch.cat(found.vllm_logprobs), torch.cat(found.query_responses)
        kept, trains = torch.cat(found.response_masks), case.trainable
        order = torch.cat([torch.full((len(kinds),), 10 + i) for i, kinds in enumerate(case.kinds)])
        if not torch.equal(owner, order):
            raise case.cannot("it returns the rows in another order")
        carried = Result(flat.double()[trains], "token", "carried", of="logp_rollout")
        return {"logp": carried, "count": Result((kept[trains] > 0).double(), "token", "count")}

    return Subject("pack_sequences", call, role="packing")


def scores(fn: Boundary, name: str) -> Subject:
    """Log-probs or entropies from logits that are already shifted."""
    one = "logp" if name == "log_softmax_and_gather" else "entropy"
    args: dict[str, Any] = {"logits": lambda c: c.padded("logits")}
    if one == "logp":
        args["index"] = lambda c: c.padded("token_id")
    return bind(
        fn, role=one, name=name, args=args, view={"with_prompt": True}, returns={one: at((), one, level="token")},
        definition=scored(names=(one,)), waived=LOGITS,
    )  # fmt: skip


def gap_metrics(fn: Boundary) -> Subject:
    """How far sampler and trainer are apart."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        mask = case.padded("trainable", with_prompt=False, dtype=torch.bool)
        old, rollout = (case.padded(n, with_prompt=False) for n in ("logp_old", "logp_rollout"))
        found = fn(old, rollout, mask)
        gap = lambda c: (c.flat("logp_old") - c.flat("logp_rollout")).abs()  # noqa: E731
        name = "debug/vllm_vs_local_logprob_diff_"
        return {
            "mean": Result.scalar(found[f"{name}mean"], "metric", of=gap, reduction="mean", agreed=0.0),
            "max": Result.scalar(found[f"{name}max"], "metric", of=gap, reduction="max", agreed=0.0),
        }

    return Subject("compute_vllm_local_debug_metrics", call, role="metric", couples="batch")


RL, GRPO, MODEL = (f"open_instruct/{name}.py" for name in ("rl_utils", "grpo_utils", "model_utils"))


def _place(name: str, *files: str) -> tuple[Spec, ...]:
    return (Spec(name, file=files[0], or_files=files[1:]),)


def bindings() -> tuple[Binding, ...]:
    """Reducers, losses, corrections, GAE, packing, scores, metrics."""
    gather = "log_softmax_and_gather"
    return (
        Binding("masked_mean", _place("masked_mean", RL, MODEL), masked_mean),
        Binding("compute_grpo_loss", _place("compute_grpo_loss", GRPO), grpo_loss),
        Binding("estimate_kl", _place("estimate_kl", MODEL), kl_estimators),
        Binding("compute_rho_correction", _place("compute_rho_correction", GRPO), correction),
        Binding("calculate_advantages_packed", _place("calculate_advantages_packed", RL), gae),
        Binding("pack_sequences", _place("pack_sequences", RL), packed),
        Binding(gather, _place(gather, MODEL), partial(scores, name=gather)),
        Binding("entropy_from_logits", _place("entropy_from_logits", MODEL),
                partial(scores, name="entropy_from_logits")),
        Binding("compute_vllm_local_debug_metrics", _place("compute_vllm_local_debug_metrics", GRPO), gap_metrics),
    )  # fmt: skip


TARGET = Target("open_instruct", "allenai/open-instruct", bindings=bindings())
