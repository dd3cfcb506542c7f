"""What a right function may do without being told off: sequence means, pairs by reward, chunks of its own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Result, Subject, bind, check, like
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out


def sequence_ratio(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    """One ratio and one mean advantage a sequence, averaged over sequences' tokens."""
    count = response_mask.sum(-1, keepdim=True).clamp(min=1)
    gap = torch.where(response_mask.bool(), log_probs - old_log_probs, 0.0)
    credit = torch.where(response_mask.bool(), advantages, 0.0).sum(-1, keepdim=True) / count
    ratio = torch.exp(gap.sum(-1, keepdim=True) / count)
    return -(ratio * credit * response_mask).sum() / response_mask.sum().clamp(min=1)


def counted_twice(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    """The same, with a sequence's length in its weight a second time: the planted bug."""
    weighed = advantages * response_mask.sum(-1, keepdim=True)
    return sequence_ratio(log_probs, old_log_probs, weighed, response_mask)


def test_a_mean_advantage_a_sequence_is_a_known_average() -> None:
    assert check(bind(sequence_ratio, role="policy_loss"), "denominator").status == "holds"
    assert check(bind(counted_twice, role="policy_loss"), "denominator").status == "bug"


def _preference(by_place: bool) -> Subject:
    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not case.pairs:
            raise case.cannot("no pair")
        total = torch.stack([one.sum() for one in case.list("logp_current")])
        pairs = [(a, a - 1) for a, _ in case.pairs] if by_place else case.pairs
        return {"loss": Result.scalar(-sum(total[a] - total[b] for a, b in pairs), "loss")}

    return Subject("preference", call, role="preference", couples="group")


def test_pairs_of_equal_rewards_go_by_who_they_are_in_any_order() -> None:
    assert check(_preference(by_place=False), "permutation").status == "holds"
    assert check(_preference(by_place=True), "permutation").status == "bug"


def _shared(whole: bool) -> Subject:
    """The mean over pairs, divided by their number in the whole batch, or in the micro-batch: the planted bug."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not case.pairs:
            raise case.cannot("no pair")
        total = torch.stack([one.sum() for one in case.list("logp_current")])
        count = len(case.whole.pairs if whole else case.pairs)
        return {"loss": Result.scalar(-sum(total[a] - total[b] for a, b in case.pairs) / count, "loss")}

    return Subject("preference", call, role="preference", couples="group", combine="sum")


def test_no_pair_is_split_also_where_the_pairs_of_the_whole_batch_are_counted() -> None:
    assert check(_shared(whole=True), "split").status == "holds"
    assert check(_shared(whole=False), "split").status == "bug"


def bounded_importance(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    weight = torch.exp(log_probs - old_log_probs).clamp(max=1.2).detach()
    return torch.where(response_mask.bool(), -weight * advantages * log_probs, 0.0)


def test_a_formula_with_a_stop_gradient_inside_says_so_itself() -> None:
    define = like("policy_loss.clipped_importance", result="loss", band=(0.0, 1.2))
    assert check(bind(bounded_importance, role="policy_loss", definition=define), "equals_definition").status == "holds"


def summed(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, response_mask: Tensor, total: int) -> Tensor:
    ratio = torch.exp(torch.where(response_mask.bool(), log_probs - old_log_probs, 0.0))
    return -(ratio * advantages * response_mask).sum() / max(total, 1)


def never_divided(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, response_mask: Tensor, total: int
) -> Tensor:
    """min for max: every count becomes 1, the planted bug."""
    return summed(log_probs, old_log_probs, advantages, response_mask, min(total, 1))


def test_a_count_of_the_whole_batch_that_changes_nothing_is_found() -> None:
    facts: dict[str, Any] = {"args": {"total": lambda case: case.whole.segments.num_tokens}, "combine": "sum"}
    assert check(bind(summed, role="policy_loss", **facts), "options_live").status == "holds"
    assert check(bind(never_divided, role="policy_loss", **facts), "options_live").status == "bug"
    facts["combine"] = "mean"  # a trainer that averages its micro-batches may hand over a count that a mode ignores
    assert check(bind(never_divided, role="policy_loss", **facts), "options_live").status != "bug"


def _rejection(against: str) -> Subject:
    def call(case: Case, options: Mapping[str, Any]) -> Out:
        gaps = zip(case.list(against), case.list("logp_current"), case.list("trainable"), strict=True)
        keep = [float(((a - b) * m).sum() <= 0.1) for a, b, m in gaps]
        return {"keep": Result.sequence(keep, "keep", scope="sequence", pair=("logp_current", "logp_rollout"))}

    return Subject("rejection", call, role="keep")


def test_a_decision_about_two_policies_reads_those_two() -> None:
    assert check(_rejection("logp_rollout"), "decision_granularity").status == "holds"
    assert check(_rejection("logp_old"), "decision_granularity").status == "bug"


def _mean_length(counts: str) -> Subject:
    """Tokens after the prompt: tool output is a part of them, and the metric says so."""

    def lengths(case: Case) -> Tensor:
        return torch.tensor([float(n) for n in case.response_lengths], dtype=torch.float64)

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        whole = case.whole.num_sequences if counts == "whole" else case.num_sequences
        total = lengths(case).sum() / (whole if counts != "a constant" else 3)
        return {"length": Result.scalar(total, "metric", of=lengths, reduction="mean", population="sequence")}

    return Subject("mean length", call, role="metric")


def test_a_metric_that_says_it_is_of_tool_output_too_may_count_it() -> None:
    assert check(_mean_length("its own"), "credit_over_trainable").status == "could not exercise"


def test_a_share_of_the_whole_mean_adds_up_and_a_mean_is_weighed() -> None:
    assert check(_mean_length("its own"), "metric_reduction").status == "holds"
    assert check(_mean_length("whole"), "metric_reduction").status == "holds"
    assert check(_mean_length("a constant"), "metric_reduction").status == "bug"


def test_a_metric_read_out_of_single_precision_is_what_its_name_says() -> None:
    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not case.num_sequences:
            raise case.cannot("no sequence")
        value = (case.sequence("reward").float().mean() + options["off"]).item()
        return {"reward": Result.scalar(value, "metric", of="reward", reduction="mean", population="sequence")}

    assert check(Subject("reward", call, options={"off": 0.0}), "metric_truth").status == "holds"
    assert check(Subject("reward", call, options={"off": 1e-3}), "metric_truth").status == "bug"
