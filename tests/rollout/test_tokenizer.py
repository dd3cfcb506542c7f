from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trimtab.errors import ConfigError
from trimtab.rollout.task import Problem
from trimtab.rollout.tokenizer import CHAT_OPENING, character_tokenizer, decode, encode, encode_prompt

CHAT = ({"role": "system", "content": "add\nup"}, {"role": "user", "content": "1+2"})


def chat_tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer(Problem(CHAT, "3").text + CHAT_OPENING)


def test_one_token_a_character_there_and_back() -> None:
    tokenizer = character_tokenizer("0123456789= ")
    ids = encode(tokenizer, "58 213=")
    assert len(ids) == 7
    assert len(set(encode(tokenizer, "0123456789= "))) == 12
    assert decode(tokenizer, ids) == "58 213="


def test_every_character_of_a_text_is_one_token_also_line_ends_and_wide_ones() -> None:
    text = "a\nb\r\tñ≤漢😀\u2028<e"
    tokenizer = character_tokenizer(text)
    assert len(encode(tokenizer, text)) == len(text)
    assert decode(tokenizer, encode(tokenizer, text)) == text


def test_padding_is_not_the_end_token() -> None:
    tokenizer = character_tokenizer("01")
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert decode(tokenizer, [*encode(tokenizer, "0"), tokenizer.eos_token_id, *encode(tokenizer, "1")]) == "0<eos>1"


def test_plain_transformers_reloads_it(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode("1+2", add_special_tokens=False) == encode(tokenizer, "1+2")
    assert (again.pad_token_id, again.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert again.decode(encode(tokenizer, "2+1")) == "2+1"
    assert encode_prompt(again, CHAT) == encode_prompt(tokenizer, CHAT)


def test_a_text_prompt_is_its_characters() -> None:
    tokenizer = character_tokenizer("0123456789=")
    assert encode_prompt(tokenizer, "58=") == encode(tokenizer, "58=")


def test_a_chat_prompt_is_its_text_and_the_opening_of_the_answer() -> None:
    tokenizer = chat_tokenizer()
    assert decode(tokenizer, encode_prompt(tokenizer, CHAT)) == Problem(CHAT, "3").text + CHAT_OPENING


def test_a_prompt_keeps_the_opening_token_and_loses_the_closing_one() -> None:
    plain = character_tokenizer("01<s>")
    backend = Tokenizer.from_str(plain.backend_tokenizer.to_str())
    backend.add_special_tokens(["<s>"])
    special = [("<s>", backend.token_to_id("<s>")), ("<eos>", backend.token_to_id("<eos>"))]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A <eos>", special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
    assert tokenizer.decode(tokenizer.encode("01")) == "<s>01<eos>"
    assert decode(tokenizer, encode_prompt(tokenizer, "01")) == "<s>01"


def test_messages_without_a_chat_template_are_refused() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        _ = encode_prompt(tokenizer, CHAT)


def test_a_bare_tokenizer_is_asked_directly_and_says_the_same() -> None:
    from trimtab.rollout.tokenizer import character_tokenizer, decode, encode, encode_prompt

    tokenizer = character_tokenizer("0123456789= ")
    for text in ("58213=", "", "1 2  3", "<eos>7", "x9", "4<pad><unk>5"):
        assert encode(tokenizer, text) == list(tokenizer.encode(text, add_special_tokens=False))
        assert encode_prompt(tokenizer, text) == list(tokenizer.encode(text))
        ids = list(tokenizer.encode(text))
        assert decode(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=False)
