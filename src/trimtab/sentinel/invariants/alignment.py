"""Values that are moved from place to place: each stays with its token, unchanged, and is used once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.batch.perturb import coded, without_tokens
from trimtab.sentinel.binding.calling import of_kind, run
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.invariants.apart import differing
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers


@invariant(
    family="I17",
    statement="After a shift, a pack, a pad or a filter, every value still belongs to the same token and the same row.",
    why="A log-prob that is off by one position looks plausible, and every ratio computed from it is wrong.",
    bug="prime-rl c42574bbc: packing left the log-probs one element short, so those of the first sample shifted.",
    repair="Carry index maps. Test with numbers that encode their row and position.",
)
def alignment(subject: Subject, case: Case) -> Violation | None:
    codes = coded(case)
    seen = run(subject, subject.adapt(codes))
    for name, result in of_kind(seen.results, case, "carried", "mask"):
        of_ids = subject.reading("token_id") and not subject.reading("trainable")
        if result.kind == "mask" and (result.of is None or of_ids):
            continue  # a mask made of ids depends on where they end: eos_semantics checks it
        expected = source(codes, result).double()
        if not same(expected, seen.values[name].double(), tolerance=1e-6):
            return differing(f"{name} holds another token's values", result, expected, seen.values[name].double())
    return None


def source(case: Case, result: Result) -> Tensor:
    """The values that a carried result or a metric is computed from: one per trainable token, or one per sequence."""
    if callable(result.of):
        return result.of(case).detach()
    if result.of is None:
        raise case.cannot("its binding does not name the values that it is computed from")
    if result.of in case.sequences and (result.level != "token" or result.of not in case.tokens):
        values = case.sequences[result.of]
        return (values[case.segments.sequence_of_token] if result.level == "token" else values).detach().double()
    return case.flat(result.of).detach().double()


@invariant(
    family="I26",
    statement="A value of 0 stays 0 and False stays False: a default never replaces a legitimate value.",
    why="`x or default` treats a reward of 0 as a missing reward.",
    bug="A reward of 0.0 was replaced by a fallback because it is falsy.",
    repair="Compare with None. Test with zeros.",
)
def value_fidelity(subject: Subject, case: Case) -> Violation | None:
    floats = {n: torch.zeros_like(v) for n, v in case.tokens.items() if v.dtype.is_floating_point}
    flags = {n: torch.zeros_like(v) for n, v in case.tokens.items() if v.dtype == torch.bool}
    rows = {
        n: torch.zeros_like(v)
        for n, v in case.sequences.items()
        if n != "length" and (v.dtype.is_floating_point or v.dtype == torch.bool)
    }
    nothing = case.with_tokens(**floats, **flags).with_sequences(**rows)
    mixed = nothing.with_sequences(reward=case.sequences["reward"] * (torch.arange(case.num_sequences) % 2))
    # `alignment` checks all other values. This one asks only whether a zero is mistaken for a missing value.
    for what, one in (("every value is 0", nothing), ("every other reward is 0", mixed)):
        seen = run(subject, subject.adapt(one))
        for name, result in of_kind(seen.results, case, "carried"):
            expected = source(one, result)
            if not same(expected, seen.values[name], tolerance=1e-6):
                return differing(
                    f"{name} is replaced by another value where {what}", result, expected, seen.values[name]
                )
    return None


@invariant(
    family="I26",
    statement="Every sampled token is trained exactly once.",
    why="A prefix that two branches share counts twice if both train it. A token that no branch trains is lost.",
    bug="prime-rl 1b028ca1d: two branches of one rollout both trained the tokens they share.",
    repair="Count how often each sampled token is trained. Assign each token to exactly one sequence.",
)
def exactly_once(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    for name, result in of_kind(seen.results, case, "count"):
        value = seen.values[name].double()
        expected = (
            torch.ones_like(value) if result.level != "scalar" else torch.tensor(case.segments.num_tokens).double()
        )
        if not same(expected.reshape(value.shape), value):
            return differing(f"{name}: some tokens are not trained exactly once", result, expected, value)
    return None


@invariant(
    family="I18",
    statement="The first end-of-sequence token is trainable and everything after it is not, "
    "whether or not padding uses the same id and however many ids end a sequence.",
    why="A mask that drops the first end token never teaches the policy to stop. "
    "A mask that keeps padding trains on tokens that were never sampled.",
    bug="verl 27484a7bb: tokens after a second end-of-sequence id stayed in the mask.",
    repair="Find the first token with any end id, keep it and drop the rest. Test one and several end ids, "
    "each with padding that does and does not use an end id.",
)
def eos_semantics(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("token_id"):
        raise case.cannot("it reads no token ids")
    bare = without_tokens(case, "o")
    if any("a" not in row for row in bare.kinds):
        raise case.cannot("a sequence has no answer")
    taken = 0
    fixed = {held for held in (_ends(value) for n, value in subject.options.items() if set(words_of(n)) & ENDS) if held}
    for eos, pad in (((1,), 0), ((1, 2), 0), ((1,), 1), ((1, 2), 2), ((2, 1), 1)):
        if fixed and frozenset(eos) not in fixed:
            continue  # its binding says which ids end a sequence
        for columns in (1, 0):
            one = _ending(replace(bare, eos_ids=eos, pad_id=pad, extra_columns=columns))
            try:
                seen = run(subject, one)
            except CannotRepresent:  # for example, a function that knows only one end id
                continue
            taken += 1
            found = _masked_otherwise(seen.values, of_kind(seen.results, case, "mask"), one)
            if found and pad in eos:
                return replace(found, grade="latent", condition="the padding id also ends a sequence")
            if found and len(eos) > 1:
                return replace(found, grade="latent", condition="a model for which several ids end a sequence")
            if found:
                return found
    if not taken:
        raise case.cannot("it accepts none of the combinations of end ids and padding id")
    return None


ENDS = frozenset({"eos", "stop", "end"})
"""Words of a setting that holds ids which end a sequence."""


def _ends(value: object) -> frozenset[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        return frozenset({value})
    listed = cast("list[object]", value) if isinstance(value, list | tuple | set) else []
    return frozenset(one for one in listed if isinstance(one, int))


def _masked_otherwise(values: Mapping[str, Tensor], masks: list[tuple[str, Result]], case: Case) -> Violation | None:
    for name, result in masks:
        expected = source(case, result) if result.of is not None else torch.ones_like(values[name])
        if not same(expected.double(), values[name].double()):
            what = f"{name} with end ids {list(case.eos_ids)} and padding id {case.pad_id}"
            return Violation(what, numbers(values[name]), numbers(expected), effect=Effect("decision"))
    return None


def _ending(case: Case) -> Case:
    """Ids that put an end id at the end of every ended sequence and nowhere else.

    A sampler stops at an end id or at its limit, so only a sequence that fills its row can lack an end id. Otherwise
    the padding after it could not be told from an answer by its ids.
    """
    ids: list[int] = []
    for row, kinds in enumerate(case.kinds):
        own = [3 + (row + t) % 2 for t in range(len(kinds))]
        if kinds and (bool(case.sequences["ended"][row]) or not _fills(case, row)):
            own[-1] = case.eos_ids[row % len(case.eos_ids)]
        ids += own
    return case.with_tokens(token_id=torch.tensor(ids, dtype=torch.long))


def _fills(case: Case, row: int) -> bool:
    """Whether no view pads this sequence on the right."""
    longest = case.lengths[row] == max(case.lengths) and case.response_lengths[row] == max(case.response_lengths)
    return longest and not case.extra_columns
