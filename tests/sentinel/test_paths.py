"""Settings and paths: what a function does under another text, switch or number, also inside a config object."""

from argparse import Namespace
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.sentinel import Subject, bind, check
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.callable import of_function
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.binding.settings import modes, others, setting, switches, with_setting


@dataclass(frozen=True)
class Clip:
    low: float = 0.2
    high: float = 0.28


def unused(log_probs: Tensor) -> Tensor:
    return log_probs


HOLDERS = (Clip(), {"low": 0.2, "high": 0.28}, Namespace(low=0.2, high=0.28), SimpleNamespace(low=0.2, high=0.28))


@pytest.mark.parametrize("held", HOLDERS, ids=lambda held: type(held).__name__)
def test_a_setting_is_read_and_changed_wherever_it_is_held(held: Any) -> None:
    subject = Subject("f", lambda case, options: {}, options={"config": held, "gamma": 1.0})
    changed = with_setting(subject, "config.high", 0.5)
    assert setting(changed, "config.high") == 0.5
    assert setting(changed, "config.low") == 0.2
    assert setting(subject.options, "config.high") == 0.28  # the old one is as it was
    assert with_setting(subject, "gamma", 0.9) == {"config": held, "gamma": 0.9}


def test_switches_are_texts_yes_or_no_and_what_was_off() -> None:
    subject = Subject(
        "f", lambda case, options: {}, options={"mode": "a", "cap": None, "eps": 0.2, "std": True},
        variants={"cap": (2.0,), "eps": (0.5,), "std": (False,)}, choices={"mode": ("a", "b"), "elsewhere": ("x",)},
    )  # fmt: skip
    assert others(subject) == [("cap", 2.0), ("eps", 0.5), ("std", False), ("mode", "b")]
    assert switches(subject) == [("cap", 2.0), ("std", False), ("mode", "b")]
    assert [told for told, _ in modes(subject)] == ["with cap = 2.0", "with std = False", "with mode = 'b'"]
    assert ("with eps = 0.5", 0.5) in [(told, one.options["eps"]) for told, one in modes(subject, numbers=True)]


def reduced(losses: Tensor, mask: Tensor, mode: str = "token") -> Tensor:
    if mode == "token":
        return (losses * mask).sum() / mask.sum().clamp(min=1)
    if mode == "rows":
        return (losses * mask).mean(1).mean()  # divides by the padded width
    raise ValueError(mode)


def test_a_law_is_tried_on_every_path_and_says_on_which_it_breaks() -> None:
    verdict = check(bind(reduced, role="aggregation"), "mask_content", examples=1)
    assert verdict.status == "bug"
    assert verdict.violation is not None
    assert verdict.violation.what.endswith("with mode = 'rows'")


