"""The only place that says how much memory a run will take, before it takes it. An estimate: within a factor of 1.5.

It counts what grows with the model and the batch, on one machine. The libraries are added as a constant.
"""

from typing import TYPE_CHECKING, cast

from torch import nn

from trimtab.rollout.rollouts import WHOLE
from trimtab.signal import Recipe
from trimtab.train.adapter import adapter_size
from trimtab.train.logp import LOGITS_BYTES
from trimtab.train.policy import Policy

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

LIBRARIES = 500 * 2**20
"""Resident size of Python with torch and transformers imported, about, on Linux."""
HIDDEN_KEPT, MLP_KEPT = 14, 4
"""Numbers per token and layer that the backward pass needs, in hidden and in feed-forward widths: measured on Qwen3
(14.1 and 4), Llama (10.1 and 4) and GPT-2 (12.3 and 4) with attention that keeps no matrix of scores."""
LOGITS_COPIES = 6
"""A chunk's logits, their softmax, its product for the entropy, and the gradients of these."""


def estimate_memory(
    policy: Policy, settings: "TrainSettings", recipe: Recipe, *, prompt_tokens: int = 64
) -> dict[str, int]:
    """Bytes that a run takes at its highest, by what they are for; `prompt_tokens` is the longest prompt.

    optimizer: two moments, room for one update, masters. engines: the sampler's copy and the evaluation's, in float32,
    and the copy that is checked while it is loaded. activations: of one micro-batch. logits: of one chunk. cache: keys
    and values of the answers that are sampled at once. buffer: rollouts between sampler and learner, at their longest.
    """
    inline = settings.runtime == "inline"
    own, length = policy.parameter_bytes, prompt_tokens + settings.max_new_tokens
    chunk = min(LOGITS_BYTES, 4 * _vocabulary(policy) * settings.max_tokens_per_micro_batch)
    copies = model_copies(settings, recipe)
    lora = settings.model.lora
    trained = policy.num_parameters if lora is None else adapter_size(policy.model, lora)
    masters = 0 if policy.dtype == "float32" or lora is not None else 4 * policy.num_parameters
    sizes = {
        "libraries": LIBRARIES * (1 if inline else 1 + settings.engine.processes),
        "parameters": own + (0 if lora is None else 4 * trained),
        "gradients": own if lora is None else 4 * trained,
        # Two moments and room for one update, in float32; and masters of parameters in half precision.
        "optimizer": 3 * 4 * trained + masters,
        # And the copy that is checked while an engine loads it.
        "engines": (len(copies) - 1 - ("reference" in copies) + 1) * 4 * policy.num_parameters,
        "reference": own if "reference" in copies else 0,
        "activations": _activations(policy, settings, length),
        "logits": LOGITS_COPIES * chunk,
        "cache": _cache(policy, settings, length),
        "buffer": _buffer(settings, length),
    }
    return {name: size for name, size in sizes.items() if size}


def model_copies(settings: "TrainSettings", recipe: Recipe) -> dict[str, str]:
    """Every copy of the model that a run holds, and what it is for. Ranks share the first two, shard by shard."""
    copies = {"policy": "trained"}
    if "logp_ref" in recipe.needs and settings.model.lora is None:  # with an adapter, the policy without it
        copies["reference"] = "frozen, for the KL"
    copies |= {"engine": f"samples, {settings.engine.format}", "judge": "answers held-out prompts, fp32"}
    if settings.runtime != "inline":
        copies |= {"probe": "the version that sampled, for the drift", "start": "what the sampler process began with"}
        copies["publication"] = "the newest version, for a sampler that starts again"
        samples = f"samples, {settings.engine.format}"
        copies |= {f"engine {number}": samples for number in range(2, settings.engine.processes + 1)}
    return copies


def _activations(policy: Policy, settings: "TrainSettings", length: int) -> int:
    """Prompt and padding are computed like the tokens that train."""
    config = policy.model.config
    answers = max(1, min(settings.max_tokens_per_micro_batch // length, _answers(settings)))
    size = next(policy.model.parameters()).element_size()
    hidden = int(config.hidden_size)
    mlp = int(getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden)
    layer = HIDDEN_KEPT * hidden + MLP_KEPT * mlp
    layers = int(config.num_hidden_layers)
    # With checkpointing a layer's input is kept, and one layer's activations exist while it goes backward.
    kept = layers * hidden + layer if settings.model.gradient_checkpointing else layers * layer
    return answers * length * size * (kept + 2 * hidden)


def _cache(policy: Policy, settings: "TrainSettings", length: int) -> int:
    """Keys and values in float32, and half as much again for the free room of a growing buffer."""
    config = policy.model.config
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    rows = max(_answers(settings), settings.eval_prompts)
    rows = min(rows, settings.engine.max_rows or rows)
    return int(rows * length * int(config.num_hidden_layers) * 2 * heads * size * 4 * 1.5)


def _buffer(settings: "TrainSettings", length: int) -> int:
    """What admission lets in: the batch that is trained on, and one for each update that another may be behind."""
    sizes = {level: sum(dtype.itemsize for lv, dtype in WHOLE.values() if lv == level) for level, _ in WHOLE.values()}
    answer = length * sizes["token"] + settings.max_new_tokens * sizes["trainable"]
    return (settings.staleness + 2) * _answers(settings) * (answer + sizes["sequence"] + sizes["episode"])


def _answers(settings: "TrainSettings") -> int:
    return settings.prompts_per_step * settings.samples_per_prompt


def _vocabulary(policy: Policy) -> int:
    return int(cast(nn.Linear, policy.model.get_output_embeddings()).weight.shape[0])
