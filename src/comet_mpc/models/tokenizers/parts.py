"""Which tokenizers a client takes from a server: an allow-list of parts whose work and output grow with the text alone.

A tokenizer comes from the server and runs on the secret text, and the number of tokens decides the bucket that the
server sees. So nothing in it may do more for one text than for another of the same length: every part below takes time
in proportion to the text, and makes at most `Grammar.growth` characters of one. Regular expressions are taken if they
are public patterns, word by word; whatever is not on the list is refused by name (`UnsafeTokenizer`).

The list is the types: a tokenizer.json is decoded into them, and the library is given what is encoded from them again,
so that it never sees a field that was not understood here. Nor may one fail at some texts alone: there is a token for
everything that a text can have in it.

Above 400 lines, because a list is one: every part that is taken, and what is asked of it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from tokenizers.pre_tokenizers import ByteLevel as ByteAlphabet

from comet_mpc.errors import UnsafeTokenizer

LARGEST = 1 << 26
"""Bytes of a tokenizer.json: five times that of the largest vocabulary in use."""
MOST_ADDED = 4096
MOST_SPECIAL = 8
"""Special tokens that are put around a text, or around a pair."""
LONGEST_WORD = 200
"""Characters of a word that WordPiece looks at; it tries every part of a word, so work grows with this."""
MOST_STEPS = 8
"""Parts of a sequence. Sequences in sequences are refused."""

Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
TypeId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Affix = Annotated[str, msgspec.Meta(max_length=8)]
Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]
Vocabulary = dict[Annotated[str, msgspec.Meta(max_length=512)], Id]
Behavior = Literal["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]

_BEFORE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_AFTER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLIC_PATTERNS = frozenset({
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    _BEFORE + r"\p{N}{1,3}" + _AFTER,  # Llama 3
    _BEFORE + r"\p{N}" + _AFTER,  # Qwen 2
})  # fmt: skip
"""Regular expressions of well-known tokenizers. None of them goes back over more than it takes."""


_BYTE_LETTERS = frozenset(ByteAlphabet.alphabet())


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is not known is refused: the library might do something with it."""


class _Typed(_Part, frozen=True, tag_field="type", tag=True):
    """Named by its type, as the library names it."""


class Pattern(_Part, frozen=True):
    """What is looked for: a text as it stands, or a regular expression, which must be one of the public ones."""

    String: Word | msgspec.UnsetType = msgspec.UNSET
    Regex: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.String is msgspec.UNSET) == (self.Regex is msgspec.UNSET):
            raise ValueError("either a text or a regular expression is needed")
        if self.Regex is not msgspec.UNSET and self.Regex not in PUBLIC_PATTERNS:
            raise ValueError("a regular expression that is not one of the public ones")


# Normalizers ---------------------------------------------------------------------------------------------


class BertNormalizer(_Typed, frozen=True):
    """Puts blanks around Chinese characters: three characters for one."""

    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool | None
    lowercase: bool


class NFC(_Typed, frozen=True):
    """Growth: 3."""


class NFD(_Typed, frozen=True):
    """Growth: 4."""


class NFKC(_Typed, frozen=True):
    """Growth: 18, by one Arabic ligature."""


class NFKD(_Typed, frozen=True):
    """Growth: 18."""


class Lowercase(_Typed, frozen=True):
    """Growth: 3."""


class StripAccents(_Typed, frozen=True):
    """Takes characters away."""


class Nmt(_Typed, frozen=True):
    """Control characters become blanks, or go."""


class Strip(_Typed, frozen=True):
    """Takes blanks away at the ends."""

    strip_left: bool
    strip_right: bool


class Prepend(_Typed, frozen=True):
    """One character, once."""

    prepend: Character


class Replace(_Typed, frozen=True):
    """Literally, and by nothing longer: a pattern that matches more than it says could sort texts."""

    pattern: Pattern
    content: str

    def __post_init__(self) -> None:
        if self.pattern.String is msgspec.UNSET:
            raise ValueError("it replaces by a regular expression")
        if len(self.content) > len(self.pattern.String):
            raise ValueError("it replaces a text by a longer one")


