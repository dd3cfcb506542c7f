"""Runs in the child process: a framework's own code path, with our hook chosen the way its users choose it.

Each function takes plain tensors and hands back (loss, what the framework returned beside it).
"""

from types import SimpleNamespace
from typing import Any

import torch


class Rows(dict[str, Any]):
    """Stands in for a TensorDict of padded rows."""

    def select(self, *names: str) -> "Rows":
        return Rows({name: self[name] for name in names})

    def to_padded_tensor(self) -> "Rows":
        return self


class Options(SimpleNamespace):
    """A framework's configuration, as dictionaries and as attributes."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def verl_ppo_loss(log_prob, loss_mode, info, settings, watch=None, **fields):
    """verl's `ppo_loss`, which looks the loss up in its registry. VERL_USE_EXTERNAL_MODULES has brought ours."""
    from verl.trainer.ppo import core_algos
    from verl.workers.utils import losses

    losses.no_padding_2_padding = lambda rows, _: rows
    core_algos.ActorConfig = Options  # some losses ask for the class
    config = Options(
        global_batch_info={}, loss_scale_factor=None, policy_loss={"loss_mode": loss_mode}, entropy_coeff=0.0,
        use_kl_loss=False, **settings,
    )  # fmt: skip
    if watch:
        from trimtab.integrations import verl as ours

        kept = dict(core_algos.POLICY_LOSS_REGISTRY)
        looking = ours.watch(watch)
    leaf = log_prob
    loss, metrics = losses.ppo_loss(config, {"log_probs": leaf}, Rows({**info, **fields}))
    if watch:
        core_algos.POLICY_LOSS_REGISTRY.clear()
        core_algos.POLICY_LOSS_REGISTRY.update(kept)
        return loss, sorted(metrics), _stepped(looking, loss)
    return loss, sorted(metrics)


def _stepped(looking, loss):
    """An optimiser steps, as it would: the watch must learn of it by itself."""
    weight = torch.nn.Parameter(torch.zeros(1))
    (loss.detach() * 0 + weight.sum()).backward()
    torch.optim.SGD([weight], lr=0.0).step()
    watch = looking.watch
    watch.close()
    return {"steps": watch.number, "failures": watch.failures, "tokens": watch.tokens}


def verl_advantage(token_level_rewards, response_mask, uid, adv_estimator, settings):
    """verl's `compute_advantage`, from its trainer's file."""
    from verl.trainer.ppo import ray_trainer

    data = SimpleNamespace(
        batch={"token_level_rewards": token_level_rewards, "response_mask": response_mask},
        non_tensor_batch={"uid": uid},
    )
    found = ray_trainer.compute_advantage(
        data, adv_estimator, config=Options(**settings), norm_adv_by_std_in_grpo=settings["norm_adv_by_std_in_grpo"]
    )
    return found.batch["advantages"], found.batch["returns"]


class Protocol(SimpleNamespace):
    """Stands in for verl's DataProto."""

    def union(self, other: Any) -> "Protocol":
        self.batch.update(other.batch)
        return self


def verl_correction(settings, ours, recipe=None, **fields):
    """verl's rollout correction by the name that its trainers import, replaced or not."""
    from verl.trainer.ppo import rollout_corr_helper

    from trimtab.integrations import verl as hooks

    rollout_corr_helper.DataProto = SimpleNamespace(
        from_dict=lambda tensors: Protocol(batch=tensors), from_single_dict=lambda tensors: Protocol(batch=tensors)
    )
    if ours:
        hooks.apply(recipe)
    try:
        batch, metrics = rollout_corr_helper.compute_rollout_correction_and_add_to_batch(
            Protocol(batch=Rows(fields)), Options(**settings)
        )
    finally:
        hooks.undo()
    return {name: batch.batch.get(name) for name in ("response_mask", "rollout_is_weights")}, sorted(metrics)


def _taken(log_prob, watch, made):
    """The loss of `made()`; with a folder, what the watch saw too."""
    found = made()
    loss = found[0] if isinstance(found, tuple) else found
    return loss, [] if not isinstance(found, tuple) else [*found[1:]], None if watch is None else _stepped(watch, loss)


