"""Tokenizers that a server could send to sort texts by what they say, or to keep a client busy: none is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Encoding, Regex, Tokenizer
from tokenizers import models as kinds
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre
from tokenizers import processors as post

from comet_mpc.errors import ConfigurationError, UnsafeTokenizer
from comet_mpc.models.public import PublicModel
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import words_of
from comet_mpc.models.tokenizers import texts as tokenizing
from comet_mpc.models.tokenizers.files import own_tokenizer
from comet_mpc.models.tokenizers.parts import MOST_ADDED
from comet_mpc.models.tokenizers.texts import GROWTH, MOST_CHARACTERS, TOKENS_PER_CHARACTER, TextTokenizer
from support.toy_model import TINY, make_checkpoint, toy_tokenizer

Json = dict[str, Any]
Hostile = Callable[[Json], None]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def toy() -> Json:
    return dict(json.loads(toy_tokenizer().to_str()))


def replace(pattern: Json, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def doubling(count: int) -> list[Json]:
    """Sixteen characters become 16·2^count: seconds, and hundreds of megabytes."""
    return [replace({"String": "a"}, "aa") for _ in range(count)]


def set_part(part: str, value: Any) -> Hostile:
    return lambda tokenizer: tokenizer.__setitem__(part, value)


def set_model(**changed: Any) -> Hostile:
    return lambda tokenizer: tokenizer["model"].update(changed)


def added(**changed: Any) -> Hostile:
    usual = {"id": 5, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return lambda tokenizer: tokenizer["added_tokens"].append(usual | changed)


def template(pieces: list[Json], **changed: Any) -> Hostile:
    def apply(tokenizer: Json) -> None:
        tokenizer["post_processor"].update({"single": pieces, **changed})

    return apply


def nested(depth: int) -> Json:
    found: Json = {"type": "NFC"}
    for _ in range(depth):
        found = {"type": "Sequence", "normalizers": [found]}
    return found


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPACES = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}


def bpe(**changed: Any) -> Json:
    usual: Json = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    usual |= {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "vocab": {"a": 1}, "merges": []}
    return usual | changed


def split(pattern: Json, *, invert: bool = False) -> Json:
    return {"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": invert}


HOSTILE: dict[str, tuple[Hostile, str]] = {
    "sorts by a regular expression": (
        set_part("normalizer", replace({"Regex": "(?i)hiv|bankrupt|pregnan"}, "a " * 60)), "normalizer"
    ),
    "replaces by less, but by a regular expression": (
        set_part("normalizer", replace({"Regex": ".*pregnan.*"}, "")), "normalizer"
    ),
    "sorts by a word": (set_part("normalizer", replace({"String": "pregnant"}, "a " * 60)), "normalizer"),
    "doubles": (set_part("normalizer", {"type": "Sequence", "normalizers": doubling(8)}), "normalizer"),
    "doubles often": (set_part("normalizer", {"type": "Sequence", "normalizers": doubling(24)}), "normalizer"),
    "has sequences in a sequence": (set_part("normalizer", nested(2)), "normalizer"),
    "is nested deeply": (set_part("normalizer", nested(200)), "normalizer"),
    "prepends twice": (
        set_part("normalizer", {"type": "Sequence", "normalizers": 2 * [{"type": "Prepend", "prepend": "x"}]}),
        "Prepend",
    ),
    "prepends much": (set_part("normalizer", {"type": "Prepend", "prepend": "x" * 100}), "normalizer"),
    "has a map of characters": (
        set_part("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}), "Precompiled"
    ),
    "splits by a regular expression": (
        set_part(
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        ),
        "pre_tokenizer",
    ),
    "makes bytes of bytes": (
        set_part("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 8}), "ByteLevel"
    ),
    "marks words again and again": (
        set_part("pre_tokenizer", {"type": "Sequence", "pretokenizers": [SPACES] * 2}), "Metaspace"
    ),
    "cuts at a script": (set_part("pre_tokenizer", {"type": "UnicodeScripts"}), "pre_tokenizer"),
    "repeats the text": (template([TEXT] * 3), "post_processor"),
    "leaves the text out": (template([CLS]), "post_processor"),
    "puts much around the text": (template([CLS] * 500 + [TEXT]), "post_processor"),
    "has a special token of many": (
        template([CLS, TEXT], special_tokens={"[CLS]": {"id": "[CLS]", "ids": [2] * 999, "tokens": ["[CLS]"] * 999}}),
        "post_processor",
    ),
    "puts special tokens around twice": (
        lambda tokenizer: tokenizer.update(
            post_processor={"type": "Sequence", "processors": [tokenizer["post_processor"]] * 2}
        ),
        "twice",
    ),
    "adds a token that is nothing once it is normalised": (
        lambda tokenizer: (
            tokenizer.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
            added(content=" ")(tokenizer),
        )[0],
        "added_tokens",
    ),
    "adds a token that is nothing": (added(content=""), "added_tokens"),
    "adds a token that reads the text again": (added(content="e", lstrip=True), "added_tokens"),
    "adds a token that looks at its neighbours": (added(content="e", single_word=True), "added_tokens"),
    "adds too many tokens": (
        lambda tokenizer: [added(content="t")(tokenizer) for _ in range(MOST_ADDED + 1)].clear(), "added_tokens"
    ),
    "adds a token that the model does not know": (added(content="x", id=1 << 20), "number 1048576"),
    "has a token that the model does not know": (
        lambda tokenizer: tokenizer["model"]["vocab"].update(x=99), "number 99, and the model knows 26"
    ),
    "is random": (
        set_part("model", {
            "type": "BPE", "dropout": 0.5, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": {}, "merges": [],
        }),
        "model.dropout",
    ),
    "looks at words of any length": (
        set_part("model", {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 10**9, "vocab": {"[UNK]": 1},
        }),
        "model.max_input_chars_per_word",
    ),
    "has no token for words that WordPiece does not know": (
        set_part("model", {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"good": 1},
        }),
        "unk_token",
    ),
    "has no token for words that WordLevel does not know": (set_model(unk_token="[NONE]"), "unk_token"),
    "has no token for characters that BPE does not know": (set_part("model", bpe(unk_token="[NONE]")), "unk_token"),
    "leaves out characters that it does not know": (set_part("model", bpe()), "token for every byte"),
    "knows bytes, but is not given bytes": (
        set_part("model", bpe(vocab=dict.fromkeys(pre.ByteLevel.alphabet(), 5))), "token for every byte"
    ),
    "leaves out a byte": (
        lambda tokenizer: tokenizer.update(
            pre_tokenizer=BYTES, model=bpe(vocab={one: 5 for one in pre.ByteLevel.alphabet() if one != "q"})
        ),
        "token for every byte",
    ),
    "leaves out a byte at the end of a word": (
        lambda tokenizer: tokenizer.update(
            pre_tokenizer=BYTES,
            model=bpe(end_of_word_suffix="~", vocab=dict.fromkeys(pre.ByteLevel.alphabet(), 5)),
        ),
        "token for every byte",
    ),
    "falls back on bytes that it does not have": (
        set_part("model", bpe(byte_fallback=True, vocab={f"<0x{i:02X}>": 5 for i in range(255)})),
        "token for every byte",
    ),
    "removes a word": (set_part("pre_tokenizer", split({"String": "pregnant"})), "removes words"),
    "keeps a word alone": (set_part("pre_tokenizer", split({"String": "pregnant"}, invert=True)), "removes words"),
    "keeps blanks alone": (set_part("pre_tokenizer", split({"String": " "}, invert=True)), "removes words"),
    "removes all that a public pattern finds": (set_part("pre_tokenizer", split({"Regex": GPT2})), "removes words"),
    "is a model that is not on the list": (set_part("model", {"type": "Unigram", "unk_id": 0, "vocab": []}), "model"),
    "has a field that nobody knows": (set_model(surprise=1), "surprise"),
    "cuts texts itself": (
        set_part("truncation", {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}),
        "truncation",
    ),
    "pads texts itself": (set_part("padding", {"strategy": {"Fixed": 1 << 30}}), "padding"),
    "decodes": (set_part("decoder", {"type": "Fuse"}), "decoder"),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tokenizers") / "model", **TINY)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ServedModel:
    return ServedModel.load(checkpoint)


def with_tokenizer(package: bytes, text: str) -> bytes:
    """The package of a server that does not check what it sends."""
    size = int.from_bytes(package[:8], "little")
    header = msgspec.json.decode(package[8 : 8 + size])
    card = msgspec.json.decode(header["__metadata__"]["card"]) | {"tokenizer": text}
    header["__metadata__"]["card"] = msgspec.json.encode(card).decode()
    changed = msgspec.json.encode(header)
    return len(changed).to_bytes(8, "little") + changed + package[8 + size :]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_client_refuses_a_tokenizer_that_could_sort_texts(model: ServedModel, name: str) -> None:
    tokenizer, (hostile, part) = toy(), HOSTILE[name]
    assert PublicModel.unpack(with_tokenizer(model.package(), json.dumps(tokenizer)))  # it is this part alone
    hostile(tokenizer)
    with pytest.raises(UnsafeTokenizer, match=part):
        PublicModel.unpack(with_tokenizer(model.package(), json.dumps(tokenizer)))


@pytest.mark.parametrize("text", ["", "{}", "null", "[" * 100_000, '{"version": "1.0"}', "\ud800"])
def test_a_client_refuses_what_is_no_tokenizer(text: str) -> None:
    with pytest.raises(UnsafeTokenizer):
        TextTokenizer(text.encode("utf-8", "surrogatepass"))


def test_the_library_is_given_what_was_checked_and_nothing_else() -> None:
    """Of a name that is there twice, two readers may take different ones."""
    text = json.dumps(toy()).replace(
        '"normalizer": null', '"normalizer": {"type": "Prepend", "prepend": "a"}, "normalizer": null'
    )
    assert "Prepend" not in TextTokenizer(text).text


def test_an_operator_learns_at_once_that_clients_will_refuse_a_tokenizer(tmp_path: Path, checkpoint: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = Tokenizer.from_str(json.dumps(toy()))
    tokenizer.normalizer = norm.Replace(Regex("hiv"), "a " * 60)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["checksums"]["tokenizer.json"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsafeTokenizer, match="normalizer"):
        ServedModel.load(tmp_path)
    with pytest.raises(UnsafeTokenizer, match="normalizer"):
        own_tokenizer(tmp_path)


# What is taken ---------------------------------------------------------------------------------------------


def wordpiece() -> kinds.WordPiece:
    letters = [chr(c) for c in range(97, 123)]
    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + one for one in letters), "film", "##ing", "中"]
    return kinds.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")


def bert() -> Tokenizer:
    tokenizer = Tokenizer(wordpiece())
    tokenizer.normalizer = norm.BertNormalizer()
    tokenizer.pre_tokenizer = pre.BertPreTokenizer()
    tokenizer.post_processor = post.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return tokenizer


def mpnet() -> Tokenizer:
    tokenizer = bert()
    tokenizer.normalizer = norm.Sequence([norm.NFKC(), norm.StripAccents(), norm.Lowercase(), norm.Strip()])
    tokenizer.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Punctuation(), pre.Digits()])
    tokenizer.post_processor = post.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    return tokenizer


def roberta() -> Tokenizer:
    alphabet = sorted(pre.ByteLevel.alphabet())
    vocabulary = {one: i for i, one in enumerate([*alphabet, "fi", "lm", "film", "<s>", "</s>", "<mask>"])}
    merges = [("f", "i"), ("l", "m"), ("fi", "lm")]
    tokenizer = Tokenizer(kinds.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = post.RobertaProcessing(("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def llama() -> Tokenizer:
    words = [*(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "<s>"]
    tokenizer = Tokenizer(
        kinds.BPE({word: i for i, word in enumerate(words)}, [("▁", "a")], byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = norm.Sequence([norm.Prepend("▁"), norm.Replace(" ", "▁")])
    tokenizer.post_processor = post.TemplateProcessing("<s> $A", "<s> $A <s> $B:1", [("<s>", 260)])
    return tokenizer


def gpt() -> Tokenizer:
    tokenizer = roberta()
    split = pre.Split(Regex(GPT2), "isolated")
    tokenizer.pre_tokenizer = pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.post_processor = post.Sequence([post.ByteLevel(trim_offsets=False)])
    return tokenizer


def spaced() -> Tokenizer:
    tokenizer = llama()
    tokenizer.normalizer = norm.NFKD()
    tokenizer.pre_tokenizer = pre.Metaspace()
    return tokenizer


USED = [bert, mpnet, roberta, llama, gpt, spaced, toy_tokenizer]
TAKEN = {make.__name__: (make(), TextTokenizer.load(make().to_str().encode(), make.__name__)) for make in USED}


@pytest.mark.parametrize("name", TAKEN)
@given(text=st.text(min_size=1, max_size=60), more=st.sampled_from(["", " film a b", "[MASK] <mask>", "中文 naïve ﷺ"]))
def test_tokenizers_in_use_are_taken_and_give_the_same_tokens(name: str, text: str, more: str) -> None:
    """And never more of them than the text's characters allow."""
    plain, taken = TAKEN[name]
    text = (text + more).encode("utf-8", "replace").decode()
    if not text.strip():
        return
    found = taken.encode(text, 10_000)
    assert found.ids.tolist() == plain.encode(text).ids
    assert found.total == found.length <= TOKENS_PER_CHARACTER * (GROWTH * len(text) + 1) + 2
    cut = taken.encode(text, 6)
    assert (cut.total, cut.truncated) == (found.total, found.total > 6)
    assert np.array_equal(cut.ids[:2], found.ids[:2])
    pair = taken.encode((text, text), 6)
    assert pair.total == len(plain.encode(text, text).ids)


