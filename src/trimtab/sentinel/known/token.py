"""Formulas with one number per token: estimates of a KL, ratios, losses and credit, with the mistakes people make."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.sentinel.known.cells import Cells

Values = Callable[[Cells], Tensor]
SAMPLERS = ("logp_rollout", "logp_old", "logp_current", "logp_ref")
"""The policy that sampled the tokens is the first of these that a function reads."""


@dataclass(frozen=True)
class Known:
    """A formula over the cells of a case. `mistake` says what is wrong with it, and is empty where nothing is."""

    name: str
    of: Values
    mistake: str = ""
    partial: bool = False
    """It leaves some entries open, as NaN."""
    is_part: bool = False
    """It is a mistake as a whole loss, and fine as one part of it."""
    slopes: bool = False
    """Its gradient is that of the paper, too: what is held fixed there is detached."""


def ends(inputs: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Pairs of policies that a function reads, the one that sampled first."""
    read = [name for name in SAMPLERS if name in inputs]
    for i, first in enumerate(read):
        for second in read[i + 1 :]:
            yield first, second


def kl(inputs: frozenset[str]) -> Iterator[Known]:
    """Estimates of KL(p to q) from tokens that p sampled."""
    for p, q in ends(inputs):
        told = f"KL({p} to {q})"

        def gap(c: Cells, p: str = p, q: str = q) -> Tensor:
            return c[p] - c[q]

        yield Known(f"k1 of {told}", gap)
        yield Known(f"k2 of {told}", lambda c, gap=gap: gap(c) ** 2 / 2)
        yield Known(f"k3 of {told}", lambda c, gap=gap: torch.exp(-gap(c)) - 1 + gap(c))
        yield Known(f"|k1| of {told}", lambda c, gap=gap: gap(c).abs())
        turned = f"the log-ratio is turned around: {p} sampled the tokens"
        yield Known(f"k1 of {told}, turned around", lambda c, gap=gap: -gap(c), turned)
        yield Known(f"k3 of {told}, turned around", lambda c, gap=gap: torch.exp(gap(c)) - 1 - gap(c), turned)
        half = "k2 is half of the squared log-ratio, and the half is missing"
        yield Known(f"squared log-ratio of {p} and {q}", lambda c, gap=gap: gap(c) ** 2, half)
        sign = "the sign of the log-ratio is lost in one of the two terms"
        yield Known(f"k3 of {told}, one sign lost", lambda c, gap=gap: torch.exp(-gap(c)) - 1 - gap(c), sign)


def gaps(inputs: frozenset[str]) -> Iterator[Known]:
    """Other numbers of two policies that people watch."""
    for p, q in ends(inputs):
        yield Known(f"ratio {q} / {p}", lambda c, p=p, q=q: (c[q] - c[p]).exp())
        yield Known(f"ratio {p} / {q}", lambda c, p=p, q=q: (c[p] - c[q]).exp())
        lost = "the logarithm is missing: the ratio itself is taken for a KL"
        yield Known(f"minus ratio {q} / {p}", lambda c, p=p, q=q: -(c[q] - c[p]).exp(), lost)
        yield Known(f"difference of probabilities of {p} and {q}", lambda c, p=p, q=q: (c[p].exp() - c[q].exp()).abs())