def scaled(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    if temperature != 1.0:
        logits.div_(temperature)
    return torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def test_a_write_into_an_input_behind_another_number_is_found() -> None:
    subject = bind(
        scaled, role="logp", args={"logits": "logits", "labels": "token_id"}, options={"temperature": 1.0},
        variants={"temperature": (0.5,)},
    )  # fmt: skip
    verdict = check(subject, "no_aliasing", examples=1)
    assert verdict.status == "bug"
    assert verdict.violation is not None
    assert verdict.violation.what.endswith("with temperature = 0.5")


@dataclass
class Bounds:
    low: float = 0.2
    high: float = 0.28
    penalty: float = 0.1
    use_kl: bool = False


def one_sided(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: Bounds) -> Tensor:
    ratio = (log_probs - old_log_probs).exp()
    assert config.high > 0
    clipped = ratio.clamp(1 - config.low, 1 + config.low)
    loss = -torch.min(ratio * advantages, clipped * advantages)
    if config.use_kl:
        loss = loss + config.penalty * (old_log_probs - log_probs)
    return (loss * mask).sum() / mask.sum().clamp(min=1)


def test_a_setting_of_a_config_that_nothing_follows_is_a_suspect_and_one_behind_a_switch_is_not() -> None:
    subject = subject_of(lambda bounds=False: of_function(one_sided, bounds=bounds))
    verdict = check(subject, "options_live", examples=1)
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert verdict.violation.what.startswith("config.high = 0.14 gives the same")


# --- laws ---------------------------------------------------------------------------------------------------------


def weights(
    old_log_prob: Tensor, rollout_log_prob: Tensor, mask: Tensor, level: str = "token", cap: float = 2.0
) -> Any:
    gap = torch.where(mask.bool(), old_log_prob - rollout_log_prob, 0.0)
    if level == "sequence":
        return gap.sum(1, keepdim=True).expand_as(gap).exp().detach()
    if level == "token":
        return gap.exp().clamp(max=cap).detach()
    raise ValueError(level)


def test_a_cap_that_holds_on_one_path_holds_on_all() -> None:
    verdict = check(bind(weights, role="importance"), "importance_contract", examples=1)
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert verdict.violation.what == "importance goes beyond 2 with level = 'sequence', and never otherwise"


def pull(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, beta: float = 0.1) -> Tensor:
    gap = ref_log_probs - log_probs.detach()
    return beta * ((gap.exp() - 1 - gap) * mask).sum() / mask.sum().clamp(min=1)


def test_a_penalty_that_trains_nothing_is_a_bug() -> None:
    assert check(bind(pull, role="kl_in_loss"), "connected", examples=1).status == "bug"


def centred(rewards: Tensor, uid: Any, valid: Tensor, *, over: str = "voters") -> Tensor:
    same = torch.as_tensor(uid)[:, None] == torch.as_tensor(uid)[None]
    votes = (same & valid.bool()[None]).double()
    count = votes.sum(1) if over == "voters" else same.double().sum(1)
    return rewards - (votes @ rewards) / count.clamp(min=1)


@pytest.mark.parametrize(("over", "status"), [("voters", "holds"), ("everyone", "bug")])
def test_a_suppressed_sample_is_as_if_absent(over: str, status: str) -> None:
    subject = bind(
        lambda rewards, uid, valid: centred(rewards, uid, valid, over=over), name="centred",
        role="reward_normalisation", args={"valid": "votes"},
    )  # fmt: skip
    assert check(subject, "suppressed_do_not_vote", examples=1).status == status


def coarse(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    gap = (log_probs.bfloat16() - ref_log_probs.bfloat16()).double()
    return (gap * mask).sum() / mask.sum().clamp(min=1)


def share(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    return (((log_probs - ref_log_probs).abs() > 0.2).double() * mask).sum() / mask.sum().clamp(min=1)


def test_half_precision_inside_a_body_is_a_bug_and_a_share_of_tokens_is_not() -> None:
    assert check(bind(coarse, role="metric"), "half_precision", examples=1).status == "bug"
    assert check(bind(share, role="metric"), "half_precision", examples=1).status == "holds"


def returns(token_rewards: Tensor, mask: Tensor, *, forwards: bool = False) -> Tensor:
    order = range(token_rewards.shape[1])
    out, carry = torch.zeros_like(token_rewards), torch.zeros(len(token_rewards), dtype=token_rewards.dtype)
    for t in order if forwards else reversed(order):
        carry = torch.where(mask[:, t] > 0, token_rewards[:, t] + 0.9 * carry, carry)
        out[:, t] = carry * mask[:, t]
    return out


def test_credit_flows_back_and_a_sum_over_the_sequence_is_no_arrow_of_time() -> None:
    def bound(fn: Any) -> Subject:
        return bind(fn, name="f", role="returns", args={"token_rewards": "token_reward", "mask": "trainable"})

    def summed(token_rewards: Tensor, mask: Tensor) -> Tensor:
        return (token_rewards * mask).sum(1, keepdim=True) * mask

    assert check(bound(lambda token_rewards, mask: returns(token_rewards, mask)), "credit_flows_back").status == "holds"
    assert check(bound(summed), "credit_flows_back").status == "holds"
    verdict = check(bound(lambda token_rewards, mask: returns(token_rewards, mask, forwards=True)), "credit_flows_back")
    assert verdict.status == "bug"


def weighed(token_rewards: Tensor, mask: Tensor, *, is_right: bool) -> Tensor:
    weight = 0.9 ** (mask.cumsum(1) - mask)
    ahead = (token_rewards * weight * mask).flip(1).cumsum(1).flip(1)
    return ahead / weight * mask if is_right else ahead * mask


def test_credit_that_looks_ahead_does_not_depend_on_how_many_tokens_came_before() -> None:
    def bound(is_right: bool) -> Subject:
        return bind(lambda token_rewards, mask: weighed(token_rewards, mask, is_right=is_right), name="f",
                    role="returns", args={"token_rewards": "token_reward", "mask": "trainable"})  # fmt: skip

    assert check(bound(True), "credit_flows_back").status == "holds"
    verdict = check(bound(False), "credit_flows_back")
    assert verdict.status == "bug"
    assert verdict.violation is not None
    assert "a token less before them changes later ones" in verdict.violation.what


def chosen(entropies: Tensor, mask: Tensor) -> Tensor:
    cut = entropies[mask.bool()].quantile(0.5) if bool(mask.any()) else torch.zeros(())
    return (entropies > cut) & mask.bool()


def test_a_choice_among_all_tokens_is_a_convention() -> None:
    assert check(bind(chosen, role="keep"), "decision_granularity", examples=2).status == "convention"


def test_directed_cases_stay_what_they_were() -> None:
    """Reproduction files and tables were made with them."""
    first = next(iter(directed()))
    assert first.sequences["reward"].tolist() == pytest.approx([0.428318, 0.410032, 1.968323, 0.568532], abs=1e-4)


def spread(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    return (log_probs - old_log_probs)[mask.bool()].std()


def plain_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def test_a_spread_of_one_number_is_hygiene_in_a_metric_and_a_mean_of_none_is_not() -> None:
    assert check(bind(spread, role="metric"), "degenerate_bounded", examples=1).status == "hygiene"
    of_any = bind(plain_mean, role="statistic", args={"values": "token_loss"})
    assert check(of_any, "degenerate_bounded", examples=1).status == "latent"