@pytest.mark.parametrize("name", TAKEN)
@given(first=st.text(" ab中ﷺ.", max_size=30), second=st.text("film ab", max_size=30), longest=st.integers(6, 40))
def test_texts_and_pairs_are_cut_as_the_library_cuts_them_in_training(
    name: str, first: str, second: str, longest: int
) -> None:
    plain, taken = TAKEN[name]
    plain.no_truncation()
    total = len(plain.encode(first, second).ids)
    plain.enable_truncation(longest)
    for text in ((first, second), first):
        if not "".join(text).strip():
            continue
        found = taken.encode(text, longest, words=True)
        wanted = plain.encode(*text) if isinstance(text, tuple) else plain.encode(text)
        assert found.ids.tolist() == wanted.ids
        assert found.types.tolist() == wanted.type_ids
        assert found.words == words_of(wanted)
        assert isinstance(text, str) or found.total == total
    plain.no_truncation()


def test_a_long_pair_is_not_combined_with_all_that_is_cut_off_of_it() -> None:
    """The library makes an encoding of each pair of parts: hundreds of megabytes for two texts of 2,000 words."""
    taken = TAKEN["bert"][1]
    made = []
    library = taken._tokenizer

    class Noting:
        normalizer = library.normalizer

        def encode(self, *given: Any, **options: Any) -> Encoding:
            made.append(library.encode(*given, **options))
            return made[-1]

    taken._tokenizer = Noting()  # type: ignore[assignment]
    try:
        found = taken.encode(("film " * 2000, "a " * 2000), 16)
    finally:
        taken._tokenizer = library
    assert (found.length, found.total) == (16, 4003)
    assert [len(one.overflowing) for one in made] == [0, 0]


