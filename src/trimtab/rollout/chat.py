"""The only place that continues a chat behind a turn of the policy: ids of what is new, and nothing written again.

What the policy wrote stays as it was sampled, token by token. A chat that is written anew for every turn may spell the
same text with other tokens, or leave parts of it out; then a trainer learns from tokens that nobody sampled.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.rollout.task import Message, Prompt, Tool, Turn
from trimtab.rollout.tokenizer import encode, write_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STAND_IN = "0stand-in0"
"""Stands for the policy's turn while the template is asked what follows it. It never becomes a token."""


def observed_ids(
    tokenizer: "PreTrainedTokenizerFast", turn: Turn, tools: Sequence[Tool] = (), *, end: str = ""
) -> list[int]:
    """The ids of an environment's reply, which follow the policy's turn."""
    return next_ids(tokenizer, turn.messages or turn.observation, tools, end=end)


def next_ids(
    tokenizer: "PreTrainedTokenizerFast", new: Prompt, tools: Sequence[Tool] = (), *, end: str = ""
) -> list[int]:
    """The ids of what is said after a turn of the policy, up to where its next turn begins.

    A text is encoded as it is. Messages are written by the chat template, behind the policy's turn. `end` is the text
    of the token that closed that turn, "" where it was cut off: what the policy wrote is not repeated.
    """
    return encode(tokenizer, new if isinstance(new, str) else _following(tokenizer, new, tools, end))


def _following(tokenizer: "PreTrainedTokenizerFast", new: Sequence[Message], tools: Sequence[Tool], end: str) -> str:
    turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": STAND_IN}, *new)
    text = write_chat(tokenizer, turns, tools)
    if text.count(STAND_IN) != 1:
        raise ConfigError(
            f"chat: the tokenizer's chat template writes an answer of the policy {text.count(STAND_IN)} times, so it "
            f"is not clear what follows it. Use a model whose template writes every message once, in order; the new "
            f"messages have the roles {[one.get('role') for one in new]}."
        )
    rest = text.split(STAND_IN)[1]
    return rest.removeprefix(end) if end else rest
