"""A decoder that writes: what a client is given of it, and the program of a conversation.

    tokens -> rows of the embedding table -> `streams.decoder` -> the last hidden states, to the client -> logits

The client embeds tokens and makes logits by itself, from public tables: those of embeddings and of the head, which are
often one, of learnt positions, and the last norm's γ and β. They travel in half precision, and the server serves what
travels. Everything else that a client needs is on the card: sizes, rules, tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.share import Reals
from comet_mpc.engine.windows import Window
from comet_mpc.errors import CheckpointError, ShapeError
from comet_mpc.functions.layer_norm import plain_centred
from comet_mpc.functions.rule import Rule
from comet_mpc.functions.rules import STORED
from comet_mpc.models.streams.decoder import (
    DecoderRules,
    DecoderShape,
    decode,
    input_rows,
    largest_input,
    public_weights,
    tell,
    top_of,
)
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.models.writing.model import Step, WritingModel, told
from comet_mpc.models.writing.packages import register_writer
from comet_mpc.offline.cheapest import USUAL_NETWORK

FAMILY = "decoder"
Tables = Mapping[str, npt.NDArray[np.float32]]

_MOST_LAYERS = 1024
_LARGEST = 1 << 24
_MOST_DIGITS = 16


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a package says of a decoder, beside its tables."""

    stated: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """The digest of the weights, as the server states it: a client cannot check it."""
    shape: DecoderShape
    rules: dict[str, Any]
    """`DecoderRules`, as `rules_as_stored` writes them."""
    factor: Annotated[float, msgspec.Meta(gt=0.0, le=16.0)]
    """What rows of the tables are multiplied by, to begin a stream."""
    ends: tuple[Annotated[int, msgspec.Meta(ge=0, lt=_LARGEST)], ...]
    tied: bool
    """Whether the table of embeddings is the head's as well."""
    tokenizer: str


def _found_rule(kind: type, stored: Any) -> Rule:
    """One that a file states: it must be of a kind that is known, and prove itself."""
    found = msgspec.convert(stored["numbers"], STORED[stored["kind"]])
    if not isinstance(found, kind):
        raise ValueError(f"a rule of the kind {stored['kind']!r} cannot stand here")
    found.check()
    return found


def rules_as_stored(rules: DecoderRules) -> dict[str, Any]:
    """As plain numbers, rules of 1/sqrt by their kinds."""

    def plain(value: Any) -> Any:
        if kind := getattr(value, "stored_as", ""):
            return {"kind": kind, "numbers": msgspec.to_builtins(value)}
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        if is_dataclass(value):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        return value

    return msgspec.json.decode(msgspec.json.encode(plain(rules)), type=dict[str, Any])


def rules_from_stored(stored: Mapping[str, Any]) -> DecoderRules:
    """The reverse. Raises whatever is wrong with them: nothing may be missing or left over."""
    rules = msgspec.convert(stored, DecoderRules, dec_hook=_found_rule)
    if rules_as_stored(rules) != stored:
        raise ValueError("the rules have numbers that nothing reads")
    return rules