def skyrl_loss(log_probs, name, settings, reduction, watch=None, recipe=None, **fields):
    """SkyRL's registry and its own division of the advantages."""
    from skyrl.backends.skyrl_train.utils import ppo_utils

    from trimtab.integrations import skyrl as ours

    registry = ppo_utils.PolicyLossRegistry
    kept = dict(registry._functions)
    looking = ours.watch(watch) if watch else None
    if "trimtab" in name:
        ours.register(recipe, name)
    try:
        config = Options(policy_loss_type=name, loss_reduction=reduction, **settings)
        config.off_policy_correction = Options(**config.off_policy_correction)
        config.sapo = Options(**config.get("sapo", {}))
        scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            fields["advantages"], fields["loss_mask"], reduction, len(log_probs), log_probs.shape[1]
        )
        call = registry.get(name)
        return _taken(log_probs, looking, lambda: call(
            log_probs, fields["old_log_probs"], scaled, config=config, loss_mask=fields["loss_mask"],
            rollout_logprobs=fields["rollout_logprobs"],
        ))  # fmt: skip
    finally:
        registry._functions.clear()
        registry._functions.update(kept)


def skyrl_advantage(token_level_rewards, response_mask, index, adv_estimator, grpo_norm_by_std):
    """SkyRL's `compute_advantages_and_returns`."""
    from skyrl.backends.skyrl_train.utils import ppo_utils

    from trimtab.integrations import skyrl as ours

    registry = ppo_utils.AdvantageEstimatorRegistry
    if "trimtab" not in registry._functions:
        ours.register_advantage()
    return ppo_utils.compute_advantages_and_returns(
        token_level_rewards, response_mask, index, adv_estimator, Options(), grpo_norm_by_std=grpo_norm_by_std
    )


def openrlhf_loss(log_probs, ours, settings, info, watch=None, recipe=None, **fields):
    """The name that OpenRLHF's actor builds its loss from, called as the actor calls it."""
    from openrlhf.trainer.ray import ppo_actor

    from trimtab.integrations import openrlhf as hooks

    looking = None
    if ours:
        hooks.apply(recipe)
    elif watch:
        looking = hooks.watch(watch)
    try:
        made = ppo_actor.PolicyLoss(**settings)
        rollout = fields.pop("rollout_log_probs")
        return _taken(log_probs, looking, lambda: made(
            log_probs, fields["old_log_probs"], fields["advantages"], action_mask=fields["action_mask"],
            rollout_log_probs=rollout, **info,
        ))  # fmt: skip
    finally:
        hooks.undo()


def areal_loss(logprobs, ours, settings, data, watch=None, recipe=None):
    """The name that AReaL's `_ppo_update` builds its partial from."""
    from areal.trainer.ppo import actor

    from trimtab.integrations import areal as hooks

    looking = None
    if ours:
        hooks.apply(recipe)
    elif watch:
        looking = hooks.watch(watch)
    if settings.get("rejection_sampling"):
        settings = {**settings, "rejection_sampling": Options(**settings["rejection_sampling"])}
    try:
        return _taken(
            logprobs, looking, lambda: actor.grpo_loss_fn(logprobs, torch.zeros_like(logprobs), data, **settings)
        )
    finally:
        hooks.undo()


def _one_rank():
    """Stands in for Megatron's parallel state: no context parallelism, two data-parallel ranks."""
    import megatron.core

    megatron.core.mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1, get_context_parallel_rank=lambda: 0,
        get_context_parallel_group=lambda: None, get_data_parallel_world_size=lambda **_: 2,
        is_pipeline_last_stage=lambda: True,
    )  # fmt: skip
    return megatron.core.mpu


def slime_loss(logits, ours, settings, lists, watch=None, recipe=None, opsm=False, package="slime"):
    """slime's `loss_function`, which loads the custom loss by its path. `logits` stand for flat log-probs here."""
    import importlib
    import os

    theirs = importlib.import_module("slime.backends.megatron_utils.loss")
    from slime.backends.megatron_utils import cp_utils

    theirs.mpu = cp_utils.mpu = _one_rank()

    def given(logits, response_lengths=None, **_):
        found = [*logits.split(response_lengths)]
        return None, {"log_probs": found, "entropy": [row * row for row in found]}

    theirs.get_log_probs_and_entropy = given
    args = Options(
        loss_type="policy_loss", recompute_loss_function=False, allgather_cp=False, use_rollout_logprobs=False,
        get_mismatch_metrics=False, custom_tis_function_path=None, custom_pg_loss_reducer_function_path=None,
        use_unbiased_kl=False, eps_clip_c=None, use_opsm=False, use_tis=False, calculate_per_token_loss=False,
        entropy_coef=0.0, use_kl_loss=False, kl_loss_coef=0.0, kl_loss_type="k3", advantage_estimator="grpo",
        opsm_delta=0.0, rollout_top_p=1.0, eps_clip=0.2, eps_clip_high=0.28, tis_clip=1.2, tis_clip_low=0.0,
    )  # fmt: skip
    vars(args).update(settings)
    if ours:
        args.loss_type, args.custom_loss_function_path = "custom_loss", f"trimtab.integrations.slime.{ours}"
    lengths = [len(mask) for mask in lists["loss_masks"]]
    batch = {
        **lists, "response_lengths": lengths, "total_lengths": [n + 2 for n in lengths], "unconcat_tokens": None,
        "rollout_mask_sums": [mask.sum() for mask in lists["loss_masks"]],
    }  # fmt: skip
    from trimtab.integrations import slime as hooks

    if opsm:
        hooks.apply()
    os.environ["TRIMTAB_RECIPE"] = recipe or ""
    os.environ["TRIMTAB_WATCH"] = watch or ""
    hooks._looking.clear()
    try:
        loss, normalizer, log = theirs.loss_function(args, batch, 3, 12, logits)
    finally:
        hooks.undo()
    return loss, normalizer, sorted(log["keys"]), _stepped(hooks._looking[0], loss) if watch else None


