"""What a setting or a name says that a function computes, held against the formula that it equals."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.sentinel.binding.words import words_of

AVERAGES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"seq\w*mean\w*tok\w*sum"), "token sums", "a mean over sequences of token sums"),
    (re.compile(r"seq\w*mean\w*tok\w*mean|^seq(uence)?_?mean$"), "token means",
     "a mean over sequences of token means"),
    (re.compile(r"^token_?mean$|^tok_mean$"), "token mean of", "a token mean"),
    (re.compile(r"^token_?sum$|^tok_sum$"), "token sum of", "a token sum"),
)  # fmt: skip
"""A text, what the name of a fitting formula holds, and how to say it."""
ESTIMATES: dict[str, str] = {
    "k1": "k1 of",
    "kl": "k1 of",
    "k2": "k2 of",
    "mse": "k2 of",
    "k3": "k3 of",
    "low_var_kl": "k3 of",
    "abs": "|k1| of",
}
SCOPES = {"group": "group spread", "batch": "batch spread", "global": "batch spread"}
APART = frozenset({"kl", "diff", "difference", "gap", "drift", "mismatch"})
WITHOUT_ITSELF = frozenset({"loo", "rloo", "leave"})


def told_otherwise(
    name: str, result: str, options: Mapping[str, Any], formula: str, *, said: str = "", is_loss: bool = True
) -> Iterator[str]:
    """Sentences for every setting, for the name of the function and for its docstring, that ask for another formula."""
    chosen = any(isinstance(value, str) and value.lower() in ESTIMATES for value in options.values())
    of_batch = any(isinstance(value, str) and value.lower() in ("batch", "global") for value in options.values())
    yield from _in_words(said.lower(), formula, is_chosen=chosen, of_batch=of_batch)
    for option, value in options.items():
        if isinstance(value, str):
            spelled = value.lower().replace("-", "_").strip("_")
            wanted = _wanted(set(words_of(option)), spelled, formula, is_loss=is_loss)
            if wanted is not None and wanted[0] not in formula:
                yield f"{option}={value!r} asks for {wanted[1]}"
    exchanged = _exchanged(options, formula)
    if exchanged:
        yield exchanged
    if set(words_of(result)) & APART and " of ratio " in formula:
        yield f"{result} says how far two policies are apart, and a ratio is 1 where they agree"
    # Over the spread of the batch, the factor between the two is gone.
    alone = formula.startswith("reward - group mean") and not re.search("batch spread|whitened", formula)
    if set(words_of(name)) & WITHOUT_ITSELF and alone:
        yield f"{name} asks for the mean of the others, and the sample itself is in this one"


def _in_words(said: str, formula: str, *, is_chosen: bool, of_batch: bool) -> Iterator[str]:
    """What a docstring promises and a formula does not keep. Only words with one meaning count.

    Where a setting chooses the estimate, the docstring speaks of one of several.
    """
    if "geometric" in said and "product" in formula:
        yield "its docstring says that the mean is geometric, and this is the product"
    if re.search(r"leave[- ]one[- ]out", said) and formula.startswith("reward - group mean"):
        yield "its docstring says that the others are the baseline, and the sample itself is in this one"
    local = re.search(r"\b(group|prompt)\b", said) and not re.search(r"\b(batch|global|all|whole)\b", said)
    if local and not of_batch and re.fullmatch(r"reward - group mean, over the batch spread(, n - 1)?", formula):
        yield "its docstring speaks of the group alone, and the spread is that of the batch"
    for estimate in () if is_chosen else ("k1", "k2", "k3"):
        mentioned = re.findall(r"\bk[123]\b", said)
        if set(mentioned) == {estimate} and re.search(r"\bk[123] of", formula) and f"{estimate} of" not in formula:
            yield f"its docstring says {estimate}"


def _exchanged(options: Mapping[str, Any], formula: str) -> str:
    """Whether the setting called high bounds a ratio from below, and the one called low from above."""
    band = re.search(r"\[([\d.e-]+), ([\d.e-]+)\]", formula)
    numbers = {n: float(v) for n, v in options.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    low, high = (next(((n, v) for n, v in numbers.items() if set(words_of(n)) & words), None) for words in (LOW, HIGH))
    one_sided = re.search(r"\b(below|above) \[", formula)
    if band is None or one_sided or low is None or high is None or low[1] == high[1]:
        return ""
    if abs(float(band[1]) - (1 - high[1])) < 1e-4 and abs(float(band[2]) - (1 + low[1])) < 1e-4:
        return f"{high[0]}={high[1]:g} bounds it from below and {low[0]}={low[1]:g} from above"
    return ""


LOW, HIGH = frozenset({"low", "lo", "lower", "min"}), frozenset({"high", "hi", "upper", "max", "higher"})


def _wanted(words: set[str], value: str, formula: str, *, is_loss: bool) -> tuple[str, str] | None:
    # How a loss is averaged says nothing about the metrics beside it.
    if is_loss and (" of token_loss" in formula or "clipped" in formula or " of k" in formula):
        for pattern, held, told in AVERAGES:
            if pattern.search(value):
                return held, told
    if formula.startswith(("k1 of", "k2 of", "k3 of", "|k1| of")) and value in ESTIMATES:
        return ESTIMATES[value], ESTIMATES[value].removesuffix(" of")
    about_rewards = formula.startswith("reward") and "whitened" not in formula
    if about_rewards and words & {"scale", "std", "norm", "normalize"} and value in SCOPES:
        return SCOPES[value], f"the {SCOPES[value]}"
    return None
