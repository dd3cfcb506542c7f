"""Formulas, recipes and `part` as subjects that look their function up at every call, so that a mutant can stand in."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from trimtab.sentinel import Case, Out, Result, Subject
from trimtab.sentinel.targets import trimtab as target
from trimtab.signal import SignalBatch, find, loss, part, prepare, recipe


@cache
def formula(name: str, **settings: Any) -> Subject:
    """A formula, held to every invariant."""
    entry = find(name)
    bound = target.bind(entry, settings, fn=lambda **given: entry.fn(**given))
    return replace(bound, promises=None)


def undefined(subject: Subject, **facts: Any) -> Subject:
    """The same without its definition: what the laws alone find, as in a framework that nobody wrote loops for."""
    return replace(subject, definition=None, **facts)


def by_part(name: str, **settings: Any) -> Subject:
    """A formula through `part`, which checks settings as it does for a recipe."""
    entry = find(name)

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        return target._results(entry, part(name, **options)(target._inputs(entry, case)))

    return replace(undefined(formula(name, **settings)), call=call)


@cache
def pipeline(name: str, **changes: Any) -> Subject:
    """A whole recipe from padded tensors to loss and advantage."""
    return replace(target.bind_recipe(recipe(name, **changes)), promises=None)


@cache
def cut_off(name: str, **changes: Any) -> Subject:
    """A recipe whose suppressed samples are those that did not end; all of them have a reward."""
    chosen = recipe(name, **changes)

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        return target._run_recipe(chosen, _ended_as_votes(case))

    return replace(pipeline(name, **changes), call=call)


def _ended_as_votes(case: Case) -> Case:
    votes = case.sequences["votes"]
    within = None if case.within is None else _ended_as_votes(case.within)
    return replace(case.with_sequences(ended=votes, votes=torch.ones_like(votes)), within=within)


def padded_loss(name: str, **changes: Any) -> Subject:
    """`trimtab.loss`: the whole signal in one call on padded tensors."""
    chosen = recipe(name, **changes)

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not bool(case.trainable.any()):
            raise case.cannot("nothing trains")
        fields = {n: case.padded(n) for n in ("logp_old", "logp_rollout", "logp_ref")}
        value, _ = loss(
            case.padded("logp_current"), recipe=chosen, mask=case.padded("trainable"), reward=case.sequence("reward"),
            group=case.sequence("group"), scored=case.sequence("votes"), ended=case.sequence("ended"), **fields,
        )  # fmt: skip
        return {"loss": Result.scalar(value, "loss")}

    reason = "one call is one optimiser step by its documentation; parts go through prepare, decide and token_loss"
    waived = {"split": reason}
    if chosen.reward:
        waived["mean_is_a_mean"] = "its rewards depend on the length, as the recipe says"
    return Subject(f"loss({name})", call, couples="group", waived=waived)


@cache
def episodes(name: str) -> Subject:
    """A recipe's advantages where one episode may be several training sequences."""
    chosen = recipe(name)

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        names, place = torch.unique(case.sequence("episode"), return_inverse=True)
        first = torch.stack([(place == i).nonzero()[0, 0] for i in range(len(names))])
        batch = SignalBatch.from_padded(
            case.padded("trainable"), reward=case.sequence("reward")[first], group=case.sequence("group")[first],
            scored=case.sequence("votes")[first], episode=place, ended=case.sequence("ended"),
            **{n: case.padded(n) for n in ("logp_old", "logp_rollout", "logp_ref")},
        )  # fmt: skip
        prepared, _ = prepare(batch, chosen)
        return {"advantage": Result(prepared.advantage, "token", "advantage")}

    return Subject(f"advantage({name})", call, couples="group")