OneNormalizer = (
    BertNormalizer | NFC | NFD | NFKC | NFKD | Lowercase | StripAccents | Nmt | Strip | Prepend | Replace
)  # fmt: skip


class NormalizerSequence(_Typed, frozen=True, tag="Sequence"):
    """One after the other."""

    normalizers: Annotated[list[OneNormalizer], msgspec.Meta(max_length=MOST_STEPS)]


# Pre-tokenizers ------------------------------------------------------------------------------------------


class BertPreTokenizer(_Typed, frozen=True):
    """At blanks and punctuation."""


class Whitespace(_Typed, frozen=True):
    r"""\w+|[^\w\s]+"""


class WhitespaceSplit(_Typed, frozen=True):
    """At blanks."""


class ByteLevel(_Typed, frozen=True):
    """A character for every byte: up to four for one. Twice would make it eight."""

    add_prefix_space: bool
    trim_offsets: bool
    use_regex: bool = True


class Metaspace(_Typed, frozen=True):
    """Blanks become a visible character; at most one more for every word."""

    replacement: Character
    prepend_scheme: Literal["always", "first", "never"]
    split: bool = True


class Punctuation(_Typed, frozen=True):
    """At punctuation."""

    behavior: Behavior


class Digits(_Typed, frozen=True):
    """At digits."""

    individual_digits: bool


class Split(_Typed, frozen=True):
    """At a literal text, or by a public pattern."""

    pattern: Pattern
    behavior: Behavior
    invert: bool

    def __post_init__(self) -> None:
        """What is removed is blanks, or what is between the matches of a public pattern, which is nothing."""
        literal = self.pattern.String
        harmless = self.invert if literal is msgspec.UNSET else not self.invert and not literal.strip()
        if self.behavior == "Removed" and not harmless:
            raise ValueError("it removes words from a text")


OnePreTokenizer = (
    BertPreTokenizer | Whitespace | WhitespaceSplit | ByteLevel | Metaspace | Punctuation | Digits | Split
)  # fmt: skip


class PreTokenizerSequence(_Typed, frozen=True, tag="Sequence"):
    """One after the other."""

    pretokenizers: Annotated[list[OnePreTokenizer], msgspec.Meta(max_length=MOST_STEPS)]


# Models --------------------------------------------------------------------------------------------------


class WordPiece(_Typed, frozen=True):
    """The longest parts of a word that are in the vocabulary: at most one token for each of its characters."""

    unk_token: Word
    continuing_subword_prefix: Affix
    max_input_chars_per_word: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_WORD)]
    vocab: Vocabulary

    def __post_init__(self) -> None:
        _check_unknown(self.unk_token, self.vocab)


class WordLevel(_Typed, frozen=True):
    """One token for a word."""

    vocab: Vocabulary
    unk_token: Word

    def __post_init__(self) -> None:
        _check_unknown(self.unk_token, self.vocab)


class BPE(_Typed, frozen=True):
    """Merges of neighbours: at most one token for each character, or byte. Without dropout, which is random."""

    dropout: None
    unk_token: Word | None
    continuing_subword_prefix: Affix | None
    end_of_word_suffix: Affix | None
    fuse_unk: bool
    byte_fallback: bool
    vocab: Vocabulary
    merges: list[tuple[str, str]]
    ignore_merges: bool = False

    def __post_init__(self) -> None:
        if self.unk_token is not None:
            _check_unknown(self.unk_token, self.vocab)

    def knows_bytes(self, *, spelled: bool) -> bool:
        """Whether it has a token for every byte. spelled: also as a letter of ByteLevel, anywhere in a word"""
        if self.byte_fallback and all(f"<0x{byte:02X}>" in self.vocab for byte in range(256)):
            return True
        before, after = {"", self.continuing_subword_prefix or ""}, {"", self.end_of_word_suffix or ""}
        return spelled and all(a + one + b in self.vocab for one in _BYTE_LETTERS for a in before for b in after)


