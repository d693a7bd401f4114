"""Tokens to text, as they come: every token stands for some bytes, and characters are told when they are whole.

Nothing of the tokenizer's own decoder is used. What a token stands for follows from the parts that were checked
(`parts`), and is a table: so the work grows with the tokens alone, whatever the server's tokenizer says.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import lru_cache

from comet_mpc.errors import ConfigurationError, UnsafeTokenizer
from comet_mpc.models.tokenizers.parts import BPE, ByteLevel, Grammar, Metaspace, Replace, steps

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_MOST_STOPS = 16
_LONGEST_STOP = 256


@lru_cache(maxsize=1)
def byte_letters() -> dict[str, int]:
    """The letters that ByteLevel writes for bytes: printable ones stand for themselves, the others follow after 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Spelling:
    """The bytes that each token of a tokenizer stands for: none for a special one, or for one that it does not have."""

    def __init__(self, grammar: Grammar) -> None:
        model, pre = grammar.model, steps(grammar.pre_tokenizer)
        if not isinstance(model, BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
            raise UnsafeTokenizer(f"model: a {type(model).__name__} of this kind cannot be written with, only read")
        self._spelled = any(isinstance(one, ByteLevel) for one in pre)
        self._blanks = {one.replacement for one in pre if isinstance(one, Metaspace)} | {
            one.content for one in steps(grammar.normalizer) if isinstance(one, Replace) and one.pattern.String == " "
        }
        self._falls_back = model.byte_fallback
        self._pieces = {number: self._bytes(piece) for piece, number in model.vocab.items()}
        added = {one.id: b"" if one.special else one.content.encode() for one in grammar.added_tokens}
        self._pieces |= added
        if model.unk_token is not None:
            self._pieces[model.vocab[model.unk_token]] = b""

    def _bytes(self, piece: str) -> bytes:
        if self._spelled and all(letter in byte_letters() for letter in piece):
            return bytes(byte_letters()[letter] for letter in piece)
        if self._falls_back and (found := _BYTE.fullmatch(piece)):
            return bytes([int(found[1], 16)])
        for blank in self._blanks:
            piece = piece.replace(blank, " ")
        return piece.encode(errors="replace")

    def __getitem__(self, token: int) -> bytes:
        return self._pieces.get(token, b"")


class Writing:
    """Text from tokens, one after another: what cannot become another character by what follows.

    stop: words that end the text. They are not part of it, so what may be the beginning of one is held back
    """

    def __init__(self, spelling: Spelling, stop: Sequence[str] = ()) -> None:
        if len(stop) > _MOST_STOPS or any(not 0 < len(word) <= _LONGEST_STOP for word in stop):
            raise ConfigurationError(f"there may be {_MOST_STOPS} stop words, of 1 to {_LONGEST_STOP} characters")
        self._spelling, self._stop = spelling, tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """Whether a stop word has come."""

    def add(self, token: int) -> str:
        """What can be told after one more token."""
        return self._told(self._decoder.decode(self._spelling[token]))

    def end(self) -> str:
        """What was held back, if there is no further token. Bytes that are no character become a mark."""
        text = self._told(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _told(self, text: str) -> str:
        if self.stopped:
            return ""
        whole = self._held + text
        places = [place for word in self._stop if (place := whole.find(word)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return whole[: min(places)]
        kept = max((self._begun(whole, word) for word in self._stop), default=0)
        self._held = whole[len(whole) - kept :]
        return whole[: len(whole) - kept]

    @staticmethod
    def _begun(text: str, word: str) -> int:
        """How many characters at the end of a text may be the beginning of the word."""
        return next((size for size in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:size])), 0)
