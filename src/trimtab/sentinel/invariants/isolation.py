"""Which samples may affect which others: samples, groups, and suppressed samples."""

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import changed, paid, silenced
from trimtab.sentinel.binding.calling import Seen, call_subject, run
from trimtab.sentinel.binding.sameness import same, same_gradient
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.apart import Match, apart, differing
from trimtab.sentinel.invariants.declare import Compared, Violation, invariant
from trimtab.signal.layout import places


@invariant(
    family="I19",
    statement="The result for one sample depends only on that sample, or on its group or batch where the function "
    "declares it. Results have one entry per token or one per sequence.",
    why="A wrong broadcast mixes every advantage into every row, and the loss value still looks plausible.",
    bug="prime-rl 270b5f51c: advantages of shape (B, 1, T) against (B, T) mixed all samples into each.",
    repair="Check shapes on entry. Index by row. Never rely on broadcasting between samples.",
)
def sample_isolation(subject: Subject, case: Case) -> Violation | None:
    if subject.couples == "batch":
        call_subject(subject, case)  # the shape check applies to every function
        raise case.cannot("its samples may move one another across the batch")
    groups = case.sequences["group"]
    units = [places(groups == g) for g in sorted({int(g) for g in groups})]
    if subject.couples != "group":
        units = [[i] for i in range(case.num_sequences)]
    if len(units) < 2:
        raise case.cannot("there is no other sample in it")
    base = run(subject, case)
    for rows in units:
        other = run(subject, subject.adapt(changed(case, rows)))
        found = others_moved(case, base, other, rows, f"changing sequences {rows}")
        if found:
            return found
    return None


@invariant(
    family="I05",
    statement="The results of a group depend only on the samples of that group, "
    "for any group sizes and however a sample is split into sequences.",
    why="Prompts differ in difficulty. A baseline that mixes them rewards easy prompts and punishes hard ones.",
    bug="slime's _post_process_rewards: "
    "one missing sample turns per-prompt normalisation into whole-batch normalisation.",
    repair="Group by prompt identity, never by position or by a fixed group size.",
)
def group_isolation(subject: Subject, case: Case) -> Violation | None:
    if subject.couples == "batch":
        raise case.cannot("its samples may move one another across the batch")
    groups = case.sequences["group"]
    if bool((groups == groups[0]).all()):
        raise case.cannot("there is one group")
    base = run(subject, case)
    for group in sorted({int(group) for group in groups}):
        inside = groups == group
        other = run(subject, paid(case, inside, 7.5))
        found = others_moved(case, base, other, places(inside), f"changing the rewards of group {group}")
        found = found or _one_fewer(subject, case, base, places(inside))
        if found:
            return found
    return _cut_up(subject, case, base)


def _one_fewer(subject: Subject, case: Case, base: Seen, rows: list[int]) -> Violation | None:
    """Leave out one sample of a group. The results of the other groups must not change."""
    if len(rows) < 2 or subject.block > 1:  # groups by position have one size
        return None
    rest = [i for i in range(case.num_sequences) if i != rows[0]]
    try:
        fewer = run(subject, case.taken(rest, as_part=False))
    except Exception:  # raising on a group with one sample is a valid answer
        return None
    stay = [i for i in rest if i not in rows]
    now = [rest.index(i) for i in stay]
    match = Match(
        tokens=(case.token_places(stay), fewer.case.token_places(now)),
        sequences=(torch.tensor(stay, dtype=torch.long), torch.tensor(now, dtype=torch.long)),
        scalars=None,
    )
    return apart(f"leaving out sequence {rows[0]}", base, fewer, match)


def _cut_up(subject: Subject, case: Case, base: Seen) -> Violation | None:
    """Pass one sample as two training sequences. No advantage may change."""
    if not subject.reading("episode"):
        return None
    row = next((i for i, kinds in enumerate(case.kinds) if kinds.count("a") >= 1), None)
    if row is None:
        return None
    order = [*range(case.num_sequences), row]
    twice = case.taken(order, as_part=False)
    other = run(subject, twice)
    everyone = list(range(case.num_sequences))
    match = Match(
        tokens=(case.token_places(everyone), twice.token_places(everyone)),
        sequences=(torch.tensor(everyone), torch.tensor(everyone)),
        scalars=None,
    )
    return apart(f"passing sequence {row} as two training sequences", base, other, match)


