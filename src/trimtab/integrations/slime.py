"""slime's hooks, and miles': the only place that knows their names and their layout.

    --loss-type custom_loss --custom-loss-function-path trimtab.integrations.slime.watched        # watch
    --loss-type custom_loss --custom-loss-function-path trimtab.integrations.slime.custom_loss    # correct
    --use-tis --custom-tis-function-path trimtab.integrations.slime.tis         # correct the engine only
    --custom-reward-post-process-path trimtab.integrations.slime.post_process_rewards
    --custom-advantage-function-path trimtab.integrations.slime.advantages                        # slime only

TRIMTAB_RECIPE names a recipe; without it, slime's own options are computed. Samples are lists of 1-D tensors. Context
parallelism cuts a sample over ranks and is refused.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations import hook as shared
from trimtab.integrations.hook import (
    Hook,
    asked_recipe,
    correct,
    fitting,
    fitting_advantage,
    fitting_correction,
    rows_of,
    run,
    tell,
    tell_once,
)
from trimtab.integrations.looking import Looking
from trimtab.integrations.slime_options import MEANS, only, own_advantages, own_recipe, own_rewards, own_tis
from trimtab.signal import Recipe, SignalBatch, Stage, decide, part, prepare, token_loss
from trimtab.signal.cookbook import recipe as named

HOOK = Hook(framework="slime", sees=frozenset({"logp_old", "logp_rollout", "logp_ref", "entropy"}), adds={})
REWARDS = Hook(framework="slime", sees=frozenset(), adds={"kl in reward": "--kl-coef"})
TOP_P = "get_rollout_top_p_logprob_kwargs"
PLACES = {
    "slime": ("slime.backends.megatron_utils.loss", "slime.backends.megatron_utils.loss"),
    "miles": (
        "miles.backends.training_utils.loss_hub.logit_processors",
        "miles.backends.training_utils.loss_hub.losses",
    ),
}
"""Where each framework computes log-probs, and its policy loss."""


def custom_loss(args: Any, batch: Any, logits: Tensor, sum_of_sample_mean: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss as `--custom-loss-function-path` calls it: the whole loss, KL and entropy too."""
    del sum_of_sample_mean
    fields = _fields(args, batch, logits)
    weighting = MEANS[bool(args.calculate_per_token_loss)]
    asked = asked_recipe(None)
    chosen = own_recipe(args) if asked is None else _summed(asked, bool(args.calculate_per_token_loss))
    fitted = fitting(HOOK, chosen, weighting, "--calculate-per-token-loss")
    missing = [name for name in sorted(fitted.needs & HOOK.sees) if fields.get(name) is None]
    if missing:
        raise AdapterError(f"slime: {', '.join(missing)} is missing in the batch, and {chosen.name!r} reads it.")
    tell_once(HOOK, fitted)
    current, mask, advantage = (fields.pop(name) for name in ("logp_current", "mask", "advantage"))
    rows = max(int(mask.any(1).sum()), 1)
    # The mean over these rows times their number is the sum that slime asks for.
    loss, metrics = run(fitted, current, mask, advantage, ranks=1 if args.calculate_per_token_loss else rows, **fields)
    units = int(mask.sum()) if args.calculate_per_token_loss else rows
    # slime adds these up and divides by the step's samples (or tokens), so a mean arrives times its number.
    return loss, {"loss": loss.detach()} | {name: loss.new_tensor(n * units) for name, n in metrics.items()}


def _summed(recipe: Recipe | str, per_token: bool) -> Recipe:
    """The recipe as the sum that slime asks for; the mean that it names is what slime makes of it."""
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    wanted = "weighting.token_mean" if per_token else "weighting.sequence_mean_token_mean"
    if chosen.weighting.formula.name != wanted:
        raise AdapterError(
            f"slime: recipe {chosen.name!r} weighs tokens by {chosen.weighting.formula.name}, and slime makes "
            f"{wanted} ({'with' if per_token else 'without'} --calculate-per-token-loss). Make both the same."
        )
    return replace(chosen, weighting=MEANS[per_token])


_looking: list[Looking] = []


