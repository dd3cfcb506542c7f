"""TRL: the places of its functions, a single process, and guarantees of every caller."""

from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.target import Binding

GRPO = "trl/trainer/grpo_trainer.py"
RLOO = "trl/trainer/rloo_trainer.py"
UTILS = "trl/trainer/utils.py"
RIGHT: dict[str, Any] = {"with_prompt": False}
OWN_FORWARD = "log-probs at untrainable cells are the trainer's own forward pass, and padding of sampled ones is 0"
OWN = {"nonfinite_isolation": OWN_FORWARD}


class Alone:
    """An accelerator of one process."""

    num_processes, process_index, sync_gradients, device = 1, 0, True, torch.device("cpu")

    def gather(self, values: Tensor) -> Tensor:
        return values

    gather_for_metrics = gather

    def reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        return values

    def pad_across_processes(self, values: Tensor, dim: int = 0, pad_index: float = 0.0) -> Tensor:
        return values


def by_row(values: list[Tensor], parts: list[Case]) -> Tensor:
    """Combine equal micro-batches that are each a mean over their completions."""
    rows = [float(part.num_sequences) for part in parts]
    return torch.stack([v * (n / max(sum(rows), 1.0)) for v, n in zip(values, rows, strict=True)]).sum()


SCORE = "_generate_and_score_completions"
FROM_REWARDS = {
    "first": "unscorable_mask = torch.isnan",
    "last": "advantages = torch.nan_to_num",
    "results": ("advantages",),
}
RATIO = {"first": "per_token_logps_diff = (old_per_token_logps", "last": "if self.vllm_importance_sampling_mode in"}
GKD = ("trl/experimental/gkd/gkd_trainer.py", "trl/trainer/gkd_trainer.py")


def found_in(file: str, name: str, make: Any, label: str | None = None, **cut: Any) -> Binding:
    return Binding(label or name, (Spec(name, file=file, **cut),), make)
