"""What `bench.gpu` runs: each case builds its inputs on a device and returns a call whose results can be compared."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import trimtab
from bench.stages import outcome
from bench.workload import WORKLOADS, full_recipe
from trimtab.signal import advantage, decide, normalize, policy_loss, prepare, step, token_loss

Built = Callable[[], tuple[Tensor, ...]]
Build = Callable[[str, torch.dtype], Built]


@dataclass(frozen=True)
class Case:
    """`Case("logits", "1024 x 32000", build)`: build("cuda", torch.float32) is the call."""

    stage: str
    size: str
    build: Build
    dtype: torch.dtype = torch.float32
    tolerance: float = 1e-4
    """Of float32 on the device, relative to the largest number of the CPU's float64."""
    counted_on: str = "cpu"
    """Where kernels are counted without a GPU: meta tensors hold no numbers, and no call that reads one runs there."""
    is_counted: bool = False


def full(name: str, device: str, dtype: torch.dtype) -> Built:
    """From packed tokens to the gradient and every metric."""
    work, recipe = WORKLOADS[name]().on(device, dtype), full_recipe()
    current = work.flat["logp_current"].clone().requires_grad_()

    def run() -> tuple[Tensor, ...]:
        prepared, _ = prepare(work.batch(), recipe)
        (update,) = prepared.updates(1)
        (micro,) = decide(update).split(num=1)
        out = token_loss(micro, current)
        (slope,) = torch.autograd.grad(out.loss, current)
        _ = step([out]).metrics.numbers()
        return out.loss, slope

    return run


def loss(name: str, device: str, dtype: torch.dtype) -> Built:
    """The clipped policy loss alone, and its gradient."""
    work = WORKLOADS[name]().on(device, dtype)
    advantages, current = outcome(work), work.flat["logp_current"].clone().requires_grad_()

    def run() -> tuple[Tensor, ...]:
        losses, _ = policy_loss.clipped(current, work.flat["logp_old"], advantages, band=(0.8, 1.28))
        mean = losses.mean()
        return mean, *torch.autograd.grad(mean, current)

    return run


def gae(name: str, device: str, dtype: torch.dtype) -> Built:
    """GAE and whitening; the blocks of a batch are cut once."""
    work = WORKLOADS[name]().on(device, dtype)
    segments, after = work.batch().segments, torch.zeros(len(work.lengths), device=device, dtype=dtype)
    ended, keep = torch.ones_like(after, dtype=torch.bool), torch.ones_like(work.flat["value_old"], dtype=torch.bool)

    def run() -> tuple[Tensor, ...]:
        credit, _ = advantage.gae(
            work.flat["token_reward"], work.flat["value_old"], after, ended, segments, gamma=0.99, lam=0.95
        )
        return (normalize.whiten(credit, keep),)

    return run


def logits(rows: int, vocabulary: int, device: str, dtype: torch.dtype) -> Built:
    """Log-probs and entropies from logits, and the gradient of both."""
    stream = torch.Generator().manual_seed(0)
    drawn = 2 * torch.randn(rows, vocabulary, generator=stream)
    given, ids = (
        drawn.to(device, dtype).requires_grad_(),
        torch.randint(vocabulary, (rows,), generator=stream).to(device),
    )

    def run() -> tuple[Tensor, ...]:
        own, entropy = trimtab.logp_and_entropy(given, ids)
        (slope,) = torch.autograd.grad(own.sum() + 0.01 * entropy.sum(), given)
        return own, entropy, slope

    return run


def hidden(rows: int, vocabulary: int, width: int, device: str, dtype: torch.dtype) -> Built:
    """The same from hidden states and the output head; gradients of both."""
    stream = torch.Generator().manual_seed(0)
    states = torch.randn(rows, width, generator=stream).to(device, dtype).requires_grad_()
    head = (0.05 * torch.randn(vocabulary, width, generator=stream)).to(device, dtype).requires_grad_()
    ids = torch.randint(vocabulary, (rows,), generator=stream).to(device)

    def run() -> tuple[Tensor, ...]:
        own, entropy = trimtab.logp_from_hidden(states, head, ids)
        return own, entropy, *torch.autograd.grad(own.sum() + 0.01 * entropy.sum(), (states, head))

    return run


def _tokens(stage: str, build: Callable[[str, str, torch.dtype], Built], names: tuple[str, ...]) -> list[Case]:
    return [Case(stage, name, partial(build, name), is_counted=name == "reference") for name in names]


SIZES = ("tiny", "reference", "no waste", "4 x length", "4 x tokens")
HALF = torch.bfloat16
CASES = [
    *_tokens("full", full, SIZES),
    *_tokens("loss", loss, SIZES),
    *_tokens("gae", gae, SIZES),
    Case("logits", "1024 x 32000", partial(logits, 1024, 32_000), counted_on="meta", is_counted=True),
    Case("logits", "8192 x 32000", partial(logits, 8192, 32_000)),
    Case("logits", "4096 x 151936", partial(logits, 4096, 151_936)),
    Case("logits", "4096 x 151936", partial(logits, 4096, 151_936), HALF),
    Case("hidden", "1024 x 32000 x 512", partial(hidden, 1024, 32_000, 512), counted_on="meta", is_counted=True),
    Case("hidden", "8192 x 32000 x 2048", partial(hidden, 8192, 32_000, 2048)),
    Case("hidden", "4096 x 151936 x 2048", partial(hidden, 4096, 151_936, 2048), HALF),
]
QUICK = [
    *_tokens("full", full, ("tiny",)),
    *_tokens("loss", loss, ("tiny",)),
    *_tokens("gae", gae, ("tiny",)),
    Case("logits", "16 x 64", partial(logits, 16, 64)),
    Case("hidden", "16 x 64 x 8", partial(hidden, 16, 64, 8)),
]
