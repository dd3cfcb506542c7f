"""Binding in a few lines: roles, argument names, layouts, side effects, conversions, conventions, discovery."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from trimtab.errors import AdapterError, TrimtabError
from trimtab.sentinel import (
    ROLES,
    Case,
    Subject,
    after,
    at,
    average,
    bind,
    check,
    detected,
    examine,
    like,
    subject,
)
from trimtab.sentinel.batch.directed import completed, directed
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.binding.discover import subjects_of
from trimtab.sentinel.examination.record import case_data
from trimtab.sentinel.targets.target import Unbound

CASE = next(directed())


def clipped(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, eps: float) -> Tensor:
    """PPO's surrogate, selected before the exponential, as a token sum."""
    there = mask.bool()
    gap = torch.where(there, log_probs - old_log_probs.detach(), 0.0).clamp(-20, 20)
    ratio = gap.exp()
    held = ratio.clamp(1 - eps, 1 + eps)
    credit = torch.where(there, advantages, 0.0).detach()
    return -torch.minimum(ratio * credit, held * credit)[there].sum()


def bound(**facts: Any) -> Subject:
    band: Callable[[Any], Any] = lambda o: (1 - o["eps"], 1 + o["eps"])  # noqa: E731
    return bind(
        clipped, role="policy_loss", options={"eps": 0.2}, combine="sum", variants={"eps": (0.4,)},
        definition=like("policy_loss.clipped", mean="token_sum", band=band), **facts,
    )  # fmt: skip


def test_a_right_loss_bound_in_three_lines_has_no_findings() -> None:
    verdicts = list(examine(bound(), examples=3))
    assert {v.status for v in verdicts} <= {"holds", "could not exercise"}
    assert sum(v.status == "holds" for v in verdicts) >= 15


def test_a_definition_that_does_not_fit_is_a_finding() -> None:
    verdict = check(bound(waived={}), "equals_definition", examples=1)
    assert verdict.status == "holds"
    wrong = bind(clipped, role="policy_loss", options={"eps": 0.2},
                 definition=like("policy_loss.clipped", mean="token_sum", band=(0.8, 1.3)))  # fmt: skip
    assert check(wrong, "equals_definition").status == "bug"


def test_inputs_are_found_out_by_calling() -> None:
    verdict = check(bound(), "importance_contract")
    assert verdict.status == "could not exercise"
    assert check(bound(), "penalty_direction").reason == "it reads no reference, KL or entropy"


def test_an_argument_nobody_knows_is_refused_with_what_to_say() -> None:
    def odd(log_probs: Tensor, wobble: Tensor) -> Tensor:
        return log_probs + wobble

    with pytest.raises(TrimtabError, match=r"the argument 'wobble' is unknown.*args=\{'wobble': FIELD\}"):
        bind(odd)


def test_an_unknown_role_is_refused_with_the_nearest() -> None:
    with pytest.raises(TrimtabError, match="policy_loss"):
        bind(clipped, role="policy_los", options={"eps": 0.2})
    assert all(role.about for role in ROLES.values())


def test_group_ids_arrive_as_names_not_as_tensors() -> None:
    def seen(index: Any) -> Tensor:
        assert isinstance(index, numpy.ndarray)
        return torch.zeros(len(index))

    call_subject(bind(seen, role="group_advantage"), CASE)


def test_a_side_effect_is_a_result() -> None:
    def fills(data: dict[str, Tensor]) -> None:
        data["kl"] = data["logp"] * 0 + 1

    made = bind(
        fills, args={"data": lambda case: {"logp": case.padded("logp_old", with_prompt=False)}},
        returns={"kl": after("data", "kl", "kl")},
    )  # fmt: skip
    assert torch.equal(call_subject(made, CASE)["kl"].value, torch.ones(CASE.segments.num_tokens).double())


def test_options_are_converted_into_the_functions_units() -> None:
    def scaled(log_probs: Tensor, percent: float) -> Tensor:
        return log_probs * percent

    made = bind(scaled, role="kl", options={"percent": 0.5}, convert={"percent": lambda share: 100 * share})
    value = call_subject(made, CASE)["kl"].value
    torch.testing.assert_close(value, 50 * CASE.flat("logp_current"))


