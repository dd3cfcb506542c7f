"""The only place that decides whether a server speaks our language: ids, end tokens, chat template, log-probs.

All of it is asked before the first answer is used. What a server *says* is compared, and what can be measured is
measured: a server's own word about its log-probs is not asked for.
"""

import hashlib
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.errors import EngineError
from trimtab.rollout.engine import Sampling
from trimtab.rollout.http import Facts, Server

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

COOL, PLAIN = 0.5, 1.0
"""Two temperatures at which the same tokens are asked for. Halving doubles every difference of log-probs."""
TOP = 5
SLACK = 0.1
"""How far the measured factor may be from the true one; a server that answers with raw log-probs is 1 away."""


@dataclass(frozen=True)
class Language:
    """What ids mean to the trainer, and how long its sequences are."""

    tokenizer: "PreTrainedTokenizerFast"
    vocabulary: int
    """Rows of the embedding: the ids that the model knows, used or not."""
    eos_ids: tuple[int, ...]
    max_length: int
    """Tokens of the longest sequence of the run, prompt included."""

    def random_ids(self, count: int) -> tuple[int, ...]:
        """Ids to ask about, none of them special; the same ones each time."""
        plain = sorted(set(range(len(self.tokenizer))) - set(self.tokenizer.all_special_ids))
        return tuple(random.Random(0).choices(plain, k=count))


async def meet(server: Server, language: Language) -> Facts:
    """Ask a server for everything that must be equal on both sides, and refuse it with a sentence if it is not."""
    facts = await server.facts()
    if facts.max_length < language.max_length:
        raise EngineError(
            f"engine {server.url}: takes sequences of {facts.max_length} tokens and the run has up to "
            f"{language.max_length}, so long answers would be cut. Start it with --max-model-len {language.max_length}."
        )
    await _check_ids(server, language)
    _check_templates(server.url, facts, language)
    await _check_logp(server, language)
    return facts


async def _check_ids(server: Server, language: Language) -> None:
    tokenizer = language.tokenizer
    everything = list(range(len(tokenizer)))
    own = str(tokenizer.decode(everything, skip_special_tokens=False))
    if not await server.knows_id(language.vocabulary - 1) or await server.knows_id(language.vocabulary):
        raise EngineError(
            f"engine {server.url}: its model does not have {language.vocabulary} ids as ours has, so it is another "
            "model. Start it with the model folder that is trained."
        )
    theirs = await server.detokenize(everything)
    if _hash(theirs) != _hash(own):
        raise EngineError(
            f"engine {server.url}: its tokenizer reads the ids 0 to {len(everything) - 1} as another text than ours "
            f"({_hash(theirs)[:12]} and {_hash(own)[:12]}), so ids would change their meaning on the way. Start it "
            "with the tokenizer of the model folder that is trained."
        )


def _check_templates(url: str, facts: Facts, language: Language) -> None:
    tokenizer = language.tokenizer
    if facts.eos_token != str(tokenizer.eos_token) or tokenizer.eos_token_id not in language.eos_ids:
        raise EngineError(
            f"engine {url}: its end token is {facts.eos_token!r} and ours is {tokenizer.eos_token!r}; the run stops at "
            f"ids {list(language.eos_ids)}. Answers would end at other places. Use one tokenizer on both sides."
        )
    own = tokenizer.chat_template or ""
    if _hash(facts.chat_template) != _hash(str(own)):
        raise EngineError(
            f"engine {url}: its chat template is another than ours ({_hash(facts.chat_template)[:12]} and "
            f"{_hash(str(own))[:12]}). Prompts are written by us, so training would go on, but whoever talks to this "
            "server would see other prompts than were trained. Start it without --chat-template, with our folder."
        )


async def _check_logp(server: Server, language: Language) -> None:
    """Halving the temperature doubles the distances between log-probs, unless they are those before temperature."""
    wide: list[float] = []
    for temperature in (PLAIN, COOL):
        answer = await server.generate(language.random_ids(8), Sampling(1, temperature), (), seed=0, top=TOP)
        values = sorted(answer.top[0].values(), reverse=True)[:TOP]
        wide.append(values[0] - values[-1])
    factor = wide[1] / wide[0] if wide[0] > 0 else math.nan
    if abs(factor - PLAIN / COOL) <= SLACK:
        return
    if abs(factor - 1) <= SLACK:
        raise EngineError(
            f"engine {server.url}: gives the same log-probs at temperature {PLAIN:g} and {COOL:g}, so they are raw: of "
            "another distribution than was sampled from. Start it with --logprobs-mode processed_logprobs."
        )
    raise EngineError(
        f"engine {server.url}: from temperature {PLAIN:g} to {COOL:g}, distances between log-probs grew {factor:.2f} "
        f"times instead of {PLAIN / COOL:g}, so it does not sample at the temperature it is asked for. Look at what "
        "stands between, and at its logits processors."
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