def test_a_text_of_which_nothing_is_left_is_still_one_token() -> None:
    """A mean over no token would be no number, which fails after a run was asked for."""
    bare = gpt()
    bare.normalizer = norm.Sequence([norm.StripAccents(), norm.Replace("film", "")])
    taken = TextTokenizer.load(bare.to_str().encode(), "")
    words = mpnet()
    words.pre_tokenizer = pre.Punctuation("removed")
    words.post_processor = post.ByteLevel()
    unknown = TextTokenizer.load(words.to_str().encode(), "")
    for tokenizer, text, wanted in ((taken, "film", 0), (taken, "\u0301", 0), (unknown, ".", 0)):
        for given_text in (text, (text, text)):
            found = tokenizer.encode(given_text, 16, words=True)
            assert (found.ids.tolist(), found.types.tolist(), found.total, found.words) == ([wanted], [0], 1, ())
    assert taken.encode("films", 16).total == 1  # the control


def test_a_split_that_removes_nothing_is_taken() -> None:
    """Blanks; and what is between the matches of a pattern that matches everything, as in conversions of GPT-4."""
    for pattern, inverted in (({"Regex": GPT2}, True), ({"String": " "}, False)):
        tokenizer = json.loads(gpt().to_str())
        tokenizer["pre_tokenizer"]["pretokenizers"][0] = split(pattern, invert=inverted)
        assert TextTokenizer.load(json.dumps(tokenizer).encode(), "").encode("film", 16).total == 1


