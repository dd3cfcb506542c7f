"""Words of a binding that mean nothing are refused, with the words there are; nothing compared is no pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.sentinel import Result, Subject, after, at, bind, check, examine, like
from trimtab.sentinel.loading import CouldNotLoad, Spec, Tree, load


def loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return (-advantages * log_probs)[mask.bool()].sum()


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"conventions": {"denominater": "token_mean"}}, "denominator"),
        ({"conventions": {"denominator": "tokens"}}, "token_mean"),
        ({"couples": "tokens"}, "token"),
        ({"combine": "average"}, "mean"),
        ({"waived": {"splits": "by design"}}, "split"),
        ({"ranks": "dato"}, "data"),
        ({"layout": "paded"}, "padded"),
        ({"args": {"log_probs": "logp_now"}}, "logp_current"),
        ({"returns": {"loss": at((), "losss")}}, "loss"),
        ({"definition": "policy_loss.clipped"}, "like"),
        ({"view": {"layout": "list"}}, "'layout' is no word of view; it is an argument of bind: layout='list'"),
        ({"view": {"dtype": torch.float32}}, "'dtype' is no word of view; it is an argument of bind"),
        ({"view": {"prompt": False}}, "with_prompt"),
        ({"view": {"side": "centre"}}, "left"),
        ({"view": {"shift": True}, "layout": "list"}, "layout='padded'; layout='list' takes only with_prompt"),
        ({"view": {"with_prompt": True}, "layout": "packed"}, "layout='packed' takes none of these"),
    ],
)  # fmt: skip
def test_a_word_that_means_nothing_is_refused_with_the_words_there_are(facts: dict[str, Any], told: str) -> None:
    with pytest.raises(TrimtabError, match=told):
        bind(loss, role="policy_loss", **facts)


@pytest.mark.parametrize(
    "made", [lambda: at(None, "loss"), lambda: at((1, None), "loss"), lambda: after("x", None, "kl")]
)
def test_none_is_no_place_in_a_return_value(made: Any) -> None:
    with pytest.raises(TrimtabError, match=r"None is no place in a return value .* The whole return value is at\(\(\)"):
        made()


def test_a_result_has_a_known_kind() -> None:
    with pytest.raises(TrimtabError, match="advantage"):
        Result.scalar(torch.zeros(()), "advantge")  # type: ignore[arg-type]


def test_a_definition_of_another_result_compares_nothing_and_is_no_pass() -> None:
    subject = bind(loss, role="policy_loss", definition=like("policy_loss.reinforce", mean="token_sum", result="total"))
    verdict = check(subject, "equals_definition", examples=1)
    assert verdict.status == "could not run"
    assert "its definition gives total, and the function gives loss: nothing is compared" in verdict.reason


def test_a_twin_is_a_subject_or_a_function_of_the_same_arguments() -> None:
    def other(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return (-advantages * log_probs * mask).sum()

    for twin in (other, bind(other, role="policy_loss")):
        assert check(bind(loss, role="policy_loss", twin=twin), "twins_agree", examples=1).status == "holds"


def test_an_error_is_told_once_with_its_line() -> None:
    def broken(log_probs: Tensor, mask: Tensor) -> Tensor:
        if log_probs.shape != (17,):
            raise ValueError
        return log_probs.sum()

    (verdict,) = examine(bind(broken, role="policy_loss"), examples=1)
    assert verdict.status == "could not run"
    assert "raised by 'raise ValueError' in test_strict.py" in verdict.reason


def test_a_field_that_no_case_has_is_told_with_the_fields_there_are() -> None:
    subject = Subject("mine", lambda case, _: {"loss": Result.scalar(case.padded("logp_behaviour").sum(), "loss")})
    (verdict,) = examine(subject, examples=1)
    assert "logp_rollout" in verdict.reason


FILE = """
def step(x):
    loss = x * 2
    if x:
        loss = x * 3
    return loss
"""


def test_a_text_that_fits_several_places_says_which(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    tree = Tree.folder(tmp_path)
    with pytest.raises(CouldNotLoad, match="fits 2 places of step, at lines 3, 5"):
        load(Spec("step", file="mine.py", first="loss = ", results=("loss",)), tree)
    second = load(Spec("step", file="mine.py", first="loss = ", results=("loss",), nth=2), tree)
    assert second(x=1)["loss"] == 3
