"""Plain loops over the numbers of a case, from which the definitions of the corpus are made. No tensor arithmetic."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Call, Kind, Out, Result

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One sequence as numbers: `row.logp_old[t]` at its t-th trained token, `row.reward`, `row.group`."""

    index: int
    places: list[int]
    """Its trained tokens among all tokens of the case."""
    case: Case
    lists: dict[str, list[Any]]

    @property
    def count(self) -> int:
        return len(self.places)

    def __getattr__(self, name: str) -> Any:
        by_token = name in self.case.tokens
        if name not in self.lists:
            self.lists[name] = (self.case.tokens if by_token else self.case.sequences)[name].tolist()
        found = self.lists[name]
        return [found[place] for place in self.places] if by_token else found[self.index]

    def total(self, value: Callable[["Row", int], float]) -> float:
        return sum((value(self, t) for t in range(self.count)), 0.0)

    def mean(self, value: Callable[["Row", int], float]) -> float:
        return self.total(value) / self.count if self.count else 0.0


def rows(case: Case) -> list[Row]:
    """The sequences of a case with their trained tokens only."""
    found: list[Row] = []
    start = 0
    lists: dict[str, list[Any]] = {}
    for i, kinds in enumerate(case.kinds):
        places = [start + t for t, kind in enumerate(kinds) if kind == "a"]
        found.append(Row(i, places, case, lists))
        start += len(kinds)
    return found


def numbers(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


# --- results ------------------------------------------------------------------------------------------------------


def per_token(name: str, kind: Kind, value: Callable[..., float], *, detached: bool = False) -> Call:
    """`value(row, t, options)` at every trained token."""

    def define(case: Case, options: Options) -> Out:
        found = [value(row, t, options) for row in rows(case) for t in range(row.count)]
        return {name: Result(numbers(found), "token", kind)}

    return marked(define, detached)


def per_row(name: str, kind: Kind, value: Callable[..., list[float]], *, level: str = "sequence") -> Call:
    """`value(rows, options)` gives one number per sequence; level "token" copies it to the sequence's tokens."""

    def define(case: Case, options: Options) -> Out:
        all_rows = rows(case)
        found = value(all_rows, options)
        if level == "token":
            copied = [found[row.index] for row in all_rows for _ in range(row.count)]
            return {name: Result(numbers(copied), "token", kind)}
        return {name: Result(numbers(found), "sequence", kind)}

    return define


def walked(name: str, kind: Kind, value: Callable[..., list[float]]) -> Call:
    """`value(row, options)` gives the numbers of the trained tokens of one sequence."""

    def define(case: Case, options: Options) -> Out:
        found = [one for row in rows(case) for one in value(row, options)]
        return {name: Result(numbers(found), "token", kind)}

    return define


def scalar(name: str, kind: Kind, value: Callable[..., float], *, detached: bool = False) -> Call:
    """`value(rows, options)` gives one number."""

    def define(case: Case, options: Options) -> Out:
        return {name: Result(numbers([value(rows(case), options)])[0], "scalar", kind)}

    return marked(define, detached)


def marked(define: Any, detached: bool) -> Call:
    """A definition whose value is partly held fixed on purpose, so that its slopes are not the gradients."""
    if detached:
        define.stops_gradient = True
    return define


def together(*calls: Call) -> Call:
    """Several definitions as one, with all their results."""

    def define(case: Case, options: Options) -> Out:
        return {name: result for call in calls for name, result in call(case, options).items()}

    return marked(define, any(getattr(call, "stops_gradient", False) for call in calls))


# --- averages -----------------------------------------------------------------------------------------------------


def token_mean(all_rows: Sequence[Row], value: Callable[[Row, int], float]) -> float:
    count = sum(row.count for row in all_rows)
    return sum((row.total(value) for row in all_rows), 0.0) / count if count else 0.0


def row_mean(all_rows: Sequence[Row], value: Callable[[Row, int], float], *, empty: bool = False) -> float:
    """The mean of the row means, over rows with a trained token, or over all rows."""
    counted = [row for row in all_rows if row.count or empty]
    return sum((row.mean(value) for row in counted), 0.0) / len(counted) if counted else 0.0


def row_sum_mean(all_rows: Sequence[Row], value: Callable[[Row, int], float], *, empty: bool = False) -> float:
    """The mean of the row sums, over rows with a trained token, or over all rows."""
    counted = [row for row in all_rows if row.count or empty]
    return sum((row.total(value) for row in counted), 0.0) / len(counted) if counted else 0.0


# --- arithmetic of one token --------------------------------------------------------------------------------------


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def gap(first: str, second: str) -> Callable[[Row, int], float]:
    """The log-ratio of two policies at a token."""
    return lambda row, t: getattr(row, first)[t] - getattr(row, second)[t]


def ppo(log_ratio: float, advantage: float, low: float, high: float, cap: float | None = None) -> float:
    """The clipped surrogate, to minimise; `cap` is a dual clip."""
    ratio = exp(log_ratio)
    loss = max(-advantage * ratio, -advantage * clamp(ratio, low, high))
    return min(loss, -cap * advantage) if cap is not None and advantage < 0 else loss


def k3(log_ratio: float) -> float:
    """An estimate of KL(p to q) from log p - log q."""
    return exp(-log_ratio) - 1 + log_ratio


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def spread(values: Sequence[float], ddof: int) -> float:
    if len(values) <= ddof:
        return 0.0
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - ddof))


def peers(all_rows: Sequence[Row], row: Row) -> list[Row]:
    """The rows of one group, with the row itself."""
    return [other for other in all_rows if other.group == row.group]


def gae(row: Row, rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """Advantages of one sequence over its trained tokens; nothing follows the last one."""
    found = [0.0] * row.count
    after = running = 0.0
    for t in reversed(range(row.count)):
        running = rewards[t] + gamma * after - values[t] + gamma * lam * running
        found[t], after = running, values[t]
    return found


def to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    found, running = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] + gamma * running
        found[t] = running
    return found


def log_softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    norm = top + math.log(sum(math.exp(x - top) for x in scaled))
    return [x - norm for x in scaled]


def entropy(logits: Sequence[float], temperature: float = 1.0) -> float:
    return -sum(math.exp(x) * x for x in log_softmax(logits, temperature))
