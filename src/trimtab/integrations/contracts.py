"""What each framework's hooks must look like: the one table that the command and the pages share.

A contract is checked by reading the framework's source; the framework is never imported.
"""

import ast
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trimtab.errors import AdapterError, unknown_name


@dataclass(frozen=True)
class Signature:
    """A function, or a method as Class.method, of a module, and the parameters that we rely on."""

    module: str
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Contract:
    """One framework: the lines to add, the versions that were tested, and its hooks."""

    name: str
    package: str
    tested: str
    watch: str
    correct: str
    hooks: tuple[Signature, ...]

    @property
    def page(self) -> str:
        return f"docs/integrations/{self.name}.md"


def _policy_loss(module: str, name: str, parameters: str) -> Signature:
    return Signature(module, name, tuple(parameters.split()))


SLIME_LOSS = "--loss-type custom_loss --custom-loss-function-path trimtab.integrations.slime"
CONTRACTS: dict[str, Contract] = {one.name: one for one in (
    Contract(
        "verl", "verl", "verl 0.9.1 (wheel)",
        "export VERL_USE_EXTERNAL_MODULES=trimtab.integrations.verl TRIMTAB_WATCH=runs/mine",
        "export VERL_USE_EXTERNAL_MODULES=trimtab.integrations.verl TRIMTAB_RECIPE=cispo\n"
        "… actor_rollout_ref.actor.policy_loss.loss_mode=trimtab algorithm.adv_estimator=trimtab",
        (
            _policy_loss("verl.trainer.ppo.core_algos", "register_policy_loss", "name"),
            _policy_loss("verl.trainer.ppo.core_algos", "register_adv_est", "name_or_enum"),
            _policy_loss(
                "verl.trainer.ppo.core_algos", "compute_policy_loss_vanilla",
                "old_log_prob log_prob advantages response_mask loss_agg_mode config rollout_is_weights",
            ),
            _policy_loss(
                "verl.trainer.ppo.rollout_corr_helper", "compute_rollout_correction_and_add_to_batch",
                "batch rollout_corr_config",
            ),
        ),
    ),
    Contract(
        "skyrl", "skyrl", "skyrl 0.3.0 (wheel)",
        "from trimtab.integrations import skyrl; skyrl.watch('runs/mine')      # before ray.init()",
        "from trimtab.integrations import skyrl; skyrl.register('tis')         # before ray.init()\n"
        "trainer.algorithm.policy_loss_type=trimtab",
        (
            _policy_loss(
                "skyrl.backends.skyrl_train.utils.ppo_utils", "ppo_policy_loss",
                "log_probs old_log_probs advantages config loss_mask rollout_logprobs",
            ),
            _policy_loss("skyrl.backends.skyrl_train.utils.ppo_utils", "BaseFunctionRegistry.register", "name func"),
        ),
    ),
    Contract(
        "slime", "slime", "slime main (checkout, TRIMTAB_SLIME)",
        f"TRIMTAB_WATCH=runs/mine … {SLIME_LOSS}.watched",
        f"TRIMTAB_RECIPE=tis … {SLIME_LOSS}.custom_loss --calculate-per-token-loss",
        (
            _policy_loss(
                "slime.backends.megatron_utils.loss", "policy_loss_function", "args batch logits sum_of_sample_mean"
            ),
            _policy_loss(
                "slime.backends.megatron_utils.loss", "vanilla_tis_function",
                "args pg_loss train_log_probs rollout_log_probs loss_masks",
            ),
            _policy_loss(
                "slime.utils.ppo_utils", "compute_opsm_mask",
                "args full_log_probs full_old_log_probs advantages loss_masks",
            ),
        ),
    ),
    Contract(
        "prime_rl", "prime_rl", "prime-rl main (checkout, TRIMTAB_PRIME_RL)",
        '[trainer.loss]\ntype = "custom"\nimport_path = "trimtab.integrations.prime_rl.watched"',
        '[trainer.loss]\ntype = "custom"\nimport_path = "trimtab.integrations.prime_rl.loss"\n'
        'kwargs = { recipe = "cispo", loss = { anchor = "rollout" } }',
        (
            _policy_loss("prime_rl.trainer.rl.loss", "setup_rl_loss_fn", "loss_config"),
            _policy_loss("prime_rl.trainer.rl.loss", "default_loss_fn", "inputs loss_config"),
        ),
    ),
    Contract(
        "openrlhf", "openrlhf", "openrlhf 0.11.2 (wheel)",
        "from trimtab.integrations import openrlhf; openrlhf.watch('runs/mine')   # in the actor's process",
        "from trimtab.integrations import openrlhf; openrlhf.apply('tis')         # in the actor's process",
        (
            _policy_loss(
                "openrlhf.models.loss", "PolicyLoss.forward",
                "log_probs old_log_probs advantages action_mask rollout_log_probs dp_size batch_num_tokens "
                "global_batch_size",
            ),
            _policy_loss(
                "openrlhf.models.loss", "PolicyLoss.__init__",
                "clip_eps_low clip_eps_high dual_clip token_level_loss policy_loss_type is_correction_level "
                "is_correction_mode is_correction_gating is_correction_threshold",
            ),
        ),
    ),
    Contract(
        "areal", "areal", "areal 1.0.4 (wheel)",
        "from trimtab.integrations import areal; areal.watch('runs/mine')         # before the actor is built",
        "from trimtab.integrations import areal; areal.apply('decoupled_ppo')     # before the actor is built",
        (
            _policy_loss(
                "areal.trainer.ppo.actor", "grpo_loss_fn",
                "logprobs entropy input_data eps_clip eps_clip_higher c_clip rejection_sampling",
            ),
        ),
    ),
    Contract(
        "nemo_rl", "nemo_rl", "NeMo-RL main (checkout, TRIMTAB_NEMO_RL)",
        "loss_fn = trimtab.integrations.nemo_rl.watched(loss_fn)                  # in your copy of run_grpo.py",
        "loss_fn = trimtab.integrations.nemo_rl.loss_function(config.loss_fn, 'tis')   # hand it to grpo_train(…)",
        (
            _policy_loss(
                "nemo_rl.algorithms.loss.loss_functions", "ClippedPGLossFn.__call__",
                "next_token_logprobs data global_valid_seqs global_valid_toks",
            ),
        ),
    ),
    Contract(
        "tinker", "tinker", "tinker 0.38.0, its signature only; no service was called",
        "await client.forward_backward_custom_async(data, tinker.watched(my_loss))",
        "from trimtab.integrations import tinker\n"
        "cispo = trimtab.recipe('cispo', loss={'anchor': 'rollout'})\n"
        "await client.forward_backward_custom_async(data, tinker.loss(cispo))",
        (
            _policy_loss(
                "tinker.lib.public_interfaces.training_client", "TrainingClient.forward_backward_custom_async",
                "data loss_fn",
            ),
        ),
    ),
    Contract(
        "trl", "trl", "trl 1.16.0",
        "from trimtab.integrations import trl; trl.attach(trainer)                # before trainer.train()",
        "from trimtab.integrations import trl\n"
        "trainer = trl.corrected(GRPOTrainer, recipe='start_async')(model=…, …)",
        (
            _policy_loss("trl.trainer.grpo_trainer", "GRPOTrainer._compute_loss", "model inputs"),
            _policy_loss("trl.trainer.grpo_trainer", "GRPOTrainer._generate_and_score_completions", "inputs"),
            _policy_loss("trl.trainer.grpo_trainer", "GRPOTrainer._calculate_rewards", "completion_ids_list"),
            _policy_loss(
                "trl.trainer.grpo_trainer", "GRPOTrainer._get_per_token_logps_and_entropies",
                "model input_ids attention_mask logits_to_keep",
            ),
        ),
    ),
)}  # fmt: skip


