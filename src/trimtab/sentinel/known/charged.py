"""Rewards and advantages that are charged for a distance between two policies, and what is made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.known import credit, token
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values


def distances(inputs: frozenset[str]) -> Iterator[tuple[str, Values]]:
    """What can be charged for: a KL that is given, or an estimate of one, to the reference where there is one."""
    if "kl" in inputs:
        yield "kl", lambda c: c["kl"]
        return
    pairs = list(token.ends(inputs))
    for p, q in [pair for pair in pairs if "logp_ref" in pair] or pairs:
        told = f"KL({p} to {q})"
        yield f"k1 of {told}", lambda c, p=p, q=q: c.gap(p, q)
        yield f"k3 of {told}", lambda c, p=p, q=q: torch.exp(c.gap(q, p)) - 1 - c.gap(q, p)
        yield f"k2 of {told}", lambda c, p=p, q=q: c.gap(p, q) ** 2 / 2
        yield f"|k1| of {told}", lambda c, p=p, q=q: c.gap(p, q).abs()


def _charges(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[tuple[str, Values]]:
    """What is taken off each token: a coefficient times a distance."""
    coefs = [n for n in dict.fromkeys(numbers) if 0 < n <= 1] or [1.0]
    for told, of in distances(inputs):
        for coef in coefs:
            yield f"{coef:g} × {told}", lambda c, of=of, k=coef: k * of(c)


def _scored(named: Mapping[str, float]) -> Iterator[tuple[str, Values]]:
    """The reward of an answer; with a bias, a factor and a bound where settings are called so."""
    bias, factor, bound = (
        next((v for n, v in named.items() if v and set(words_of(n)) & words), None)
        for words in ({"bias", "shift"}, {"scaling", "scale"}, {"clip", "bound"})
    )
    yield "reward", lambda c: c.reward
    if bias is not None or factor is not None:

        def moved(c: Cells) -> Tensor:
            return (c.reward + (bias or 0.0)) * (factor or 1.0)

        yield f"(reward + {bias or 0:g}) × {factor or 1:g}", moved
        if bound is not None:
            yield f"(reward + {bias or 0:g}) × {factor or 1:g}, clipped", lambda c: moved(c).clamp(-bound, bound)
    if bound is not None:
        yield f"reward clipped at {bound:g}", lambda c: c.reward.clamp(-bound, bound)


def _paid(inputs: frozenset[str], named: Mapping[str, float]) -> Iterator[tuple[str, Values]]:
    """What each token is paid without the charge."""
    if "token_reward" in inputs:
        yield "reward of each token", lambda c: c["token_reward"]
        if "reward" in inputs:
            yield "reward of each token and of the answer", lambda c: c["token_reward"] + c.last * c.rows(c.reward)
    elif "reward" in inputs:
        for told, of in _scored(named):
            yield f"{told} on the last token", lambda c, of=of: c.last * c.rows(of(c))
    else:
        yield "nothing", lambda c: torch.zeros_like(c.mask)


def rewards(
    inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float], *, everywhere: bool
) -> Iterator[Known]:
    """Rewards of tokens minus a charge, and returns and advantages of them.

    `everywhere`: the reward may stand at every token, as an advantage does.
    """
    charges = list(_charges(inputs, numbers))
    for told, of in charges:
        yield Known(f"minus {told}", lambda c, of=of: -of(c))
    for base, paid in _paid(inputs, named):
        for told, of in charges:

            def left(c: Cells, paid: Values = paid, of: Values = of) -> Tensor:
                return paid(c) - of(c) * c.mask

            name = f"{base} minus {told}" if base != "nothing" else f"minus {told}"
            yield Known(name, left)
            yield from _onwards(inputs, numbers, named, name, left)
    if everywhere and "reward" in inputs:
        yield from _at_every_token(charges)


def _at_every_token(charges: Sequence[tuple[str, Values]]) -> Iterator[Known]:
    """The reward of a row, or its distance to its group, at every token, minus a charge (REINFORCE++ with baseline)."""
    for centre in ("no centre", "group mean", "mean of the others"):
        name = "reward" if centre == "no centre" else f"reward - {centre}"
        for told, of in charges:

            def left(c: Cells, centre: str = centre, of: Values = of) -> Tensor:
                return c.rows(c.reward - credit.CENTRES[centre](c)) - of(c)

            yield Known(f"{name} minus {told}", left)
            yield from whitened(f"{name} minus {told}", left)


def _onwards(
    inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float], name: str, paid: Values
) -> Iterator[Known]:
    """Returns and generalised advantages of what tokens are paid."""
    free = [n for n in dict.fromkeys((*numbers, 1.0)) if 0.5 <= n <= 1]
    gammas, lams = ([held] if held is not None else free for held in credit.called(named))
    value = next((v for v in ("value_old", "value") if v in inputs), "")

    def once(c: Cells) -> Cells:
        return c.with_paid(paid(c))

    for gamma in gammas:
        if not value:
            told = f"return with discount {gamma:g} of {name}"
            yield Known(told, lambda c, g=gamma: credit.to_go(once(c), g))
            yield from whitened(told, lambda c, g=gamma: credit.to_go(once(c), g))
        for lam in lams if value else ():

            def ahead(c: Cells, g: float = gamma, lam: float = lam) -> Tensor:
                return credit.gae(once(c), value, g, lam, "")

            told = f"GAE({gamma:g}, {lam:g}) of {name}"
            yield Known(told, ahead)
            yield Known(f"{told} + value", lambda c, of=ahead: of(c) + c[value])
            yield from whitened(told, ahead)


def whitened(told: str, of: Values) -> Iterator[Known]:
    """The same numbers over the trained tokens of the batch to mean 0 and spread 1."""
    for ddof in (1, 0):

        def whole(c: Cells, d: int = ddof) -> Tensor:
            own = of(c)[c.mask > 0]
            return (of(c) - own.mean()) / own.std(correction=d)

        yield Known(f"{told}, whitened" + (", n - 1" if ddof else ""), whole)


def advantages(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Advantages minus a charge: on-policy distillation, and a KL in the advantage."""
    own: Callable[[Cells], Tensor] = lambda c: c["advantage"] if "advantage" in inputs else c.rows(c.outcome)  # noqa: E731
    for told, of in _charges(inputs, numbers):

        def left(c: Cells, of: Values = of) -> Tensor:
            return own(c) - of(c)

        yield Known(f"advantage minus {told}", left)
        yield from whitened(f"advantage minus {told}", left)
    for told, of in distances(inputs):
        yield Known(f"advantage minus {told}", lambda c, of=of: own(c) - of(c))


def of_sequences(inputs: frozenset[str], numbers: Sequence[float]) -> Iterator[Known]:
    """Rewards of answers minus the KL of the answer, as they are and compared inside their group (RLOO)."""
    kinds = [one for one in credit.normalised() if not one.mistake and not one.name.startswith("mean")]
    for told, of in _charges(inputs, numbers):
        for level, summed in (("sum", lambda x, c: (x * c.mask).sum(1)), ("mean", lambda x, c: c.means(x))):

            def left(c: Cells, of: Values = of, summed: object = summed) -> Tensor:
                return c.reward - summed(of(c), c)  # type: ignore[operator]

            for kind in (one for one in kinds if one.name.startswith("reward")):
                name = kind.name.replace("reward", f"reward minus the {level} of {told}", 1)
                yield Known(name, lambda c, k=kind, f=left: k.of(c.with_reward(f(c))))