def importance(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Ratios of trainer to sampler, per token and per sequence, whole and truncated."""
    for sampler, trainer in ends(inputs - {"logp_ref"}):
        turned = "the ratio is turned around: sampler over trainer"
        for top, bottom, mistake in ((trainer, sampler, ""), (sampler, trainer, turned)):

            def gap(c: Cells, top: str = top, bottom: str = bottom) -> Tensor:
                return c[top] - c[bottom]

            told = f"{top} / {bottom}"
            whole = "tokens that do not train enter the ratio of the sequence"
            levels: tuple[tuple[str, Values, str], ...] = (
                ("per token", gap, ""),
                ("product per sequence", lambda c, gap=gap: c.rows((gap(c) * c.mask).sum(1)), ""),
                ("geometric mean per sequence", lambda c, gap=gap: c.rows((gap(c) * c.mask).sum(1) / c.count), ""),
                ("geometric mean over the whole length",
                 lambda c, gap=gap: c.rows((gap(c) * c.response).sum(1) / c.response.sum(1).clamp(min=1)), whole),
                ("geometric mean over the counts of the whole length",
                 lambda c, gap=gap: c.rows((gap(c) * c.mask).sum(1) / c.response.sum(1).clamp(min=1)), whole),
            )  # fmt: skip
            for level, log_ratio, wrong in levels:
                yield Known(f"{told} {level}", lambda c, r=log_ratio: r(c).exp(), mistake or wrong)
                for cap in (n for n in numbers if n > 1):
                    for low in (0.0, *(n for n in numbers if 0 < n < 1)):
                        held = f", in [{low:g}, {cap:g}]" if low else f", at most {cap:g}"

                        def bounded(c: Cells, r: Values = log_ratio, a: float = low, b: float = cap) -> Tensor:
                            return r(c).exp().clamp(a, b)

                        yield Known(f"{told} {level}{held}", bounded, mistake or wrong)
                    below = "the bound is a lower one: large weights pass, and small ones are raised"
                    yield Known(
                        f"{told} {level}, at least {cap:g}", lambda c, r=log_ratio, k=cap: r(c).exp().clamp(min=k),
                        mistake or wrong or below,
                    )  # fmt: skip


def keeps(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """1 where the ratio of trainer to sampler lies between two bounds."""
    pairs = [(low, high) for low in numbers for high in numbers if 0 <= low < 1 < high]
    pairs += [(1 - low, 1 + high) for low in numbers for high in numbers if 0 < low < 1 and 0 < high < 1]
    for sampler, trainer in ends(inputs - {"logp_ref"}):

        def gap(c: Cells, top: str = trainer, bottom: str = sampler) -> Tensor:
            return c[top] - c[bottom]

        straight = "1 plus the log-ratio stands in for the ratio"
        turned = "the ratio is turned around: sampler over trainer"
        whole = "tokens that do not train enter the ratio of the sequence"
        kinds: tuple[tuple[str, Values, str], ...] = (
            ("ratio", lambda c, g=gap: g(c).exp(), ""),
            ("ratio of the sequence", lambda c, g=gap: c.rows((g(c) * c.mask).sum(1) / c.count).exp(), ""),
            ("product of the sequence", lambda c, g=gap: c.rows((g(c) * c.mask).sum(1)).exp(), ""),
            ("1 + log-ratio", lambda c, g=gap: 1 + g(c), straight),
            ("ratio turned around", lambda c, g=gap: (-g(c)).exp(), turned),
            ("ratio over the whole length",
             lambda c, g=gap: c.rows((g(c) * c.response).sum(1) / c.response.sum(1).clamp(min=1)).exp(), whole),
        )  # fmt: skip
        for low, high in dict.fromkeys(pairs):
            for told, value, mistake in kinds:

                def inside(c: Cells, v: Values = value, low: float = low, high: float = high) -> Tensor:
                    return ((v(c) >= low) & (v(c) <= high)).double()

                yield Known(f"{told} in [{low:g}, {high:g}]", inside, mistake)
                outside = "what should be kept is dropped, and the other way round"
                yield Known(f"{told} outside [{low:g}, {high:g}]", lambda c, i=inside: 1 - i(c), mistake or outside)


def left_behind(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Off-policy sequence masking: drop a sequence with a negative advantage that the policy has left behind."""
    credit = "advantage" if "advantage" in inputs else "outcome"
    for old in (n for n in ("logp_old", "logp_rollout") if n in inputs and "logp_current" in inputs):
        for delta in (n for n in numbers if n > 0):
            turned = "the drift is turned around: sequences that became likelier are dropped"
            for sign, mistake in ((1.0, ""), (-1.0, turned)):

                def kept(c: Cells, old: str = old, d: float = delta, s: float = sign) -> Tensor:
                    drift = c.rows((s * (c[old] - c["logp_current"]) * c.mask).sum(1) / c.count)
                    bad = c.rows(c.outcome if credit == "outcome" else (c[credit] * c.mask).sum(1) / c.count) < 0
                    return 1 - (bad & (drift > d)).double()

                def mixed(c: Cells, old: str = old, d: float = delta, s: float = sign) -> Tensor:
                    drift = c.rows((s * (c[old] - c["logp_current"]) * c.mask).sum(1) / c.count)
                    return 1 - ((c["advantage"] < 0) & (drift > d)).double()

                told = f"sequences not left behind {old} by {delta:g}"
                yield Known(told, kept, mistake)
                if credit == "advantage":
                    each = "the sign of the advantage is asked token by token, so a rejected sequence keeps some tokens"
                    yield Known(f"{told}, token by token", mixed, each)


def scores(temperatures: Sequence[float]) -> Iterator[Known]:
    """Log-probs of tokens from logits over a temperature."""

    def at(c: Cells, heat: float, step: int) -> Tensor:
        logits = c["logits"].roll(step, 1)
        found = torch.log_softmax(logits / heat, -1).gather(-1, c["token_id"].long().unsqueeze(-1)).squeeze(-1)
        # At the end of a row the neighbour is outside of it.
        alone = (c.response.roll(step, 1) == 0) | (
            torch.arange(found.shape[1]) == (0 if step > 0 else found.shape[1] - 1)
        )
        return torch.where(alone, torch.nan, found) if step else found

    heats = [n for n in temperatures if n != 1.0]
    for heat in heats:
        yield Known(f"log-prob at temperature {heat:g}", lambda c, h=heat: at(c, h, 0))
    yield Known("log-prob", lambda c: at(c, 1.0, 0), "the temperature is ignored" if heats else "")
    for heat in heats:
        late_one = "the temperature divides the log-prob and not the logits, so that probabilities do not sum to one"
        yield Known(f"log-prob over the temperature {heat:g}", lambda c, h=heat: at(c, 1.0, 0) / h, late_one)
    for heat in (1.0, *heats):
        for step in (1, -1):
            late = "each token is scored by the logits of its neighbour"
            yield Known(
                f"log-prob at temperature {heat:g}, one position off", lambda c, h=heat, s=step: at(c, h, s), late, True
            )


def entropy(temperatures: Sequence[float]) -> Iterator[Known]:
    """Entropy of logits over a temperature."""
    for heat in dict.fromkeys((1.0, *temperatures)):

        def terms(c: Cells, heat: float = heat) -> tuple[Tensor, Tensor]:
            scores = torch.log_softmax(c["logits"] / heat, -1)
            return scores, scores.exp()

        yield Known(f"entropy at temperature {heat:g}", lambda c, f=terms: -(f(c)[0] * f(c)[1]).sum(-1))
        sign = "the sign is lost: this is the sum of p log p"
        yield Known(f"minus the entropy at temperature {heat:g}", lambda c, f=terms: (f(c)[0] * f(c)[1]).sum(-1), sign)
        few = "the terms are averaged over the vocabulary and not summed"
        yield Known(
            f"entropy at temperature {heat:g} over the vocabulary",
            lambda c, f=terms: -(f(c)[0] * f(c)[1]).mean(-1),
            few,
        )
        flat = "the expected logit is a mean over the vocabulary and not a sum"
        yield Known(
            f"log-sum minus a mean over the vocabulary at temperature {heat:g}",
            lambda c, h=heat: (
                (c["logits"] / h).logsumexp(-1) - ((c["logits"] / h).softmax(-1) * c["logits"] / h).mean(-1)
            ),
            flat,
        )
        if heat != 1.0:
            one = "only one of its two factors is divided by the temperature"
            yield Known("entropy of two temperatures", lambda c, f=terms: _crossed(c, f(c)[1], 1.0), one)
            yield Known("entropy of two temperatures", lambda c, h=heat: _crossed(c, c["logits"].softmax(-1), h), one)
            yield Known("log-sum minus mean at two temperatures", lambda c, h=heat: _summed(c, h, 1.0), one)
            yield Known("log-sum minus mean at two temperatures", lambda c, h=heat: _summed(c, 1.0, h), one)


def _crossed(c: Cells, probabilities: Tensor, heat: float) -> Tensor:
    return -(probabilities * torch.log_softmax(c["logits"] / heat, -1)).sum(-1)


def _summed(c: Cells, first: float, second: float) -> Tensor:
    """log-sum-exp at one temperature minus the mean logit at another."""
    probabilities = (c["logits"] / first).softmax(-1)
    return (c["logits"] / first).logsumexp(-1) - (probabilities * c["logits"] / second).sum(-1)


def squared_errors(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Losses of a value head, plain and clipped around the old value."""
    for factor in (1.0, 0.5):
        plain = f"{factor:g} × squared error"
        yield Known(plain, lambda c, f=factor: f * (c["value"] - c["returns"]) ** 2, slopes=True)
        for reach in numbers if "value_old" in inputs else ():

            def both(c: Cells, reach: float = reach, f: float = factor) -> tuple[Tensor, Tensor]:
                held = c["value"].clamp(c["value_old"] - reach, c["value_old"] + reach)
                return f * (c["value"] - c["returns"]) ** 2, f * (held - c["returns"]) ** 2

            told = f"{factor:g} × squared error, clipped at {reach:g}"
            yield Known(told, lambda c, b=both: torch.maximum(*b(c)), slopes=True)
            small = "clipping takes the smaller of the two errors, so it hides large ones"
            yield Known(f"{told}, the smaller one", lambda c, b=both: torch.minimum(*b(c)), small)
            around = "values are clipped around the returns, so a large error shrinks to the clip"
            yield Known(
                f"{told}, around the returns",
                lambda c, r=reach, f=factor: torch.maximum(
                    f * (c["value"].clamp(c["returns"] - r, c["returns"] + r) - c["returns"]) ** 2,
                    f * (c["value"] - c["returns"]) ** 2 * 0,
                ), around,
            )  # fmt: skip
            new = "the clip is around the new value, so that inside the band the old value is trained, which is nothing"
            yield Known(
                f"{told}, around the new value",
                lambda c, r=reach, f=factor: torch.maximum(
                    f * (c["value"] - c["returns"]) ** 2,
                    f * (c["value"] + (c["value_old"] - c["value"]).clamp(-r, r) - c["returns"]) ** 2,
                ), new,
            )  # fmt: skip
            step = "the clipped step away from the old value stands for the error of the clipped value"
            yield Known(
                f"{told}, step for error",
                lambda c, r=reach, f=factor: torch.maximum(
                    f * (c["value"] - c["returns"]) ** 2, f * (c["value"] - c["value_old"]).clamp(-r, r) ** 2
                ), step,
            )  # fmt: skip
            only = "only the clipped error counts, so a value far away gets no gradient"
            yield Known(f"{told}, clipped only", lambda c, b=both: b(c)[1], only)


def huber_errors(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Losses of a value head that grow linearly where the error is large, plain and clipped around the old value."""
    for delta in dict.fromkeys((1.0, 10.0, *(n for n in numbers if n > 0))):

        def error(c: Cells, value: Tensor, d: float = delta) -> Tensor:
            return torch.nn.functional.huber_loss(value, c["returns"], reduction="none", delta=d)

        for scale, told in ((1.0, f"Huber error up to {delta:g}"), (1 / delta, f"smooth L1 error up to {delta:g}")):
            yield Known(told, lambda c, e=error, s=scale: s * e(c, c["value"]), slopes=True)
            for reach in numbers if "value_old" in inputs else ():

                def larger(c: Cells, e: Callable[..., Tensor] = error, r: float = reach, s: float = scale) -> Tensor:
                    held = c["value"].clamp(c["value_old"] - r, c["value_old"] + r)
                    return s * torch.maximum(e(c, c["value"]), e(c, held))

                yield Known(f"{told}, clipped at {reach:g}", larger, slopes=True)
