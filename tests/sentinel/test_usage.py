"""Arguments that are told by what a body does with them."""

import torch
from torch import Tensor

from trimtab.sentinel.binding.usage import fields_by_use, is_size_by_use


def test_a_mask_and_two_policies_are_told_by_their_use() -> None:
    def weigh(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.where(c, a - b, 0.0).exp()

    assert fields_by_use(weigh, ["a", "b", "c"], {}) == {"c": "trainable", "a": "logp_current", "b": "logp_old"}


def test_an_earlier_policy_is_told_by_its_name() -> None:
    def drift(then: Tensor, here: Tensor, c: Tensor) -> Tensor:
        return ((then - here) * c).sum() / c.sum()

    told = fields_by_use(drift, ["then", "here", "c"], {})
    assert told == {"c": "trainable", "here": "logp_current", "then": "logp_old"}


def test_lists_are_followed_through_zip() -> None:
    def screen(xs: list[Tensor], ys: list[Tensor], signs: list[float], spans: list[Tensor]) -> list[Tensor]:
        found = []
        for x, y, sign, span in zip(xs, ys, signs, spans, strict=True):
            found.append((torch.where(span.bool(), x - y, 0.0).sum() > 0.1) & (torch.as_tensor(sign) < 0))
        return found

    told = fields_by_use(screen, ["xs", "ys", "signs", "spans"], {})
    assert told == {"spans": "trainable", "xs": "logp_current", "ys": "logp_old", "signs": "advantage"}


def test_groups_are_keys_of_a_table_and_the_rest_is_rewards() -> None:
    def compare(payouts: list[float], tickets: list[str]) -> list[float]:
        table: dict[str, list[float]] = {}
        for payout, ticket in zip(payouts, tickets, strict=True):
            table.setdefault(ticket, [])
            table[ticket].append(payout)
        return [p - sum(table[t]) / len(table[t]) for p, t in zip(payouts, tickets, strict=True)]

    assert fields_by_use(compare, ["payouts", "tickets"], {}) == {"tickets": "group", "payouts": "reward"}


def test_what_a_value_is_compared_with_is_a_return() -> None:
    def error(v: Tensor, goal: Tensor, on: Tensor) -> Tensor:
        return ((v - goal) ** 2 * on).sum() / on.sum()

    assert fields_by_use(error, ["goal"], {"v": "value", "on": "trainable"}) == {"goal": "returns"}


def test_a_field_is_given_out_once() -> None:
    def both(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        return (a.bool() & b.bool()) * mask

    assert "trainable" not in fields_by_use(both, ["a", "b"], {"mask": "trainable"}).values()


def test_neighbours_that_belong_together_are_counted_by_an_argument() -> None:
    def fold(x: Tensor, fanout: int, power: int) -> Tensor:
        return x.view(-1, fanout).mean(1) ** power

    assert is_size_by_use(fold, "fanout")
    assert not is_size_by_use(fold, "power")
