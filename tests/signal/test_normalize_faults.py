"""Faults planted into baselines and whitening: each shows beside plain loops over the voters."""

import math
from statistics import fmean

import pytest
import torch
from mutants.edit import edited

from trimtab.signal import normalize
from trimtab.signal.normalize import whiten

REWARD = [0.25, 1.0, 0.5, -1.0, 0.75, 0.0, 3.0, 2.0, 1.5]
GROUP = [0, 1, 0, 1, 0, 1, 0, 2, 2]
EVERYONE = [True] * 9
WITHOUT_THE_BEST = [True, True, True, True, True, True, False, True, True]
WITHOUT_THE_WORST = [True, True, True, False, True, True, True, True, True]


def spread(values: list[float], ddof: int = 1) -> float:
    return math.sqrt(math.fsum((value - fmean(values)) ** 2 for value in values) / (len(values) - ddof))


def voters_beside(item: int, votes: list[bool], level: str) -> list[int]:
    return [j for j in range(9) if votes[j] and (level == "batch" or GROUP[j] == GROUP[item])]


def scaled(item: int, votes: list[bool], mean: str, std: str) -> float:
    centre = fmean(REWARD[j] for j in voters_beside(item, votes, mean)) if mean != "none" else 0.0
    return (REWARD[item] - centre) / (spread([REWARD[j] for j in voters_beside(item, votes, std)]) + 1e-6)


def expected(votes: list[bool], mean: str, std: str) -> list[float]:
    found: list[float] = []
    for item in range(9):
        if std == "none":
            found.append(REWARD[item] - fmean(REWARD[j] for j in voters_beside(item, votes, mean)))
            continue
        others = [scaled(j, votes, mean, std) for j in voters_beside(item, votes, std)]
        found.append(min(max(scaled(item, votes, mean, std), min(others)), max(others)))
    return found


def expected_white(votes: list[bool]) -> list[float]:
    voting = [reward for reward, vote in zip(REWARD, votes, strict=True) if vote]
    white = [(reward - fmean(voting)) / math.sqrt(spread(voting) ** 2 + 1e-8) for reward in REWARD]
    among = [one for one, vote in zip(white, votes, strict=True) if vote]
    return [min(max(one, min(among)), max(among)) for one in white]


def worst() -> float:
    reward, group = torch.tensor(REWARD, dtype=torch.float64), torch.tensor(GROUP)
    errors: list[torch.Tensor] = []

    def note(found: torch.Tensor, truth: list[float]) -> None:
        errors.append((found - torch.tensor(truth, dtype=torch.float64)).abs().max())

    for votes in (EVERYONE, WITHOUT_THE_BEST, WITHOUT_THE_WORST):
        flags = torch.tensor(votes)
        for mean, std in (
            ("group", "group"),
            ("group", "none"),
            ("group", "batch"),
            ("none", "group"),
            ("batch", "batch"),
        ):
            found, enough = normalize.mean_std(reward, flags, group, 3, mean=mean, std=std)
            assert bool(enough.all())
            note(found, expected(votes, mean, std))
        alone = [REWARD[i] - fmean(REWARD[j] for j in voters_beside(i, votes, "group") if j != i) for i in range(9)]
        note(normalize.leave_one_out(reward, flags, group, 3)[0], alone)
        note(normalize.whiten(reward, flags), expected_white(votes))
    return float(torch.stack(errors).nan_to_num(torch.inf).max())


FAULTS = [
    ("mean_std", "around = result if mean == std else values -", "around = result if mean != std else values -"),
    ("mean_std", 'levels["group" if "group" in levels else "batch"].voters >= 2', "levels[mean].voters >= 9"),
    ("Voters.of", 'if level == "group" else', 'if level == "batch" else'),
    ("Voters.sum", "torch.where(self.votes, values, torch.zeros_like(values))", "values"),
    ("Voters.extreme", "torch.where(self.votes, values, torch.full_like(values, blank))", "values"),
    ("Voters.extreme", 'torch.inf if how == "amin" else -torch.inf', "-torch.inf"),
    ("Voters.average", "lowest + self.to_items", "self.to_items"),
    ("Voters.average", "/ self.voters", "/ len(self.votes)"),
    ("Voters.spread", "self.voters - ddof", "self.voters"),
    ("Voters.spread", "centred.square()", "centred.abs()"),
    ("Voters.bounded", 'self.extreme(result, "amax"))', "None)"),
    ("Voters.bounded", 'self.extreme(result, "amin")', "None"),
    ("leave_one_out", "group.voters - votes.to(torch.long)", "group.voters"),
    ("whiten", "bool(votes.all())", "bool(votes.any())"),
    ("whiten", "voting(values, -torch.inf).amax()", "values.amax()"),
    ("whiten", "(0.0 - mean) / scale", "0.0 * mean"),
    ("whiten", "(highest - mean) / scale", "highest / scale"),
    ("whiten", "counted.dot(counted)", "counted.abs().sum()"),
    ("whiten", "sqrt(variance + eps)", "sqrt(variance) + eps"),
]  # fmt: skip


def test_without_a_fault_there_is_no_error() -> None:
    assert worst() < 1e-12


@pytest.mark.parametrize(("place", "old", "new"), FAULTS)
def test_a_fault_shows(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, name = place.rpartition(".")
    around = getattr(normalize, owner) if owner else normalize
    monkeypatch.setattr(around, name, edited(vars(around)[name], old, new))
    try:
        error = worst()
    except (RuntimeError, KeyError, AssertionError):
        return
    assert error > 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_has_the_same_bits_with_and_without_masks(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    values, votes = torch.randn(1001, dtype=dtype), torch.ones(1001, dtype=torch.bool)
    short = whiten(values, votes)
    monkeypatch.setattr(normalize, "whiten", edited(whiten, "is_plain(votes) and", "False and"))
    assert torch.equal(normalize.whiten(values, votes), short)


def test_whitening_of_equal_values_is_exactly_0() -> None:
    votes = torch.ones(1000, dtype=torch.bool)
    assert not whiten(torch.full((1000,), 0.1), votes).any()
    votes[7] = False
    assert not whiten(torch.full((1000,), 0.1), votes).any()


def test_a_value_that_does_not_vote_may_be_nan() -> None:
    votes = torch.tensor([True, True, False, True])
    found = whiten(torch.tensor([1.0, 2.0, torch.nan, 3.0]), votes)
    torch.testing.assert_close(found[votes], torch.tensor([-1.0, 0.0, 1.0]), rtol=0, atol=1e-6)
    none = whiten(torch.tensor([1.0, torch.nan]), torch.tensor([True, False]))
    assert none.tolist() == [0.0, 0.0]
