"""What an argument is, from the words in its name: the only place that reads meaning out of foreign names.

    >>> [field_of(name) for name in ("old_log_probs", "lp_ref", "vllm_logprobs", "adv", "response_mask", "how")]
    ['logp_old', 'logp_ref', 'logp_rollout', 'advantage', 'trainable', None]

Known spellings come first. Then the words decide: a log-prob is the current one unless a word says whose it is.
"""

import re
from functools import cache

from trimtab.lexicon import meanings
from trimtab.sentinel.binding.names import (
    BOUNDARIES,
    GROUP_NAMES,
    HEADS,
    HIDDEN,
    IDS,
    KNOWN_ARGUMENTS,
    REDUCERS,
    WIDTHS,
)

LOG_PROB = frozenset({"logp", "logps", "logprob", "logprobs", "lp", "lps", "logpi"})
WHOSE: dict[str, frozenset[str]] = {
    "logp_ref": frozenset({"ref", "reference", "base", "sft", "init", "initial", "q", "teacher"}),
    "logp_old": frozenset({"old", "prev", "previous", "prox", "proximal", "anchor"}),
    "logp_rollout": frozenset({
        "rollout", "behav", "behavior", "behaviour", "behave", "mu", "sampling", "sampler", "inference", "infer", "inf",
        "generation", "gen", "generator", "vllm", "sglang", "engine", "sampled",
    }),
}  # fmt: skip
WORDS: dict[str, frozenset[str]] = {
    "trainable": frozenset({"mask", "masks", "m", "msk", "msks"}),
    "advantage": frozenset({"advantage", "advantages", "adv", "advs", "credit"}),
    "returns": frozenset({"returns", "return", "ret", "rets"}),
    "entropy": frozenset({"entropy", "entropies", "ent", "ents"}),
    "kl": frozenset({"kl", "kls", "kld"}),
    "group": frozenset({"group", "groups", "index", "uid", "uids", "prompt", "prompts", "gid", "gids", "problem"}),
    "ended": frozenset({"done", "dones", "ended", "terminated", "finished", "terminal", "terminals"}),
    "length": frozenset({"lengths", "lens"}),
    "logits": frozenset({"logits", "logit"}),
    "token_id": frozenset({"ids", "labels", "label", "actions"}),
    "reward": frozenset({"reward", "rewards", "score", "scores", "rew", "rews"}),
    "value": frozenset({"value", "values", "vpred", "vpreds", "v", "val", "vals", "baseline", "baselines"}),
    "token_loss": frozenset({"loss", "losses", "nll", "nlls"}),
    "ratio": frozenset({"ratio", "ratios"}),
    "text": frozenset({"responses", "completions", "tokens", "toks"}),
}
"""Our field, or `ratio`, to words that mean it. Earlier rows win: a `loss_mask` is a mask, a `kl_loss` a KL."""
GROUP_SIZES: frozenset[str] = frozenset({
    "num_generations", "group_size", "n", "k", "samples_per_problem", "samples_per_prompt", "n_samples_per_prompt",
    "num_samples_per_prompt_rollout", "rollout_n", "num_return_sequences", "G", "num_samples", "n_samples",
    "n_rollouts", "num_rollouts", "num_answers", "num_responses", "num_completions",
})  # fmt: skip
"""How many neighbours are answers to one prompt, where a function takes groups by position."""
SETTINGS = frozenset({
    "coef", "coeff", "mode", "type", "config", "cfg", "args", "scale", "size", "norm", "estimator", "range",
    "cliprange", "reduction", "factor", "clip", "eps", "epsilon", "cap", "chunk", "max",
})  # fmt: skip
"""Words of a setting, which is no field whatever else its name says: a `kl_coef` is no KL."""
NUMBERS: tuple[tuple[frozenset[str], float], ...] = (
    (frozenset({"gamma", "discount"}), 0.9),
    (frozenset({"lam", "lambd", "lambda"}), 0.95),
    (frozenset({"temperature", "temp", "tau"}), 0.7),
    (frozenset({"accum", "accumulation", "microbatches", "world", "processes", "ranks", "workers", "replicas"}), 1),
    (frozenset({"size"}), 2),
    (frozenset({"delta"}), 0.1),
    (frozenset({"threshold", "quantile", "percentile"}), 0.5),
    (frozenset({"factor", "bias"}), 0.5),
    (frozenset({"overlong", "buffer"}), 2),
    (frozenset({"length", "len"}), 4),
    (frozenset({"scaling", "multiplier"}), 2.0),
    (frozenset({"c", "dual"}), 3.0),
    (frozenset({"low", "lo", "lower", "min"}), 0.2),
    (frozenset({"tis", "cap", "max", "ceiling", "above"}), 2.0),
    (frozenset({"high", "hi", "upper", "higher"}), 0.28),
    (frozenset({"eps", "epsilon", "clip", "cliprange", "ratio"}), 0.2),
    (frozenset({"coef", "coeff", "beta", "weight", "alpha", "penalty", "ctl", "ctrl", "value"}), 0.1),
)
"""Words of a setting without a default, and a number at which it acts on small batches."""
BOUNDS: tuple[tuple[frozenset[str], float], ...] = (
    (frozenset({"high", "hi", "upper", "max"}), 1.28),
    (frozenset({"low", "lo", "lower", "min"}), 0.8),
)
"""The same for settings that are bounds of a ratio themselves, and not distances from 1."""
RATIOS = {
    "coef_1": "ratio",
    "ppo_kl": "minus_log_ratio",
    "logratio": "log_ratio",
    "logratios": "log_ratio",
    "log_importance_weights": "log_ratio",
    "log_importance_ratio": "log_ratio",
}
"""Ratios of current to old policy whose names do not say so."""


