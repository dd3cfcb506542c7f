"""TRL's loss options in our formulas, and its loss replaced by them: the only place that says what TRL's loss means.

from trimtab.integrations.trl import corrected
trainer = corrected(GRPOTrainer, recipe="tis")(model=…, …)
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import Hook, fitting, run, tell_once
from trimtab.signal import KL, Counts, Part, Recipe, Stage, part
from trimtab.signal.cookbook import recipe as named

HOOK = Hook(framework="TRL", sees=frozenset({"logp_old", "logp_rollout", "logp_ref"}), adds={})
WEIGHTINGS = {
    "grpo": "weighting.sequence_mean_token_mean", "sapo": "weighting.sequence_mean_token_mean",
    "bnpo": "weighting.token_mean", "dapo": "weighting.token_mean", "cispo": "weighting.token_mean",
    "dr_grpo": "weighting.constant_divisor", "luspo": "weighting.sequence_mean_token_sum",
}  # fmt: skip
OF_THE_LOSS = (
    "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level", "top_entropy_quantile",
    "off_policy_mask_threshold", "use_bias_correction_kl", "sapo_temperature_pos", "sapo_temperature_neg",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max",
)  # fmt: skip
"""What a recipe decides in place of TRL, so it stays at TRL's default beside one."""


def corrected(trainer: type, recipe: Recipe | str | None = None) -> type:
    """A GRPOTrainer whose loss is this recipe; None: what TRL's own options say, in our formulas.

    TRL's own loss still runs on the same log-probs, without a second forward pass, so that its metrics stay; nothing
    calls backward on it.
    """

    class Corrected(trainer):  # pyright: ignore[reportUntypedBaseClass]
        """TRL's trainer with the loss of a recipe."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.trimtab_recipe = _own(self) if recipe is None else _fitted(self, recipe)
            self.trimtab_is_own = recipe is None
            self._trimtab_logp: list[Tensor | None] | None = None
            tell_once(HOOK, self.trimtab_recipe, rank=self.accelerator.process_index)

        def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(*given, **named)
            if self._trimtab_logp is not None:
                self._trimtab_logp = [found[0], found[1]]
            return found

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
            self._trimtab_logp = []
            try:
                _ = super()._compute_loss(model, inputs)
                logp, entropy = self._trimtab_logp
            finally:
                self._trimtab_logp = None
            assert logp is not None
            loss, metrics = _loss(self, logp, entropy, inputs)
            mode = "train" if self.model.training else "eval"
            for name, value in metrics.items():
                self._metrics[mode][name].append(value)
            self.trimtab_names = {*getattr(self, "trimtab_names", ()), *metrics}
            return loss

    Corrected.__name__ = Corrected.__qualname__ = f"Corrected{trainer.__name__}"
    return Corrected


def _loss(
    trainer: Any, logp: Tensor, entropy: Tensor | None, inputs: Mapping[str, Any]
) -> tuple[Tensor, dict[str, float]]:
    mask = inputs["completion_mask"] * inputs["tool_mask"] if "tool_mask" in inputs else inputs["completion_mask"]
    chosen, counts = _shared(trainer, inputs, mask)
    old, rollout = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
    if rollout is None and "logp_rollout" in chosen.needs:
        raise AdapterError(
            f"TRL: recipe {chosen.name!r} reads logp_rollout and the batch has no sampling_per_token_logps, so the "
            "correction could not act. Use vLLM, or return `logprobs` from rollout_func."
        )
    if rollout is not None and "logp_rollout" not in chosen.needs and bool(rollout.isnan().any()):
        rollout = None
    return run(
        chosen, logp, mask.bool(), _advantage(trainer, entropy, inputs, mask),
        logp_old=logp.detach() if old is None else old, logp_rollout=rollout,
        logp_ref=inputs.get("ref_per_token_logps"), counts=counts, ranks=trainer.accelerator.num_processes,
        grad_scale=_grad_scale(trainer),
    )  # fmt: skip


def _advantage(trainer: Any, entropy: Tensor | None, inputs: Mapping[str, Any], mask: Tensor) -> Tensor:
    """TRL's advantage with the detached factors that TRL itself puts on a token's loss."""
    advantage = inputs["advantages"]
    if not trainer.trimtab_is_own:
        return advantage
    if advantage.dim() == 1:
        advantage = advantage[:, None].expand(mask.shape)
    if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        advantage = advantage * inputs["importance_sampling_ratio"]
    if trainer.top_entropy_quantile < 1.0:
        advantage = advantage * trainer.get_high_entropy_mask(entropy, mask, 1 - trainer.top_entropy_quantile)
    return advantage


def _shared(trainer: Any, inputs: Mapping[str, Any], mask: Tensor) -> tuple[Recipe, Counts]:
    """What the whole optimiser step holds, over micro-batches and ranks, as TRL counts it."""
    chosen, ranks = trainer.trimtab_recipe, trainer.accelerator.num_processes
    is_training = trainer.model.training
    accumulation = trainer.current_gradient_accumulation_steps if is_training else 1
    cuts = trainer.args.steps_per_generation if is_training else 1
    sequences = len(mask) * accumulation * ranks
    if trainer.trimtab_is_own and trainer.loss_type == "bnpo":
        return chosen, Counts(tokens=int(mask.sum()) * accumulation * ranks, sequences=sequences)
    tokens = max(float(inputs["num_items_in_batch"]), 1.0)
    if cuts == accumulation or chosen.weighting.formula.name != "weighting.token_mean":
        return chosen, Counts(tokens=int(tokens), sequences=sequences)
    # A batch that serves several steps: TRL divides each by the tokens of an average step, which is a constant.
    divisor = tokens * accumulation / cuts / sequences
    weighting = part("weighting.constant_divisor", divisor=divisor)
    return replace(chosen, weighting=weighting), Counts(tokens=int(tokens), sequences=sequences)


def _grad_scale(trainer: Any) -> float | None:
    """What accelerate multiplies the loss by before backward; None where it hands the loss to another engine."""
    accelerator = trainer.accelerator
    if str(getattr(accelerator, "distributed_type", "")).endswith(("DEEPSPEED", "MEGATRON_LM")):
        return None
    scaler = getattr(accelerator, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0


def _fitted(trainer: Any, recipe: Recipe | str) -> Recipe:
    """The recipe, where TRL's options leave it room."""
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    _refuse_terms(trainer)
    defaults = {f.name: f.default for f in fields(trainer.args) if f.default is not MISSING}
    for option in OF_THE_LOSS:
        value = getattr(trainer.args, option)
        if value != defaults.get(option):
            raise AdapterError(
                f"TRL: {option} = {value!r} is set, and recipe {chosen.name!r} decides that, so the option would not "
                f"act. Leave it at {defaults.get(option)!r} and say it in the recipe, or use recipe=None."
            )
    coef = 0.0 if chosen.kl is None else chosen.kl.coef
    if coef != trainer.beta:
        raise AdapterError(
            f"TRL: recipe {chosen.name!r} has a KL coefficient of {coef:g} and TRL beta = {trainer.beta:g}, by which "
            "it loads the reference. Make both the same."
        )
    return fitting(HOOK, chosen, chosen.weighting, "the recipe")


