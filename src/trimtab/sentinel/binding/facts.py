"""What a guessed binding shows of itself when it is called: is it alive, how is it aligned, what switches it off.

The only place that finds facts of a binding by trying them.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import many_groups
from trimtab.sentinel.batch.perturb import agreed
from trimtab.sentinel.binding.callable import Config, Found, Off, settings_in
from trimtab.sentinel.binding.calling import call_subject, run
from trimtab.sentinel.binding.guess import Plan, probes
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.subject import Out, Subject

SMALLEST = 1e-3
"""Smaller settings are stabilisers, and may show nowhere."""


def is_alive(subject: Subject) -> bool:
    """Whether something trains where all policies agree; if nothing does, it was given settings that it cannot use."""
    if subject.role not in ("policy_loss", "keep"):
        return True
    seen = run(subject, agreed(subject.adapt(probes()[0])))
    if subject.role == "keep":
        return bool(next(iter(seen.values.values())).bool().any())
    pushes = [g["logp_current"] for g in seen.gradients.values() if "logp_current" in g]
    return not pushes or any(bool((push != 0).any()) for push in pushes)


def reads_padding(subject: Subject) -> bool:
    """Whether the content of cells that do not train moves a result."""
    with suppress(Exception), torch.no_grad():
        probe = subject.adapt(probes()[0])
        first, second = (call_subject(subject, probe.refilled(content)) for content in (0.0, 3.5))
        return not all(same(one.value, second[n].value) for n, one in first.items() if n in second)
    return False


def best_aligned(made: list[Subject]) -> list[Subject]:
    """Log-probs from logits: the reading under which they are those of the tokens comes first, and alone."""
    if made[0].role not in ("logp", "kl_in_loss"):
        return made
    right = [one for one in made if (_scores_its_tokens(one) if one.role == "logp" else _leaves_others_alone(one))]
    return right or made


def _leaves_others_alone(subject: Subject) -> bool:
    """Whether no gradient reaches logits of tokens that do not train."""
    with suppress(Exception):
        case = subject.adapt(probes()[0])
        seen = run(subject, case)
        pushes = [g["logits"] for g in seen.gradients.values() if "logits" in g]
        return bool(pushes) and all(not bool((push[~case.trainable] != 0).any()) for push in pushes)
    return False


def _scores_its_tokens(subject: Subject) -> bool:
    case = subject.adapt(probes()[0])
    scores = torch.log_softmax(case.flat("logits").double(), -1).gather(-1, case.flat("token_id")[:, None]).squeeze(-1)
    with suppress(Exception), torch.no_grad():
        return any(
            one.value.shape == scores.shape and _moves_together(one.value.double(), scores)
            for one in subject.call(case, subject.options).values()
        )
    return False


def _moves_together(first: Tensor, second: Tensor) -> bool:
    """Whether two rows of numbers rise and fall together, whatever temperature divides one of them."""
    pair = torch.stack([first, second])
    return bool(torch.isfinite(pair).all()) and float(torch.corrcoef(pair)[0, 1]) > 0.98


def other_values(found: Found) -> dict[str, tuple[Any, ...]]:
    """Other values of settings that are switches or fractions, also inside config objects.

    Each must change something. A text need not: two texts may be two names of one method.
    """
    other: dict[str, tuple[Any, ...]] = {}
    for name, value in found.options.items():
        held = dict(value.asked) if isinstance(value, Config) else settings_in(value)
        if isinstance(value, Config) and _has_one_method(found):
            held = settings_in(value)
        for inner, own in {name: value}.items() if held is None else _read(found, held):
            told = name if held is None else f"{name}.{inner}"
            if isinstance(own, bool):
                other[told] = (not own,)
            elif isinstance(own, float) and abs(own) >= SMALLEST:
                other[told] = (own / 2,)
    return other


def mentioned(found: Found, plan: Plan) -> frozenset[str]:
    """The settings that the code of a function, or of its class beside the constructor, speaks of, and whose values, or
    the meaning of what they act on, nobody gave."""
    guessed = [o for o in other_values(found) if plan.by_use or {o, o.partition(".")[0]} & found.invented]
    with suppress(OSError, TypeError, SyntaxError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(found.owner or found.function)))
        nodes = [
            inner for fn in ast.walk(tree) if isinstance(fn, ast.FunctionDef | ast.AsyncFunctionDef)
            and fn.name != "__init__" for statement in fn.body for inner in ast.walk(statement)
        ]  # fmt: skip
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        return frozenset(option for option in guessed if option.rpartition(".")[2] in names)
    return frozenset()


def switched_on(found: Found) -> dict[str, tuple[Any, ...]]:
    """Switches of a config object that are off, and settings that nothing is known about, as if they were on."""
    held = {name: settings_in(value) or {} for name, value in found.options.items() if isinstance(value, Config)}
    off = [f"{name}.{n}" for name, inner in held.items() for n, v in inner.items() if v is False or isinstance(v, Off)]
    return dict.fromkeys(off, (True,))


def _has_one_method(found: Found) -> bool:
    """Whether every setting of an object is for the method that is called."""
    own = [n for n, v in vars(found.owner).items() if inspect.isfunction(v)] if found.owner is not None else []
    return len([name for name in own if name != "__init__"]) == 1


def _read(found: Found, held: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings of a config object that the code of a function, or of its class, mentions."""
    with suppress(OSError, TypeError):
        text = inspect.getsource(found.owner or found.function)
        return [(name, value) for name, value in held.items() if re.search(rf"\b{re.escape(name)}\b", text)]
    return []


