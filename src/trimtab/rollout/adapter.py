"""The only place that knows an adapter apart from its model: matrices and a config, as a peft folder holds them.

It is what an engine needs of a version where training changes nothing else. How an adapter is trained is no business of
this file, and neither is which engines take one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from trimtab.errors import StaleWeights
from trimtab.rollout.weights import digest

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
PREFIX, DOWN, UP, WEIGHT = "base_model.model.", ".lora_A.weight", ".lora_B.weight", ".weight"
"""How peft names the two matrices beside `model.layers.0.mlp.up_proj.weight`."""


@dataclass(frozen=True)
class Adapter:
    """Low-rank matrices beside a model: each weight W of theirs becomes W + scaling * B A.

    Rank 2 beside one weight of shape (64, 32): A is (2, 32), B is (64, 2); `r` 2 and `lora_alpha` 4 give scaling 2.
    """

    state: Mapping[str, Tensor]
    config: Mapping[str, object]

    @property
    def rank(self) -> int:
        return int(cast(int, self.config["r"]))

    @property
    def scaling(self) -> float:
        return float(cast(float, self.config["lora_alpha"])) / self.rank

    @cached_property
    def digest(self) -> str:
        return digest(self.state)

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The name of each weight in the model, its A and its B."""
        for name, down in self.state.items():
            if name.endswith(DOWN):
                bare = name.removesuffix(DOWN)
                yield f"{bare.removeprefix(PREFIX)}{WEIGHT}", down, self.state[f"{bare}{UP}"]

    def copy(self) -> "Adapter":
        """The same matrices, which nobody changes."""
        return Adapter({name: tensor.detach().cpu().clone() for name, tensor in self.state.items()}, self.config)

    def rounded(self, dtype: torch.dtype) -> "Adapter":
        """The matrices as an engine holds them that computes in `dtype`."""
        return Adapter({name: tensor.to(dtype).float() for name, tensor in self.state.items()}, self.config)

    def merged(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters of a model with the adapter in them: a copy in float32 where it changes something."""
        state = dict(base)
        for name, down, up in self.pairs():
            state[name] = base[name].float() + self.scaling * (up.detach().cpu().float() @ down.detach().cpu().float())
        return state

    def decoy(self, base: Mapping[str, Tensor], scale: float) -> "Adapter":
        """An adapter near this one that is not it: each weight moves by about `scale` of its own spread.

        Only B moves. A new adapter has B = 0, so moving A would change nothing.
        """
        random = torch.Generator().manual_seed(0)
        state = {name: tensor.detach().cpu().float() for name, tensor in self.state.items()}
        for name, down, _ in self.pairs():
            spread = self.scaling * float(down.float().std()) * self.rank**0.5
            up = f"{PREFIX}{name.removesuffix(WEIGHT)}{UP}"
            noise = torch.randn(state[up].shape, generator=random)
            state[up] = state[up] + scale * float(base[name].float().std()) / max(spread, 1e-6) * noise
        return Adapter(state, self.config)

    def write(self, folder: Path) -> None:
        """Files of a peft folder: `PeftModel.from_pretrained(base, folder)` reads them."""
        from safetensors.torch import save_file

        _ = (folder / CONFIG_FILE).write_text(json.dumps(dict(self.config), indent=2) + "\n", encoding="utf-8")
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in self.state.items()}, folder / WEIGHTS_FILE
        )


def read_adapter(folder: Path) -> Adapter:
    """The adapter of a folder that `Adapter.write` made."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return Adapter(load_file(folder / WEIGHTS_FILE), config)
    except (SafetensorError, OSError, ValueError) as error:
        raise StaleWeights(
            f"publish: the adapter in {folder} is damaged or cut short ({error}), so no engine may load it. Publish "
            "the version again."
        ) from error