def test_a_result_deep_in_what_comes_back_is_found() -> None:
    def deep(log_probs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return log_probs.sum(), {"mean": log_probs.mean()}

    made = bind(deep, returns={"loss": at(0, "loss"), "mean": at((1, "mean"), "metric")})
    assert {name: r.level for name, r in call_subject(made, CASE).items()} == {"loss": "scalar", "mean": "scalar"}


@pytest.mark.parametrize("layout", ["padded", "list", "packed", "flat"])
def test_every_layout_comes_back_to_its_tokens(layout: Any) -> None:
    def same(log_probs: Any) -> Any:
        return [one * 2 for one in log_probs] if isinstance(log_probs, list) else log_probs * 2

    value = call_subject(bind(same, role="kl", layout=layout), CASE)["kl"].value
    torch.testing.assert_close(value, 2 * CASE.flat("logp_current"))


def test_conventions_are_detected_and_a_declared_one_that_does_not_fit_is_a_finding() -> None:
    assert detected(bound()) == {"band": "0.80 to 1.20", "denominator": "token_sum"}
    wrong = check(bound(conventions={"denominator": "token_mean"}), "declared_conventions", examples=1)
    assert wrong.status == "bug"
    assert check(bound(conventions={"denominator": "token_sum"}), "declared_conventions", examples=1).status == "holds"


def test_an_undeclared_mean_over_the_call_is_a_convention_and_a_declared_one_a_bug() -> None:
    def mean(loss_mat: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.bool(), loss_mat, 0.0).sum() / mask.sum().clamp(min=1)

    made = bind(mean, role="aggregation", definition=average("token_mean"))
    assert check(made, "split", examples=1).status == "convention"
    assert check(bind(mean, role="aggregation", combine="sum"), "split", examples=1).status == "bug"


def test_a_case_written_into_a_report_is_read_back_with_the_rest_at_rest() -> None:
    ready = bound()
    told = case_data(CASE, ready)
    back = completed(dict(told))
    assert back.kinds == CASE.kinds
    assert torch.equal(back.tokens["logp_old"], CASE.tokens["logp_old"])
    whole = Case.from_data(CASE.as_data())
    assert all(torch.equal(whole.tokens[n], v) for n, v in CASE.tokens.items())


# --- discovery ----------------------------------------------------------------------------------------------------


@subject(role="policy_loss", options={"eps": 0.2})
def decorated(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, eps: float) -> Tensor:
    return clipped(log_probs, old_log_probs, advantages, mask, eps)


def test_a_decorated_function_stays_a_function_and_declares_its_subject() -> None:
    assert decorated(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), 0.2) == -1
    made = decorated.__trimtab__()  # type: ignore[attr-defined]
    assert (made.name, made.role) == ("decorated", "policy_loss")


def test_a_file_without_declarations_is_bound_by_its_argument_names(tmp_path: Path) -> None:
    file = tmp_path / "guessable.py"
    loss = "def loss(log_probs, advantages):\n    return -(log_probs * advantages).sum()\n"
    file.write_text(f"{loss}\n\ndef odd(wobble):\n    return 0\n")
    found = list(subjects_of(str(file)))
    assert [(one.name, one.role) for one in found if isinstance(one, Subject)] == [("loss", "policy_loss")]
    assert [one.binding for one in found if isinstance(one, Unbound)] == ["odd"]


def test_a_missing_file_and_a_missing_name_are_told() -> None:
    with pytest.raises(AdapterError, match="no such file"):
        list(subjects_of("nowhere.py"))
    with pytest.raises(AdapterError, match="has no nothing"):
        list(subjects_of("trimtab.signal.kl:nothing"))


def test_a_backward_that_raises_leaves_the_values_to_be_looked_at() -> None:
    def broken(log_probs: Tensor, mask: Tensor) -> Tensor:
        squared = log_probs.exp()
        total = (squared * mask).sum()
        squared.mul_(2)  # autograd needed it as it was
        return total

    verdicts = {v.invariant: v for v in examine(bind(broken, role="kl_in_loss", combine="sum"), examples=1)}
    assert verdicts["nonfinite_isolation"].status == "hygiene"
    assert verdicts["split"].status == "holds"
