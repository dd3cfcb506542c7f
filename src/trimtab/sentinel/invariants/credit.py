"""Credit flows only over the tokens that the policy chose."""

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import without_tokens
from trimtab.sentinel.binding.subject import Result, Subject, run
from trimtab.sentinel.invariants.apart import Match, apart, trainable_leaves
from trimtab.sentinel.invariants.declare import Violation, invariant


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
    bare = without_tokens(case, "o")
    first, second = run(subject, bare), run(subject, case)
    match = Match(leaves=trainable_leaves(bare, case), only=lambda _, result: _about_choices(result))
    return apart("tool output in a sequence", first, second, match)


def _about_choices(result: Result) -> bool:
    """Leave out masks, in which tool output has its own cells, and results whose binding names their source."""
    said = result.kind in ("metric", "statistic", "observation") and result.of is not None
    return result.level != "cell" and not said