def contract(name: str) -> Contract:
    """The contract of a framework, by its name with either dash."""
    wanted = name.lower().replace("-", "_")
    if wanted not in CONTRACTS:
        raise AdapterError(unknown_name("frameworks", name, sorted(CONTRACTS)))
    return CONTRACTS[wanted]


def installed(one: Contract) -> str | None:
    """The framework's version, or "unknown version"; None where it is not installed."""
    if importlib.util.find_spec(one.package) is None:
        return None
    try:
        return metadata.version(one.package.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "unknown version"


def broken(one: Contract, root: Path | None = None) -> list[str]:
    """What is no longer as we rely on it, as sentences. `root`: the folder that holds the package."""
    return [said for hook in one.hooks if (said := _broken(one, hook, root))]


def _broken(one: Contract, hook: Signature, root: Path | None) -> str:
    where = f"{hook.module}.{hook.name}"
    path = _source(one, hook.module, root)
    if path is None:
        return f"{one.name}: the module {hook.module} is not there, so {hook.name} cannot be hooked."
    found = _parameters(ast.parse(path.read_text(encoding="utf-8")), hook.name.split("."))
    if found is None:
        return f"{one.name}: {where} is not there, so it cannot be hooked."
    missing = [name for name in hook.parameters if name not in found]
    if missing:
        return f"{one.name}: {where} no longer takes {', '.join(missing)}; it takes {', '.join(found)}."
    return ""


def _source(one: Contract, module: str, root: Path | None) -> Path | None:
    if root is None:
        spec = importlib.util.find_spec(one.package)
        places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    else:
        places = [root / one.package]
    below = module.split(".")[1:]
    for place in places:
        for path in (place.joinpath(*below).with_suffix(".py"), place.joinpath(*below, "__init__.py")):
            if path.is_file():
                return path
    return None


def _parameters(tree: ast.AST, names: list[str]) -> list[str] | None:
    for node in ast.walk(tree):
        if getattr(node, "name", None) != names[0]:
            continue
        if isinstance(node, ast.ClassDef) and len(names) > 1:
            return _parameters(ast.Module(body=node.body, type_ignores=[]), names[1:])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(names) == 1:
            given = node.args
            return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return None