def _check_unknown(token: str, vocabulary: Vocabulary) -> None:
    """The library fails at a text with an unknown word if there is no token for it."""
    if token not in vocabulary:
        raise ValueError("its unk_token is not in its vocabulary")


# What is put around a text -------------------------------------------------------------------------------


class BertProcessing(_Typed, frozen=True):
    """[CLS] A [SEP] B [SEP]"""

    sep: tuple[Word, Id]
    cls: tuple[Word, Id]


class RobertaProcessing(_Typed, frozen=True):
    """<s> A </s></s> B </s>"""

    sep: tuple[Word, Id]
    cls: tuple[Word, Id]
    trim_offsets: bool
    add_prefix_space: bool


class _Place(_Part, frozen=True):
    id: Word
    type_id: TypeId


class _Piece(_Part, frozen=True):
    """One of the two."""

    Sequence: _Place | msgspec.UnsetType = msgspec.UNSET
    SpecialToken: _Place | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.Sequence is msgspec.UNSET) == (self.SpecialToken is msgspec.UNSET):
            raise ValueError("either a text or a special token is needed")


class _Special(_Part, frozen=True):
    id: Word
    ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=1)]
    tokens: Annotated[list[Word], msgspec.Meta(min_length=1, max_length=1)]


Pieces = Annotated[list[_Piece], msgspec.Meta(max_length=MOST_SPECIAL + 2)]


class TemplateProcessing(_Typed, frozen=True):
    """Every text stands once in it: a template that repeats a text would multiply its tokens."""

    single: Pieces
    pair: Pieces
    special_tokens: Annotated[dict[Word, _Special], msgspec.Meta(max_length=MOST_SPECIAL)]

    def __post_init__(self) -> None:
        for pieces, texts in ((self.single, ["A"]), (self.pair, ["A", "B"])):
            if sorted(one.Sequence.id for one in pieces if one.Sequence is not msgspec.UNSET) != texts:
                raise ValueError(f"a template must have each of {' and '.join(texts)} once")
            for one in pieces:
                if one.SpecialToken is not msgspec.UNSET and one.SpecialToken.id not in self.special_tokens:
                    raise ValueError("a template names a special token that it does not have")

    def place(self, piece: _Piece) -> tuple[int | str, int]:
        """A special token's number, or which text, and the type."""
        if piece.SpecialToken is not msgspec.UNSET:
            return self.special_tokens[piece.SpecialToken.id].ids[0], piece.SpecialToken.type_id
        assert piece.Sequence is not msgspec.UNSET
        return piece.Sequence.id, piece.Sequence.type_id


OneProcessor = BertProcessing | RobertaProcessing | TemplateProcessing | ByteLevel


class ProcessorSequence(_Typed, frozen=True, tag="Sequence"):
    """Byte-level offsets, then a template."""

    processors: Annotated[list[OneProcessor], msgspec.Meta(max_length=MOST_STEPS)]


# The whole -----------------------------------------------------------------------------------------------


class AddedToken(_Part, frozen=True):
    """Found in the text before all else: one token for at least one character.

    The library reads the whole text before a token that looks at its neighbours, once for each of them: such a token
    must be in brackets, as <mask> is, so that no ordinary text is full of it.
    """

    id: Id
    content: Word
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool

    def __post_init__(self) -> None:
        if (self.single_word or self.lstrip or self.rstrip) and not re.fullmatch(r"[<\[].+[>\]]", self.content):
            raise ValueError("it looks at its neighbours, and is not in brackets")


