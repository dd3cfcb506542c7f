"""Numbers of a whole batch that people watch: lengths, rewards, spreads, agreement of two policies."""

from collections.abc import Callable, Iterator, Sequence
from math import comb

import torch
from torch import Tensor

from trimtab.sentinel.known import token
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values


def watched(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Published numbers about a batch, from the fields that a function reads."""
    yield from lengths(inputs, numbers)
    if inputs & {"reward", "token_reward"}:
        yield from rewards(inputs, numbers)
    yield from of_policies(inputs, numbers)
    yield from spreads(inputs)


def _statistics(name: str, of: Values, *, shares: bool = False) -> Iterator[Known]:
    """Mean, extremes, spread and quantiles of one number per row or token."""
    yield Known(f"mean {name}", lambda c: of(c).mean())
    yield Known(f"largest {name}", lambda c: of(c).max())
    yield Known(f"smallest {name}", lambda c: of(c).min())
    yield Known(f"summed {name}", lambda c: of(c).sum())
    yield Known(f"median {name}", lambda c: of(c).quantile(0.5))
    yield Known(f"lower median {name}", lambda c: of(c).median())
    yield Known(f"spread of {name}", lambda c: of(c).std(correction=0))
    yield Known(f"spread of {name}, n - 1", lambda c: of(c).std(correction=1))
    yield Known(f"variance of {name}", lambda c: of(c).var(correction=0))
    yield Known(f"variance of {name}, n - 1", lambda c: of(c).var(correction=1))
    for q in (0.1, 0.25, 0.75, 0.9, 0.95, 0.99) if shares else ():
        yield Known(f"quantile {q:g} of {name}", lambda c, q=q: of(c).quantile(q))


def lengths(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Lengths of answers: trained tokens, all tokens after the prompt, and all tokens."""

    def whole(c: Cells) -> Tensor:
        return torch.tensor(c.case.lengths, dtype=torch.float64)

    def answered(c: Cells) -> Tensor:
        return c.response.sum(1)

    kinds: list[tuple[str, Values]] = [("number of trained tokens", lambda c: c.mask.sum(1))]
    if inputs & {"length", "response", "attention", "token_id"}:
        kinds += [("length of an answer", answered), ("length of a row", whole)]
    for name, of in kinds:
        yield from _statistics(name, of)
        for limit in (n for n in numbers if n >= 1):
            yield Known(f"share of rows whose {name} reaches {limit:g}", lambda c, f=of, m=limit: _share(f(c) >= m))
    if "ended" in inputs:
        ended: Values = lambda c: c.case.sequences["ended"].double()  # noqa: E731
        yield Known("share of answers that ended", lambda c: ended(c).mean())
        yield Known("share of answers that did not end", lambda c: 1 - ended(c).mean())
        yield Known(
            "mean number of trained tokens of answers that ended",
            lambda c: (c.mask.sum(1) * ended(c)).sum() / ended(c).sum(),
        )
    yield Known("share of cells that train", lambda c: c.mask.mean())
    yield Known("share of tokens after the prompt that train", lambda c: c.mask.sum() / c.response.sum())


def _share(flags: Tensor) -> Tensor:
    return flags.double().mean()


def rewards(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """How rewards are spread, over the batch and inside groups."""

    def own(c: Cells) -> Tensor:
        return c.reward

    yield from _statistics("reward", own, shares=True)
    for least in dict.fromkeys((0.0, 0.5, 1.0, *numbers)):
        yield Known(f"share of rewards above {least:g}", lambda c, t=least: _share(c.reward > t))
        yield Known(f"share of rewards from {least:g} on", lambda c, t=least: _share(c.reward >= t))
    if "group" not in inputs and "reward" not in inputs:
        return
    for ddof in (0, 1):
        shown = ", n - 1" if ddof else ""
        yield Known(
            f"mean spread of groups{shown}", lambda c, d=ddof: _each(c, lambda r, d=d: r.std(correction=d)).mean()
        )
    flat: Values = lambda c: _each(c, lambda r: (r.max() == r.min()).double())  # noqa: E731
    yield Known("share of groups with equal rewards", lambda c: flat(c).mean())
    yield Known("share of groups whose rewards differ", lambda c: 1 - flat(c).mean())
    yield Known("number of groups with equal rewards", lambda c: flat(c).sum())
    yield Known("best of each group", lambda c: _each(c, lambda r: r.max()).mean())
    yield Known("worst of each group", lambda c: _each(c, lambda r: r.min()).mean())
    yield Known("mean of the means of groups", lambda c: _each(c, lambda r: r.mean()).mean())
    for least in dict.fromkeys((0.0, 0.5, 1.0, *numbers)):
        yield Known(
            f"share of groups with a reward above {least:g}", lambda c, t=least: _share(_each(c, lambda r: r.max()) > t)
        )
        yield Known(
            f"share of groups with a reward from {least:g} on",
            lambda c, t=least: _share(_each(c, lambda r: r.max()) >= t),
        )
        for k in (int(n) for n in numbers if n >= 1 and n == int(n)):
            yield Known(f"pass@{k} above {least:g}", lambda c, t=least, k=k: _pass_at(c, k, lambda r, t=t: r > t))
            yield Known(f"pass@{k} from {least:g} on", lambda c, t=least, k=k: _pass_at(c, k, lambda r, t=t: r >= t))
            again = "answers are drawn with replacement, which gives too little"
            yield Known(
                f"pass@{k} with replacement",
                lambda c, t=least, k=k: _each(c, lambda r, t=t: 1 - (1 - (r > t).double().mean()) ** k).mean(), again,
            )  # fmt: skip
            yield Known(
                f"pass@{k} with replacement",
                lambda c, t=least, k=k: _each(c, lambda r, t=t: 1 - (1 - (r >= t).double().mean()) ** k).mean(), again,
            )  # fmt: skip
    if "votes" in inputs:
        yield Known("mean reward of answers that vote", lambda c: c.reward[c.voters].mean())


def _each(c: Cells, one: Callable[[Tensor], Tensor]) -> Tensor:
    """One number per group."""
    return torch.stack([one(c.reward[rows]) for rows in c.groups])


def _pass_at(c: Cells, k: int, passes: Callable[[Tensor], Tensor]) -> Tensor:
    """The unbiased estimate: one minus the share of draws of k answers without a pass."""
    found: list[float] = []
    for rows in c.groups:
        n, right = len(rows), int(passes(c.reward[rows]).sum())
        if n < k:
            raise ValueError(k)
        found.append(1 - comb(n - right, k) / comb(n, k))
    return torch.tensor(found, dtype=torch.float64).mean()


def of_policies(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """How far two policies agree on the trained tokens; and the perplexity of one."""

    def inside(c: Cells, x: Tensor) -> Tensor:
        return x[c.mask > 0]

    for name in sorted(inputs & set(token.SAMPLERS)):
        yield Known(f"perplexity of {name}", lambda c, n=name: (-inside(c, c[n]).mean()).exp())
        yield Known(f"mean perplexity of sequences of {name}", lambda c, n=name: (-c.means(c[n])).exp().mean())
        yield Known(f"mean negative log-prob of {name}", lambda c, n=name: -inside(c, c[n]).mean())
        yield Known(f"mean of the mean negative log-probs of {name}", lambda c, n=name: -c.means(c[n]).mean())
        yield Known(f"mean {name}", lambda c, n=name: inside(c, c[n]).mean())
    for p, q in token.ends(inputs):

        def gap(c: Cells, p: str = p, q: str = q) -> Tensor:
            return inside(c, c.gap(q, p))

        def probabilities(c: Cells, p: str = p, q: str = q) -> Tensor:
            return torch.stack([inside(c, c[p]).exp(), inside(c, c[q]).exp()])

        told = f"{p} and {q}"
        yield Known(f"correlation of probabilities of {told}", lambda c, f=probabilities: torch.corrcoef(f(c))[0, 1])
        logs: Values = lambda c, p=p, q=q: torch.stack([inside(c, c[p]), inside(c, c[q])])  # type: ignore[misc]  # noqa: E731
        yield Known(f"correlation of log-probs of {told}", lambda c, f=logs: torch.corrcoef(f(c))[0, 1])
        yield from _statistics(f"|log-ratio| of {told}", lambda c, f=gap: f(c).abs(), shares=True)
        yield from _statistics(f"e^|log-ratio| of {told}", lambda c, f=gap: f(c).abs().exp())
        yield from _statistics(
            f"difference of probabilities of {told}", lambda c, f=probabilities: (f(c)[0] - f(c)[1]).abs()
        )
        yield from _statistics(f"ratio {q} / {p}", lambda c, f=gap: f(c).exp(), shares=True)
        yield from _statistics(f"ratio of sequences {q} / {p}", lambda c, p=p, q=q: c.means(c.gap(q, p)).exp())
        yield from _statistics(
            f"product of sequences {q} / {p}", lambda c, p=p, q=q: (c.gap(q, p) * c.mask).sum(1).exp()
        )  # fmt: skip
        yield Known(f"chi-square of {told}", lambda c, f=gap: (2 * f(c)).exp().mean() - 1)
        rows: Values = lambda c, p=p, q=q: (c.gap(q, p) * c.mask).sum(1)  # type: ignore[misc]  # noqa: E731
        yield Known(f"chi-square of sequences of {told}", lambda c, f=rows: (2 * f(c)).exp().mean() - 1)
        yield from _sample_sizes(told, rows)
        for bound in (n for n in numbers if n > 0):
            yield Known(f"share of ratios {q} / {p} above {bound:g}", lambda c, f=gap, t=bound: _share(f(c).exp() > t))
            yield Known(f"share of ratios {q} / {p} below {bound:g}", lambda c, f=gap, t=bound: _share(f(c).exp() < t))
            yield Known(
                f"share of log-ratios of {told} beyond {bound:g}", lambda c, f=gap, t=bound: _share(f(c).abs() > t)
            )


def _sample_sizes(told: str, log_weights: Values) -> Iterator[Known]:
    def size(c: Cells) -> Tensor:
        weight = log_weights(c).exp()
        return weight.sum() ** 2 / weight.square().sum()

    yield Known(f"effective number of sequences of {told}", size)
    yield Known(f"share of effective sequences of {told}", lambda c: size(c) / c.mask.shape[0])


def spreads(inputs: frozenset[str]) -> Iterator[Known]:
    """Statistics of a field over the trained tokens."""
    for name in sorted(
        inputs & {"advantage", "returns", "value", "value_old", "entropy", "kl", "token_reward", "token_loss"}
    ):
        yield from _statistics(f"{name} of trained tokens", lambda c, n=name: c[n][c.mask > 0], shares=True)
        yield Known(f"share of trained tokens with a positive {name}", lambda c, n=name: _share(c[n][c.mask > 0] > 0))
        yield from _statistics(f"summed {name} of a row", lambda c, n=name: (c[n] * c.mask).sum(1))
        yield from _statistics(f"mean {name} of a row", lambda c, n=name: c.means(c[n]))
    if "outcome" in inputs:
        yield from _statistics("advantage of an answer", lambda c: c.outcome)
    if {"returns", "value"} <= inputs:
        error: Values = lambda c: (c["value"] - c["returns"])[c.mask > 0]  # noqa: E731
        yield from _statistics("error of the value", error)
        yield from _statistics("size of the error of the value", lambda c: error(c).abs())
