"""Known bugs of SkyRL: rows, and bindings of statements that old commits had inside larger methods."""

from typing import Any

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.handed import Settings
from trimtab.sentinel.targets.skyrl import TARGET
from trimtab.sentinel.targets.skyrl.source import UTILS
from trimtab.sentinel.targets.target import Binding

REPOSITORY = "NovaSky-AI/SkyRL"
VIEW: dict[str, Any] = {"with_prompt": False}


def of(name: str) -> Binding:
    """A binding of the ready target."""
    return next(binding for binding in TARGET.bindings if binding.name == name)


def _kl(boundary: Boundary) -> list[Subject]:
    args = {"log_probs": "logp_current", "log_probs_base": "logp_ref", "loss_mask": "trainable"}
    return [bind(boundary, role="kl", args=args, options={"kl_estimator_type": kind}) for kind in ("k1", "k3")]


def _probability_gap(boundary: Boundary) -> Subject:
    def read(case: Case) -> Any:
        if not bool(case.trainable.any()):
            raise case.cannot("nothing trains")
        trainer = Settings(all_metrics={})
        batch = {"rollout_logprobs": case.padded("logp_rollout", **VIEW), "loss_mask": case.padded("trainable", **VIEW)}
        boundary(self=trainer, training_input=batch, action_log_probs=case.padded("logp_old", **VIEW))
        return next(value for name, value in trainer.all_metrics.items() if name.endswith("diff_mean"))

    returns = {"difference": at((), "metric", level="scalar", agreed=0.0, reduction="mean")}
    return bind(read, role="metric", name="fwd_logprobs_values_reward: difference", args={"case": lambda c: c},
                returns=returns)  # fmt: skip


def _mean_entropy(boundary: Boundary) -> Subject:
    def read(case: Case) -> Any:
        logits = case.padded("logits", **VIEW)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        given = {"entropy_BS": entropy.detach(), "loss_mask": case.padded("trainable", **VIEW)}
        return boundary(**given)["entropy"]

    def own(case: Case) -> Any:
        logits = case.flat("logits")
        return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)

    returns = {"entropy": at((), "metric", level="scalar", of=own, reduction="mean")}
    return bind(read, role="metric", name="training_step: entropy", args={"case": lambda c: c}, returns=returns)


def _cut(name: str, file: str, make: Any, **cut: Any) -> Binding:
    return Binding(name, (Spec(name, file=file, **cut),), make)


WORKER = "skyrl-train/skyrl_train/workers/worker.py"


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: Binding, note: str = ""
) -> Row:
    return Row(name, "skyrl", REPOSITORY, buggy, fixed, invariants, binding, note)


ROWS: list[Row] = [
    _row("SKYRL-KL-NAN", "811f8ee9d", "2df8f5184", ("nonfinite_isolation",), Binding(
        "compute_approx_kl", tuple(Spec("compute_approx_kl", file=f"{folder}/ppo_utils.py") for folder in UTILS), _kl),
        "k1 and k3: the repair leaves the gradient of k2 not a number"),
    _row("SKYRL-PROBDIFF", "dd6c18f50", "b89e11995", ("metric_truth",),
         _cut("RayPPOTrainer.fwd_logprobs_values_reward", "skyrl-train/skyrl_train/trainer.py", _probability_gap,
              first="logprobs_diff = (", last="self.all_metrics.update(")),
    _row("SKYRL-ENTROPY-PAD", "a0e0b333d", "62a6e1203", ("metric_truth", "mask_content"), Binding("entropy", (
        Spec("PolicyWorkerBase.training_step", file=WORKER, first="entropy = entropy_BS.sum()", results=("entropy",)),
        Spec("PolicyWorkerBase.training_step", file=WORKER, first="entropy = masked_mean(entropy_BS",
            results=("entropy",))),
        _mean_entropy)),
    _row("HEAD-SKYRL-ADVNORM-PAD", "a9564572e", None, ("mask_content",), of("_normalize_advantages")),
    _row("HEAD-SKYRL-RFPP-OBS", "a9564572e", None, ("credit_over_trainable",),
         of("compute_reinforce_plus_plus_outcome_advantage")),
]  # fmt: skip
