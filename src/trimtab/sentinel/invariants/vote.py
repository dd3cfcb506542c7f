"""Who may move whom: groups, and samples that were suppressed."""

from collections.abc import Callable

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import Seen, Subject, run, same, same_gradient
from trimtab.signal.layout import places


@invariant(
    statement="A group's results depend on that group's samples only.",
    why="Prompts differ in difficulty: a baseline that mixes them rewards easy prompts and punishes hard ones.",
    bug="slime's _post_process_rewards: "
    "one missing sample turns per-prompt normalisation into whole-batch normalisation.",
    repair="Group by prompt identity, never by position or by a fixed group size.",
)
def group_isolation(subject: Subject, case: Case) -> Violation | None:
    if subject.couples == "batch":
        raise case.cannot("its samples may move one another across the batch")
    base = run(subject, case)
    groups = case.sequences["group"]
    if bool((groups == groups[0]).all()):
        raise case.cannot("there is one group")
    for group in sorted({int(group) for group in groups}):
        inside = groups == group
        other = run(subject, _rewarded(case, inside, lambda reward: reward * 3 + 7))
        found = _others_moved(case, base, other, inside, f"changing the rewards of group {group}")
        if found:
            return found
    return None


@invariant(
    statement="A sample whose reward or loss is suppressed moves nobody: no baseline, no spread, no filter.",
    why="A sample that is not trusted to train is not trusted to judge the others.",
    bug="AReaL #1351: rewards are normalised before no-EOS rows are zeroed, "
    "so such a row shifts everybody (-49.5 in the example).",
    repair="Decide who votes first; take every statistic over the voters; zero the suppressed afterwards.",
)
def suppressed_do_not_vote(subject: Subject, case: Case) -> Violation | None:
    suppressed = ~case.sequences["votes"]
    if not bool(suppressed.any()):
        raise case.cannot("nothing is suppressed")
    base = run(subject, case)
    for value in (100.0, -3.0):
        other = run(subject, _rewarded(case, suppressed, lambda reward, to=value: torch.full_like(reward, to)))
        what = f"setting the reward of the suppressed sequences to {value:g}"
        found = _others_moved(case, base, other, suppressed, what)
        if found:
            return found
    return None


def _rewarded(case: Case, chosen: Tensor, change: Callable[[Tensor], Tensor]) -> Case:
    """Other rewards for some sequences, whichever way they arrive: one a sequence, or on its tokens."""
    reward, paid = case.sequences["reward"], case.tokens.get("token_reward")
    other = case.with_sequences(reward=torch.where(chosen, change(reward), reward))
    if paid is None:
        return other
    return other.with_tokens(token_reward=torch.where(chosen[case.owner] & case.trainable, change(paid), paid))


def _others_moved(case: Case, base: Seen, other: Seen, changed: Tensor, what: str) -> Violation | None:
    """Whether a result, or a loss's gradient, of an unchanged sequence moved."""
    looked = False
    for name, result in base.results.items():
        before, after = base.values[name], other.values[name]
        if result.level != "scalar":
            outside = ~changed if result.level == "sequence" else ~changed[case.segments.sequence_of_token]
            if before.shape[0] != outside.shape[0]:
                return Violation(f"{name} has {before.shape[0]} entries", before.shape[0], outside.shape[0])
            if not same(before[outside], after[outside]):
                apart = tuple(places((before != after) & outside))
                return Violation(f"{what} changes {name} of others", numbers(after), numbers(before), apart)
            looked = True
        elif name in base.gradients:
            outside = ~changed[case.owner]
            first, second = (seen.gradients[name]["logp_current"] for seen in (base, other))
            if not same_gradient(first[outside], second[outside], result):
                return Violation(f"{what} changes d {name} / d logp_current of others", numbers(second), numbers(first))
            looked = True
    if not looked:
        raise case.cannot("no result tells sequences apart")
    return None
