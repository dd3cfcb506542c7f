"""Ranks: two real gloo processes give the gradient of one, also when a prompt's answers lie on both."""

import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

from trimtab.signal import ProcessGroup, SignalBatch, decide, gather, prepare, recipe, step, token_loss
from trimtab.signal.update import select

LENGTHS = [3, 1, 4, 2, 5, 2]
GROUP = torch.tensor([7, 3, 7, 3, 3, 7])
"""Answers of both prompts on both ranks: rows 0-2 are rank 0's, rows 3-5 rank 1's."""


def rows(chosen: range) -> tuple[SignalBatch, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = [-0.1 - torch.rand(n, generator=generator, dtype=torch.float64) for n in LENGTHS]
    rollout = [(o + 0.2 * torch.randn(len(o), generator=generator, dtype=torch.float64)).clamp(max=-1e-3) for o in old]
    current = [o - 0.1 * torch.rand(len(o), generator=generator, dtype=torch.float64) for o in old]
    reward = torch.tensor([1.0, 0, 0, 1, 0, 1], dtype=torch.float64)
    batch = SignalBatch.from_list(
        [torch.ones(LENGTHS[i], dtype=torch.bool) for i in chosen],
        reward=reward[list(chosen)], group=GROUP[list(chosen)], scored=torch.tensor([i != 4 for i in chosen]),
        logp_old=[old[i] for i in chosen], logp_rollout=[rollout[i] for i in chosen],
    )  # fmt: skip
    return batch, torch.cat([current[i] for i in chosen])


def gradient(batch: SignalBatch, own: torch.Tensor, logp: torch.Tensor, ranks: int) -> tuple[torch.Tensor, float]:
    """d loss / d logp over this rank's tokens; `own` are its sequences in the whole batch."""
    prepared, _ = prepare(batch, recipe("sequence_tis"))
    decided = decide(next(prepared.updates(1)))
    decided = decided.own(own, ranks) if ranks > 1 else decided
    leaf = logp.clone().requires_grad_()
    offset = int(batch.segments.first_token[own[0]])
    losses = []
    for micro in decided.split(num=2):
        _, index = select(batch.segments, micro.sequences)
        losses.append(token_loss(micro, leaf[index - offset]))
        losses[-1].loss.backward()
    decided.check_spent()
    assert leaf.grad is not None
    return leaf.grad, prepared.metrics.merge(step(losses).metrics).numbers()["advantage/token_mean"]


def one_rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    batch, logp = rows(range(3 * rank, 3 * rank + 3))
    whole, own = gather(batch, ProcessGroup(), rank)
    found, mean = gradient(whole, own, logp, 2)
    total = ProcessGroup().sum(torch.tensor([float(rank + 1)]))
    save_file(
        {"gradient": found, "mean": torch.tensor([mean], dtype=torch.float64), "total": total},
        f"{folder}/{rank}.safetensors",
    )
    dist.destroy_process_group()


def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    batch, logp = rows(range(6))
    expected, mean = gradient(batch, torch.arange(6), logp, 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Forked, so that the ranks compute with the modules of this process.
    mp.start_processes(one_rank, args=(port, str(tmp_path)), nprocs=2, start_method="fork")
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    # DDP averages gradients over ranks, so each rank's share is twice its part of the whole.
    torch.testing.assert_close(torch.cat([f["gradient"] for f in found]) / 2, expected, rtol=1e-12, atol=1e-15)
    assert [f["mean"].item() for f in found] == [mean, mean]
    assert [f["total"].item() for f in found] == [3.0, 3.0]
