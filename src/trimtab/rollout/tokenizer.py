"""The only place that turns text into ids and back, and that builds a tokenizer: one token per character."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError
from trimtab.rollout.task import Message, Prompt, Tool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHAT_OPENING = "\nassistant: "
"""What the character tokenizer writes after the messages of a chat, so that the policy's turn begins."""
CHAT_TEMPLATE = (
    "{% if tools %}{{ 'tools: ' + (tools | tojson) + '\\n' }}{% endif %}"
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nassistant: ' }}{% endif %}"
)
"""The messages as `Problem.text` writes them; a model folder brings a template of its own."""


def character_tokenizer(alphabet: str) -> "PreTrainedTokenizerFast":
    """A tokenizer with one token for each character of `alphabet`, and the three special tokens before them.

    Padding is a token of its own: if it were the end token, an answer's end and its padding would look the same.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = sorted(set(alphabet))
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def encode_prompt(tokenizer: "PreTrainedTokenizerFast", prompt: Prompt, tools: Sequence[Tool] = ()) -> list[int]:
    """The ids of a prompt: text with the tokenizer's opening token, if it has one; messages by its chat template."""
    if isinstance(prompt, str):
        if tools:
            raise ConfigError(
                f"prompt: is a text and offers {len(tools)} tools, so there is no place where they could be written. "
                "Write the prompt as messages; then the chat template does it."
            )
        ids = _encoded(tokenizer, prompt, special=True)
        # Some tokenizers add the end token to every text; after it, the policy would have nothing to say.
        while ids and ids[-1] == tokenizer.eos_token_id and not prompt.endswith(str(tokenizer.eos_token)):
            del ids[-1]
        return ids
    if tokenizer.chat_template is None:
        raise ConfigError(
            "prompt: is a list of messages and the tokenizer has no chat template, so it cannot be written as a text. "
            "Use a model folder with a chat template (an instruct model), or write the prompts as text."
        )
    text = write_chat(tokenizer, prompt, tools)
    if tools and text == write_chat(tokenizer, prompt, ()):
        raise ConfigError(
            f"prompt: offers {len(tools)} tools and the tokenizer's chat template does not write them, so the policy "
            "would never hear of them. Use a model whose template knows tools, or describe them in a message."
        )
    return encode(tokenizer, text)


def write_chat(tokenizer: "PreTrainedTokenizerFast", prompt: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """The messages as the chat template writes them, up to where the policy's turn begins."""
    from jinja2 import TemplateError

    messages = [dict(message) for message in prompt]
    offered: Any = [dict(tool) for tool in tools] or None
    try:
        return str(tokenizer.apply_chat_template(messages, tools=offered, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise ConfigError(
            f"prompt: the tokenizer's chat template refuses the roles {[one.get('role') for one in messages]} "
            f"({error}), so the prompt cannot be written. Change the messages as it asks."
        ) from error


def encode(tokenizer: "PreTrainedTokenizerFast", text: str) -> list[int]:
    """The ids of `text`, without special tokens."""
    return _encoded(tokenizer, text, special=False)


def _encoded(tokenizer: "PreTrainedTokenizerFast", text: str, *, special: bool) -> list[int]:
    if _is_bare(tokenizer) and tokenizer.backend_tokenizer.truncation is tokenizer.backend_tokenizer.padding is None:
        return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=special).ids)
    return list(tokenizer.encode(text, add_special_tokens=special))


def _is_bare(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether a tokenizer adds nothing to the one behind it. That one takes a tenth of the time."""
    return type(tokenizer) is _fast_tokenizer()


@cache
def _fast_tokenizer() -> type:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast


def decode(tokenizer: "PreTrainedTokenizerFast", ids: list[int]) -> str:
    """The text of `ids`; special tokens stay visible, so that an answer with one in its middle is never right."""
    if _is_bare(tokenizer) and not tokenizer.clean_up_tokenization_spaces:
        return str(tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False))
    return str(tokenizer.decode(ids, skip_special_tokens=False))
