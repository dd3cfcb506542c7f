"""What is carried from place to place: the right token's, unchanged, and once."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.case import CannotRepresent, Case
from trimtab.sentinel.compare import differing
from trimtab.sentinel.declare import Effect, Violation, invariant, numbers
from trimtab.sentinel.perturb import coded, without_tokens
from trimtab.sentinel.subject import Result, Subject, of_kind, run, same


@invariant(
    family="I17",
    statement="What is carried through a shift, a pack, a pad or a filter is still its own token's and row's.",
    why="A log-prob one position off is a plausible number, and every ratio made of it is wrong.",
    bug="prime-rl c42574bbc: packing left the log-probs one element short, so the first sample's were shifted.",
    repair="Carry index maps; test with numbers that name their row and position.",
)
def alignment(subject: Subject, case: Case) -> Violation | None:
    codes = coded(case)
    seen = run(subject, subject.adapt(codes))
    for name, result in of_kind(seen.results, case, "carried", "mask"):
        of_ids = subject.reading("token_id") and not subject.reading("trainable")
        if result.kind == "mask" and (result.of is None or of_ids):
            continue  # a mask made of ids depends on where they end: eos_semantics
        expected = source(codes, result).double()
        if not same(expected, seen.values[name].double(), tolerance=1e-6):
            return differing(f"{name} is not its own token's", result, expected, seen.values[name].double())
    return None


def source(case: Case, result: Result) -> Tensor:
    """What a carried result, or a metric, is made of: one entry a trainable token, or a sequence."""
    if callable(result.of):
        return result.of(case).detach()
    if result.of is None:
        raise case.cannot("its binding does not say what it is of")
    if result.of in case.sequences and (result.level != "token" or result.of not in case.tokens):
        values = case.sequences[result.of]
        return (values[case.segments.sequence_of_token] if result.level == "token" else values).detach().double()
    return case.flat(result.of).detach().double()


@invariant(
    family="I26",
    statement="A 0 is a 0 and a False is a False: legitimate values are passed on, never replaced by a default.",
    why="`x or default` takes a reward of 0 for no reward at all.",
    bug="A reward of 0.0 replaced by a fallback because it is falsy.",
    repair="Compare with None; test with zeros.",
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
    # Other values, and whose they are, are alignment's: here a zero alone may be mistaken for nothing.
    for what, one in (("every value is 0", nothing), ("every other reward is 0", mixed)):
        seen = run(subject, subject.adapt(one))
        for name, result in of_kind(seen.results, case, "carried"):
            expected = source(one, result)
            if not same(expected, seen.values[name], tolerance=1e-6):
                return differing(f"{name} is another value where {what}", result, expected, seen.values[name])
    return None


@invariant(
    family="I26",
    statement="Every sampled token is trained exactly once.",
    why="A prefix shared by two branches that is trained in both counts double, and a token in none is lost.",
    bug="prime-rl 1b028ca1d: two branches of one rollout both trained the tokens they share.",
    repair="Count training occurrences per sampled token; give each to one sequence.",
)
def exactly_once(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    for name, result in of_kind(seen.results, case, "count"):
        value = seen.values[name].double()
        expected = (
            torch.ones_like(value) if result.level != "scalar" else torch.tensor(case.segments.num_tokens).double()
        )
        if not same(expected.reshape(value.shape), value):
            return differing(f"{name}: tokens are not trained once each", result, expected, value)
    return None


@invariant(
    family="I18",
    statement="The first end-of-sequence token is trainable and everything after it is not, "
    "whether or not padding uses the same id and however many ids end a sequence.",
    why="A mask that drops the first end token never teaches the policy to stop; one that keeps padding teaches it to.",
    bug="verl 27484a7bb: tokens after a second end-of-sequence id stayed in the mask.",
    repair="Find the first of any end id, keep it, drop the rest; test the four combinations of ids.",
)
def eos_semantics(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("token_id"):
        raise case.cannot("it reads no token ids")
    bare = without_tokens(case, "o")
    if any("a" not in row for row in bare.kinds):
        raise case.cannot("a sequence has no answer")
    taken = 0
    for eos, pad in (((1,), 0), ((1,), 1), ((1, 2), 0), ((1, 2), 2), ((2, 1), 1)):
        for columns in (1, 0):
            one = _ending(replace(bare, eos_ids=eos, pad_id=pad, extra_columns=columns))
            try:
                seen = run(subject, one)
            except CannotRepresent:  # such as a function that knows one end id
                continue
            taken += 1
            found = _masked_otherwise(seen.values, of_kind(seen.results, case, "mask"), one)
            if found:
                return found
    if not taken:
        raise case.cannot("it takes none of the ways to end and to pad")
    return None


def _masked_otherwise(values: Mapping[str, Tensor], masks: list[tuple[str, Result]], case: Case) -> Violation | None:
    for name, result in masks:
        expected = source(case, result) if result.of is not None else torch.ones_like(values[name])
        if not same(expected.double(), values[name].double()):
            what = f"{name} with end ids {list(case.eos_ids)} and padding id {case.pad_id}"
            return Violation(what, numbers(values[name]), numbers(expected), effect=Effect("decision"))
    return None


def _ending(case: Case) -> Case:
    """Ids that end every ended sequence with an end id and use none elsewhere.

    A sampler stops at an end id or at its limit, so only a sequence that fills its row can lack one: padding after
    anything else would be a cell that no mask of ids could tell from an answer.
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