class Decoder(WritingModel):
    """weights: of the server, in fixed point; None: a client's, of which only names and shapes are known."""

    drops = True

    def __init__(
        self,
        card: Card,
        tables: Tables,
        *,
        weights: Mapping[str, Weight] | None = None,
        tokenizer: TextTokenizer | None = None,
        network: Network = USUAL_NETWORK,
        received: str = "",
    ) -> None:
        """received: the fingerprint of the package that this was unpacked from"""
        self.card, self.tables, self.network, self._received = card, dict(tables), network, received
        self.shape, self.rules = card.shape, rules_from_stored(card.rules)
        _check_card(card, self.rules)
        self.tokenizer = tokenizer or TextTokenizer(card.tokenizer)
        self.tokenizer.check_fits(self.shape.vocabulary)
        _check_rows(self.shape, self.tables, card.factor, largest_input(top_of(self.shape, self.rules)))
        _check_ends(card, self.tokenizer)
        self.vocabulary, self.longest, self.ends = self.shape.vocabulary, self.shape.positions, frozenset(card.ends)
        self.answer_bits = self.rules.hidden_bits
        self.state_bound = (max(self.rules.last.overshoot, 1.0) + 2.0**-6) * self.shape.hidden**0.5
        self._weights = dict(weights) if weights is not None else public_weights(self.shape)

    def __repr__(self) -> str:
        s = self.shape
        return f"{type(self).__name__}({self.fingerprint[:12]}, {s.layers} layers of {s.hidden})"

    # The package -----------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        return self._received or hashlib.sha256(self.package()).hexdigest()

    def package(self) -> bytes:
        tables = {name: value.astype(_kept_as(name)) for name, value in self.tables.items()}
        return save_tensors(tables, {FAMILY: msgspec.json.encode(self.card).decode()})

    @staticmethod
    def unpack(package: bytes, *, network: Network = USUAL_NETWORK, tokenizer: TextTokenizer | None = None) -> Decoder:
        """A downloaded package, checked as strictly as anything that comes from a peer.

        tokenizer: the client's own; that of the package is not even read then
        """
        try:
            size = int.from_bytes(package[:8], "little")
            text = msgspec.json.decode(package[8 : 8 + size])["__metadata__"][FAMILY]
            card = msgspec.json.decode(text, type=Card)
            stored = load_tensors(package)
            rules_from_stored(card.rules)
        except Exception as error:
            raise CheckpointError(f"the model's public package is damaged: {type(error).__name__}") from error
        expected = table_shapes(card.shape, tied=card.tied)
        if {name: value.shape for name, value in stored.items()} != expected or any(
            value.dtype != _kept_as(name) for name, value in stored.items()
        ):
            raise CheckpointError("the model's public package has tables of the wrong shapes or types")
        tables = {name: value.astype(np.float32) for name, value in stored.items()}
        if not all(np.all(np.isfinite(value)) for value in tables.values()):
            raise CheckpointError("the model's public package has tables with values that are not finite numbers")
        received = hashlib.sha256(package).hexdigest()
        return Decoder(card, tables, tokenizer=tokenizer, network=network, received=received)

    def planned_from(self) -> bytes:
        facts = msgspec.structs.replace(self.card, tokenizer="")
        return msgspec.json.encode(facts, order="sorted") + self.fingerprint.encode()

    # The program -----------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Weight]:
        return dict(self._weights)

    def state_shape(self, window: Window) -> tuple[int, ...]:
        return told(window), self.shape.hidden

    def step(self, window: Window, places: Sequence[int], ids: Sequence[int] | None = None) -> Step:
        if len(places) != window.stop:
            raise ShapeError(f"{len(places)} places for {window.stop} positions")
        values = None if ids is None else self.rows(ids, places[window.first :])[None]

        def run(session: Session, weights: Mapping[str, Weight]) -> Reals | None:
            rows = input_rows(session, values, window, self.shape, top_of(self.shape, self.rules))
            states = decode(session, rows, window, self.shape, self.rules, weights, places)
            return tell(session, states, told(window))

        return run

    def rows(self, ids: Sequence[int], places: Sequence[int]) -> Reals:
        """What tokens begin with at their places in the text, as the stream holds them."""
        rows = self.tables["embeddings"][[*ids]].astype(np.float64)
        if "positions" in self.tables:
            rows += self.tables["positions"][[*places]]
        return np.asarray(self.card.factor * (plain_centred(rows) if self.shape.centred else rows))

    def logits(self, states: Reals) -> Reals:
        rows = states.astype(np.float32) * self.tables["last_norm.weight"]
        if "last_norm.bias" in self.tables:
            rows = rows + self.tables["last_norm.bias"]
        return np.asarray(rows @ self.tables["embeddings" if self.card.tied else "head"].T, np.float64)


def table_shapes(shape: DecoderShape, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """The public tables of a decoder."""
    found: dict[str, tuple[int, ...]] = {"embeddings": (shape.vocabulary, shape.hidden)}
    if not tied:
        found["head"] = (shape.vocabulary, shape.hidden)
    if not shape.theta:
        found["positions"] = (shape.positions, shape.hidden)
    found["last_norm.weight"] = (shape.hidden,)
    if shape.centred:
        found["last_norm.bias"] = (shape.hidden,)
    return found


def _kept_as(table: str) -> type[np.floating[Any]]:
    return np.float32 if table.startswith("last_norm") else np.float16


def as_it_travels(name: str, table: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A table with the digits that a client gets."""
    return np.asarray(table, _kept_as(name)).astype(np.float32)


def _check_card(card: Card, rules: DecoderRules) -> None:
    """What a stranger may say of sizes and digits."""
    s = card.shape
    sizes = (s.hidden, s.heads, s.groups, s.size, s.intermediate, s.vocabulary, s.positions)
    if not all(0 < one <= _LARGEST for one in sizes) or not 0 < s.layers <= _MOST_LAYERS:
        raise CheckpointError("the model's sizes are not positive, or too large")
    if len(rules.layers) != s.layers or not 0.0 <= s.theta < 2.0**40:
        raise CheckpointError(f"the model has rules for {len(rules.layers)} layers, and {s.layers} layers")
    if not 1 <= rules.hidden_bits <= _MOST_DIGITS or not 0.0 < rules.epsilon < 1.0:
        raise CheckpointError("the model's digits of hidden states, or its epsilon, are not possible")
    if any(end >= s.vocabulary for end in card.ends):
        raise CheckpointError("a token that ends texts is not in the model's vocabulary")


def _check_rows(shape: DecoderShape, tables: Tables, factor: float, most: float) -> None:
    """Every row of the tables can be given. One that a run cannot take would end the texts with that token alone, and
    so tell the server that it is in them."""
    largest = sum(
        np.max(np.abs(plain_centred(tables[name].astype(np.float64)) if shape.centred else tables[name]), axis=0)
        for name in ("embeddings", "positions")
        if name in tables
    )
    if not factor * float(np.max(largest)) < most:
        raise CheckpointError(f"the model's tables have rows beyond {most:g}, which cannot begin a text")


def _check_ends(card: Card, tokenizer: TextTokenizer) -> None:
    """A token that says something must not end a text: the server would see by the end that it was written."""
    if said := [token for token in card.ends if tokenizer.spelling[token]]:
        raise CheckpointError(f"token {said[0]} would end texts, and it is not a special token of the tokenizer")


register_writer(FAMILY, Decoder.unpack)
