"""NeMo-RL's loss function: the only place that knows its names and its layout.

from trimtab.integrations import nemo_rl        # in your copy of examples/run_grpo.py
loss_fn = nemo_rl.watched(loss_fn)              # watch: what setup(…) returned
loss_fn = nemo_rl.loss_function(master_config["loss_fn"], recipe="tis")      # or correct; hand it to grpo_train(…)

Rows are whole sequences, and position t holds token t, so the first column is dropped.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import Hook, asked_recipe, fitting, run, tell_once
from trimtab.integrations.looking import Looking
from trimtab.signal import Counts, Recipe, Stage, part

HOOK = Hook(framework="NeMo-RL", sees=frozenset({"logp_old", "logp_rollout", "logp_ref"}), adds={"entropy": "its own"})
MAPPED = frozenset({
    "ratio_clip_min", "ratio_clip_max", "ratio_clip_c", "reference_policy_kl_penalty", "reference_policy_kl_type",
    "token_level_loss", "use_importance_sampling_correction", "truncated_importance_sampling_ratio",
    "truncated_importance_sampling_type", "disable_ppo_ratio", "kl_input_clamp_value", "kl_output_clamp_value",
})  # fmt: skip
UNBOUNDED = 1e30


def loss_function(options: Any, recipe: Recipe | str | None = None) -> Any:
    """A loss function as NeMo-RL calls it; `options` is its `loss_fn` section, a ClippedPGLossConfig or a mapping."""
    options = options.model_dump() if hasattr(options, "model_dump") else options
    from nemo_rl.algorithms.loss.interfaces import (  # pyright: ignore[reportMissingImports]
        LossInputType,
        LossType,
    )

    is_token = bool(options["token_level_loss"])
    return Loss(options, recipe, LossType.TOKEN_LEVEL if is_token else LossType.SEQUENCE_LEVEL, LossInputType.LOGPROB)


class Loss:
    """Called for every micro-batch; what it returns is added up."""

    def __init__(
        self, options: Mapping[str, Any], recipe: Recipe | str | None, loss_type: Any, input_type: Any
    ) -> None:
        self.loss_type: Any = loss_type
        self.input_type: Any = input_type
        self.metric_normalizations: dict[str, Any] = {}
        name = "weighting.token_mean" if options["token_level_loss"] else "weighting.sequence_mean_token_mean"
        asked = asked_recipe(recipe)
        chosen = own_recipe(options) if asked is None else asked
        self.recipe: Recipe = fitting(HOOK, chosen, part(name), "loss_fn.token_level_loss")

    def __call__(
        self, next_token_logprobs: Tensor, data: Mapping[str, Any], global_valid_seqs: Tensor,
        global_valid_toks: Tensor, **_: Any,
    ) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
        tell_once(HOOK, self.recipe)
        fields = rows(next_token_logprobs, data)
        current, mask, advantage = (fields.pop(name) for name in ("logp_current", "mask", "advantage"))
        counts = Counts(tokens=int(global_valid_toks), sequences=int(global_valid_seqs))
        loss, metrics = run(self.recipe, current, mask, advantage, counts=counts, **fields)
        return loss, metrics | {"loss": float(loss.detach()), "num_valid_samples": float(data["sample_mask"].sum())}


def rows(next_token_logprobs: Tensor, data: Mapping[str, Any]) -> dict[str, Any]:
    """NeMo-RL's batch in our names; the first column has no log-prob."""
    cut = next_token_logprobs.shape[1]
    names = {"advantage": "advantages", "logp_old": "prev_logprobs", "logp_rollout": "generation_logprobs",
             "logp_ref": "reference_policy_logprobs"}  # fmt: skip
    found = {ours: data[theirs][:, 1:][:, :cut] for ours, theirs in names.items() if theirs in data}
    mask = (data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1))[:, :cut] > 0
    return {"logp_current": next_token_logprobs, "mask": mask, **found}


def watched(loss: Any, looking: Looking | None = None) -> Any:
    """A loss function of NeMo-RL that is watched; what it returns is what it was."""
    eye = Looking(HOOK.framework) if looking is None else looking

    class Watched(type(loss)):  # pyright: ignore[reportUntypedBaseClass]
        """The same class, so that what NeMo-RL asks of it is still there."""

        def __init__(self) -> None:
            self.__dict__.update(vars(loss))

        def __call__(self, next_token_logprobs: Tensor, data: Any, *given: Any, **named: Any) -> Any:
            eye.see(**rows(next_token_logprobs, data))
            return loss(next_token_logprobs, data, *given, **named)

    return Watched()


def own_recipe(options: Mapping[str, Any]) -> Recipe:
    """What NeMo-RL's ClippedPGLossFn computes with these options; one that has no equivalent is refused."""
    lost = sorted(name for name, value in options.items() if name not in MAPPED and value)
    lost += [name for name in ("disable_ppo_ratio", "reference_policy_kl_penalty") if options.get(name)]
    if lost:
        raise AdapterError(
            f"NeMo-RL: {', '.join(lost)} is not mapped, so it would be lost. Leave it out, or name a recipe."
        )
    band = (1 - options["ratio_clip_min"], 1 + options["ratio_clip_max"])
    loss = part("policy_loss.clipped", band=band)
    if options.get("ratio_clip_c") is not None:
        loss = part("policy_loss.dual_clipped", band=band, cap=options["ratio_clip_c"])
    return Recipe(
        name="NeMo-RL clipped", loss=Stage(loss, anchor="old"), normalize=part("normalize.raw"),
        correction=_correction(options),
        weighting=part(
            "weighting.token_mean" if options["token_level_loss"] else "weighting.sequence_mean_token_mean"
        ),
    )  # fmt: skip


def _correction(options: Mapping[str, Any]) -> tuple[Stage, ...]:
    cap, kind = options.get("truncated_importance_sampling_ratio"), options.get("truncated_importance_sampling_type")
    if not options.get("use_importance_sampling_correction"):
        return ()
    if kind not in (None, "tis"):
        raise AdapterError(f"NeMo-RL: truncated_importance_sampling_type={kind} is not mapped. Name a recipe.")
    band = (0.0, UNBOUNDED if cap is None else cap)
    return (Stage(part("importance.truncated", level="token", band=band), ratio="engine"),)