def penalties_of(subject: Subject, fields: frozenset[str], probe: Case) -> dict[str, str]:
    """Options that switch the influence of the reference or of the entropy off when they are 0."""
    found: dict[str, str] = {}
    for about in fields & {"logp_ref", "entropy", "kl"}:
        moved = probe.with_tokens(**{about: probe.tokens[about] - 0.5})
        for option, value in subject.options.items():
            if not isinstance(value, float | int) or isinstance(value, bool) or not value:
                continue
            with suppress(Exception), torch.no_grad():
                before, after, none, gone = (
                    call_subject(subject, case, {**subject.options, option: held})
                    for held in (value, 0.0) for case in (probe, moved)
                )  # fmt: skip
                # A length of 0 switches nothing off. It only divides by 0.
                if not _equal(before, after) and _equal(none, gone) and _is_finite(none):
                    found[option] = about
    return found


def _equal(first: Out, second: Out) -> bool:
    kinds = ("loss", "term", "reward", "advantage", "return")
    return all(same(one.value, second[n].value) for n, one in first.items() if one.kind in kinds)


def _is_finite(out: Out) -> bool:
    return all(bool(torch.isfinite(one.value.double()).all()) for one in out.values())


def is_whitened(subject: Subject) -> bool:
    """Whether groups move one another as whitening makes them: the others all by one factor and one offset."""
    if subject.role not in ("returns", "group_advantage", "reward_normalisation"):
        return False
    with suppress(Exception), torch.no_grad():
        probe = subject.adapt(many_groups())
        reward = probe.sequences["reward"].clone()
        reward[0] += 3.0
        own = probe.token_places([0])
        paid = probe.tokens["token_reward"].clone()
        paid[probe.trainable.nonzero().squeeze(1)[own]] += 3.0
        moved = probe.with_sequences(reward=reward).with_tokens(token_reward=paid)
        before, after = (next(iter(subject.call(c, subject.options).values())) for c in (probe, moved))
        others = probe.sequences["group"] != probe.sequences["group"][0]
        others = others[probe.segments.sequence_of_token] if before.level == "token" else others
        x, y = before.value.double()[others], after.value.double()[others]
        return not same(x, y) and float(torch.corrcoef(torch.stack([x, y]))[0, 1]) > 1 - 1e-9
    return False
