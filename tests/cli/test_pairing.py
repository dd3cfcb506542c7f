"""Every loss with every correction: the page is the one that the code makes, and what composes runs."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.cli.pairing import Pairing, pairing_page, pairings
from trimtab.signal import SignalBatch, catalog, decide, prepare, token_loss

PAGE = Path(__file__).parents[2] / "docs" / "pairings.md"
PAIRS = pairings()
COMPOSED = [one for one in PAIRS if one.composes]


def test_every_loss_meets_every_correction() -> None:
    losses, corrections = (
        {name for name, one in catalog().items() if one.stage in stages}
        for stages in (("policy_loss",), ("importance", "keep"))
    )
    met = {(one.loss.part.formula.name, one.correction.part.formula.name) for one in PAIRS}
    assert met == {(loss, correction) for loss in losses for correction in corrections}


def test_a_refusal_carries_the_sentence_of_the_recipe_and_one_of_the_known_reasons() -> None:
    refused = [one for one in PAIRS if not one.composes]
    assert {one.reason for one in refused} == {"twice", "varies"}
    for one in refused:
        assert one.correction.part.formula.name in one.refused
        assert one.loss.part.formula.name in one.refused


def test_a_factor_is_refused_exactly_where_the_loss_carries_it() -> None:
    for one in PAIRS:
        assert (one.reason == "twice") == bool(one.loss.spends & one.correction.spends), (one.loss, one.correction)


def test_the_page_and_the_command_say_the_same() -> None:
    assert PAGE.read_text(encoding="utf-8") == pairing_page(), (
        "run: trimtab catalog --pairings --format markdown > docs/pairings.md"
    )
    found = json.loads(CliRunner().invoke(app, ["catalog", "--pairings", "--format", "json"]).output)
    assert [row["composes"] for row in found] == [one.composes for one in PAIRS]
    assert f"{len(COMPOSED)} of {len(PAIRS)} pairs" in CliRunner().invoke(app, ["catalog", "--pairings"]).output
    both = CliRunner().invoke(app, ["catalog", "--pairings", "--coverage"])
    assert both.exit_code == 2
    assert "Name one" in both.output


@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(1, 20))])
def test_what_composes_runs_and_a_rejected_token_has_no_gradient(start: int) -> None:
    kept = rejected = 0
    for one in COMPOSED[start::20]:
        gradient, keep = run(one)
        assert gradient.isfinite().all(), (one.loss, one.correction)
        assert not gradient[~keep].any(), (one.loss, one.correction)
        kept, rejected = kept + int(keep.sum()), rejected + int((~keep).sum())
    assert kept > 100
    assert rejected > 100


def run(one: Pairing) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the policy loss, and which tokens were kept, on the second optimiser step of a batch."""
    draw = torch.Generator().manual_seed(0)
    rows, width = 8, 6
    old = -torch.rand(rows, width, generator=draw, dtype=torch.float64) - 0.05
    mask = torch.arange(width) < torch.tensor([6, 3, 5, 1, 6, 2, 4, 6])[:, None]
    batch = SignalBatch.from_padded(
        mask, reward=torch.tensor([1.0, 0, 0, 1, 0, 1, 1, 0]), group=torch.arange(rows) // 4, logp_old=old,
        logp_rollout=(old + 0.2 * torch.randn(old.shape, generator=draw, dtype=torch.float64)).clamp(max=0),
        turn=torch.arange(width).expand(rows, width) // 3, version=torch.arange(rows)[:, None].expand(rows, width) % 3,
    )  # fmt: skip
    prepared, _ = prepare(batch, one.recipe)
    _, update = prepared.updates(2)
    tokens = torch.isin(batch.segments.sequence_of_token, update.sequences)
    assert batch.logp_old is not None
    noise = 0.2 * torch.randn(batch.num_tokens, generator=draw, dtype=torch.float64)
    now = (batch.logp_old + noise).clamp(max=0)[tokens].requires_grad_()
    entropy = torch.rand(now.shape, generator=draw, dtype=torch.float64)
    decided = decide(update, now.detach(), entropy_now=entropy)
    (micro,) = decided.split(num=1)
    out = token_loss(micro, now, entropy=entropy)
    out.loss.backward()
    assert now.grad is not None
    return now.grad, out.keep
