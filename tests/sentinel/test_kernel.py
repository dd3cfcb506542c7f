"""The kernel itself: views and their inverses, perturbations, comparison, verdicts."""

import pytest
import torch

from trimtab.errors import TrimtabError
from trimtab.sentinel import CannotRepresent, Case, Out, Result, Subject, check, run
from trimtab.sentinel.batch.directed import build, directed
from trimtab.sentinel.batch.perturb import compacted
from trimtab.sentinel.binding.sameness import same

CASES = list(directed())


def coded(case: Case) -> Case:
    """Every token holds 1000 * its sequence + its place."""
    place = torch.cat([torch.arange(float(len(k)), dtype=torch.float64) for k in case.kinds])
    return case.with_tokens(code=1000.0 * case.owner + place)


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join("".join(k) for k in c.kinds))
@pytest.mark.parametrize("side", ["left", "right"])
def test_every_view_and_its_inverse_agree_token_by_token(case: Case, side: str) -> None:
    one = coded(case).refilled(float("nan"), extra_columns=2, side=side)  # type: ignore[arg-type]
    expected = coded(case).tokens["code"][case.trainable]
    assert torch.equal(one.flat("code"), expected)
    assert torch.equal(one.from_padded(one.padded("code")), expected)
    assert torch.equal(one.from_padded(one.padded("code", with_prompt=False), with_prompt=False), expected)
    assert torch.equal(one.from_list(one.list("code")), expected)
    assert torch.equal(one.from_packed(one.packed("code")), expected)
    assert int(one.padded("trainable").sum()) == len(expected)


def test_a_gradient_arrives_at_its_token_through_every_view() -> None:
    case = coded(CASES[0])
    leaf = case.tokens["code"].clone().requires_grad_()
    one = case.with_tokens(code=leaf)
    mask = one.padded("trainable").bool()
    (torch.where(mask, one.padded("code"), 0.0) ** 2).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.where(case.trainable, 2 * case.tokens["code"], 0.0))


def test_parts_know_the_whole_and_a_permuted_case_is_its_own() -> None:
    case = CASES[0]
    part = case.taken([2, 0], as_part=True)
    assert part.whole is case
    assert part.origin == (2, 0)
    assert case.taken([2, 0], as_part=False).whole.kinds == part.kinds


def test_a_compacted_case_shares_its_memory_with_every_view() -> None:
    case = compacted(CASES[0])
    for view in (case.flat("logp_old"), case.padded("logp_old"), case.packed("logp_old")):
        assert view.untyped_storage().data_ptr() == case.tokens["logp_old"].untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("first", "second", "tolerance", "expected"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], 0.0, True),
        ([float("nan")], [0.0], 0.0, False),
        ([float("inf")], [torch.finfo(torch.float64).max], 0.0, False),
        ([1.0], [1.0 + 1e-12], 0.0, False),
        ([1.0], [1.0 + 1e-12], 1e-9, True),
        ([1.0], [1.0 + 1e-6], 1e-9, False),
    ],
)
def test_same_tells_nan_and_infinity_from_numbers(first: list, second: list, tolerance: float, expected: bool) -> None:
    pair = (torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64))
    assert same(*pair, tolerance=tolerance) == expected


def test_a_result_in_single_precision_is_held_to_single_precision() -> None:
    assert same(torch.tensor([1.0]), torch.tensor([1.0 + 2e-7]))
    assert not same(torch.tensor([1.0]), torch.tensor([1.001]))


def subject(call: object, **facts: object) -> Subject:
    return Subject("s", call, frozenset({"logp_current"}), **facts)  # type: ignore[arg-type]


def sum_of_squares(case: Case, options: object) -> Out:
    return {"loss": Result(case.flat("logp_current").square().sum(), "scalar", "loss")}


def test_gradients_reach_the_leaves() -> None:
    seen = run(subject(sum_of_squares), CASES[0])
    expected = torch.where(CASES[0].trainable, 2 * CASES[0].tokens["logp_current"], 0.0)
    torch.testing.assert_close(seen.gradients["loss"]["logp_current"], expected)


def test_a_subject_that_takes_no_case_could_not_be_exercised() -> None:
    def refuse(case: Case, options: object) -> Out:
        raise case.cannot("groups of unequal size")

    verdict = check(subject(refuse), "mask_content", examples=3)
    assert (verdict.status, verdict.reason) == ("could not exercise", "groups of unequal size")
    with pytest.raises(CannotRepresent):
        refuse(CASES[0], {})


def test_a_subject_without_the_results_an_invariant_is_about_could_not_be_exercised() -> None:
    """A loss makes no decision: "holds" would claim something nobody looked at."""
    for invariant in ("decision_granularity", "importance_contract", "metric_truth", "equals_definition"):
        assert check(subject(sum_of_squares), invariant, examples=2).status == "could not exercise"


def test_a_subject_that_returns_nothing_could_not_be_exercised() -> None:
    for invariant in ("mask_content", "split", "permutation", "no_aliasing"):
        assert check(subject(lambda case, options: {}), invariant, examples=2).status == "could not exercise"


def test_a_waiver_is_a_verdict_with_its_reason() -> None:
    verdict = check(subject(sum_of_squares, waived={"split": "sums by design"}), "split")
    assert (verdict.status, verdict.reason) == ("waived", "sums by design")


def test_a_crash_of_the_subject_is_not_a_pass() -> None:
    def crash(case: Case, options: object) -> Out:
        raise RuntimeError("boom")

    verdict = check(subject(crash), "mask_content", examples=1)
    assert (verdict.status, verdict.reason) == ("could not run", "RuntimeError: boom")


def test_an_unknown_invariant_is_refused_with_the_nearest() -> None:
    with pytest.raises(TrimtabError, match="no entry is called 'spilt'; did you mean 'split'"):
        check(subject(sum_of_squares), "spilt")


def test_a_loss_that_is_not_connected_is_a_finding() -> None:
    def detached(case: Case, options: object) -> Out:
        return {"loss": Result(case.flat("logp_current").detach().square().sum(), "scalar", "loss")}

    assert check(subject(detached), "connected", examples=1).status == "bug"


def test_a_result_that_is_never_finite_is_a_finding() -> None:
    def always_nan(case: Case, options: object) -> Out:
        return {"loss": Result(case.flat("logp_current").sum() * float("nan"), "scalar", "loss")}

    assert check(subject(always_nan), "degenerate_bounded", examples=1).status == "bug"


def test_a_mean_metric_beside_a_right_loss_is_no_finding() -> None:
    def with_mean(case: Case, options: object) -> Out:
        mean = case.flat("logp_current").detach().mean()
        return {**sum_of_squares(case, options), "mean": Result(mean, "scalar", "metric", adds_up=False)}

    assert check(subject(with_mean), "split", examples=3).status == "holds"


def test_built_cases_carry_what_follows_from_their_shape() -> None:
    case = build((("p", "a"), ("p",)), group=[0, 0], tokens={}, sequences={})
    assert case.sequences["length"].tolist() == [2.0, 1.0]
    assert case.segments.token_counts.tolist() == [1, 0]
