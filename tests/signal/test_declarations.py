"""What a formula or a recipe declares: refused where nothing could hold it to its word."""

from dataclasses import replace

import pytest
from tests.golden.exact import tokens

from trimtab import formula
from trimtab.errors import SignalError
from trimtab.signal import part, recipe
from trimtab.signal.catalogue import of


def test_a_stage_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(SignalError, match=r"plain: stage: no entry is called 'policy_lose'"):

        @formula(source="a test", stage="policy_lose", scope="token", promises=())
        def plain(advantage: object) -> object:
            return advantage


def test_a_plain_function_has_no_entry() -> None:
    with pytest.raises(SignalError, match=r"test_a_plain_function_has_no_entry: is not a formula\. Decorate it"):
        of(test_a_plain_function_has_no_entry)


def test_a_setting_of_the_choosing_formula_is_checked_in_its_own_type() -> None:
    with pytest.raises(SignalError, match=r"fraction = 2\.0 is not possible: it must lie in \[0, 1\]"):
        part("policy_loss.covariance_clipped", fraction=2.0)
    with pytest.raises(SignalError, match=r"coef = -1\.0 is not possible: it must be 0 or more"):
        part("policy_loss.covariance_penalised", coef=-1.0)


def test_a_setting_that_nothing_compares_with_is_refused() -> None:
    with pytest.raises(SignalError, match=r"delta = nan is not possible: nothing compares with nan"):
        part("keep.negative_drift", delta=float("nan"))


def test_a_correction_that_is_neither_recipe_nor_formula_is_refused_with_both() -> None:
    with pytest.raises(SignalError, match=r"correction\b.* = 'tiss' is not possible.*Name a recipe that corrects \("):
        recipe("grpo", correction="tiss")


def test_a_formula_without_its_input_says_what_is_there() -> None:
    with pytest.raises(SignalError, match=r"needs \['advantage'\].* It has \['logp_current'\]"):
        part("policy_loss.reinforce")({"logp_current": tokens(-1.0), "advantage": None})


def test_a_buffer_may_be_as_long_as_the_answer_and_no_longer() -> None:
    assert part("reward.soft_overlong", max_length=10.0, buffer=10.0).settings["buffer"] == 10.0
    with pytest.raises(SignalError, match="the buffer fits into max_length"):
        part("reward.soft_overlong", max_length=10.0, buffer=11.0)


def test_a_table_of_settings_has_names_that_are_known() -> None:
    with pytest.raises(SignalError, match=r"kl.* has the key 1\. Keys are names of settings"):
        recipe("grpo", kl={1: 0.1})
    with pytest.raises(SignalError, match=r"entropy: has no setting \['size'\]; it takes coef and on"):
        recipe("grpo", entropy={"coef": 0.1, "size": 1})


def test_a_value_term_keeps_its_formula_when_its_coefficient_changes() -> None:
    held = recipe("ppo").value
    assert recipe("ppo", value=0.25).value == replace(held, coef=0.25)
