"""The only place that builds, copies and saves the policy: a Hugging Face causal LM, its tokenizer, a critic.

It does not know how a log-prob is computed nor how the policy is trained; `folder.py` reads what others saved.
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
from trimtab.train.adapter import adapter_of, has_adapter, merged_state
from trimtab.train.record.disk import make_folder, whole_folder, write_json, writing
from trimtab.train.world import World, alone, local, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from trimtab.config.train import ModelSettings

WEIGHTS_FILE = "model.safetensors"
CRITIC_FILE = "critic.safetensors"
ADAPTER_FOLDER = "adapter"
MAX_POSITIONS = 32768
"""The longest sequence that the saved config allows; rotary positions have no table, so it costs nothing."""


@dataclass(frozen=True)
class Policy:
    """What is trained, and what its ids mean."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    critic: nn.Linear
    """Value of a state from the model's last hidden state; starts at zero and stays there unless a recipe trains it.

    It stays on the CPU in float32, where the signal is computed."""

    @property
    def pad_id(self) -> int:
        return cast(int, self.tokenizer.pad_token_id)

    @property
    def eos_id(self) -> int:
        """The tokenizer's own end token: what a right answer is closed with in a warm start."""
        return cast(int, self.tokenizer.eos_token_id)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer: the tokenizer's, and those that the generation config names besides."""
        return end_ids(self.model, self.tokenizer)

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def num_trained(self) -> int:
        """How many of them training changes."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def parameter_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())


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
    return make_policy(model, tokenizer, settings)


def make_policy(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", settings: "ModelSettings | None"
) -> Policy:
    """A policy in the number format and on the device that the settings ask for, with a new critic."""
    width = cast(nn.Linear, model.get_output_embeddings()).weight.shape[1]
    if settings is not None:
        model = model.to(getattr(torch, settings.dtype)).to(find_device(settings.device))  # pyright: ignore[reportArgumentType]
    # Dropout would make log-probs random, and every ratio with them.
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and (name == "p" if isinstance(module, nn.Dropout) else "dropout" in name):
                setattr(module, name, 0.0)
    _ = model.eval()
    if settings is not None and settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        _ = model.train()  # transformers checkpoints in this mode only
    return Policy(model=model, tokenizer=tokenizer, critic=new_critic(width))


def end_ids(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast") -> tuple[int, ...]:
    """The tokenizer's end token first, then those of generation_config.json, which may name one or several.

    An id without an embedding is left out: it is never drawn, and some servers refuse it.
    """
    rows = cast(nn.Embedding, model.get_input_embeddings()).weight.shape[0]
    named = cast("int | list[int] | None", model.generation_config.eos_token_id)
    more = [] if named is None else [named] if isinstance(named, int) else named
    return tuple(dict.fromkeys((cast(int, tokenizer.eos_token_id), *(one for one in more if 0 <= one < rows))))


def parameter_norm(policy: Policy) -> float:
    """The norm of all parameters together; not finite where one of them is not."""
    parts = [whole(parameter.detach().norm()).double().cpu() for parameter in policy.model.parameters()]
    return float(torch.stack(parts).norm())


def find_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    asked = "cuda:0" if name == "cuda" else name
    if asked.startswith("mps"):
        raise ConfigError(
            "model.device: 'mps' has no float64, in which tokens are drawn and metrics are summed, so a run would fail "
            "at its first sample. Use model.device=cpu on this machine."
        )
    if asked not in there:
        raise ConfigError(
            f"model.device: {name!r} is not on this machine, so the policy cannot be placed there. "
            f"There is: {', '.join(there)}."
        )
    return torch.device(asked)


def new_critic(hidden_size: int) -> nn.Linear:
    """A critic that says 0 everywhere, so that the first advantages are the returns themselves."""
    critic = cast(nn.Linear, nn.utils.skip_init(nn.Linear, hidden_size, 1))  # draws no random numbers
    nn.init.zeros_(critic.weight)
    nn.init.zeros_(critic.bias)
    return critic


def layers_of(model: "PreTrainedModel") -> list[nn.Module]:
    """The transformer layers, in order: what is sharded one by one."""
    stacks = [module for module in model.base_model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(stacks, key=len, default=[]))


def frozen_copy(model: "PreTrainedModel") -> "PreTrainedModel":
    """The same model with parameters of its own that training never changes: a reference, or an engine's model."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def published(model: "PreTrainedModel") -> dict[str, Tensor]:
    """The parameters, whole, as an engine takes them. One that is tied under several names appears once.

    An adapter is merged into a copy of them. Every rank of a sharded model must ask.
    """
    if has_adapter(model):
        return merged_state(model)
    state: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        place = (local(tensor).data_ptr(), tensor.shape)
        if place not in seen:
            seen.add(place)
            state[name] = whole(tensor)
    return state


def save(policy: Policy, folder: Path, world: World = alone) -> None:
    """Write a folder that plain transformers loads, all of it or nothing; the critic lies beside the model.

    With an adapter, the model is the merged one, and `adapter/` in it is a peft folder with the adapter alone.

    Every rank must ask; rank 0 writes.
    """
    state = published(policy.model)
    critic = {name: whole(tensor) for name, tensor in policy.critic.state_dict().items()}
    adapter = adapter_of(policy.model)
    if not world.is_first:
        return
    make_folder(folder.parent)
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    config.dtype = next(policy.model.parameters()).dtype
    with whole_folder(folder) as draft, writing(folder):
        config.save_pretrained(draft)
        _ = policy.tokenizer.save_pretrained(draft)
        write_json(draft / "generation_config.json", policy.model.generation_config.to_diff_dict())
        # Not model.save_pretrained: it draws a progress bar of its own on the terminal.
        _save_file(state, draft / WEIGHTS_FILE)
        _save_file(critic, draft / CRITIC_FILE)
        if adapter is not None:
            (draft / ADAPTER_FOLDER).mkdir()
            adapter.write(draft / ADAPTER_FOLDER)


def _save_file(state: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata={"format": "pt"})


def load(folder: Path, settings: "ModelSettings | None" = None) -> Policy:
    """A policy from a model folder, with the critic that lies beside it if there is one. See `folder.open_folder`."""
    from trimtab.train.folder import open_folder

    model, tokenizer = open_folder(folder, settings)
    policy = make_policy(model, tokenizer, settings)
    if (folder / CRITIC_FILE).is_file():
        _load_critic(policy.critic, folder / CRITIC_FILE)
    return policy


def _load_critic(critic: nn.Linear, path: Path) -> None:
    """Load a critic that was saved for this model. A linear layer alone would accept integers too."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    wanted = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in critic.state_dict().items()}
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: is damaged ({error}), so the critic is lost. Copy the file again.") from error
    found = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in state.items()}
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise ConfigError(
                f"{path}: {name} is {found.get(name, 'missing')} and this model's critic has "
                f"{wanted.get(name, 'no such tensor')}, so it belongs to another model. Copy the folder again, or "
                "delete the file to begin with a new critic."
            )
    critic.load_state_dict(state)