def watched(args: Any, batch: Any, logits: Tensor, sum_of_sample_mean: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """slime's own policy loss, watched; what it returns is what it was. Its folder is TRIMTAB_WATCH."""
    if not _looking:
        _looking.append(Looking(HOOK.framework))
    with torch.no_grad():
        fields = _fields(args, batch, logits)
    _looking[0].see(**fields)
    return _module(1).policy_loss_function(args, batch, logits, sum_of_sample_mean)


def tis(args: Any, *, pg_loss: Tensor, train_log_probs: Any, rollout_log_probs: Any, loss_masks: Any, **_: Any) -> Any:
    """A correction as `--custom-tis-function-path` calls it: (pg_loss, masks, metrics), one number per token."""
    asked = asked_recipe(None)
    chosen = own_tis(args) if asked is None else fitting_correction(HOOK, asked)
    tell("trimtab in slime: engine correction by " + ", ".join(map(str, chosen.correction)))
    importance, keep, _numbers = _corrected(chosen, train_log_probs, rollout_log_probs, loss_masks)
    masks = [mask * kept.to(mask.dtype) for mask, kept in zip(loss_masks, keep, strict=True)]
    flat, kept = torch.cat(importance), torch.cat(keep).to(pg_loss.dtype)
    return pg_loss * flat, masks, {"tis": flat, "tis_clipfrac": 1 - kept}


def off_policy_is_function(
    args: Any, *, pg_loss: Tensor, rollout_log_probs: Any, loss_masks: Any, cur_log_probs: Any = None, **_: Any
) -> Any:
    """Current against rollout, bounded by eps_clip and eps_clip_high; for a base loss without a ratio of its own."""
    if cur_log_probs is None:
        raise AdapterError(
            "slime: off_policy_is_function reads cur_log_probs, which this version does not hand over. Use custom_loss "
            "with TRIMTAB_RECIPE=cispo, which is this factor on REINFORCE."
        )
    stage = Stage(
        part("importance.truncated", level="token", band=(1 - args.eps_clip, 1 + args.eps_clip_high)), ratio="engine"
    )
    chosen = only((stage,))
    importance, _kept, _numbers = _corrected(chosen, cur_log_probs, rollout_log_probs, loss_masks)
    flat = torch.cat(importance)
    return pg_loss * flat, loss_masks, {"ois": flat}


def compute_opsm_mask(
    args: Any, full_log_probs: Any, full_old_log_probs: Any, advantages: Any, loss_masks: Any
) -> tuple[Tensor, Tensor]:
    """Off-policy sequence masking, decided once per sequence: (mask per token, number of rejected sequences)."""
    stage = Stage(part("keep.negative_drift", delta=args.opsm_delta), anchor="old")
    recipe = only((stage,), old="recompute")
    mask = rows_of(loss_masks).bool()
    batch = SignalBatch.from_padded(
        mask, reward=[0.0] * len(mask), group=[*range(len(mask))], logp_old=rows_of(full_old_log_probs).detach()
    )
    given = batch.cells.gather(rows_of(advantages))
    update = next(prepare(batch, recipe, advantage=given)[0].updates(1))
    (micro,) = decide(update, None).split(num=1)
    seen = token_loss(micro, batch.cells.gather(rows_of(full_log_probs).detach()))
    keep = batch.cells.scatter(seen.keep, fill=True)
    rejected = (~keep).any(1).sum().to(advantages[0].dtype)
    return torch.cat([row[: len(own)] for row, own in zip(keep, loss_masks, strict=True)]).float(), rejected


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Rewards as `--custom-reward-post-process-path` calls it: (raw, compared within their group)."""
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    asked = asked_recipe(None)
    chosen = fitting_advantage(REWARDS, own_rewards(args) if asked is None else asked)
    if chosen.advantage.formula.name != "advantage.broadcast" or chosen.whiten:
        raise AdapterError(
            f"slime: recipe {chosen.name!r} spreads or whitens advantages over tokens, and this hook holds one reward "
            "per sample. Use --advantage-estimator and --normalize-advantages for that."
        )
    tell(f"trimtab in slime: rewards by {chosen.normalize}")
    reward = torch.tensor(raw, dtype=torch.float64)
    found, _ = shared.advantages(chosen, torch.ones(len(raw), 1), reward, [sample.group_index for sample in samples])
    return raw, found[:, 0].tolist()


def advantages(args: Any, rollout_data: Any) -> None:
    """Advantages as `--custom-advantage-function-path` calls it. rollout_data["kl"] stays the raw KL."""
    recipe = own_advantages(args)
    tell(f"trimtab in slime: advantages by {recipe.advantage}")
    mask = rows_of(rollout_data["loss_masks"]).bool()
    fields = {
        ours: rows_of(rollout_data[theirs]).float().detach()
        for ours, theirs in (("logp_old", "log_probs"), ("logp_ref", "ref_log_probs"), ("value_old", "values"))
        if rollout_data.get(theirs) and (ours in recipe.needs or ours == "logp_old")
    }
    if recipe.advantage.formula.name == "advantage.gae":
        fields["ended"] = torch.ones(len(mask), dtype=torch.bool, device=mask.device)  # slime takes 0 after the end
    reward = torch.tensor(rollout_data["rewards"], dtype=torch.float32, device=mask.device)
    found, returns = shared.advantages(recipe, mask, reward, range(len(mask)), **fields)
    lengths = [len(own) for own in rollout_data["loss_masks"]]
    rollout_data["advantages"] = [row[:length] for row, length in zip(found, lengths, strict=True)]
    rollout_data["returns"] = [row[:length] for row, length in zip(returns, lengths, strict=True)]


_replaced: list[tuple[Any, Any]] = []


def apply() -> None:
    """Put `compute_opsm_mask` of this file in the place of slime's (--use-opsm). `undo()` takes it back."""
    undo()
    module = _module(1)
    _replaced.append((module, module.compute_opsm_mask))
    module.compute_opsm_mask = compute_opsm_mask


def undo() -> None:
    """Give slime its own function back."""
    while _replaced:
        module, theirs = _replaced.pop()
        module.compute_opsm_mask = theirs


def _module(which: int) -> Any:
    """The framework's own module: miles' if miles is loaded, otherwise slime's."""
    return importlib.import_module(PLACES["miles" if "miles" in sys.modules else "slime"][which])


def _fields(args: Any, batch: Any, logits: Tensor) -> dict[str, Any]:
    """A batch of slime as padded rows in our names."""
    if getattr(args, "context_parallel_size", 1) > 1:
        raise AdapterError("slime: context parallelism cuts samples over ranks, and this hook needs them whole.")
    module = _module(0)
    top_p = module.get_rollout_top_p_logprob_kwargs(args, batch) if hasattr(module, TOP_P) else {}
    _, found = module.get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"], with_entropy=True, **top_p,
    )  # fmt: skip
    _refuse_cut(args, batch)
    current = found["log_probs"]
    old = batch["rollout_log_probs"] if args.use_rollout_logprobs else batch.get("log_probs")
    rollout, ref = batch.get("rollout_log_probs"), batch.get("ref_log_probs")
    return {
        "logp_current": rows_of(current),
        "entropy": rows_of(found["entropy"]),
        "mask": rows_of(batch["loss_masks"]).bool(),
        "advantage": rows_of(batch["advantages"]),
        "logp_old": rows_of(old or [one.detach() for one in current]),
        "logp_rollout": rows_of(rollout) if rollout else None,
        "logp_ref": rows_of(ref) if ref else None,
    }


def _refuse_cut(args: Any, batch: Any) -> None:
    """An episode in several samples shares its denominator, which no weighting here knows."""
    if args.calculate_per_token_loss or batch.get("rollout_mask_sums") is None:
        return
    own = [float(mask.sum()) for mask in batch["loss_masks"]]
    if [float(total) for total in batch["rollout_mask_sums"]] != own:
        raise AdapterError(
            "slime: some rollouts are cut into several samples, which share one denominator (rollout_mask_sums). That "
            "is not mapped. Use --calculate-per-token-loss."
        )


def _corrected(recipe: Recipe, old: Any, rollout: Any, masks: Any) -> tuple[list[Tensor], list[Tensor], Any]:
    """Importance and keep, sample by sample."""
    importance, keep, metrics = correct(recipe, rows_of(masks), logp_old=rows_of(old), logp_rollout=rows_of(rollout))
    lengths = [len(own) for own in masks]
    return (
        [row[:length] for row, length in zip(importance, lengths, strict=True)],
        [row[:length] for row, length in zip(keep, lengths, strict=True)],
        metrics,
    )