def _own(trainer: Any) -> Recipe:
    """What TRL's options compute, in our formulas; an option without an equivalent is refused by name."""
    _refuse_terms(trainer)
    if trainer.loss_type not in WEIGHTINGS:
        raise AdapterError(
            f"TRL: loss_type = {trainer.loss_type!r} has no equivalent here. There are {', '.join(WEIGHTINGS)}."
        )
    if trainer.importance_sampling_level == "sequence":
        _refuse_at_sequence_level(trainer)
    settings = {"divisor": trainer.max_completion_length} if trainer.loss_type == "dr_grpo" else {}
    return Recipe(
        name=f"TRL {trainer.loss_type}",
        loss=Stage(_policy_loss(trainer), anchor="old"),
        weighting=part(WEIGHTINGS[trainer.loss_type], **settings),
        normalize=part("normalize.raw"),
        correction=_rejection(trainer),
        kl=_kl(trainer),
    )


def _refuse_terms(trainer: Any) -> None:
    for option, is_on in (("entropy_coef or use_adaptive_entropy", trainer._entropy_bonus_enabled),
                          ("router_aux_loss_coef", trainer.aux_loss_enabled)):  # fmt: skip
        if is_on:
            raise AdapterError(f"TRL: {option} adds a term that is not run here. Switch it off, or use TRL's own loss.")


def _refuse_at_sequence_level(trainer: Any) -> None:
    by_token = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    for option, is_on in (
        ("delta", trainer.args.delta is not None),
        (f"loss_type = {trainer.loss_type!r}", trainer.loss_type in ("cispo", "sapo")),
        ("top_entropy_quantile below 1", trainer.top_entropy_quantile < 1.0),
        ("use_bias_correction_kl", trainer.beta != 0.0 and trainer.args.use_bias_correction_kl),
        ("vllm_importance_sampling_mode = 'token_…'",
         by_token and trainer.vllm_importance_sampling_mode.startswith("token")),
    ):  # fmt: skip
        if is_on:
            raise AdapterError(
                f"TRL: {option} together with importance_sampling_level = 'sequence' has no equivalent here. "
                "Change one of the two."
            )


def _policy_loss(trainer: Any) -> Part:
    low, high, delta = trainer.epsilon_low, trainer.epsilon_high, trainer.args.delta
    if trainer.loss_type == "cispo":
        return part("policy_loss.clipped_importance", band=(0.0, high))
    if trainer.loss_type == "sapo":
        return part(
            "policy_loss.soft_gated", temperature_positive=trainer.args.sapo_temperature_pos,
            temperature_negative=trainer.args.sapo_temperature_neg,
        )  # fmt: skip
    if trainer.importance_sampling_level == "sequence":
        return part("policy_loss.geometric_clipped", band=(1 - low, 1 + high))
    if delta is None:
        return part("policy_loss.clipped", band=(1 - low, 1 + high))
    if delta < 1 + high:
        raise AdapterError(
            f"TRL: delta = {delta:g} lies inside the clip (1 + epsilon_high = {1 + high:g}), so it would also bound "
            "positive advantages, which has no equivalent here. Give a larger delta."
        )
    return part("policy_loss.dual_clipped", band=(1 - low, 1 + high), cap=delta)


def _rejection(trainer: Any) -> tuple[Stage, ...]:
    if trainer.off_policy_mask_threshold is None:
        return ()
    is_told = trainer.use_vllm or getattr(trainer, "rollout_func", None) is not None
    anchor = "rollout" if is_told else "old"
    return (Stage(part("keep.negative_drift", delta=trainer.off_policy_mask_threshold), anchor=anchor),)


def _kl(trainer: Any) -> KL | None:
    if trainer.beta == 0.0:
        return None
    if trainer.args.use_bias_correction_kl:
        return KL(part("kl.importance_weighted_k3"), coef=trainer.beta, into="loss", anchor="old")
    return KL(part("kl.k3"), coef=trainer.beta, into="loss")
