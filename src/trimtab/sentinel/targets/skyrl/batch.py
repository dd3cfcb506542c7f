"""SkyRL: KL, off-policy correction, log-probs, whole batches and their logged numbers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.findings.alone import Record, Settings
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.skyrl.source import (
    LEFT,
    OWN,
    TRAINER,
    places_of,
    ppo,
    single,
)
from trimtab.sentinel.targets.target import Binding


def _kl(boundary: Boundary) -> list[Subject]:
    args = {"log_probs": "logp_current", "log_probs_base": "logp_ref", "loss_mask": "trainable"}
    return [
        bind(
            boundary,
            role="kl",
            args=args,
            options={"kl_estimator_type": kind},
            definition=like(f"kl.{kind}"),
            variants={"kl_estimator_type": tuple({"k1", "k2", "abs"} - {kind})},
            impossible={"kl_estimator_type": ("k4",)},
        )
        if kind != "k3"
        else bind(boundary, role="kl", args=args, options={"kl_estimator_type": kind})
        for kind in ("k1", "k2", "k3")
    ]


def _kl_in_reward(boundary: Boundary) -> Subject:
    def shaped(case: Case, kl_loss_coef: float, kl_estimator_type: str) -> Any:
        data = Record(
            loss_mask=case.padded("trainable", **LEFT),
            rewards=handed.reward_on_last(case, trained=True, **LEFT),
            base_action_log_probs=case.padded("logp_ref", **LEFT),
            action_log_probs=case.padded("logp_old", **LEFT),
        )
        algorithm = Settings(kl_estimator_type=kl_estimator_type, kl_loss_coef=kl_loss_coef)
        trainer = boundary.made(
            cfg=Settings(trainer=Settings(algorithm=algorithm)), all_metrics={}, reward_kl_controller=None
        )
        done = boundary(trainer, data)
        return done["rewards"], trainer.all_metrics["loss/avg_kl"]

    return bind(
        shaped,
        role="kl_in_reward",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        view=LEFT,
        options={"kl_loss_coef": 0.1, "kl_estimator_type": "k1"},
        penalties={"kl_loss_coef": "logp_ref"},
        variants={"kl_loss_coef": (0.5,), "kl_estimator_type": ("k2",)},
        waived=OWN,
        returns={
            "reward": at(0, "reward"),
            "kl": at(1, "metric", level="scalar", agreed=0.0, reduction="mean", population="sequence"),
        },
    )


def _logprob_difference(boundary: Boundary) -> Subject:
    prefix = "policy/minibatch_rollout_train_logprobs_abs_diff"

    def gap(case: Case) -> Tensor:
        return (case.flat("logp_current") - case.flat("logp_rollout")).abs()

    def read(case: Case) -> Any:
        found = boundary(
            case.padded("logp_current", **LEFT), case.padded("logp_rollout", **LEFT), case.padded("trainable", **LEFT)
        )
        return {name.rsplit("_", 1)[-1]: value for name, value in found.items() if "sq" not in name} | {"": prefix}

    metrics = {k: at((k,), "metric", of=gap, reduction=k, agreed=0.0, level="scalar") for k in ("mean", "max", "min")}
    return bind(read, role="metric", name=boundary.spec.name, args={"case": lambda c: c}, returns=metrics, waived=OWN)


def _logp(boundary: Boundary) -> Subject:
    return bind(
        boundary,
        role="logp",
        definition=scored(names=("logp",)),
        args={"logits": "logits", "labels": "token_id"},
        returns={"logp": at((), "logp", level="token")},
    )


def _entropy(boundary: Boundary) -> Subject:
    own = handed.parameters(boundary)
    args: dict[str, Any] = {"logits": "logits"} | ({"attention_mask": "attention"} if "attention_mask" in own else {})
    options = {"requires_grad": True, "chunk_size": 2} if "chunk_size" in own else {"requires_grad": True}
    return bind(
        boundary,
        role="entropy",
        args=args,
        options=options,
        definition=scored(names=("entropy",)),
        returns={"entropy": at((), "entropy", level="token")},
    )


def _normalize(boundary: Boundary) -> Subject:
    def normalised(case: Case, advantage_batch_normalize: bool) -> Any:
        data = Record(
            advantages=single(case, "advantage") * single(case, "response"),
            response_mask=single(case, "response"),
            loss_mask=single(case, "trainable"),
        )
        algorithm = Settings(
            advantage_batch_normalize=advantage_batch_normalize, loss_reduction="token_mean", max_seq_len=8
        )
        config = Settings(trainer=Settings(algorithm=algorithm, micro_train_batch_size_per_gpu=1))
        return boundary(boundary.made(cfg=config), data, [(0, case.num_sequences)])["advantages"]

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        return {"advantage": Result(case.from_padded(normalised(case, **chosen), **LEFT), "token", "advantage")}

    return Subject(
        boundary.spec.name,
        call,
        options={"advantage_batch_normalize": True},
        couples="batch",
        boundary=boundary,
        variants={"advantage_batch_normalize": (False,)},
        waived=OWN,
    )


def _collate(boundary: Boundary) -> Subject:
    def call(case: Case, _: Mapping[str, Any]) -> Out:
        if any("a" not in row for row in case.kinds) or not case.kinds:
            raise case.cannot("it refuses an answer without tokens")
        case = replace(case, extra_columns=0)  # it makes its own padding
        ids, masks = case.list("token_id"), case.list("trainable", with_prompt=False)
        answers, logps = case.list("token_id", with_prompt=False), case.list("logp_rollout", with_prompt=False)
        rewards = case.list("token_reward", with_prompt=False)
        prompts = [one[: len(one) - len(rest)].tolist() for one, rest in zip(ids, answers, strict=True)]
        found = boundary(
            Settings(pad_token_id=case.pad_id) if "tokenizer" in handed.parameters(boundary) else case.pad_id,
            prompts,
            [a.tolist() for a in answers],
            [r.detach().tolist() for r in rewards],
            [m.int().tolist() for m in masks],
            [p.detach().tolist() for p in logps],
        )
        carried = {"reward": (found[3], "token_reward"), "logp": (found[5], "logp_rollout")}
        out = {n: Result.token(case, v, "carried", of=field, **LEFT) for n, (v, field) in carried.items()}
        return out | {"mask": Result.token(case, found[4], "carried", of=lambda c: c.flat("trainable"), **LEFT)}

    return Subject(boundary.spec.name, call, boundary=boundary)


BINDINGS: tuple[Binding, ...] = (
    ppo("compute_approx_kl", _kl),
    Binding("logprobs_from_logits_v2", places_of("logprobs_from_logits_v2", "torch_utils.py"), _logp),
    Binding("chunked_entropy_from_logits", places_of("chunked_entropy_from_logits", "torch_utils.py"), _entropy),
    Binding(
        "apply_reward_kl_penalty",
        tuple(Spec("RayPPOTrainer.apply_reward_kl_penalty", file=f) for f in TRAINER),
        _kl_in_reward,
    ),
    Binding(
        "_normalize_advantages", tuple(Spec("RayPPOTrainer._normalize_advantages", file=f) for f in TRAINER), _normalize
    ),
    Binding(
        "compute_minibatch_rollout_logprob_diff_metrics",
        (
            Spec(
                "compute_minibatch_rollout_logprob_diff_metrics",
                file="skyrl/backends/skyrl_train/workers/worker_utils.py",
            ),
        ),
        _logprob_difference,
    ),
    Binding(
        "convert_prompts_responses_to_batch_tensors",
        (Spec("convert_prompts_responses_to_batch_tensors", file="skyrl/train/dataset/preprocess.py"),),
        _collate,
    ),
)