def slime_rewards(rewards, groups, settings):
    """slime's `_post_process_rewards`, without and with our function."""
    from slime.ray import rollout

    from trimtab.integrations import slime as hooks

    args = Options(**settings)
    samples = [
        SimpleNamespace(group_index=group, get_reward_value=lambda _, value=value: value)
        for value, group in zip(rewards, groups, strict=True)
    ]
    manager = next(
        kind for kind in vars(rollout).values() if isinstance(kind, type) and "_post_process_rewards" in vars(kind)
    )
    return [
        manager._post_process_rewards(SimpleNamespace(args=args, custom_reward_post_process_func=made), samples)
        for made in (None, hooks.post_process_rewards)
    ]


def slime_advantages(settings, lists):
    """slime's `compute_advantages_and_returns`, without and with our function."""
    from slime.backends.megatron_utils import cp_utils
    from slime.backends.megatron_utils import loss as theirs

    theirs.mpu = cp_utils.mpu = _one_rank()
    found = []
    for path in (None, "trimtab.integrations.slime.advantages"):
        args = Options(
            custom_advantage_function_path=path, use_rollout_logprobs=False, normalize_advantages=False, use_opd=False,
            **settings,
        )  # fmt: skip
        data = {name: [*values] for name, values in lists.items()}
        lengths = [len(mask) for mask in lists["loss_masks"]]
        data |= {"response_lengths": lengths, "total_lengths": [n + 2 for n in lengths]}
        theirs.compute_advantages_and_returns(args, data)
        found.append({name: data[name] for name in ("advantages", "returns", "kl")})
    return found


def prime_rl_loss(trainer_logprobs, ours, settings, lists, watch=None):
    """prime-rl's `compute_loss`, with the loss that `setup_rl_loss_fn` finds by its path."""
    import importlib

    from prime_rl.configs import trainer
    from prime_rl.trainer.rl import loss as theirs

    class Default(Options):
        """Stands in for DefaultLossConfig."""

        def __init__(self, **given):
            super().__init__(**{"adv_tau": 1.0} | given)

    def found(path):
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)

    theirs.import_object, theirs.DefaultLossConfig, trainer.DefaultLossConfig = found, Default, Default
    theirs.CustomLossConfig = type("CustomLossConfig", (Options,), {})
    lengths = [len(mask) for mask in lists["loss_mask"]]
    if ours:
        made = theirs.setup_rl_loss_fn(
            theirs.CustomLossConfig(import_path=f"trimtab.integrations.prime_rl.{ours}", kwargs=settings)
        )
    else:
        made = theirs.setup_rl_loss_fn(theirs.DefaultLossConfig(**settings))
    loss, metrics = theirs.compute_loss(
        [*trainer_logprobs.split(lengths)], lists["inference_logprobs"], None, lists["advantages"],
        [mask.bool() for mask in lists["loss_mask"]], None, None, None, made, 90, 1, 1,
    )  # fmt: skip
    from trimtab.integrations import prime_rl as hooks

    return loss, sorted(metrics), _stepped(hooks._looking[0], loss) if watch else None


def nemo_rl_loss(next_token_logprobs, ours, settings, data, recipe=None, watch=None):
    """NeMo-RL's loss function, or ours in its place, called as its wrapper calls it."""
    from nemo_rl.algorithms.loss import loss_functions

    from trimtab.integrations import nemo_rl as hooks
    from trimtab.integrations.looking import Looking

    config = loss_functions.ClippedPGLossConfig(**settings)
    made = hooks.loss_function(config, recipe) if ours else loss_functions.ClippedPGLossFn(config)
    looking = Looking("NeMo-RL", watch) if watch else None
    if looking:
        made = hooks.watched(made, looking)
    loss, _ = made(
        next_token_logprobs=next_token_logprobs, data=data, global_valid_seqs=torch.tensor(14.0),
        global_valid_toks=torch.tensor(90.0),
    )  # fmt: skip
    return loss, [], _stepped(looking, loss) if looking else None
