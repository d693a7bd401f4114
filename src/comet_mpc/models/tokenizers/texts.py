"""Texts to tokens, by a tokenizer of which every part was checked (`parts`), within bounds that are checked.

However a tokenizer was made, a text of n characters takes time in proportion to n and gives at most a constant times n
tokens. What is longer than that is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from comet_mpc.errors import CheckpointError, ConfigurationError, UnsafeTokenizer
from comet_mpc.models.tasks import words_of
from comet_mpc.models.tokenizers.parts import Grammar, read_grammar
from comet_mpc.models.tokenizers.spelling import Spelling

T = TypeVar("T")
Text = str | tuple[str, str]
"""One, or a pair."""
Ids = npt.NDArray[np.int32]

MOST_CHARACTERS = 200_000
"""Of a text: about a hundred times what the longest model reads."""
GROWTH = 54
"""Characters that a normalizer may make of one: 18 by NFKC, and each a Chinese one with blanks around it."""
TOKENS_PER_CHARACTER = 16
"""Of the normalised text: four bytes, each unknown and so given in up to four bytes again."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text, or a pair, as the model reads it. Private to the client."""

    ids: Ids
    types: Ids
    total: int
    """How many tokens the text has, before it was cut."""
    words: tuple[tuple[int, int, int], ...] = ()
    """The words, for a tagger: the place of the first token, and the characters from, and to before which it goes."""

    def __repr__(self) -> str:
        return "Tokens(…)"

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def truncated(self) -> bool:
        return self.total > self.length


class TextTokenizer:
    """A tokenizer that a client may use on its texts.

    text: what was checked, as a tokenizer.json; the same on every machine
    """

    def __init__(self, text: str | bytes) -> None:
        grammar = read_grammar(text)
        self.text = msgspec.json.encode(grammar).decode()
        self._tokenizer = _guarded(partial(Tokenizer.from_str, self.text))
        self._layouts = {pair: grammar.layout(pair=pair) for pair in (False, True)}
        self._nothing = grammar.instead_of_nothing()
        self._largest_id = max(grammar.ids(), default=0)
        _check_added(grammar, self._tokenizer)

    @staticmethod
    def load(stored: bytes, where: object) -> TextTokenizer:
        """From a file of one's own, be it of an older version. Its settings for cutting, padding and decoding go."""
        try:
            known: dict[str, Any] = msgspec.json.decode(Tokenizer.from_str(stored.decode()).to_str())
        except Exception as error:
            raise CheckpointError(f"{where} cannot be read as a tokenizer: {error}") from error
        text = msgspec.json.encode(known | {"truncation": None, "padding": None, "decoder": None})
        try:
            return TextTokenizer(text)
        except UnsafeTokenizer as error:
            raise UnsafeTokenizer(f"{error} ({where})") from error

    @cached_property
    def spelling(self) -> Spelling:
        """What its tokens stand for. Raises `UnsafeTokenizer` if it is one to read with only."""
        return Spelling(read_grammar(self.text))

    def check_fits(self, vocabulary: int) -> None:
        """Raises unless a model that knows so many tokens knows every one that this can give."""
        if self._largest_id >= vocabulary:
            raise UnsafeTokenizer(
                f"it has a token with the number {self._largest_id}, and the model knows {vocabulary} tokens"
            )

    def special(self, *, pair: bool) -> int:
        """How many tokens are put around a text, or around a pair."""
        return sum(isinstance(what, int) for what, _ in self._layouts[pair])

    def encode(self, text: Text, longest: int, *, number: int = 1, words: bool = False) -> Tokens:
        """The tokens of a text, cut after `longest`: of a pair, the longer one, as in training.

        number: by which an error names the text. words: also where its words are
        """
        parts = _parts(text, number)
        layout = self._layouts[len(parts) == 2]
        most = TOKENS_PER_CHARACTER * sum(self._normalised(part, number) for part in parts)
        # Each text alone and whole: the library, asked to cut a pair, makes every pair of what it cuts off as well.
        found = [_guarded(partial(self._tokenizer.encode, part, add_special_tokens=False)) for part in parts]
        lengths = [len(one.ids) for one in found]
        if sum(lengths) > most:
            raise UnsafeTokenizer("it makes more tokens of a text than its characters can have")
        special = self.special(pair=len(parts) == 2)
        if not special + sum(lengths):  # its normalizer left nothing: a mean over no token is no number
            return Tokens(np.array([self._nothing], np.int32), np.zeros(1, np.int32), 1)
        kept = dict(zip("AB", _cut(lengths, longest - special), strict=False))
        ids: list[int] = []
        types: list[int] = []
        places: tuple[tuple[int, int, int], ...] = ()
        for what, kind in layout:
            if what == "A" and words:
                places = tuple((len(ids) + at, start, end) for at, start, end in words_of(found[0], kept["A"]))
            ids += [what] if isinstance(what, int) else found["AB".index(what)].ids[: kept[what]]
            types += [kind] * (len(ids) - len(types))
        return Tokens(np.array(ids, np.int32), np.array(types, np.int32), special + sum(lengths), places)

    def _normalised(self, part: str, number: int) -> int:
        """The length of a part of a text once it is normalised, in characters, and one more."""
        if len(part) > MOST_CHARACTERS:
            raise ConfigurationError(
                f"text {number} has {len(part)} characters, and at most {MOST_CHARACTERS} are taken: shorten it, the "
                "model reads its beginning only"
            )
        normalizer = self._tokenizer.normalizer
        length = len(part) if normalizer is None else len(_guarded(lambda: normalizer.normalize_str(part)))
        if length > GROWTH * len(part) + 1:
            raise UnsafeTokenizer("its normalizer makes a text longer than any normalizer on the list does")
        return length + 1


def _cut(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text are kept: of a pair, the longer one is cut first, as in training."""
    if sum(lengths) <= room:
        return [*lengths]
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    return [shorter, room - shorter] if lengths[0] <= lengths[1] else [room - shorter, shorter]


def _guarded(work: Callable[[], T]) -> T:
    """Whatever the library makes of a tokenizer that it cannot stand, be it a panic of Rust's, is a typed error."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise UnsafeTokenizer(f"the library refuses it: {type(error).__name__}") from error


def _check_added(grammar: Grammar, tokenizer: Tokenizer) -> None:
    """A token that is looked for in the normalised text must be something there: nothing is found everywhere."""
    normalizer = tokenizer.normalizer
    for one in grammar.added_tokens:
        if one.normalized and normalizer and not _guarded(partial(normalizer.normalize_str, one.content)):
            raise UnsafeTokenizer("added_tokens: one of them is nothing once it is normalised")


def _parts(text: object, place: int) -> tuple[str, ...]:
    """A text, or the two of a pair, if a tokenizer can read them."""
    parts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, tuple | list) else ()
    if len(parts) != (1 if isinstance(text, str) else 2) or not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(f"text {place} is neither a text nor a pair of texts, but {type(text).__name__}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"text {place} is not valid text: it has bytes that are not UTF-8") from error
    if not any(part.strip() for part in parts):
        raise ConfigurationError(f"text {place} is empty: there is nothing to classify")
    return parts
