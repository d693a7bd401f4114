"""Tokens to text as they come: never a part of a character, never a stop word, and all of the text in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder

from comet_mpc.errors import ConfigurationError, UnsafeTokenizer
from comet_mpc.models.tokenizers.spelling import Writing, byte_letters
from comet_mpc.models.tokenizers.texts import TextTokenizer
from support.toy_model import toy_tokenizer

_WORDS = ("▁the", "▁a", "the", "he", "▁t", "▁f", "ox", "▁fox")


def bytes_as_tokens() -> TextTokenizer:
    """As Llama's: blanks are ▁, one before the text, and a token for every byte where there is none for a letter."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"thefoxa", *_WORDS]
    merges = [("▁", "t"), ("h", "e"), ("t", "he"), ("▁t", "he"), ("▁", "a"), ("▁", "f"), ("o", "x"), ("▁f", "ox")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return TextTokenizer.load(tokenizer.to_str().encode(), "here")


def letters_as_bytes() -> TextTokenizer:
    """As GPT-2's: every byte is a letter."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "Ġt", "he"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "t"), ("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return TextTokenizer.load(tokenizer.to_str().encode(), "here")


BOTH = pytest.mark.parametrize("tokenizer", [bytes_as_tokens(), letters_as_bytes()], ids=["bytes", "letters"])
TEXTS = st.text(min_size=1, max_size=30).filter(str.strip)


def told(tokenizer: TextTokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    writing = Writing(tokenizer.spelling, stop)
    return [*(writing.add(token) for token in ids), writing.end()]


@BOTH
@given(text=TEXTS)
def test_all_of_a_text_comes_back_and_no_character_is_split(tokenizer: TextTokenizer, text: str) -> None:
    if "▁" in text:
        return
    parts = told(tokenizer, tokenizer.encode(text, 1000).ids.tolist())
    prefix = tokenizer.spelling[int(tokenizer.encode("t", 9).ids[0])].decode().removesuffix("t")
    assert "".join(parts) == prefix + text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


def test_a_fox_of_four_bytes_comes_whole() -> None:
    tokenizer = bytes_as_tokens()
    ids = tokenizer.encode("the 🦊", 100).ids.tolist()
    assert told(tokenizer, ids) == [" the", " ", "", "", "", "🦊", ""]
    assert told(tokenizer, ids[:-1]) == [" the", " ", "", "", "", "\ufffd"]  # the text ends within the character


@pytest.mark.parametrize("tokenizer", [bytes_as_tokens()])
@given(ids=st.lists(st.integers(0, 275), max_size=30))
def test_any_tokens_give_what_all_their_bytes_together_say(tokenizer: TextTokenizer, ids: list[int]) -> None:
    spelling = tokenizer.spelling
    whole = b"".join(spelling[token] for token in ids).decode("utf-8", "replace")
    assert "".join(told(tokenizer, ids)) == whole


def test_bytes_have_the_letters_of_the_library() -> None:
    assert set(byte_letters()) == set(pre_tokenizers.ByteLevel.alphabet())
    text = "".join(byte_letters())
    whole = bytes(byte_letters()[letter] for letter in text)
    assert ByteLevelDecoder().decode([text]) == whole.decode("utf-8", "replace")


@given(text=TEXTS, stop=st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3), cuts=st.data())
def test_a_text_ends_before_the_first_stop_word(text: str, stop: list[str], cuts: st.DataObject) -> None:
    text = text + cuts.draw(st.text("ab ", max_size=20))
    tokenizer = letters_as_bytes()
    writing = Writing(tokenizer.spelling, stop)
    parts = [writing.add(token) for token in tokenizer.encode(text, 1000).ids.tolist()]
    parts.append(writing.end())
    ends = [text.find(word) for word in stop if word in text]
    found = "".join(parts)
    assert writing.stopped == bool(ends)
    assert not any(word in found for word in stop)
    assert found == text[: len(found)] if ends else found == text
    assert not ends or min(ends) <= len(found) < min(text.find(word) + len(word) for word in stop if word in text)


def test_the_beginning_of_a_stop_word_is_held_back_and_told_if_it_is_none() -> None:
    tokenizer = letters_as_bytes()
    writing = Writing(tokenizer.spelling, ["end."])
    parts = [writing.add(token) for token in tokenizer.encode("an endless end.", 100).ids.tolist()]
    assert "".join(parts) == "an endless "
    assert writing.stopped
    assert parts[3:6] == ["", "", ""]


def test_special_tokens_and_unknown_numbers_are_nothing() -> None:
    tokenizer = bytes_as_tokens()
    assert told(tokenizer, [1, 2, 0, 100_000, -1]) == [""] * 6


def test_what_cannot_be_written_with_is_refused() -> None:
    with pytest.raises(UnsafeTokenizer, match="WordLevel"):
        _ = TextTokenizer.load(toy_tokenizer().to_str().encode(), "here").spelling
    for stop in ([""], ["x" * 300], ["x"] * 17):
        with pytest.raises(ConfigurationError, match="stop words"):
            Writing(bytes_as_tokens().spelling, stop)
