"""Policy losses per token, and the fraction of tokens at which a clip binds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import exp

import torch
from torch import Tensor

from trimtab.sentinel.known.bounds import Band, likely, shown
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known


def bands(numbers: Sequence[float]) -> Iterator[Band]:
    """Intervals around 1 that the settings can mean: offsets below and above, or the bounds themselves."""
    offsets = [n for n in numbers if 0 < n < 1]
    tops = [n for n in numbers if 1 < n < 20]
    seen: set[Band] = set()
    for low, high in product(offsets, [*offsets, *[t - 1 for t in tops]]):
        for band in ((1 - low, 1 + high), (low, 1 + high)):
            if band[0] < 1 and band not in seen:
                seen.add(band)
                yield band


def log_bands(numbers: Sequence[float]) -> Iterator[Band]:
    """Intervals of a ratio whose logarithm is clipped, as in GMPO."""
    offsets = [n for n in numbers if 0 < n < 1]
    for low, high in product(offsets, offsets):
        yield exp(-low), exp(high)


def credit_of(c: Cells, name: str) -> Tensor:
    """The advantage of each token, or that of its row."""
    return c.rows(c.outcome) if name == "outcome" else c[name]


def policy_losses(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """The loss of each token, to minimise."""
    credit = "advantage" if "advantage" in inputs else "outcome"
    yield Known("REINFORCE", lambda c: -credit_of(c, credit) * c["logp_current"], slopes=True)
    up = "the sign is lost: it minimises what it should maximise"
    yield Known("REINFORCE, sign lost", lambda c: credit_of(c, credit) * c["logp_current"], up)
    for behind in (n for n in ("logp_old", "logp_rollout") if n in inputs):
        yield from (*_from(credit, behind, numbers), *_weighted(credit, behind, numbers))
    if {"logp_old", "logp_rollout"} <= inputs:
        # There are hundreds of weights for each loss: only intervals that the settings are called for.
        near = [shown(band) for band in likely(numbers, named)]
        for one in (*_from(credit, "logp_old", numbers), *_weighted(credit, "logp_old", numbers)):
            if not one.mistake and ("[" not in one.name or any(band in one.name for band in near)):
                yield from _decoupled(one, numbers)


def _weighted(credit: str, behind: str, numbers: Sequence[float]) -> Iterator[Known]:
    """REINFORCE under a ratio that is held fixed, whole or bounded."""

    def of_sequence(c: Cells) -> Tensor:
        return c.rows(((c["logp_current"] - c[behind]) * c.mask).sum(1) / c.count).exp()

    def over_everything(c: Cells) -> Tensor:
        gap = (c["logp_current"] - c[behind]) * c.response
        return c.rows(gap.sum(1) / c.response.sum(1).clamp(min=1)).exp()

    levels = (
        ("ratio", lambda c: (c["logp_current"] - c[behind]).exp(), ""),
        ("ratio of the sequence", of_sequence, ""),
        ("ratio over the whole length", over_everything, "tokens that do not train enter the ratio of the sequence"),
    )  # fmt: skip
    for told, ratio, mistake in levels:
        held: list[tuple[str, Band]] = [("", (0.0, float("inf")))]
        held += [(f" up to {cap:g}", (0.0, cap)) for cap in numbers if cap > 1]
        held += [(f" in [{band[0]:g}, {band[1]:g}]", band) for band in bands(numbers)]
        for bounded, band in held:
            yield Known(
                f"REINFORCE weighted by its {told} to {behind}{bounded}",
                lambda c, r=ratio, b=band: -r(c).clamp(*b).detach() * credit_of(c, credit) * c["logp_current"], mistake,
                slopes=told == "ratio",
            )  # fmt: skip


def _decoupled(one: Known, numbers: Sequence[float]) -> Iterator[Known]:
    """A loss of the update, weighted by how far the old policy is from the one that sampled."""
    wrong = "the weight towards the sampler is that of the current policy, not of the old one"
    turned = "the weight is turned around: sampler over old policy"
    ends = (("logp_old", "logp_rollout", ""), ("logp_current", "logp_rollout", wrong),
            ("logp_rollout", "logp_old", turned))  # fmt: skip
    for end, start, mistake in ends if one.name.startswith("clipped") and "dual" not in one.name else ends[:1]:

        def ratio(c: Cells, end: str = end, start: str = start) -> Tensor:
            return (c[end] - c[start]).exp()

        told = f"{one.name}, times {end} / {start}"
        yield Known(told, lambda c, o=one, r=ratio: r(c) * o.of(c), mistake, slopes=one.slopes)
        for cap in (n for n in numbers if n > 1):
            logs = "the cap is compared with the logarithm of the weight"
            yield Known(
                f"{told} where its logarithm is below {cap:g}",
                lambda c, o=one, r=ratio, k=cap: torch.where(r(c).log() <= k, r(c), 0.0) * o.of(c), mistake or logs,
            )  # fmt: skip
            yield Known(f"{told} up to {cap:g}", lambda c, o=one, r=ratio, k=cap: r(c).clamp(max=k) * o.of(c), mistake,
                        slopes=one.slopes)  # fmt: skip
            for low in (n for n in numbers if 0 < n < 1):
                yield Known(
                    f"{told} in [{low:g}, {cap:g}]",
                    lambda c, o=one, r=ratio, a=low, k=cap: r(c).clamp(a, k) * o.of(c), mistake,
                )  # fmt: skip
            yield Known(
                f"{told} where it is below {cap:g}",
                lambda c, o=one, r=ratio, k=cap: torch.where(r(c) <= k, r(c), 0.0) * o.of(c), mistake,
            )  # fmt: skip


def _from(credit: str, behind: str, numbers: Sequence[float]) -> Iterator[Known]:
    def ratio(c: Cells) -> Tensor:
        return (c["logp_current"] - c[behind]).exp()

    def of_sequence(c: Cells) -> Tensor:
        return c.rows(((c["logp_current"] - c[behind]) * c.mask).sum(1) / c.count).exp()

    def product_of(c: Cells) -> Tensor:
        return c.rows(((c["logp_current"] - c[behind]) * c.mask).sum(1)).exp()

    up = "the sign is lost: it minimises what it should maximise"
    for level, r in (("", ratio), (", ratio of the sequence", of_sequence), (", product of the sequence", product_of)):
        told = f"ratio to {behind}{level}"
        # With one ratio per sequence, there are two: GSPO and its variant by token.
        yield Known(f"unclipped, {told}", lambda c, r=r: -credit_of(c, credit) * r(c), slopes=not level)
        yield Known(f"unclipped, {told}, sign lost", lambda c, r=r: credit_of(c, credit) * r(c), up)
        for band in bands(numbers):
            interval = f"[{band[0]:g}, {band[1]:g}]"

            def both(c: Cells, r: object = r, band: Band = band) -> tuple[Tensor, Tensor]:
                found: Tensor = r(c)  # type: ignore[operator]
                a = credit_of(c, credit)
                return -a * found, -a * found.clamp(*band)

            yield Known(f"clipped to {interval}, {told}", lambda c, b=both: torch.maximum(*b(c)), slopes=not level)
            small = "the smaller of the two losses is taken, so the clip removes the wrong side"
            yield Known(
                f"clipped to {interval}, {told}, the smaller one", lambda c, b=both: torch.minimum(*b(c)), small
            )
            alone = "the clipped loss is used alone, so a token that moved the wrong way gets no gradient"
            yield Known(f"always clipped to {interval}, {told}", lambda c, b=both: b(c)[1], alone, is_part=True)
            for cap in (n for n in numbers if n > 1):
                yield Known(
                    f"clipped to {interval} with dual clip {cap:g}, {told}",
                    lambda c, b=both, k=cap: _dual(c, credit, b(c), k), slopes=not level,
                )  # fmt: skip
                lower = "the dual clip lets a negative advantage push further instead of bounding it"
                yield Known(
                    f"clipped to {interval} with dual clip {cap:g}, {told}, the other way",
                    lambda c, b=both, k=cap: _dual(c, credit, b(c), k, torch.maximum), lower,
                )  # fmt: skip
                yield Known(
                    f"clipped to {interval} with dual clip {cap:g}, {told}, for every sign",
                    lambda c, b=both, k=cap: torch.minimum(torch.maximum(*b(c)), -credit_of(c, credit) * k),
                    "the dual clip bounds positive advantages too",
                )


def _dual(
    c: Cells,
    credit: str,
    both: tuple[Tensor, Tensor],
    cap: float,
    chosen: Callable[[Tensor, Tensor], Tensor] = torch.minimum,
) -> Tensor:
    loss, a = torch.maximum(*both), credit_of(c, credit)
    return torch.where(a < 0, chosen(loss, -a * cap), loss)


def dual_flags(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """1 where the second bound of a dual clip binds."""
    credit = "advantage" if "advantage" in inputs else "outcome" if "outcome" in inputs else ""
    for behind in (n for n in ("logp_old", "logp_rollout") if n in inputs and credit):
        for cap in (n for n in numbers if n > 1):

            def binds(c: Cells, behind: str = behind, cap: float = cap) -> Tensor:
                return ((c.gap("logp_current", behind).exp() > cap) & (credit_of(c, credit) < 0)).double()

            yield Known(f"dual clip {cap:g} binds, ratio to {behind}", binds)


def clip_flags(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """1 where a clip binds."""
    credit = "advantage" if "advantage" in inputs else "outcome" if "outcome" in inputs else None
    for behind in (n for n in ("logp_old", "logp_rollout") if n in inputs):

        def ratio(c: Cells, behind: str = behind) -> Tensor:
            return (c["logp_current"] - c[behind]).exp()

        for band in (*bands(numbers), *log_bands(numbers)):
            interval = f"[{band[0]:.4g}, {band[1]:.4g}]"

            def outside(c: Cells, r: object = ratio, band: Band = band) -> tuple[Tensor, Tensor]:
                found: Tensor = r(c)  # type: ignore[operator]
                return (found < band[0]).double(), (found > band[1]).double()

            yield Known(f"outside {interval}", lambda c, o=outside: sum(o(c)))  # type: ignore[arg-type]
            yield Known(f"below {interval}", lambda c, o=outside: o(c)[0])
            yield Known(f"above {interval}", lambda c, o=outside: o(c)[1])
            inside = "it counts the tokens inside the band"
            yield Known(f"inside {interval}", lambda c, o=outside: 1 - o(c)[0] - o(c)[1], inside)
            if credit is None:
                continue

            def binds(c: Cells, o: object = outside, name: str = credit) -> Tensor:
                low, high = o(c)  # type: ignore[operator]
                a = credit_of(c, name)
                return torch.where(a > 0, high, torch.where(a < 0, low, torch.zeros_like(low)))

            yield Known(f"clip to {interval} binds", binds)
            yield Known(
                f"clip to {interval} binds below",
                lambda c, o=outside, name=credit: torch.where(credit_of(c, name) < 0, o(c)[0], 0.0),
            )
            yield Known(
                f"clip to {interval} binds above",
                lambda c, o=outside, name=credit: torch.where(credit_of(c, name) > 0, o(c)[1], 0.0),
            )
            both = "it counts both sides of the band, and for advantages of one sign only one of them binds"
            dual = any(abs(band[1] - number) < 1e-9 for number in numbers)  # for negative ones a dual clip binds above
            for sign, told in ((1, "positive"), *(() if dual else ((-1, "negative"),))):
                yield Known(
                    f"outside {interval} for {told} advantages",
                    lambda c, o=outside, name=credit, s=sign: torch.where(s * credit_of(c, name) > 0, sum(o(c)), 0.0),
                    both,
                )
            if not any(abs(band[1] - number) < 1e-9 for number in numbers):  # the second bound of a dual clip is one
                signs = "it counts tokens whose advantage has the other sign, for which this side never binds"
                yield Known(
                    f"above {interval} for negative advantages",
                    lambda c, o=outside, name=credit: torch.where(credit_of(c, name) < 0, o(c)[1], 0.0), signs,
                )  # fmt: skip
                yield Known(
                    f"below {interval} for positive advantages",
                    lambda c, o=outside, name=credit: torch.where(credit_of(c, name) > 0, o(c)[0], 0.0), signs,
                )  # fmt: skip
            if any(abs(band[1] - number) < 1e-9 for number in numbers):
                yield Known(
                    f"dual clip at {band[1]:g} binds",
                    lambda c, o=outside, name=credit: torch.where(credit_of(c, name) < 0, o(c)[1], 0.0),
                )
            free = "it counts the tokens at which the clip does not bind"
            yield Known(f"clip to {interval} does not bind", lambda c, b=binds: 1 - b(c), free)

            def other(c: Cells, o: object = outside, name: str = credit) -> Tensor:
                low, high = o(c)  # type: ignore[operator]
                a = credit_of(c, name)
                return torch.where(a > 0, low, torch.where(a < 0, high, torch.zeros_like(low)))

            if not any(
                abs(band[0] - number) < 1e-9 for number in numbers
            ):  # one number that bounds from below is a guess
                signs = "the two signs of the advantage are exchanged"
                yield Known(f"clip to {interval}, sides exchanged", other, signs)
