"""Masks of what trains: made of lengths, and made of ids."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Result, Subject, check
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out


def _by_lengths(late: int) -> Subject:
    """Ones from each prompt's end on; `late` columns too late is the planted bug."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if any("o" in row for row in case.kinds):
            raise case.cannot("lengths alone do not tell tool output from answers")
        ids = case.padded("attention", side="right")
        mask = torch.zeros_like(ids)
        for row, (total, answer) in enumerate(zip(case.lengths, case.response_lengths, strict=True)):
            mask[row, total - answer + late : total] = 1
        return {"mask": Result.cell(case, mask, side="right")}

    return Subject("by lengths", call, role="response_mask")


def test_a_mask_made_of_lengths_is_what_the_case_trains() -> None:
    assert check(_by_lengths(0), "alignment").status == "holds"
    assert check(_by_lengths(1), "alignment").status == "bug"


def _to_first_end(keeps_end: bool) -> Subject:
    def call(case: Case, options: Mapping[str, Any]) -> Out:
        ids = case.padded("token_id", with_prompt=False)
        ends = torch.isin(ids, torch.tensor(case.eos_ids)).long()
        before: Tensor = ends.cumsum(1) - ends if keeps_end else ends.cumsum(1)
        return {"mask": Result.cell(case, (before == 0).double(), with_prompt=False)}

    return Subject("to the first end", call, role="response_mask")


def test_a_mask_to_the_first_end_id_is_right_although_some_answers_never_end() -> None:
    assert check(_to_first_end(True), "eos_semantics").status == "holds"
    assert check(_to_first_end(False), "eos_semantics").status == "bug"


def test_tool_output_has_cells_of_its_own_in_a_mask() -> None:
    assert check(_to_first_end(True), "credit_over_trainable").status != "bug"
