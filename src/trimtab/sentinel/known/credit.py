"""Credit: rewards compared inside a group, carried back along a sequence, and whitened over the batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known

MIXED = "rewards of other prompts set the centre, although the spread is that of the group"


def normalised() -> Iterator[Known]:
    """One number per row: rewards minus a centre, over a spread. Stabilisers are too small to matter here."""
    for centre, subtract in CENTRES.items():
        for spread, divide in SPREADS.items():
            wrong = MIXED if centre == "batch mean" and spread.startswith("group") else WRONG.get(centre, "")
            wrong = wrong or WRONG_SPREADS.get(spread, "")
            name = f"reward - {centre}" if centre != "no centre" else "reward"
            name += "" if spread == "no spread" else f", over the {spread}"
            yield Known(name, lambda c, s=subtract, d=divide: (c.reward - s(c)) / d(c), wrong)
    for centre, of in CENTRES.items():
        if centre != "no centre":
            yield Known(centre, of, WRONG.get(centre, ""))
    for spread, divide in SPREADS.items():
        if spread != "no spread":
            only = "only the mean is divided by the spread: r - mean / spread"
            yield Known(
                f"reward - mean / {spread}", lambda c, d=divide: c.reward - CENTRES["group mean"](c) / d(c), only
            )


def _by_group(one: Callable[[Tensor], Tensor]) -> Callable[[Cells], Tensor]:
    def of(c: Cells) -> Tensor:
        out = torch.zeros_like(c.reward)
        for rows in c.groups:
            out[rows] = one(c.reward[rows])
        return out

    return of


def _by_length(c: Cells, whole: float) -> Tensor:
    """The mean of each group, weighted by length; over n once more where it is not whole."""
    lengths = torch.tensor(c.case.response_lengths, dtype=torch.float64)
    out = torch.zeros_like(c.reward)
    for rows in c.groups:
        own = (c.reward[rows] * lengths[rows]).sum() / lengths[rows].sum().clamp(min=1)
        out[rows] = own if whole else own / len(rows)
    return out


CENTRES: dict[str, Callable[[Cells], Tensor]] = {
    "no centre": lambda c: torch.zeros_like(c.reward),
    "group mean": _by_group(lambda r: r.mean().expand_as(r)),
    "batch mean": lambda c: c.reward.mean().expand_as(c.reward),
    "mean of the others": _by_group(lambda r: (r.sum() - r) / max(len(r) - 1, 1)),
    "sum of the others over n": _by_group(lambda r: (r.sum() - r) / len(r)),
    "mean of all others": lambda c: (c.reward.sum() - c.reward) / max(len(c.reward) - 1, 1),
    "mean by length": lambda c: _by_length(c, 1.0),
    "mean by length over n": lambda c: _by_length(c, 0.0),
    "group mean times n / (n - 1)": _by_group(lambda r: (r.sum() / max(len(r) - 1, 1)).expand_as(r)),
}
WRONG = {
    "sum of the others over n": "the sum of the others is divided by n, and there are n - 1 of them",
    "group mean times n / (n - 1)": "the factor n / (n - 1) is on the mean and not on the reward",
    "mean of all others": "the others are all other answers of the batch, whatever their prompt",
    "mean by length over n": "the weights sum to one already, and their sum is divided by n again",
}


def _tiled(c: Cells, ddof: int = 0) -> Tensor:
    """The spreads of the groups in turn, as `repeat` gives them instead of `repeat_interleave`."""
    spreads = torch.stack([c.reward[rows].std(correction=ddof) for rows in c.groups])
    return spreads[torch.arange(len(c.reward)) % len(spreads)]


WRONG_SPREADS = {
    "root mean square of the group": "the spread is a root mean square: the mean is not taken off",
    "spreads of the groups in turn": "each answer is divided by the spread of another prompt",
    "spreads of the groups in turn, n - 1": "each answer is divided by the spread of another prompt",
    "group variance": "it is divided by the variance and not by its root",
}
SPREADS: dict[str, Callable[[Cells], Tensor]] = {
    "no spread": lambda c: torch.ones_like(c.reward),
    "group spread": _by_group(lambda r: r.std(correction=0).expand_as(r)),
    "group spread, n - 1": _by_group(lambda r: r.std(correction=1).expand_as(r)),
    "batch spread": lambda c: c.reward.std(correction=0).expand_as(c.reward),
    "batch spread, n - 1": lambda c: c.reward.std(correction=1).expand_as(c.reward),
    "root mean square of the group": _by_group(lambda r: r.square().mean().sqrt().expand_as(r)),
    "spreads of the groups in turn": _tiled,
    "spreads of the groups in turn, n - 1": lambda c: _tiled(c, 1),
    "group variance": _by_group(lambda r: r.var(correction=0).expand_as(r)),
}


def carried_back(
    inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float] | None = None
) -> Iterator[Known]:
    """Returns and generalised advantages over the trained tokens of each sequence, and the usual slips.

    Where settings are called gamma and lambda, their numbers are taken for these.
    """
    free = [n for n in dict.fromkeys((*numbers, 1.0)) if 0 < n <= 1]
    gammas, lams = ([held] if held is not None else free for held in called(named or {}))
    value = next((v for v in ("value_old", "value") if v in inputs), "")
    if value and len(gammas) == len(lams) == 1 and gammas != lams:
        exchanged = "gamma stands for lambda, and lambda for gamma"
        yield Known(
            f"GAE({gammas[0]:g}, {lams[0]:g}), exchanged", lambda c: gae(c, value, lams[0], gammas[0], ""), exchanged
        )
    yield Known("reward of each token", _rewards)
    first_one = "the reward is on the first token and not on the last one"
    yield Known("reward on the first token", lambda c: _on_first(c), first_one)
    for gamma in gammas:
        yield Known(f"return with discount {gamma:g}", lambda c, g=gamma: to_go(c, g))
        late = "a reward is discounted at its own token already"
        yield Known(f"return with discount {gamma:g}, one step late", lambda c, g=gamma: g * to_go(c, g), late)
        turned = "the list was built from the end and is not turned around"
        for within in ("response", "mask"):
            yield Known(
                f"return with discount {gamma:g}, backwards",
                lambda c, g=gamma, w=within: _backwards(getattr(c, w), to_go(c, g)), turned,
            )  # fmt: skip
        first = "rewards are summed from the first token on instead of to the last"
        yield Known(f"return with discount {gamma:g} from the start", lambda c, g=gamma: _from_start(c, g), first)
        one = "only the next reward is added, not what comes after it"
        yield Known(f"one step of a return with discount {gamma:g}", lambda c, g=gamma: _one_step(c, g), one)
        yield from _whitened_returns(f"return with discount {gamma:g}", lambda c, g=gamma: to_go(c, g))
        reset = "a token that does not train stops the return"
        yield Known(f"return with discount {gamma:g}, stopped", lambda c, g=gamma: to_go(c, g, stops=True), reset)
        for lam in lams if value else ():
            for slip, mistake in SLIPS.items():

                def found(c: Cells, g: float = gamma, lam: float = lam, slip: str = slip) -> Tensor:
                    return gae(c, value, g, lam, slip)

                told = f"GAE({gamma:g}, {lam:g})" + (f", {slip}" if slip else "")
                yield Known(told, found, mistake)
                if not slip:
                    yield from _whitened_returns(told, found, value)
                yield Known(f"{told} + value", lambda c, f=found: f(c) + c[value], mistake)


def shortened(numbers: Sequence[float]) -> Iterator[Known]:
    """A penalty that grows over the last tokens before a limit (DAPO's soft overlong punishment)."""
    for limit, buffer in ((a, b) for a in numbers for b in numbers if a > b >= 1):
        for factor in dict.fromkeys((1.0, *numbers)):
            told = f"penalty of {factor:g} over the last {buffer:g} of {limit:g} tokens"

            def over(c: Cells, a: float = limit, b: float = buffer) -> Tensor:
                return torch.tensor(c.case.response_lengths, dtype=torch.float64) - (a - b)

            for base, of in (("reward minus a ", lambda c: c.reward), ("", lambda c: torch.zeros_like(c.reward))):

                def paid(c: Cells, share: Callable[[Cells], Tensor], of: object = of, f: float = factor) -> Tensor:
                    return of(c) - share(c) * f  # type: ignore[operator]

                def soft(c: Cells, o: object = over, b: float = buffer) -> Tensor:
                    return (o(c) / b).clamp(0, 1)  # type: ignore[operator]

                def whole(c: Cells, o: object = over, b: float = buffer) -> Tensor:
                    return torch.floor(o(c) / b).clamp(0, 1)  # type: ignore[operator]

                def uncapped(c: Cells, o: object = over, b: float = buffer) -> Tensor:
                    return (o(c) / b).clamp(min=0)  # type: ignore[operator]

                def free(c: Cells, o: object = over, b: float = buffer) -> Tensor:
                    return (o(c) / b).clamp(max=1)  # type: ignore[operator]

                def free_to_one(c: Cells, o: object = over, b: float = buffer) -> Tensor:
                    return (o(c) / b).clamp(min=-1)  # type: ignore[operator]

                def unbounded(c: Cells, o: object = over, b: float = buffer) -> Tensor:
                    return o(c) / b  # type: ignore[operator]

                yield Known(f"{base}{told}", lambda c, p=paid, s=soft: p(c, s))
                yield Known(
                    f"{base}{told}, whole steps", lambda c, p=paid, s=whole: p(c, s),
                    "whole division: the penalty is nothing or everything",
                )  # fmt: skip
                yield Known(f"{base}{told}, without a largest one", lambda c, p=paid, s=uncapped: p(c, s))
                for share in (free, free_to_one, unbounded):
                    yield Known(
                        f"{base}{told}, also below it", lambda c, p=paid, s=share: p(c, s),
                        "answers that are short enough are paid for it",
                    )  # fmt: skip
                yield Known(
                    f"{base}{told}, added", lambda c, p=paid, s=soft: p(c, lambda c, s=s: -s(c)),
                    "the penalty is added instead of taken off",
                )  # fmt: skip


def called(named: Mapping[str, float]) -> tuple[float | None, float | None]:
    """The numbers of the settings called gamma and lambda."""
    return tuple(
        next((v for n, v in named.items() if set(words_of(n)) & words), None)
        for words in ({"gamma", "discount", "gammas"}, {"lam", "lambd", "lambda", "lmbda"})
    )  # pyright: ignore[reportReturnType]


def _whitened_returns(told: str, of: Callable[[Cells], Tensor], value: str = "") -> Iterator[Known]:
    """The same numbers over the batch to mean 0 and spread 1; with values added to that, the critic learns nonsense."""
    for ddof in (0, 1):

        def whole(c: Cells, d: int = ddof) -> Tensor:
            x = of(c)
            own = x[c.mask > 0]
            return (x - own.mean()) / own.std(correction=d)

        yield Known(f"{told}, whitened" + (", n - 1" if ddof else ""), whole)
        if value:
            wrong = "returns are made from the whitened advantages"
            yield Known(f"{told}, whitened, + value", lambda c, w=whole: w(c) + c[value], wrong)


def _on_first(c: Cells) -> Tensor:
    """The reward of each row on its first trained token."""
    first = (c.mask.cumsum(1) == 1) & (c.mask > 0)
    return torch.where(first, c.rows(c.reward), 0.0)


def _from_start(c: Cells, gamma: float) -> Tensor:
    out, running = torch.zeros_like(c.mask), torch.zeros(c.mask.shape[0], dtype=torch.float64)
    for t in range(c.mask.shape[1]):
        running = torch.where(c.mask[:, t] > 0, _rewards(c)[:, t] + gamma * running, running)
        out[:, t] = running
    return out


def _one_step(c: Cells, gamma: float) -> Tensor:
    out, after = torch.zeros_like(c.mask), torch.zeros(c.mask.shape[0], dtype=torch.float64)
    for t in reversed(range(c.mask.shape[1])):
        own = _rewards(c)[:, t]
        out[:, t] = own + gamma * after
        after = torch.where(c.mask[:, t] > 0, own, after)
    return out


def _backwards(flags: Tensor, values: Tensor) -> Tensor:
    """The flagged tokens of each row in the opposite order."""
    out = values.clone()
    for row in range(len(out)):
        own = flags[row] > 0
        out[row, own] = values[row, own].flip(0)
    return out


SLIPS = {
    "": "",
    "present value as the next one": "the value of the present step stands for that of the next one",
    "next value subtracted": "the next value is subtracted instead of the present one",
    "next value discounted twice": "the next value is discounted by gamma and lambda",
    "no next value": "the value of the next step is left out, although values are subtracted",
    "stopped at tool output": "a token that does not train stops the running advantage",
    "values of tool output": "values of tokens that do not train are used as next values",
    "own value after the end": "the last step takes its own value for that of the next one, although nothing follows",
    "padding after the end": "the value after the last token is read from beyond the answer",
}


def _rewards(c: Cells) -> Tensor:
    return c["token_reward"]


def to_go(c: Cells, gamma: float, *, stops: bool = False) -> Tensor:
    out, running = torch.zeros_like(c.mask), torch.zeros(c.mask.shape[0], dtype=torch.float64)
    for t in reversed(range(c.mask.shape[1])):
        trains = c.mask[:, t] > 0
        running = torch.where(trains, _rewards(c)[:, t] + gamma * running, running * 0 if stops else running)
        out[:, t] = running
    return out


def gae(c: Cells, value: str, gamma: float, lam: float, slip: str) -> Tensor:
    rows, width = c.mask.shape
    values, out = c[value], torch.zeros_like(c.mask)
    after = torch.zeros(rows, dtype=torch.float64)
    running = torch.zeros(rows, dtype=torch.float64)
    for t in reversed(range(width)):
        trains, own = c.mask[:, t] > 0, values[:, t]
        is_last = c.mask[:, t + 1 :].sum(1) == 0
        following = torch.where(is_last, 0.0, own) if slip == "present value as the next one" else after
        following = torch.where(is_last, own, after) if slip == "own value after the end" else following
        subtracted = after if slip == "next value subtracted" else own
        bootstrap = 0.0 if slip == "no next value" else gamma * following
        bootstrap = bootstrap * lam if slip == "next value discounted twice" else bootstrap
        step = _rewards(c)[:, t] + bootstrap - subtracted + gamma * lam * running
        held = running * 0 if slip == "stopped at tool output" else running
        running = torch.where(trains, step, held)
        seen = (c.response[:, t] > 0) if slip == "values of tool output" else trains
        after = torch.where(seen if slip != "padding after the end" else torch.ones_like(trains), own, after)
        out[:, t] = running
    return out


def whitened(name: str) -> Iterator[Known]:
    """Numbers over the batch to mean 0 and spread 1."""
    for ddof in (0, 1):
        for shift in (True, False):
            told = f"{name} whitened" + ("" if shift else ", mean kept") + (", n - 1" if ddof else "")
            yield Known(told, lambda c, d=ddof, s=shift: _whitened(c, name, c.mask, c.mask, d, s))
        every = "cells that do not train enter the mean or the spread"
        cells = lambda c: torch.ones_like(c.mask)  # noqa: E731
        kinds: tuple[tuple[Callable[[Cells], Tensor], Callable[[Cells], Tensor]], ...] = (
            (cells, cells), (lambda c: c.mask, cells), (cells, lambda c: c.mask),
            (lambda c: c.response, lambda c: c.response), (lambda c: c.mask, lambda c: c.response),
            (lambda c: c.response, lambda c: c.mask),
        )  # fmt: skip
        for i, (first, second) in enumerate(kinds):
            for zeroed in (False, True):
                yield Known(
                    f"{name} whitened over other cells ({i})",
                    lambda c, d=ddof, f=first, s=second, z=zeroed: _whitened(c, name, f(c), s(c), d, True, zeroed=z),
                    every,
                )


def by_mean_square(name: str) -> Iterator[Known]:
    """Numbers over the batch, over the root of their mean square, with and without their mean taken off."""

    def of(c: Cells, shift: float) -> Tensor:
        own = c[name][c.mask > 0]
        return (c[name] - shift * own.mean()) / own.square().mean().sqrt()

    wrong = "the spread is a root mean square: the mean is not taken off in it"
    yield Known(f"{name} minus its mean over its root mean square", lambda c: of(c, 1.0), wrong)


def by_variance(name: str) -> Known:
    """Numbers over the batch minus their mean, over their variance."""

    def of(c: Cells) -> Tensor:
        own = c[name][c.mask > 0]
        return (c[name] - own.mean()) / own.var(correction=0)

    return Known(f"{name} over its variance", of, "it is divided by the variance and not by its root")


def _whitened(
    c: Cells, name: str, first: Tensor, second: Tensor, ddof: int, shift: bool, *, zeroed: bool = False
) -> Tensor:
    """Mean over the first mask, spread over the second; `zeroed` takes masked cells as 0."""
    x = c[name] * c.mask if zeroed else c[name]
    mean = (x * first).sum() / first.sum()
    off = (x - mean) ** 2 * (c.mask if zeroed else 1.0)
    spread = ((off * second).sum() / (second.sum() - ddof)).sqrt()
    out = (c[name] - mean) / spread
    return out if shift else out + mean