def test_the_same_tokenizer_makes_the_same_package(model: ServedModel, checkpoint: Path) -> None:
    """Once checked it stays as it is, so the client's fingerprint is the server's; and any machine's."""
    assert TextTokenizer(model.text_tokenizer.text).text == model.text_tokenizer.text
    assert PublicModel.unpack(model.package()).package() == model.package() == ServedModel.load(checkpoint).package()


def test_a_text_of_any_length_is_either_read_or_refused_before_it_is_normalised(model: ServedModel) -> None:
    assert model.text_tokenizer.encode("good " * 1000, 16).total == 1002
    with pytest.raises(ConfigurationError, match=f"text 3 has {MOST_CHARACTERS + 1} characters"):
        model.text_tokenizer.encode("a" * (MOST_CHARACTERS + 1), 16, number=3)


@pytest.mark.parametrize("bound", ["GROWTH", "TOKENS_PER_CHARACTER"])
def test_what_grows_more_than_the_list_allows_is_refused_as_well(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """The bounds are looked at where a text is read, whatever the list lets through."""
    tokenizer = TAKEN["llama"][1]
    monkeypatch.setattr(tokenizing, bound, 0)
    with pytest.raises(UnsafeTokenizer, match=r"longer|more tokens"):
        tokenizer.encode("b b b b 中", 64)


def test_a_tokenizer_of_the_clients_own_takes_the_place_of_the_servers(model: ServedModel, tmp_path: Path) -> None:
    """That of the server is not even looked at; one that does not fit the model is refused."""
    own = toy_tokenizer()
    own.normalizer = norm.Lowercase()
    own.save(str(tmp_path / "tokenizer.json"))
    package = with_tokenizer(model.package(), "no tokenizer at all")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        client = PublicModel.unpack(package, tokenizer=own_tokenizer(path))
        assert client.tokens(["GOOD"])[0].ids.tolist() == model.tokens(["good"])[0].ids.tolist()
    assert model.tokens(["GOOD"])[0].ids.tolist() != model.tokens(["good"])[0].ids.tolist()  # the control
    with pytest.raises(UnsafeTokenizer, match="the model knows 26"):
        PublicModel.unpack(package, tokenizer=TAKEN["bert"][1])
    with pytest.raises(ConfigurationError, match="cannot read"):
        own_tokenizer(tmp_path / "nothing")


def test_what_a_vocabulary_alone_can_do_to_a_bucket() -> None:
    """docs/explanation/security.md: a word that is not in it falls into its characters, and never into more."""
    words = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz", *("##" + c for c in "abcdefghijklmnopqrstuvwxyz")]
    note = ["the", "patient", "is", "fine", "and", "well", "and", "goes", "home"]
    tokenizer = Tokenizer(
        kinds.WordPiece({word: i for i, word in enumerate([*words, *dict.fromkeys(note)])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre.Whitespace()
    taken = TextTokenizer.load(tokenizer.to_str().encode(), "")
    usual, sorted_out = " ".join(note), "the pregnancy is infected and bleeding and sepsis"
    assert taken.encode(usual, 512).total == 9
    assert taken.encode(sorted_out, 512).total == 35 <= len(sorted_out)
