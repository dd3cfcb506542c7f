"""The formulas that a result can be, from its kind, its level and the fields that its function reads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.settings import named, settings_of, settled
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.known import (
    charged,
    credit,
    distilled,
    grouped,
    joined,
    kept,
    losses,
    masks,
    metrics,
    preferred,
    surrogate,
    token,
    weights,
)
from trimtab.sentinel.known.averages import (
    AVERAGES,
    EXTREMES,
    PLACES,
    ROW_AVERAGES,
    Average,
    every_average,
    with_constant,
)
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known


def candidates(subject: Subject, result: Result) -> Iterator[Known]:
    """Formulas that a result of this kind and level can be, from the fields that the function reads."""
    inputs, numbers = subject.inputs, settings_of(subject)
    policies = inputs & set(LOGPS)
    if subject.role == "preference":
        yield from preferred.formulas(inputs, numbers, _by_name(subject), is_loss=result.kind in ("loss", "term"))
    elif result.level == "scalar":
        yield from _scalars(subject, result, numbers)
    elif result.level == "sequence" and not policies and "token_loss" in inputs:
        yield from (averaged(Known("token_loss", lambda c: c["token_loss"]), one) for one in ROW_AVERAGES)
    elif {"logits", "teacher_logits"} <= inputs:
        yield from _distilled(subject)
    elif "token_loss" in inputs and len(policies) > 1 and result.kind in ("term", "loss", "statistic"):
        yield from weights.corrected(inputs, numbers, _by_name(subject))
    elif result.kind in ("kl", "term", "importance") and len(policies) > 1 and not inputs & {"advantage", "outcome"}:
        yield from token.kl(inputs)
        yield from token.importance(inputs, numbers)
        yield from weights.importance(inputs, numbers, _by_name(subject))
    elif result.kind == "loss" and result.level == "sequence" and "logp_current" in inputs and _pushed(inputs):
        for one in _policy_losses(subject, numbers):
            yield from (averaged(one, average) for average in ROW_AVERAGES)
    elif result.kind == "term" and _pushed(inputs) and policies:
        yield from _policy_losses(subject, numbers)
    elif result.kind == "statistic" and result.level == "token" and inputs & {"advantage", "outcome"} and policies:
        yield from (one for one in _policy_losses(subject, numbers) if not one.is_part)
        yield from token.kl(inputs)
    elif result.kind == "term" and "returns" in inputs and "value" in inputs:
        yield from token.squared_errors(inputs, numbers)
        yield from token.huber_errors(inputs, numbers)
    elif result.kind == "entropy":
        yield from token.entropy(_temperatures(subject))
    elif result.kind == "logp":
        yield from token.scores(_temperatures(subject))
    elif result.kind == "mask" and "token_id" in inputs:
        yield from masks.up_to_the_end()
    elif result.kind == "keep" and "token_id" in inputs:
        yield from masks.of_ended_rows()
    elif result.kind == "keep" and "reward" in inputs and not policies:
        yield from masks.of_groups_that_differ()
    elif result.kind == "keep" and len(policies) > 1:
        if inputs & {"advantage", "outcome"}:
            yield from token.left_behind(inputs, numbers)
        yield from token.keeps(inputs, numbers)
        yield from kept.keeps(inputs, numbers, _by_name(subject))
    elif "entropy" in inputs and not policies and result.level == "token" and inputs <= {"entropy", "trainable"}:
        yield from kept.of_entropy(numbers)
        yield from credit.whitened("entropy")
    elif result.kind in CREDIT and ("kl" in inputs or len(policies) > 1):
        yield from _charged(subject, result, numbers)
    elif result.kind in ("advantage", "return", "reward") and inputs & {"reward", "token_reward"}:
        if result.level == "sequence" or "group" in inputs or subject.couples == "group":
            yield from _told_apart(subject, credit.normalised())
            yield from grouped.advantages(numbers, _by_name(subject), by_token=result.level == "token")
            yield from grouped.of_voters() if inputs & {"votes", "in_use"} else ()
        if result.level == "token":
            yield from credit.carried_back(inputs, numbers, _by_name(subject))
        if result.level == "sequence" and "group" not in inputs:
            yield from credit.shortened(numbers)
    elif result.kind == "reward" and result.level == "sequence" and inputs <= {"token_id", "length", "trainable"}:
        yield from credit.shortened(numbers)
    elif result.kind == "statistic" and result.level == "sequence" and "reward" in inputs:
        yield from credit.normalised()
        if "length" in inputs:
            yield from credit.shortened(numbers)
    elif result.kind == "advantage" and result.level == "token":
        for name in sorted(inputs & {"advantage", "returns", "value", "token_loss"}):
            yield from credit.whitened(name)
            yield credit.by_variance(name)
            yield from credit.by_mean_square(name)


def _distilled(subject: Subject) -> Iterator[Known]:
    """Numbers per token of a student and its teacher."""
    numbers, heats = settings_of(subject), _temperatures(subject)
    yield from distilled.divergences(heats, numbers)
    if "token_id" in subject.inputs:
        yield from distilled.with_labels(heats, numbers)


def _pushed(inputs: frozenset[str]) -> bool:
    """Whether something says which tokens to make likelier."""
    return bool(inputs & {"advantage", "outcome", "reward", "token_reward"})


def _policy_losses(subject: Subject, numbers: Sequence[float]) -> Iterator[Known]:
    if subject.inputs & {"advantage", "outcome"}:
        yield from surrogate.policy_losses(subject.inputs, numbers, _by_name(subject))
    yield from losses.policy_losses(subject.inputs, numbers, _by_name(subject))


CREDIT = ("advantage", "return", "reward", "statistic")


def _charged(subject: Subject, result: Result, numbers: Sequence[float]) -> Iterator[Known]:
    """Credit of a function that sees how far two policies are apart."""
    inputs = subject.inputs
    if result.level == "sequence" and "reward" in inputs:
        yield from charged.of_sequences(inputs, numbers)
        yield from _told_apart(subject, credit.normalised())
    elif result.level == "token":
        if inputs & {"advantage", "outcome"}:
            yield from charged.advantages(inputs, numbers)
        if inputs & {"reward", "token_reward"} or not inputs & {"advantage", "outcome"}:
            about = {"advantage", "advantages", "adv", "baseline", "returns"}
            everywhere = result.kind in ("advantage", "return") or bool(set(words_of(subject.name)) & about)
            yield from charged.rewards(inputs, numbers, _by_name(subject), everywhere=everywhere)
            yield from credit.carried_back(inputs, numbers, _by_name(subject))
        if "kl" in inputs:
            yield from credit.whitened("kl")


def _told_apart(subject: Subject, offered: Iterator[Known]) -> Iterator[Known]:
    """Where a setting says "batch", a centre of the batch beside a spread of the group is meant."""
    asks = any(v in ("batch", "global") for v in named(settled(subject)).values() if isinstance(v, str))
    grouped = "group" in subject.inputs or subject.block > 1 or subject.couples == "group"
    of_others = credit.WRONG["mean of all others"]
    for one in offered:
        fine = (asks and one.mistake == credit.MIXED) or (not grouped and one.mistake == of_others)
        yield replace(one, mistake="") if fine else one


def _by_name(subject: Subject) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in named(settled(subject)).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _temperatures(subject: Subject) -> list[float]:
    """The numbers of the settings called temperature; all numbers, where none is."""
    called = {"temperature", "temp", "tau", "t"}
    found = [value for name, value in _by_name(subject).items() if set(words_of(name)) & called]
    return found or settings_of(subject)


def _scalars(subject: Subject, result: Result, numbers: Sequence[float]) -> Iterator[Known]:
    inputs = subject.inputs
    if result.kind != "loss":
        yield from counts()
        yield from watched(inputs)
    terms = _terms(subject, result, numbers)
    averages = AVERAGES if result.kind == "loss" else (*AVERAGES, *EXTREMES)
    if len(terms) == 1:
        averages = (*averages, *(one for n in numbers if n > 1 for one in with_constant(n)))
    # Published formulas first: the search ends at the first one that fits exactly.
    fine = [average for average in averages if not average.mistake]
    for one in terms:
        if not one.mistake:
            yield from (averaged(one, average) for average in fine)
    for one in _rare_terms(subject, result, numbers):
        yield from (averaged(one, average) for average in fine)
    if result.kind != "loss":
        yield from metrics.watched(inputs, numbers)
    for one in terms:
        yield from (averaged(one, a) for a in (fine if one.mistake else averages) if one.mistake or a.mistake)


def _terms(subject: Subject, result: Result, numbers: Sequence[float]) -> list[Known]:
    """Numbers per token that a loss or a metric can be an average of."""
    inputs = subject.inputs
    policies = inputs & set(LOGPS)
    terms: list[Known] = []
    if result.kind == "loss" and policies and inputs & {"advantage", "outcome"}:
        terms += surrogate.policy_losses(inputs, numbers, _by_name(subject))
    elif result.kind == "loss" and "returns" in inputs:
        terms += token.squared_errors(inputs, numbers)
    elif policies and not (result.kind == "loss" and _pushed(inputs)):
        terms += [*token.kl(inputs), *token.gaps(inputs)] if len(policies) > 1 else []
        terms += surrogate.clip_flags(inputs, numbers) if "logp_current" in inputs else []
    if {"logits", "teacher_logits"} <= inputs:
        return list(_distilled(subject))
    if {"logits", "token_id"} <= inputs and result.kind == "loss":
        for one in token.scores(_temperatures(subject)):
            terms.append(Known(f"minus the {one.name}", lambda c, o=one: -o.of(c), one.mistake, one.partial))
    elif "logits" in inputs and not policies:
        terms += token.entropy(_temperatures(subject))
    if not policies:
        terms += [Known(n, lambda c, n=n: c[n]) for n in sorted(inputs & {"token_loss", "entropy", "kl", "advantage"})]
    return terms


def _rare_terms(subject: Subject, result: Result, numbers: Sequence[float]) -> Iterator[Known]:
    """Published numbers per token that few functions compute; no mistake in their averages is listed."""
    inputs = subject.inputs
    if result.kind == "loss" and "token_loss" in inputs:
        yield from weights.corrected(inputs, numbers, _by_name(subject))
    if result.kind == "loss" and {"value", "returns"} <= inputs and not inputs & set(LOGPS):
        yield from token.huber_errors(inputs, numbers)
    if result.kind == "loss" and _pushed(inputs) and "logp_current" in inputs:
        yield from joined.with_more(inputs, numbers, _by_name(subject))
        yield from losses.policy_losses(inputs, numbers, _by_name(subject))
    elif result.kind != "loss" and "logp_current" in inputs:
        yield from surrogate.dual_flags(inputs, numbers)
        if inputs & {"advantage", "outcome"}:  # the loss itself, logged
            yield from (one for one in surrogate.policy_losses(inputs, numbers, _by_name(subject)) if not one.mistake)

    if result.kind != "loss" and {"value", "returns"} <= inputs:
        yield from (one for one in token.squared_errors(inputs, numbers) if not one.mistake)


def counts() -> Iterator[Known]:
    """Numbers about the batch that are no averages."""
    yield Known("number of rows", lambda c: torch.tensor(float(c.mask.shape[0]), dtype=torch.float64))
    yield Known("number of sequences that train", lambda c: (c.mask.sum(1) > 0).double().sum())
    yield Known("number of tokens that train", lambda c: c.mask.sum())


def watched(inputs: frozenset[str]) -> Iterator[Known]:
    """Numbers that people watch: what a critic explains, how many samples are left, how rewards are spread."""

    def inside(c: Cells, name: str) -> Tensor:
        return c[name][c.mask > 0]

    for value in sorted(inputs & {"value", "value_old"}) if "returns" in inputs else ():

        def left(c: Cells, v: str = value) -> Tensor:
            return (inside(c, "returns") - inside(c, v)).var(correction=0)

        yield Known("explained variance", lambda c, f=left: 1 - f(c) / inside(c, "returns").var(correction=0))
        other = "the variance of the predictions stands below the line, not that of the returns"
        yield Known(
            "explained variance of the predictions",
            lambda c, f=left, v=value: 1 - f(c) / inside(c, v).var(correction=0),
            other,
        )  # fmt: skip
    for sampler, trainer in token.ends(inputs - {"logp_ref"}):

        def weights(c: Cells, a: str = trainer, b: str = sampler) -> Tensor:
            return (c[a] - c[b])[c.mask > 0].exp()

        yield Known("effective sample size", lambda c, w=weights: w(c).sum() ** 2 / w(c).square().sum())
        yield Known(
            "share of the sample size", lambda c, w=weights: w(c).sum() ** 2 / w(c).square().sum() / c.mask.sum()
        )
        every = "the share counts every cell and not the tokens that train"
        yield Known(
            "share of the sample size among all cells",
            lambda c, w=weights: w(c).sum() ** 2 / w(c).square().sum() / c.mask.numel(), every,
        )  # fmt: skip
    if "reward" in inputs:
        yield Known("mean reward", lambda c: c.reward.mean())
        yield Known("spread of rewards", lambda c: c.reward.std(correction=0))
        yield Known("spread of rewards, n - 1", lambda c: c.reward.std(correction=1))
        yield Known("best of each group", lambda c: torch.stack([c.reward[rows].max() for rows in c.groups]).mean())
        across = "the best is taken across prompts"
        yield Known("best across groups", lambda c: _across(c).max(0).values.mean(), across)


def _across(c: Cells) -> Tensor:
    """Rewards with one row per prompt, where all have equally many answers."""
    return torch.stack([c.reward[rows] for rows in c.groups])


def averaged(one: Known, average: Average) -> Known:
    """An average of a formula. The formula is computed once per case, however many averages are tried."""
    place = PLACES.get(average.name)

    def of(c: Cells) -> Tensor:
        return average.of(c, c.once(one)) if place is None else every_average(c, one)[place]

    return Known(f"{average.name} of {one.name}", of, one.mistake or average.mistake, slopes=one.slopes)
