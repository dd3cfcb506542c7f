"""Answers that begin alike share a row until they part: each is the answer that it would be alone."""

from collections.abc import Callable

import pytest
import torch
from mutants.edit import edited
from tests.rollout.test_embedded import TEXTS, fresh, logp_alone, requests

from trimtab.errors import EngineError
from trimtab.rollout import decode
from trimtab.rollout.engine import Sampling
from trimtab.rollout.tokenizer import encode
from trimtab.train.policy import Policy

HOW = Sampling(max_new_tokens=9, temperature=1.2)
FAULTS = [
    ("_part", "batch.row * vocabulary + chosen", "batch.row * vocabulary"),
    ("_part", "batch.take_rows(parent, row)", "batch.take_rows(parent, row.flip(0))"),
    ("_part", "tokens[batch.row] = chosen", "tokens[: len(chosen)] = chosen"),
    ("_stand_alone", "<= 1", "<= 2"),
    ("_prefill", "torch.repeat_interleave(torch.tensor([count for _, count in runs], device=device))",
     "torch.arange(len(requests), device=device) % len(runs)"),
    ("_advance", "batch.width - batch.hidden", "batch.width + 0 * batch.hidden"),
    ("Batch.take_rows", "hidden=hidden - unseen", "hidden=hidden"),
    ("Batch.take_rows", "self.hidden.index_select(0, rows)", "self.hidden.sort().values[: len(rows)]"),
    ("Batch.join", "other.row + len(self.hidden)", "other.row"),
    ("Batch.join", "other.hidden + max(narrower, 0)", "other.hidden"),
    ("Batch.keep_answers", "row=self.row[stay]", "row=self.row[: int(stay.sum())]"),
]  # fmt: skip


def worst(policy: Policy) -> float:
    """The largest error of a log-prob, with all answers side by side and with few slots; infinite after a crash."""
    asked = requests([tuple(encode(policy.tokenizer, text)) for text in TEXTS], copies=6)
    errors: list[float] = []
    for slots in (0, 7):
        try:
            samples = fresh(policy, max_rows=slots).sample(asked, HOW)
        except (RuntimeError, IndexError, EngineError):
            return torch.inf
        for request, sample in zip(asked, samples, strict=True):
            errors.append(float((sample.logp - logp_alone(policy, request.ids, sample, 1.2)).abs().max()))
    return max(errors)


def test_answers_that_share_rows_have_their_own_log_probs(policy: Policy) -> None:
    assert worst(policy) < 1e-5


@pytest.mark.parametrize(("path", "old", "new"), FAULTS)
def test_a_fault_in_parting_shows(
    policy: Policy, path: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *outer, name = path.split(".")
    owner = getattr(decode, outer[0]) if outer else decode
    monkeypatch.setattr(owner, name, edited(vars(owner)[name], old, new))
    assert worst(policy) > 1e-3


def test_equal_beginnings_are_computed_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty answers to one prompt that the policy is sure about: never more rows than there are different answers."""
    engine, rows = fresh(policy), list[int]()
    inner: Callable[..., torch.Tensor] = engine._forward  # pyright: ignore[reportPrivateUsage]

    def counted(ids: torch.Tensor, *more: object) -> torch.Tensor:
        rows.append(len(ids))
        return inner(ids, *more)

    monkeypatch.setattr(engine, "_forward", counted)
    samples = engine.sample(requests([(5, 6, 7)], copies=20), Sampling(max_new_tokens=5, temperature=0.3))
    for step, count in enumerate(rows):
        going = {sample.ids[:step] for sample in samples if len(sample.ids) > step}
        assert len(going) <= count <= max(len(going) / (1 - decode.LEAVE_SHARE), 1)
    assert max(rows) < 20
