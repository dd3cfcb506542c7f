"""The stages that are timed: Trimtab's calls, as a user of the library would write them, beside those of its peers."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

import trimtab
from bench import peer_scores, peers
from bench.frameworks import COMPILED, Maker, Timed, load_all
from bench.workload import CORRECTION, WORKLOADS, Workload, full_recipe
from trimtab.signal import (
    Recipe,
    advantage,
    decide,
    fused_loss,
    normalize,
    part,
    policy_loss,
    prepare,
    step,
    token_loss,
    use_metrics,
)  # fmt: skip
from trimtab.signal import correction as corrections
from trimtab.signal.layout import Segments
from trimtab.signal.reduce import to_tokens
from trimtab.signal.tensors import as_on_a_device, is_plain

ROWS, VOCABULARY, WIDTH = 1024, 32_000, 512
"""The shape of logits and hidden states: a micro-batch of 1,024 tokens."""


def run_full(work: Workload, recipe: Recipe, current: Tensor) -> None:
    """From packed tokens to the gradient and every metric."""
    prepared, _ = prepare(work.batch(), recipe)
    run_steps(prepared, current)


def run_steps(prepared: Any, current: Tensor) -> None:
    for update in prepared.updates(1):
        losses = [token_loss(micro, current) for micro in decide(update).split(num=1)]
        losses[0].loss.backward()
        _ = step(losses).metrics.numbers()
    current.grad = None


def full(work: Workload) -> dict[str, Maker]:
    def whole(watch: Literal["all", "few"]) -> Timed:
        recipe, current = full_recipe(), work.flat["logp_current"].clone().requires_grad_()

        def run() -> None:
            with use_metrics(watch):
                run_full(work, recipe, current)

        return run

    def steps() -> Timed:
        current, prepared = work.flat["logp_current"].clone().requires_grad_(), {}
        for here in (nullcontext(), as_on_a_device()):  # what is counted runs as on a device
            with here:
                prepared[is_plain(current.detach())] = prepare(work.batch(), full_recipe())[0]
        return lambda: run_steps(prepared[is_plain(current.detach())], current)

    mine: dict[str, Maker] = {
        "Trimtab": lambda: whole("all"),
        "Trimtab, SkyRL's metrics": lambda: whole("few"),
        "Trimtab, per optimiser step": steps,
    }
    return mine | peers.full(work, outcome(work))


def outcome(work: Workload) -> Tensor:
    """The advantages that every policy loss is given."""
    votes = torch.ones(len(work.reward), dtype=torch.bool, device=work.device)
    groups = int(work.group.max()) + 1
    found, _ = normalize.mean_std(work.reward, votes, work.group, groups, mean="group", std="group")
    return to_tokens(found, work.batch().segments)


def loss(work: Workload) -> dict[str, Maker]:
    advantages = outcome(work)

    def mine() -> Timed:
        current, old = work.flat["logp_current"].clone().requires_grad_(), work.flat["logp_old"]
        clipped, weight = part("policy_loss.clipped", band=(0.8, 1.28)), torch.full_like(old, 1 / len(old))
        return lambda: peers.trained(fused_loss(clipped, current, old, advantages, weight), current)

    def as_written() -> Timed:
        current, old = work.flat["logp_current"].clone().requires_grad_(), work.flat["logp_old"]

        def run() -> None:
            losses, _ = policy_loss.clipped(current, old, advantages, band=(0.8, 1.28))
            peers.trained(losses.mean(), current)

        return run

    return {"Trimtab": mine, "Trimtab, the formula": as_written, **peers.loss(work, advantages)}


def correction(work: Workload) -> dict[str, Maker]:
    def mine() -> Timed:
        segments, old, rollout = work.batch().segments, work.flat["logp_old"], work.flat["logp_rollout"]
        truncated, geometric, veto = (settings for _, settings in CORRECTION)

        def run() -> tuple[Tensor, Tensor]:
            logratio = old - rollout
            importance, _ = corrections.truncated(logratio, segments, **truncated)
            near, _ = corrections.geometric_band(logratio, segments, **geometric)
            sane, _ = corrections.veto(logratio, segments, **veto)
            return importance, near & sane

        return run

    return {"Trimtab": mine, **peers.correction(work)}


def group(work: Workload) -> dict[str, Maker]:
    def mine() -> Timed:
        votes = torch.ones(len(work.reward), dtype=torch.bool, device=work.device)
        segments, reward, names = work.batch().segments, work.reward.double(), work.group
        groups = int(names.max()) + 1

        def run() -> Tensor:
            found, _ = normalize.mean_std(reward, votes, names, groups, mean="group", std="group")
            return to_tokens(found.float(), segments)

        return run

    return {"Trimtab": mine, **peers.group(work)}


def gae(work: Workload) -> dict[str, Maker]:
    def mine(*, anew: bool) -> Timed:
        built = work.batch().segments
        ended = torch.ones(len(work.lengths), dtype=torch.bool, device=work.device)
        after, keep = (
            torch.zeros(len(ended), device=work.device),
            torch.ones(work.num_tokens, device=work.device).bool(),
        )

        def run() -> Tensor:
            segments = Segments(built.token_counts, built.num_tokens) if anew else built
            credit, _ = advantage.gae(
                work.flat["token_reward"], work.flat["value_old"], after, ended, segments, gamma=0.99, lam=0.95
            )
            return normalize.whiten(credit, keep)

        return run

    ours: dict[str, Maker] = {"Trimtab": lambda: mine(anew=False), "Trimtab, blocks cut anew": lambda: mine(anew=True)}
    return ours | peers.gae(work)


def logits(device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    drawn, ids = 2 * torch.randn(ROWS, VOCABULARY), torch.randint(VOCABULARY, (ROWS,))
    return drawn.to(device), ids.to(device)


def scores(*, with_backward: bool) -> dict[str, Maker]:
    drawn, ids = logits()
    given = drawn.requires_grad_() if with_backward else drawn
    calls = {"Trimtab": lambda: lambda x: trimtab.logp_and_entropy(x, ids), **peer_scores.from_logits(ids)}

    def maker(name: str, make: Callable[[], peer_scores.Scores]) -> Maker:
        return lambda: peer_scores.timed(make, given, with_backward=with_backward, is_compiled=name.endswith(COMPILED))

    return {name: maker(name, make) for name, make in calls.items()}


def entropy_errors() -> dict[str, float]:
    """The largest error of an entropy against float64, for everyone who takes it from logits."""
    drawn, ids = logits()
    exact = torch.cat(
        [-(logs.exp() * logs).sum(-1) for logs in (rows.double().log_softmax(-1) for rows in drawn.split(64))]
    )
    calls = {"Trimtab": lambda: lambda x: trimtab.logp_and_entropy(x, ids), **peer_scores.from_logits(ids)}
    return {
        name: float((call(drawn)[1].detach().double() - exact).abs().max()) for name, call in load_all(calls).items()
    }


def hidden() -> dict[str, Maker]:
    torch.manual_seed(0)
    states, weight = torch.randn(ROWS, WIDTH), 0.05 * torch.randn(VOCABULARY, WIDTH)
    ids = torch.randint(VOCABULARY, (ROWS,))

    def mine() -> Timed:
        own, head = states.clone().requires_grad_(), weight.clone().requires_grad_()

        def run() -> None:
            found, _ = trimtab.logp_from_hidden(own, head, ids)
            found.sum().backward()
            own.grad = head.grad = None

        return run

    return {"Trimtab": mine, **peer_scores.from_hidden(states, weight, ids)}


STAGES: dict[str, Callable[[], dict[str, Maker]]] = {
    **{f"full, {name}": (lambda make=make: full(make())) for name, make in WORKLOADS.items()},
    **{
        f"{name}, {batch}": (lambda stage=stage, make=WORKLOADS[batch]: stage(make()))
        for name, stage in {"loss only": loss, "correction only": correction, "group": group, "gae": gae}.items()
        for batch in ("reference", "no waste")
    },
    "logits forward": lambda: scores(with_backward=False),
    "logits forward + backward": lambda: scores(with_backward=True),
    "hidden states forward + backward": hidden,
}
