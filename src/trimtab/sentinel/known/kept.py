"""Which tokens and which sequences a correction keeps, by how far two policies are apart."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.known import bounds, token
from trimtab.sentinel.known.bounds import Band
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values

Level = tuple[str, Values]


def log_ratios(top: str, bottom: str) -> tuple[Level, ...]:
    """The log-ratio of trainer to sampler of each token, and of each sequence."""
    return (
        ("ratio", lambda c: c.gap(top, bottom)),
        ("ratio of the sequence", lambda c: c.rows(c.means(c.gap(top, bottom)))),
        ("product of the sequence", lambda c: c.rows((c.gap(top, bottom) * c.mask).sum(1))),
    )


def _furthest(c: Cells, values: Tensor) -> Tensor:
    """The largest number of each row among its trained tokens."""
    return c.rows(torch.where(c.mask > 0, values, -torch.inf).amax(1))


def _binary_kl(c: Cells, p: str, q: str) -> Tensor:
    """The KL of two coins: the token or any other one."""
    here, there = c[p].exp().clamp(1e-8, 1 - 1e-8), c[q].exp().clamp(1e-8, 1 - 1e-8)
    return here * (here / there).log() + (1 - here) * ((1 - here) / (1 - there)).log()


def _stray(top: str, bottom: str) -> tuple[Level, ...]:
    """How far a token is away, 0 where the policies agree."""

    def gap(c: Cells) -> Tensor:
        return c.gap(top, bottom)

    return (
        ("|log-ratio|", lambda c: gap(c).abs()),
        ("k1", lambda c: -gap(c)),
        ("k2", lambda c: gap(c) ** 2 / 2),
        ("k3", lambda c: gap(c).exp() - 1 - gap(c)),
        ("squared log-ratio", lambda c: gap(c) ** 2),
        ("|ratio - 1|", lambda c: (gap(c).exp() - 1).abs()),
        ("difference of probabilities", lambda c: (c[top].exp() - c[bottom].exp()).abs()),
        ("binary KL", lambda c: _binary_kl(c, bottom, top)),
        ("e^|log-ratio|", lambda c: gap(c).abs().exp()),
    )


def _in_bands(top: str, bottom: str, bands: Sequence[Band]) -> Iterator[Known]:
    def smallest(c: Cells) -> Tensor:
        return -_furthest(c, -c.gap(top, bottom))

    for told, of in log_ratios(top, bottom):
        for band in bands:
            yield Known(f"{told} in {bounds.shown(band)}", lambda c, f=of, b=band: _inside(f(c), b))
    for band in bands:

        def whole(c: Cells, b: Band = band) -> Tensor:
            return _inside(smallest(c), b) * _inside(_furthest(c, c.gap(top, bottom)), b)

        yield Known(f"every ratio of the sequence in {bounds.shown(band)}", whole)


def _inside(log_ratio: Tensor, band: Band) -> Tensor:
    ratio = log_ratio.exp()
    return ((ratio >= band[0]) & (ratio <= band[1])).double()


def _near(top: str, bottom: str, thresholds: Sequence[float]) -> Iterator[Known]:
    """Kept where a distance is at most a threshold: of each token, and the mean, sum and maximum of each sequence."""
    for told, of in _stray(top, bottom):
        levels: tuple[Level, ...] = (
            (told, of),
            (f"mean {told} of the sequence", lambda c, f=of: c.rows(c.means(f(c)))),
            (f"summed {told} of the sequence", lambda c, f=of: c.rows((f(c) * c.mask).sum(1))),
            (f"largest {told} of the sequence", lambda c, f=of: _furthest(c, f(c))),
        )
        for name, statistic in levels:
            for most in thresholds:
                yield Known(f"{name} at most {most:g}", lambda c, s=statistic, t=most: (s(c) <= t).double())
    for most in thresholds:
        yield Known(
            f"|mean log-ratio| of the sequence at most {most:g}",
            lambda c, t=most: c.rows((c.means(c.gap(top, bottom)).abs() <= t).double()),
        )


def _vetoes(top: str, bottom: str, thresholds: Sequence[float]) -> Iterator[Known]:
    """Sequences without an absurd token."""
    for least in (n for n in thresholds if n < 1):
        yield Known(
            f"sequences without a ratio below {least:g}",
            lambda c, t=least: (-_furthest(c, -c.gap(top, bottom)) >= torch.tensor(t).log()).double(),
        )
    for most in (n for n in thresholds if n > 1):
        yield Known(
            f"sequences without a ratio above {most:g}",
            lambda c, t=most: (_furthest(c, c.gap(top, bottom)).exp() <= t).double(),
        )


def second_moments(c: Cells, top: str, bottom: str, most: float) -> Tensor:
    """M2PO: without the tokens that differ most, until the second moment of the rest is below a threshold."""
    moments = torch.where(c.mask > 0, c.gap(top, bottom) ** 2, torch.inf)
    own = moments[c.mask > 0].sort().values
    means = own.cumsum(0) / torch.arange(1, len(own) + 1)
    kept = int((means < most).sum().clamp(min=1))
    return (moments <= own[kept - 1]).double()


def _by_row(c: Cells, top: str, bottom: str, most: float) -> Tensor:
    """The same, sequence by sequence."""
    found = torch.zeros_like(c.mask)
    for row in range(len(found)):
        own = (c.gap(top, bottom)[row] ** 2)[c.mask[row] > 0]
        if own.numel():
            means = own.sort().values.cumsum(0) / torch.arange(1, len(own) + 1)
            last = own.sort().values[int((means < most).sum().clamp(min=1)) - 1]
            found[row] = (c.gap(top, bottom)[row] ** 2 <= last).double()
    return found


def decisions(
    top: str, bottom: str, numbers: Sequence[float], named: Mapping[str, float], *, by_band: bool = False
) -> Iterator[Known]:
    """Every published decision about two policies; `by_band`: only whether a ratio lies in an interval."""
    bands = bounds.likely(numbers, named)
    inside = list(_in_bands(top, bottom, bands))
    yield from inside
    thresholds = bounds.thresholds(numbers, named)
    vetoes = list(_vetoes(top, bottom, thresholds))
    yield from vetoes
    if by_band:
        return
    yield from _near(top, bottom, thresholds)
    for most in thresholds:
        yield Known(f"second moment below {most:g}", lambda c, t=most: second_moments(c, top, bottom, t))
        yield Known(f"second moment of each sequence below {most:g}", lambda c, t=most: _by_row(c, top, bottom, t))
    for one in inside:
        for veto in vetoes:
            yield Known(f"{one.name}, {veto.name}", lambda c, a=one, b=veto: a.of(c) * b.of(c))


def keeps(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """1 where a token or a sequence is kept."""
    for sampler, trainer in token.ends(inputs - {"logp_ref"}):
        if inputs & {"advantage", "outcome"}:  # a decision that is blind to them is another one
            credit = "advantage" if "advantage" in inputs else "outcome"
            yield from by_sign(trainer, sampler, credit, numbers, named)
        else:
            yield from decisions(trainer, sampler, numbers, named)


def by_sign(
    top: str, bottom: str, credit: str, numbers: Sequence[float], named: Mapping[str, float]
) -> Iterator[Known]:
    """Kept unless a ratio has gone too far in the direction that its advantage pushes it."""

    def push(c: Cells) -> Tensor:
        return c[credit] if credit == "advantage" else c.rows(c.case.sequences[credit].double())

    def gated(c: Cells, above: Tensor, below: Tensor) -> Tensor:
        return 1 - torch.where(push(c) > 0, above, below).double()

    for told, of in log_ratios(top, bottom):
        for band in bounds.likely(numbers, named):
            yield Known(
                f"{told} not pushed out of {bounds.shown(band)}",
                lambda c, f=of, b=band: gated(c, f(c).exp() > b[1], f(c).exp() < b[0]),
            )
    for low, high in bounds.sides(numbers, named):

        def by_difference(c: Cells, a: float = low, b: float = high) -> Tensor:
            apart = c[top].exp() - c[bottom].exp()
            return gated(c, apart > b, apart < -a)

        def by_kl(c: Cells, a: float = low, b: float = high) -> Tensor:
            far, up = _binary_kl(c, bottom, top), c.gap(top, bottom) > 0
            return gated(c, (far > b) & up, (far > a) & ~up)

        yield Known(f"probability not pushed {high:g} up or {low:g} down", by_difference)
        yield Known(f"binary KL not pushed to {high:g} up or {low:g} down", by_kl)


def of_entropy(numbers: Sequence[float]) -> Iterator[Known]:
    """Tokens with an entropy above a quantile, of all trained tokens or of those of their sequence."""

    def own(c: Cells, row: int) -> Tensor:
        return c["entropy"][row][c.mask[row] > 0]

    def by_row(c: Cells, q: float) -> Tensor:
        found = torch.zeros_like(c.mask)
        for row in range(len(found)):
            if own(c, row).numel():
                found[row] = (c["entropy"][row] >= torch.quantile(own(c, row), q)).double()
        return found

    def by_count(c: Cells, share: float, *, up: bool) -> Tensor:
        pool = c["entropy"][c.mask > 0].sort(descending=True).values
        size = share * len(pool)
        count = max(1, int(-(-size // 1)) if up else int(size))
        return (c["entropy"] >= pool[count - 1]).double()

    for share in (n for n in numbers if 0 < n < 1):
        for told, q in ((f"the top {1 - share:g}", share), (f"the top {share:g}", 1 - share)):
            yield Known(
                f"tokens with {told} of entropy",
                lambda c, q=q: (c["entropy"] >= torch.quantile(c["entropy"][c.mask > 0], q)).double(),
            )
            yield Known(f"tokens with {told} of entropy in their sequence", lambda c, q=q: by_row(c, q))
            for up in (True, False):
                yield Known(f"{told} of tokens by entropy", lambda c, q=q, up=up: by_count(c, 1 - q, up=up))
        yield Known(f"tokens with an entropy above {share:g}", lambda c, t=share: (c["entropy"] >= t).double())
