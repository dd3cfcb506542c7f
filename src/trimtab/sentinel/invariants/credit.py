"""Credit flows only over the tokens that the policy chose."""

from torch import Tensor

from trimtab.sentinel.batch.case import MASKS, Case
from trimtab.sentinel.batch.perturb import without_token, without_tokens
from trimtab.sentinel.binding.calling import Seen, run
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.invariants.apart import Match, apart, trainable_leaves
from trimtab.sentinel.invariants.content import unless_paid_elsewhere
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers


@invariant(
    family="I04",
    statement="Tool output between or after the policy's tokens changes nothing: "
    "the results equal those of the same sequence without it.",
    why="An observation is not an action. A return that stops there, or that takes reward, value or KL from there, "
    "credits the wrong choices.",
    bug="verl f773c96a7: a REINFORCE++ return was reset at every tool token, so earlier tokens got no credit.",
    repair="Run recursions over trainable tokens only and carry their state across the others. "
    "Put the reward on the last trainable token.",
)
def credit_over_trainable(subject: Subject, case: Case) -> Violation | None:
    if subject.reading("length"):
        raise case.cannot("the lengths that it reads may count tool output")
    if not any("o" in row for row in case.kinds):
        raise case.cannot("there is no observation in it")
    if not subject.inputs & {*MASKS, *case.tokens}:
        raise case.cannot("it is given nothing per token, so tool output reaches it only in counts of its binding")
    if subject.inputs & {*MASKS, *case.tokens} == frozenset({"token_id"}):
        raise case.cannot("its ids do not say which tokens are tool output")
    return unless_paid_elsewhere(subject, case, _over_observations)


def _over_observations(subject: Subject, case: Case) -> Violation | None:
    bare = without_tokens(case, "o")
    first, second = run(subject, bare), run(subject, case)
    match = Match(leaves=trainable_leaves(bare, case), only=lambda _, result: _about_choices(result))
    return apart("tool output in a sequence", first, second, match)


def _about_choices(result: Result) -> bool:
    """Leave out masks, in which tool output has its own cells, and results whose binding names their source."""
    said = result.kind in ("metric", "statistic", "observation") and result.of is not None
    return result.level != "cell" and not said


@invariant(
    family="I04",
    statement="Credit flows back in time: a reward reaches the tokens before it, and the last one is not lost. "
    "If it reaches only tokens after it, time runs backwards. Credit that looks ahead only does not depend on how many "
    "tokens came before.",
    why="A token cannot have caused a reward that came before it. Returns from the first token on reward what comes "
    "after success, not what led to it.",
    bug="Tutorial code: returns are summed in the order of the list and not from its end.",
    repair="Run the recursion from the last token to the first. Look at a reward on the last token only: "
    "every token before it gets a share.",
)
def credit_flows_back(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading("token_reward"):
        raise case.cannot("it reads no rewards of tokens")
    row = next((i for i, kinds in enumerate(case.kinds) if kinds.count("a") > 1), None)
    if row is None:
        raise case.cannot("no sequence has two trainable tokens")
    own = case.token_places([row])
    base = run(subject, case)
    first, last = (run(subject, _rewarded(case, int(own[i]))) for i in (0, -1))
    looked = False
    for name, result in base.results.items():
        credit = _credit(base, name, result)
        if credit is None:
            continue
        looked = True
        later, earlier = own[1:], own[:-1]
        after, before = (_credit(seen, name, result) for seen in (first, last))
        assert after is not None
        assert before is not None
        if same(credit, before) and not same(credit, after):
            what = f"a reward on the last token changes nothing in {name}, and one on the first does"
            return Violation(what, numbers(before), "another number", effect=Effect("value", (), 1.0))
        if not same(credit[later], after[later]) and same(credit[earlier], before[earlier]):
            what = f"in {name}, a reward on the first token moves later ones, and one on the last reaches none before"
            return Violation(what, numbers(after), numbers(credit), effect=Effect("value", (), 1.0))
        looks_ahead = same(credit[later], after[later]) and not same(credit[earlier], before[earlier])
        if result.kind != "loss" and looks_ahead and subject.couples in ("token", "sequence"):
            found = _of_the_past(subject, case, name, credit, own)
            if found is not None:
                return found
    if not looked:
        raise case.cannot("no result is credit of a token")
    return None


def _of_the_past(subject: Subject, case: Case, name: str, credit: Tensor, own: Tensor) -> Violation | None:
    """Credit to which the first token gives nothing, and which changes when that token is not there."""
    first = int(case.trainable.nonzero().squeeze(1)[own[0]])
    shorter = run(subject, subject.adapt(without_token(case, first)))
    if name not in shorter.values or shorter.values[name].shape[0] != credit.shape[0] - 1:
        return None
    expected, found = credit[own[1:]], shorter.values[name].double()[own[1:] - 1]
    if same(expected, found):
        return None
    what = f"{name} looks ahead only, but a token less before them changes later ones"
    return Violation(what, numbers(found), numbers(expected), effect=Effect("value", (), 1.0))


def _rewarded(case: Case, place: int) -> Case:
    """One more point of reward on one trainable token."""
    paid = case.tokens["token_reward"].clone()
    paid[case.trainable.nonzero().squeeze(1)[place]] += 1.0
    return case.with_tokens(token_reward=paid)


def _credit(seen: Seen, name: str, result: Result) -> Tensor | None:
    """What every trainable token is credited with: an advantage or a return, or the slope of a loss."""
    if result.level == "token" and result.kind in ("advantage", "return"):
        return seen.values[name].double()
    pushes = seen.gradients.get(name, {}).get("logp_current")
    return pushes[seen.case.trainable] if result.kind in ("loss", "term") and pushes is not None else None
