"""Log-probs and entropies from logits: one temperature everywhere."""

from dataclasses import replace

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.calling import run
from trimtab.sentinel.binding.settings import with_setting
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.apart import Match, apart
from trimtab.sentinel.invariants.declare import Violation, invariant

_SCORED = ("logp", "entropy", "kl", "loss", "term", "importance")


@invariant(
    family="I16",
    statement="Logits are divided by the temperature exactly once, wherever they become log-probs. "
    "Critic values are never divided by it.",
    why="If sampler and trainer use different temperatures, every ratio is wrong even when no data are stale.",
    bug="AReaL d78f6282a: proximal log-probs were taken at temperature 1 while the loss used 0.7.",
    repair="Scale in the single place that turns logits into log-probs, and pass the temperature to it.",
)
def temperature_consistency(subject: Subject, case: Case) -> Violation | None:
    inner = (name for name in subject.variants if name.rpartition(".")[2] == "temperature")
    option = subject.temperature or ("temperature" if "temperature" in subject.options else next(inner, None))
    if option is None:
        raise case.cannot("it takes no temperature")
    if not subject.reading("logits", "teacher_logits", "value"):
        raise case.cannot("it reads no logits and no values")
    plain = run(subject, case, with_setting(subject, option, 1.0))
    # Gradients differ by the factor on the logits, so only values are compared.
    bare = replace(plain, gradients={})
    for heat in (2.0, 0.5):
        hot = with_setting(subject, option, heat)
        scaled = {n: heat * case.tokens[n] for n in ("logits", "teacher_logits") if n in case.tokens}
        other = run(subject, case.with_tokens(**scaled), hot)
        what = f"temperature {heat:g} with logits {heat:g} times as large"
        found = apart(what, bare, other, Match(only=lambda _, result: result.kind in _SCORED))
        if found is None and any(result.kind == "value" for result in plain.results.values()):
            values = Match(only=lambda _, result: result.kind == "value")
            found = apart(f"temperature {heat:g}", plain, run(subject, case, hot), values)
        if found:
            return found
    return None