STEMS = ("logprobs", "logprob", "logps", "logp", "values", "value", "advantages", "advantage", "rewards", "returns")
"""Words that others are written together with: `newlogprob`, `oldvalues`."""


def words_of(name: str) -> list[str]:
    """`oldLogProbs_v2` in words: old, log, probs, v, 2. `newlogprob` is new and logprob."""
    return list(_words(name))


@cache
def _words(name: str) -> tuple[str, ...]:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return tuple(part for word in words for part in _parted(word))


def _parted(word: str) -> list[str]:
    for stem in STEMS:
        before, found, after = word.partition(stem)
        if found and (before or after):
            return [part for part in (before, stem, after) if part]
    return [word]


def field_of(name: str) -> str | None:
    """The field of a case that an argument of this name takes; None where its name does not tell."""
    if name in GROUP_NAMES:
        return "group"
    if name in KNOWN_ARGUMENTS:
        return KNOWN_ARGUMENTS[name]
    if name in RATIOS:
        return RATIOS[name]
    if is_count(name):
        return "count"
    if is_count_of_rows(name):
        return "rows"
    if name in WIDTHS:
        return "width"
    if name in REDUCERS:
        return "reducer"
    if name in HIDDEN:
        return "logits"
    if name in HEADS:
        return "head"
    if name in IDS:
        return IDS[name]
    words = set(words_of(name))
    if is_of_a_pair(name):
        return None
    if is_reason(name):
        return "ended"
    if name in BOUNDARIES or words & {"cu", "indptr"}:
        return "boundaries"
    if words & {"position", "positions"}:
        return "position"
    if words & {"segment", "segments", "doc", "seq", "sequence"} and words & {"ids", "id"}:
        return "segment"
    if words & WORDS["trainable"] and words & {"sample", "samples", "seq", "sequence", "row"}:
        return "in_use"
    fields = {one.ours for one in meanings(name) if one.kind == "field"}
    if len(fields) == 1:
        return fields.pop()
    if words & WORDS["trainable"]:
        return "attention" if "attention" in words else "trainable"
    if words & LOG_PROB or ("log" in words and words & {"prob", "probs", "p", "ps", "pi"}):
        if words & {"diff", "difference", "gap", "delta"}:
            return "gap_to_ref" if words & WHOSE["logp_ref"] else "log_ratio"
        return next((field for field, whose in WHOSE.items() if words & whose), "logp_current")
    if words & SETTINGS:
        return None
    for field, spelled in WORDS.items():
        if words & spelled:
            return _precisely(field, words)
    return None


def is_of_a_pair(name: str) -> bool:
    """Whether it belongs to one of two answers that are compared: `policy_chosen_logps`."""
    words = set(words_of(name))
    return bool(words & {"chosen", "rejected"}) and not words & WORDS["trainable"]


def is_reason(name: str) -> bool:
    """Whether it says in words why an answer ended: `finish_reasons` are "stop" or "length"."""
    words = set(words_of(name))
    return bool(words & {"reason", "reasons"} and words & {"finish", "stop", "stopped", "finished"})


def is_told(name: str) -> bool:
    """Whether a name says whose log-probs it holds."""
    return any(set(words_of(name)) & whose for whose in WHOSE.values())


NEW = frozenset({"new", "cur", "curr", "current", "policy", "actor", "train", "trainer", "pi"})
"""Whose log-probs are the current ones, where two arguments could be."""
SHORT: dict[str, frozenset[str]] = {
    "trainable": frozenset(
        {"keep", "on", "valid", "is_valid", "active", "train", "w", "live", "alive", "keeps", "kept"}
    ),
    "group": frozenset({"idx", "g", "gid"}),
    "entropy": frozenset({"h"}),
    "logp_ref": frozenset({"base", "ref", "q"}),
    "logp_old": frozenset({"behind", "old", "prev", "then", "prox", "before"}),
    "logp_rollout": frozenset({"behav", "mu", "sampler", "behaviour", "behavior"}),
    "logp_current": frozenset({"new", "lp", "pi", "p", "now"}),
    "value_old": frozenset({"v0", "v_old", "old_v"}),
    "reward": frozenset({"r", "rew"}),
    "advantage": frozenset({"a"}),
    "token_loss": frozenset({"x", "xs", "tensor", "t", "arr", "array", "inp", "per_tok"}),
}
"""Short names that tell only beside others: taken where nothing else fills the field."""
WEIGHTS = frozenset({"w", "weights", "iw"})
"""A mask where there is no other, and importance weights beside one."""


