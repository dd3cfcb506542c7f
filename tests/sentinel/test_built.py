"""What a binding says instead of a wrapper: classes, settings in objects, arrays, groups by position, joined rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.sentinel import Result, at, bind, built, check, like
from trimtab.sentinel.batch.case import WrongShape
from trimtab.sentinel.batch.directed import benign, directed
from trimtab.sentinel.invariants.definition import option_sets
from trimtab.sentinel.targets.handed import Settings, ending_ids, groups_of

CLIPPED = like("policy_loss.clipped", mean="token_sum", band=lambda o: (1 - o["eps"], 1 + o["eps"]))


def clipped(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, eps: float) -> Tensor:
    ratio = torch.exp(logps - old_logps)
    terms = -torch.min(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
    return torch.where(mask.bool(), terms, 0.0).sum()


class Loss(nn.Module):
    """A loss as a module of torch."""

    def __init__(self, eps: float = 0.3) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return clipped(logps, old_logps, advantages, mask, self.eps)


class Deaf(Loss):
    def forward(self, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return clipped(logps, old_logps, advantages, mask, 0.2)


@dataclass
class Trainer:
    config: dict[str, Any]

    def loss(self, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return clipped(logps, old_logps, advantages, mask, self.config["eps"])


@pytest.mark.slow
def test_a_class_is_made_with_its_options_and_called() -> None:
    facts: dict[str, Any] = {"role": "policy_loss", "options": {"eps": 0.2}, "variants": {"eps": (0.5,)}}
    assert bind(Loss, **facts).name == "Loss"
    assert bind(Loss).defaults == {"eps": 0.3}
    for invariant in ("equals_definition", "options_live"):
        assert check(bind(Loss, definition=CLIPPED, **facts), invariant, examples=1).status == "holds"
        assert check(bind(Deaf, definition=CLIPPED, **facts), invariant, examples=1).status == "bug"
    assert check(bind(Loss, twin=Loss, **facts), "twins_agree", examples=1).status == "holds"
    assert check(bind(Loss, twin=Deaf, **facts), "twins_agree", examples=1).status == "bug"


def test_another_method_of_a_built_object_is_called_and_settings_inside_an_object_are_varied() -> None:
    held = bind(built(Trainer, "loss"), role="policy_loss", options={"config": {"eps": 0.2}},
                variants={"config.eps": (0.5,)})  # fmt: skip
    assert held.name == "Trainer.loss"
    own = bind(Loss.forward, role="policy_loss", options={"self": Settings(eps=0.2)}, variants={"self.eps": (0.5,)})
    for subject in (held, own):
        assert check(subject, "options_live", examples=1).status == "holds"


def test_a_class_that_cannot_be_called_is_refused_and_so_is_a_name_with_two_meanings() -> None:
    class Both:
        def __init__(self, mask: bool) -> None: ...
        def __call__(self, mask: Tensor) -> Tensor: ...

    with pytest.raises(TrimtabError, match="Trainer has no method '__call__'"):
        bind(Trainer)
    with pytest.raises(TrimtabError, match="Both and its __call__ both take mask"):
        bind(Both)


def test_two_settings_inside_one_object_are_changed_together() -> None:
    subject = bind(lambda config: torch.zeros(()), name="f", options={"config": {"a": 1, "b": 1}},
                   variants={"config.a": (2,), "config.b": (3,)})  # fmt: skip
    assert list(option_sets(subject))[-1] == {"config": {"a": 2, "b": 3}}


def test_an_indifferent_option_changes_nothing() -> None:
    def chunked(logps: Tensor, advantages: Tensor, mask: Tensor, chunk: int, last: bool = True) -> Tensor:
        terms = torch.where(mask.bool(), -logps * advantages, 0.0).reshape(-1)
        pieces = terms.split(chunk) if last else terms[: len(terms) // chunk * chunk].split(chunk)
        return torch.stack([piece.sum() for piece in pieces]).sum() if pieces else terms.sum()

    facts: dict[str, Any] = {"role": "policy_loss", "indifferent": {"chunk": (2, 128)}}
    assert check(bind(chunked, options={"chunk": 1}, **facts), "twins_agree").status == "holds"
    found = check(bind(chunked, options={"chunk": 1, "last": False}, **facts), "twins_agree")
    assert found.status == "bug"
    assert found.violation is not None
    assert "chunk = " in found.violation.what
    assert "changes loss" in found.violation.what


def test_arrays_have_no_gradient_and_owe_none() -> None:
    def summed(log_probs: Any, advantages: Any, mask: Any, sign: float = -1.0) -> float:
        assert all(isinstance(one, np.ndarray) for one in (log_probs, advantages, mask))
        return float(np.where(mask > 0, sign * log_probs * advantages, 0.0).sum())

    facts: dict[str, Any] = {
        "role": "policy_loss", "arrays": True, "definition": like("policy_loss.reinforce", mean="token_sum"),
    }  # fmt: skip
    assert check(bind(summed, **facts), "connected").reason == "it takes arrays of NumPy, which carry no gradient"
    assert check(bind(summed, **facts), "equals_definition", examples=1).status == "holds"
    wrong = bind(summed, options={"sign": 1.0}, **facts)
    assert check(wrong, "equals_definition", examples=1).status == "bug"


@pytest.mark.parametrize("size", [2, 3])
def test_groups_by_position_are_neighbours(size: int) -> None:
    def centred(rewards: Tensor, k: int) -> Tensor:
        rows = rewards.view(-1, k)
        return (rows - rows.mean(1, keepdim=True)).view(-1)

    def across(rewards: Tensor, k: int) -> Tensor:
        rows = rewards.view(k, -1)
        return (rows - rows.mean(0)).view(-1)

    facts: dict[str, Any] = {"role": "reward_normalisation", "block": size, "options": {"k": size}}
    assert check(bind(centred, **facts), "group_isolation").status == "holds"
    assert check(bind(across, **facts), "group_isolation").status == "bug"


def test_grouping_by_position_is_done_once_and_parts_keep_their_rows() -> None:
    once = groups_of(3)(benign().taken([0, 1], as_part=False))
    assert once.sequences["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert once.sequences["episode"].tolist() == [0, 1, 2, 3, 4, 5]
    assert groups_of(3)(once).as_data() == once.as_data()
    part = groups_of(3)(once.taken([3, 4, 5], as_part=True))
    assert part.num_sequences == 3
    assert part.whole is once


def test_a_joined_list_and_a_packed_row_come_back_to_their_tokens() -> None:
    for case in directed():
        own = case.flat("advantage")
        joined = torch.cat(case.list("advantage", with_prompt=False))
        found = Result.token(case, joined, "advantage", layout="list", with_prompt=False)
        assert torch.equal(found.value, own)
        row = Result.token(case, case.packed("advantage")[None], "advantage", layout="packed")
        assert torch.equal(row.value, own)
    with pytest.raises(WrongShape):
        Result.token(case, joined[1:], "advantage", layout="list", with_prompt=False)


def test_a_field_of_a_sequence_that_follows_from_its_shape_can_be_named() -> None:
    def loss(log_probs: Tensor, token_mask: Tensor, sample_mask: Tensor) -> Tensor:
        return torch.where(token_mask.bool(), log_probs, 0.0).sum(1) @ sample_mask

    subject = bind(loss, role="policy_loss", args={"token_mask": "chosen", "sample_mask": "in_use"})
    assert check(subject, "mask_content", examples=1).status == "holds"


def test_ids_may_end_in_an_end_id_only_where_the_sequence_ended() -> None:
    told = [True, False, True, False]
    case = next(directed()).with_sequences(ended=torch.tensor(told))
    with pytest.raises(Exception, match="do not separate tool output"):
        ending_ids(case)
    ids = ending_ids(case, tools=True, ended=True)
    lasts = [int(row[n - 1]) for row, n in zip(ids, case.response_lengths, strict=True)]
    assert [one in case.eos_ids for one in lasts] == told


def test_a_result_that_needs_its_level_named_takes_it() -> None:
    def halved(advantages: Tensor, lengths: list[int]) -> Tensor:
        assert len(advantages) == sum(lengths)
        return advantages / 2

    subject = bind(
        halved, layout="list", returns={"half": at((), "advantage", level="token")},
        args={"advantages": lambda case: torch.cat(case.list("advantage", with_prompt=False)),
              "lengths": lambda case: case.response_lengths},
    )  # fmt: skip
    assert check(subject, "sample_isolation").status == "holds"
