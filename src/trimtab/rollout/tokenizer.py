"""The only place that builds a tokenizer: one token a character, made locally, reloaded by plain transformers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


def character_tokenizer(alphabet: str) -> "PreTrainedTokenizerFast":
    """A tokenizer with one token for each character of `alphabet`, and the three special tokens before them.

    Padding is a token of its own: where it is the end token, an answer's end and its padding look the same.
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
    )


def encode(tokenizer: "PreTrainedTokenizerFast", text: str) -> list[int]:
    """The ids of `text`, without special tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def decode(tokenizer: "PreTrainedTokenizerFast", ids: list[int]) -> str:
    """The text of `ids`; special tokens stay visible, so that an answer with one in its middle is never right."""
    return str(tokenizer.decode(ids, skip_special_tokens=False))