PER_TOKEN = frozenset({"logp_current", "logp_old", "logp_rollout", "advantage", "returns", "entropy", "token_loss"})
FROM_IDS = frozenset({"logits", "token_id", "ended", "reward", "width"})
"""Beside these, an attention mask is what its name says: it holds prompts, or tells where a row ends."""


def fields_of(names: list[str]) -> dict[str, str]:
    """The field of every argument whose name tells. Two arguments of one field are told apart by what is left."""
    found = {name: field for name in names if (field := field_of(name)) is not None}
    for field, spelled in SHORT.items():
        short = [name for name in names if name not in found and name.lower() in spelled]
        if short and field not in found.values():
            found[min(short, key=lambda name: name.lower() in WEIGHTS)] = field
    if "trainable" in found.values() and "ratio" not in found.values():  # what is weighed, beside what is masked
        found |= {name: "ratio" for name in names if name not in found and name.lower() in WEIGHTS}
    for name in (n for n in names if n not in found and n.lower() in ("target", "targets", "tgt", "y")):
        found[name] = "token_id" if "logits" in found.values() else "returns"
    current = [name for name, one in found.items() if one == "logp_current"]
    if len(current) == 2 and "logp_old" not in found.values():
        newer = next((n for n in current if set(words_of(n)) & NEW), current[0])
        found[next(n for n in current if n != newer)] = "logp_old"
    if found.get("x") == "token_loss" and "group" in found.values() and "trainable" not in found.values():
        found["x"] = "reward"
    if "eos_id" in found.values() or "stop_ids" in found.values():
        for name in (n for n in names if n not in found and n in ("sequences", "tokens", "ids", "output_ids")):
            found[name] = "token_id"
    sampled = [name for name, one in found.items() if one == "logp_rollout"]
    if len(sampled) == 2 and "logp_old" not in found.values():  # old_logp is the sampler's in AReaL, but not beside it
        old = next((n for n in sampled if set(words_of(n)) & WHOSE["logp_old"]), None)
        found |= {old: "logp_old"} if old is not None else {}
    if "trainable" not in found.values() and set(found.values()) & PER_TOKEN and not set(found.values()) & FROM_IDS:
        # The only mask of numbers that are already cut to the answer says which of them count, whatever it is called.
        found = {name: "trainable" if one == "attention" else one for name, one in found.items()}
    for field, other in (("logp_old", "logp_rollout"), ("value", "value_old")):
        same = [name for name, one in found.items() if one == field]
        if len(same) == 2 and other not in found.values():
            # Beside a proximal policy, the old one is the sampler; beside predictions, the values are the old ones.
            now = {"prox", "proximal", "vpred", "vpreds", "pred", "preds", "new", "current"}
            later = next((n for n in same if not set(words_of(n)) & now), same[1])
            found[next((n for n in same if n.endswith("0")), later)] = other
    return found


def is_count(name: str) -> bool:
    """Whether it is a number of tokens in the whole step, which a loss divides by."""
    words = set(words_of(name))
    counted = words & {"tok", "toks", "token", "tokens", "items"} and words & {
        "num", "count", "total", "global", "n", "accumulated", "acc",
    }  # fmt: skip
    divides = words & {"denominator", "denom", "divisor", "normalizer", "normaliser"} and not words & {"by", "use"}
    return bool(counted) or bool(divides) or name in ("loss_scale", "step_total")


def is_count_of_rows(name: str) -> bool:
    """Whether it is a number of sequences in the whole step: `global_batch_size`, `global_valid_seqs`."""
    words = set(words_of(name))
    counted = words & {"seqs", "sequences", "rows"} and words & {"num", "total", "global"}
    counted = counted or (words & {"samples"} and words & {"total", "global"})
    return {"global", "batch", "size"} <= words or bool(counted and not words & {"per", "prompt", "group"})


def _precisely(field: str, words: set[str]) -> str:
    if field == "value" and words & WHOSE["logp_old"]:
        return "value_old"
    if field == "logits" and words & {"teacher", "ref", "reference"}:
        return "teacher_logits"
    if field == "reward" and words & {"token", "tok", "tokens"}:
        return "token_reward"
    if field == "text":
        return "token_id"
    return "log_ratio" if field == "ratio" and "log" in words else field


def is_group_size(name: str) -> bool:
    """Whether it is the number of answers to one prompt: `num_samples_per_prompt`."""
    words = set(words_of(name))
    answers = {"samples", "generations", "answers", "responses", "rollouts", "completions", "tries"}
    prompts = {"prompt", "group", "problem", "example", "question", "task", "query"}
    return name in GROUP_SIZES or ("per" in words and bool(words & answers) and bool(words & prompts))


def number_of(name: str, *, bounds: bool = False) -> float | None:
    """A number for a setting without a default; None where its name does not tell."""
    words = set(words_of(name))
    if {"reward", "clip"} <= words:
        return 10.0
    return next((number for spelled, number in (*(BOUNDS if bounds else ()), *NUMBERS) if words & spelled), None)