@invariant(
    family="I06",
    statement="A sample whose reward or loss is suppressed affects no other sample: "
    "it enters no baseline, no spread and no filter.",
    why="A sample that is not good enough to train on is not good enough to judge the others.",
    bug="AReaL #1351: rewards are normalised before no-EOS rows are zeroed, "
    "so such a row shifts all other rows (-49.5 in the example).",
    repair="First decide which samples count in statistics. Compute every statistic over these samples only. "
    "Zero the suppressed samples afterwards.",
)
def suppressed_do_not_vote(subject: Subject, case: Case) -> Violation | None:
    declared = subject.reading("votes")
    if declared and not subject.reading("reward", "token_reward"):
        return _silent_rows(subject, case)
    if not declared and not subject.reading("reward", "token_reward"):
        raise case.cannot("it reads neither rewards nor which samples are suppressed")
    if not declared and not subject.reading("trainable"):
        raise case.cannot("it is not told which samples are suppressed")
    if declared:
        suppressed = ~case.sequences["votes"]
    else:
        case = silenced(case, [case.num_sequences - 1])
        suppressed = torch.arange(case.num_sequences) == case.num_sequences - 1
    if not bool(suppressed.any()) or bool(suppressed.all()):
        raise case.cannot("no sample is suppressed, or all are")
    base = run(subject, case)
    for value in (100.0, -3.0):
        other = run(subject, paid(case, suppressed, value))
        what = f"setting the reward of the {'suppressed' if declared else 'fully masked'} sequences to {value:g}"
        found = others_moved(case, base, other, places(suppressed), what)
        if found and not declared:
            return Violation(
                "fully masked rows count in statistics: " + found.what, found.observed, found.expected, found.positions,
                grade="convention", effect=found.effect, compared=found.compared,
            )  # fmt: skip
        if found:
            return found
    return _as_if_absent(subject, case, base, suppressed) if declared else None


def _as_if_absent(subject: Subject, case: Case, base: Seen, suppressed: Tensor) -> Violation | None:
    """Leave the suppressed samples out. Groups that still have two samples or more must get the same results."""
    groups = case.sequences["group"]
    left = {int(g): int(((groups == g) & ~suppressed).sum()) for g in groups}
    if subject.block > 1 or subject.couples not in ("group", "batch"):
        return None
    rest = places(~suppressed)
    try:
        fewer = run(subject, subject.adapt(case.taken(rest, as_part=False)))
    except Exception:  # it may refuse groups that became too small
        return None
    if fewer.case.num_sequences != len(rest):
        return None
    stay = [i for i in rest if left[int(groups[i])] > 1]
    now = [rest.index(i) for i in stay]
    match = Match(
        tokens=(case.token_places(stay), fewer.case.token_places(now)),
        sequences=(torch.tensor(stay, dtype=torch.long), torch.tensor(now, dtype=torch.long)),
        scalars=None,
        only=lambda _, result: result.kind in ("advantage", "reward", "return"),
    )
    return apart("leaving out the suppressed sequences", base, fewer, match)


def _silent_rows(subject: Subject, case: Case) -> Violation | None:
    """A function that is told which samples are suppressed and reads no reward: their content must not matter."""
    suppressed = places(~case.sequences["votes"])
    if not suppressed or len(suppressed) == case.num_sequences:
        raise case.cannot("no sample is suppressed, or all are")
    base = run(subject, case)
    other = run(subject, subject.adapt(changed(case, suppressed).with_sequences(votes=case.sequences["votes"])))
    for name, result in base.results.items():
        if result.level == "scalar" and not same(base.values[name], other.values[name]):
            what = f"changing the suppressed sequences {suppressed} changes {name}"
            return differing(what, result, base.values[name], other.values[name])
        for leaf, gradient in base.gradients.get(name, {}).items():
            inside = torch.isin(case.owner, torch.tensor(suppressed))
            if result.kind in ("loss", "term") and bool((gradient[inside] != 0).any()):
                what = f"d {name} / d {leaf} is not 0 in the suppressed sequences {suppressed}"
                return differing(what, result, torch.zeros_like(gradient), gradient)
    return None


def others_moved(case: Case, base: Seen, other: Seen, rows: list[int], what: str) -> Violation | None:
    """Whether a result of an unchanged sequence changed, or the gradient of a loss into it."""
    moved = torch.zeros(case.num_sequences, dtype=torch.bool)
    moved[rows] = True
    stay = ~moved
    tokens = stay[case.segments.sequence_of_token]
    looked = False
    for name, result in base.results.items():
        before, after = base.values[name], other.values[name]
        if result.level in ("token", "sequence"):
            outside = stay if result.level == "sequence" else tokens
            looked = True
            if not same(before[outside], after[outside]):
                held = torch.where(_shaped(outside, before), after, before)
                index = tuple(places(outside))
                compared = Compared(name, None, other.case, base.case, index, index)
                return differing(f"{what} changes {name} of others", result, before, held, compared)
        elif name in base.gradients and name in other.gradients:
            looked = True
            found = _gradient_moved(case, base, other, name, stay[case.owner], what)
            if found:
                return found
    if not looked:
        raise case.cannot("no result has separate entries for sequences")
    return None


def _shaped(flags: Tensor, values: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (values.ndim - 1))


def _gradient_moved(case: Case, base: Seen, other: Seen, name: str, stay: Tensor, what: str) -> Violation | None:
    for leaf, gradient in base.gradients[name].items():
        first, second = gradient[stay], other.gradients[name][leaf][stay]
        if same_gradient(first, second, base.results[name]):
            continue
        where = f"{what} changes d {name} / d {leaf} of others"
        ratio = (second[first != 0] / first[first != 0]) if bool((first != 0).any()) else second
        if ratio.numel() and bool(torch.isclose(ratio, ratio.reshape(-1)[0].expand_as(ratio), rtol=1e-6).all()):
            scaled = "one factor for all others: the average is over what a decision kept"
            return Violation(f"{where} by {scaled}", second.tolist(), first.tolist(), grade="convention")
        index = tuple(places(stay))
        compared = Compared(name, leaf, other.case, base.case, index, index)
        return differing(where, base.results[name], first, second, compared)
    return None
