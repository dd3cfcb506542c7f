from pathlib import Path

from transformers import AutoTokenizer

from trimtab.rollout.tokenizer import character_tokenizer, decode, encode


def test_one_token_a_character_there_and_back() -> None:
    tokenizer = character_tokenizer("0123456789= ")
    ids = encode(tokenizer, "58 213=")
    assert len(ids) == 7
    assert len(set(encode(tokenizer, "0123456789= "))) == 12
    assert decode(tokenizer, ids) == "58 213="


def test_padding_is_not_the_end_token() -> None:
    tokenizer = character_tokenizer("01")
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert decode(tokenizer, [*encode(tokenizer, "0"), tokenizer.eos_token_id, *encode(tokenizer, "1")]) == "0<eos>1"


def test_plain_transformers_reloads_it(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("0123456789=")
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode("58213=", add_special_tokens=False) == encode(tokenizer, "58213=")
    assert (again.pad_token_id, again.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert again.decode(encode(tokenizer, "31285")) == "31285"