class Grammar(_Part, frozen=True, kw_only=True):
    """A tokenizer.json, as a client takes it. The client sets truncation and padding, and nothing is decoded."""

    version: Literal["1.0"]
    truncation: None
    padding: None
    added_tokens: Annotated[list[AddedToken], msgspec.Meta(max_length=MOST_ADDED)]
    normalizer: OneNormalizer | NormalizerSequence | None
    pre_tokenizer: OnePreTokenizer | PreTokenizerSequence | None
    post_processor: OneProcessor | ProcessorSequence | None
    decoder: None
    model: WordPiece | WordLevel | BPE

    def __post_init__(self) -> None:
        pre = steps(self.pre_tokenizer)
        for kind, parts in ((ByteLevel, pre), (Metaspace, pre), (Prepend, steps(self.normalizer))):
            if sum(isinstance(one, kind) for one in parts) > 1:
                raise ValueError(f"{kind.__name__} is there twice, and would make the text longer each time")
        if sum(not isinstance(one, ByteLevel) for one in steps(self.post_processor)) > 1:
            raise ValueError("special tokens are put around a text twice")
        if isinstance(self.model, BPE) and self.model.unk_token is None:
            kinds = {type(one) for one in pre}
            if not self.model.knows_bytes(spelled=ByteLevel in kinds and Metaspace not in kinds):
                raise ValueError("its model has neither an unk_token nor a token for every byte, and leaves words out")

    def layout(self, *, pair: bool) -> tuple[tuple[int | str, int], ...]:
        """What the model reads of a text, or of a pair: special tokens, and A and B for texts, with their types."""
        for one in steps(self.post_processor):
            if isinstance(one, TemplateProcessing):
                return tuple(one.place(piece) for piece in (one.pair if pair else one.single))
            if isinstance(one, BertProcessing | RobertaProcessing):
                (_, sep), (_, cls) = one.sep, one.cls
                if not pair:
                    return (cls, 0), ("A", 0), (sep, 0)
                if isinstance(one, BertProcessing):
                    return (cls, 0), ("A", 0), (sep, 0), ("B", 1), (sep, 1)
                return (cls, 0), ("A", 0), (sep, 0), (sep, 0), ("B", 0), (sep, 0)
        return (("A", 0), ("B", 1)) if pair else (("A", 0),)

    def instead_of_nothing(self) -> int:
        """The token of a text of which nothing is left: the unknown one, or the first that there is."""
        unknown = self.model.unk_token
        return min(self.ids(), default=0) if unknown is None else self.model.vocab[unknown]

    def ids(self) -> set[int]:
        """Every token that it can give."""
        found = {*self.model.vocab.values(), *(one.id for one in self.added_tokens)}
        for one in steps(self.post_processor):
            if isinstance(one, BertProcessing | RobertaProcessing):
                found |= {one.sep[1], one.cls[1]}
            elif isinstance(one, TemplateProcessing):
                found |= {number for special in one.special_tokens.values() for number in special.ids}
        return found


def steps(part: Any) -> list[Any]:
    """The parts of a sequence, one part alone, or none."""
    if isinstance(part, NormalizerSequence):
        return [*part.normalizers]
    if isinstance(part, PreTokenizerSequence):
        return [*part.pretokenizers]
    if isinstance(part, ProcessorSequence):
        return [*part.processors]
    return [] if part is None else [part]


def read_grammar(text: str | bytes) -> Grammar:
    """A tokenizer.json whose every part is on the list. Raises `UnsafeTokenizer`, which names the part."""
    if len(text) > LARGEST:
        raise UnsafeTokenizer(f"it has {len(text)} bytes, and at most {LARGEST} are taken")
    try:
        return msgspec.json.decode(text, type=Grammar)
    except RecursionError as error:
        raise UnsafeTokenizer("it is nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnsafeTokenizer(_said(error)) from error


def _said(error: Exception) -> str:
    """What msgspec says, with the part first: `$.normalizer.normalizers[...]` is normalizer.normalizers[...]."""
    what, _, where = str(error).partition(" - at `")
    part = where.rstrip("`").removeprefix("key in ").removeprefix("$").strip(".").removesuffix(".type")
    what = re.sub(r"^Invalid value ('.*?')$", r"\1 is not on the list of parts that are safe", what)
    return f"{part}: {what}" if part else what
