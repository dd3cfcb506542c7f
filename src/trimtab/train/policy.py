"""The only place that builds, copies, saves and loads the policy: a Hugging Face causal LM, its tokenizer, a critic.

It does not know how a log-prob is computed nor how the policy is trained.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.tokenizer import character_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from trimtab.config.train import ModelSettings

CRITIC_FILE = "critic.safetensors"
MAX_POSITIONS = 1024
"""What the saved config tells other tools; rotary positions have no table that could overflow."""


@dataclass(frozen=True)
class Policy:
    """What is trained, and what its ids mean."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    critic: nn.Linear
    """Value of a state from the model's last hidden state; starts at zero and stays there unless a recipe trains it."""

    @property
    def pad_id(self) -> int:
        return cast(int, self.tokenizer.pad_token_id)

    @property
    def eos_id(self) -> int:
        return cast(int, self.tokenizer.eos_token_id)

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def new_policy(settings: "ModelSettings", alphabet: str, seed: int) -> Policy:
    """A small Qwen3 with random parameters, and a character tokenizer for `alphabet`. Downloads nothing."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = character_tokenizer(alphabet)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.mlp_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        head_dim=settings.hidden_size // settings.num_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        pad_token_id=cast(int, tokenizer.pad_token_id),
        eos_token_id=cast(int, tokenizer.eos_token_id),
        bos_token_id=None,
        dtype="float32",
    )
    # transformers draws initial values from torch's global stream: fork it, so that the caller's is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "parameters"))
        model = Qwen3ForCausalLM(config)
    return Policy(model=model, tokenizer=tokenizer, critic=new_critic(settings.hidden_size))


def new_critic(hidden_size: int) -> nn.Linear:
    """A critic that says 0 everywhere, so that the first advantages are the returns themselves."""
    critic = cast(nn.Linear, nn.utils.skip_init(nn.Linear, hidden_size, 1))  # draws no random numbers
    nn.init.zeros_(critic.weight)
    nn.init.zeros_(critic.bias)
    return critic


def frozen_copy(model: "PreTrainedModel") -> "PreTrainedModel":
    """The same model with parameters of its own that never change by training: a reference, or an engine's model."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def published(model: "PreTrainedModel") -> dict[str, Tensor]:
    """The parameters as an engine takes them."""
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def save(policy: Policy, folder: Path) -> None:
    """Write a folder that plain transformers loads; the critic lies beside it. Safetensors and JSON only."""
    folder.mkdir(parents=True, exist_ok=True)
    policy.model.config.architectures = [type(policy.model).__name__]
    policy.model.config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    # Not model.save_pretrained: it draws a progress bar of its own on the terminal.
    _save_file(policy.model.state_dict(), folder / "model.safetensors")
    _save_file(policy.critic.state_dict(), folder / CRITIC_FILE)


def _save_file(state: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.detach().clone() for name, tensor in state.items()}, path, metadata={"format": "pt"})


def load(folder: Path) -> Policy:
    """Read what `save` wrote."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"load: {folder} holds no config.json, so there is no policy in it. Give the `model` folder of a run."
        )
    model = cast("PreTrainedModel", AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    tokenizer = cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder))
    critic = new_critic(int(model.config.hidden_size))
    if (folder / CRITIC_FILE).is_file():
        critic.load_state_dict(load_file(folder / CRITIC_FILE))
    return Policy(model=model, tokenizer=tokenizer, critic=critic)
