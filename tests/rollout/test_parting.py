"""Answers that begin alike share a row until they part: each is the answer that it would be alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mutants.edit import edited
from tests.rollout.test_embedded import TEXTS, fresh, logp_alone, requests

from trimtab.errors import EngineError
from trimtab.rollout import decode
from trimtab.rollout.engine import Sampling
from trimtab.rollout.tokenizer import encode
from trimtab.train.policy import Policy

HOW = Sampling(max_new_tokens=24, temperature=1.2)
FAULTS = [
    ("_part", "batch.row * vocabulary + chosen", "batch.row * vocabulary"),
    ("_part", "row=own[which]", "row=own[which.flip(0)]"),
    ("_part", "batch.cache.copy(source, rows,", "batch.cache.copy(source.flip(0), rows,"),
    ("_part", "int(batch.first[source].min())", "int(batch.first[source].max()) + 1"),
    ("_part", "first=batch.first.index_copy(0, rows, batch.first[source])", "first=batch.first"),
    ("_part", "is_shared=len(wanted) < len(chosen)", "is_shared=False"),
    ("_told", "batch.tokens.index_copy(0, rows, tokens)", "batch.tokens.index_copy(0, rows.sort().values, tokens)"),
    ("_rectangle", "torch.repeat_interleave(torch.tensor([count for _, count in runs], device=device))",
     "torch.arange(len(prompts), device=device) % len(runs)"),
    ("_logits", "(cache.end - first)[:, None]", "(cache.end + 0 * first)[:, None]"),
    ("_logits", "first - cache.start", "first - first"),
    ("_joined", "of_row[rows] = torch.arange(running,", "of_row[rows] = torch.arange(running + 0 * running - running,"),
    ("_joined", "+ batch.cache.end", "+ batch.cache.end - 1"),
    ("_joined", "prompts.rows[own]", "prompts.rows.flip(0)[own]"),
    ("Batch.fit", "self.first + moved", "self.first"),
    ("Batch.free_rows", "index_fill_(0, self.row, False)", "index_fill_(0, self.row[1:], False)"),
    ("Batch.tidied", "row=rank[row]", "row=row"),
    ("Batch.tidied", "first=first + moved", "first=first"),
    ("Batch.tidied", "self.tokens[rows[order]]", "self.tokens[rows]"),
    ("Batch.keep_answers", "row=self.row[stay]", "row=self.row[: int(stay.sum())]"),
]  # fmt: skip


def worst(policy: Policy) -> float:
    """The largest error of a log-prob, with all answers side by side and with few slots; infinite after a crash."""
    texts = [*TEXTS, "0123456789" * 8 + "="]  # longer than the answers before it, so columns must move
    asked = requests([tuple(encode(policy.tokenizer, text)) for text in texts], copies=5)
    errors: list[float] = []
    for slots in (0, 7):
        try:
            samples = fresh(policy, max_rows=slots).sample(asked, HOW)
        except (RuntimeError, IndexError, EngineError):
            return torch.inf
        for request, sample in zip(asked, samples, strict=True):
            errors.append(float((sample.logp - logp_alone(policy, request.ids, sample, 1.2)).abs().max()))
    return max(errors)


def tidy_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """At these sizes, copying rows into bands does not pay; it must be right all the same."""
    for constant, value in (("LOOK_EVERY", 1), ("BAND_COLUMNS", 0), ("COPY_COLUMNS", 0)):
        monkeypatch.setattr(decode, constant, value)


@pytest.mark.parametrize("tidies", [False, True])
def test_answers_that_share_rows_have_their_own_log_probs(
    policy: Policy, tidies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tidies:
        tidy_always(monkeypatch)
    assert worst(policy) < 1e-5


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [pytest.param(*fault, marks=pytest.mark.slow if number % 3 else ()) for number, fault in enumerate(FAULTS)],
)
def test_a_fault_in_parting_shows(
    policy: Policy, path: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *outer, name = path.split(".")
    owner = getattr(decode, outer[0]) if outer else decode
    if path == "Batch.tidied":
        tidy_always(monkeypatch)
    monkeypatch.setattr(owner, name, edited(vars(owner)[name], old, new))
    assert worst(policy) > 1e-3


def test_an_answer_that_parts_into_another_band_still_sees_its_beginning() -> None:
    """Row 0 sees ten columns, the band of the free rows 1 and 2 only two: the copy of row 0 needs all ten there."""
    from trimtab.rollout.cache import RowCache

    cache, held = RowCache(3, 10), torch.zeros(3, 1, 10, 2)
    cache.layer(0).put(torch.arange(3), held, held)
    cache.lay([(1, 10), (2, 2)])
    both, first = torch.tensor([0, 0]), torch.tensor([0, 8, 8])
    batch = decode.Batch(torch.tensor([0, 1]), both + 1, both, True, first, first, torch.zeros(3, 5), cache)
    parted = decode._part(batch, torch.tensor([1, 2]))  # pyright: ignore[reportPrivateUsage]
    assert parted.row.tolist() == [0, 1]
    assert parted.first.tolist() == [0, 0, 8]
    assert cache.bands == [(0, 0), (1, 0)]


def test_columns_that_only_free_rows_saw_are_not_looked_at() -> None:
    """Of four rows in two bands, rows 1 and 3 are in use: the bands begin where these do."""
    from trimtab.rollout.cache import RowCache

    cache = RowCache(4, 10)
    cache.lay([(2, 10), (2, 6)])
    cache.see_only([1, 3], [2, 7])
    assert (cache.bands, cache.start, cache.columns(4)) == ([(0, 2), (2, 7)], 2, 2 * 8 + 2 * 3)


def test_equal_beginnings_are_computed_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty answers to one prompt that the policy is sure about: never more rows than there are different answers."""
    engine, rows = fresh(policy), list[int]()
    inner: Callable[..., torch.Tensor] = engine._forward  # pyright: ignore[reportPrivateUsage]

    def counted(ids: torch.Tensor, *more: Any) -> torch.Tensor:
        rows.append(len(ids) + sum(len(prompts.ids) for prompts in more[-1]))
        return inner(ids, *more)

    monkeypatch.setattr(engine, "_forward", counted)
    samples = engine.sample(requests([(5, 6, 7)], copies=20), Sampling(max_new_tokens=5, temperature=0.3))
    for step, count in enumerate(rows):
        going = {sample.ids[:step] for sample in samples if len(sample.ids) > step}
        assert len(going) <= count <= max(len(going) / (1 - decode.LEAVE_SHARE), 1)
    assert max(rows) < 20
