"""The only place that reads what a vLLM server generated, and refuses it unless it is whole.

An answer must have one log-prob for each token, its end token among them, and name the parameters that chose it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from trimtab.errors import EngineError
from trimtab.rollout.engine import Finish

LOST_LOGP = -9998.0
"""vLLM writes -9999 for a log-prob that is not a number or minus infinity."""
FINISHES: dict[str, Finish] = {"stop": "eos", "length": "length", "abort": "abort"}


@dataclass(frozen=True)
class Answer:
    """What a server generated, and under which label it held its parameters meanwhile."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    finish: Finish
    labels: tuple[str, ...]
    """For each token, the label of the parameters that chose it."""
    cached: int | None
    """Tokens of the prompt that were not computed but found in the prefix cache; None if the server does not say."""
    top: tuple[Mapping[int, float], ...]
    """For each token, log-probs of the likeliest ids, if asked for."""


def read_answer(url: str, found: dict[str, Any], stop_ids: Sequence[int], limit: int) -> Answer:
    """Read an answer, and refuse one that lacks something."""
    choices = cast("list[dict[str, Any]]", found.get("choices") or [])
    if len(choices) != 1:
        raise EngineError(
            f"engine {url}: gave {len(choices)} answers to one request, so it is not clear which one was sampled. Look "
            "at what stands between."
        )
    choice = choices[0]
    ids = tuple(int(token) for token in choice.get("token_ids") or ())
    content = cast("list[dict[str, Any]]", (choice.get("logprobs") or {}).get("content") or [])
    spans = cast("list[dict[str, Any]]", choice.get("weight_versions") or [])
    finish = FINISHES.get(str(choice.get("finish_reason")))
    if finish is None or (not ids and finish != "abort") or len(ids) > limit:
        raise EngineError(
            f"engine {url}: ended an answer of {len(ids)} tokens (at most {limit} were asked for) with "
            f"{choice.get('finish_reason')!r}, so it is not clear what was sampled. Look at its log."
        )
    labels = tuple(str(span["version"]) for span in spans for _ in range(int(span["start"]), int(span["end"])))
    if len(labels) != len(ids):
        raise EngineError(
            f"engine {url}: does not say which parameters chose its tokens (weight_versions: {spans}), so a restart "
            "would go unnoticed. Use vLLM 0.32 or newer."
        )
    details = cast("dict[str, Any]", (found.get("usage") or {}).get("prompt_tokens_details") or {})
    return Answer(
        ids=ids,
        logp=_logp(url, ids, content, stop_ids if finish == "eos" else ()),
        finish=finish,
        labels=labels,
        cached=details.get("cached_tokens"),
        top=tuple({int(t["token_id"]): float(t["logprob"]) for t in one.get("top_logprobs") or ()} for one in content),
    )


def _logp(url: str, ids: tuple[int, ...], content: list[dict[str, Any]], ends: Sequence[int]) -> tuple[float, ...]:
    """One log-prob per token, the end token's among them."""
    if ends and ids[-1] not in ends:
        raise EngineError(
            f"engine {url}: an answer was stopped and its last id is {ids[-1]}, none of the stop ids {list(ends)}, so "
            "the end token is missing and the policy could not learn to end. Use a server that returns stop tokens."
        )
    if [int(one.get("token_id", -1)) for one in content] != list(ids):
        raise EngineError(
            f"engine {url}: {len(ids)} tokens came with {len(content)} log-probs or with those of other ids, so tokens "
            "and log-probs do not match; often the stop token has none. Use a server that scores every token."
        )
    logp = tuple(float(one["logprob"]) for one in content)
    lost = [place for place, value in enumerate(logp) if not math.isfinite(value) or value < LOST_LOGP]
    if lost:
        raise EngineError(
            f"engine {url}: the log-prob of token {lost[0]} (id {ids[lost[0]]}) is {logp[lost[0]]}, no number, so it "
            "cannot be trained on. The server's parameters may be broken: publish them again."
        )
    return logp
