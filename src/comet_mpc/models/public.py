"""A checkpoint made ready to serve: what the server holds, what the client is given, and the program both run.

`PublicModel` is all that a client needs: configuration with the public rules, tokenizer, and (with public embeddings,
the paper's setting) the embedding tables. It travels as one package of bytes, once per client and model, and its
fingerprint is the SHA-256 of that package: whoever has the package computes it. `ServedModel` adds the weights, folded
and in fixed point.

Above 400 lines, because the two are one: what a client is given is a part of what the server holds, field by field.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, Reals, Share, decode
from comet_mpc.errors import CheckpointError, ConfigurationError, ShapeError
from comet_mpc.functions.attention import certified_attention
from comet_mpc.functions.rule import Smu
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.checkpoint import CometConfig, Tensors, load_checkpoint, read_tokenizer, tensors_digest
from comet_mpc.models.fold import check_fixed, fold, plain_states
from comet_mpc.models.heads import HeadRules, input_averages
from comet_mpc.models.planning import plan_encoder
from comet_mpc.models.tokenizing import Text, TextTokenizer, Tokens
from comet_mpc.models.transformer import (
    ANSWER_BITS,
    EncoderRules,
    EncoderShape,
    LayerRules,
    embed_privately,
    encode_weights,
    forward,
    input_mask,
    input_rows,
    input_symbols,
    public_weights,
)
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.source import Source
from comet_mpc.threads import small_matrices

BUCKETS = (16, 32, 64, 128, 256, 512)
"""Public lengths that texts are padded to; the server learns the bucket, not the length."""

MOST_ANSWER_BITS = 16
"""More digits of a logit than these are noise of the fixed point numbers."""


@dataclass(frozen=True)
class Query:
    """Texts of one bucket, as the program takes them. Private to the client."""

    rows: Reals
    """Normalised embeddings; with private embeddings, one-hot rows of words and types."""
    mask: Reals
    truncated: tuple[bool, ...]
    """Whether a text was longer than the model takes."""
    tokens: tuple[int, ...] = ()
    """How many tokens each text has, before it was cut."""
    words: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    """The words of each text: the place of the first token, and the characters from, and to before which it goes."""

    def __repr__(self) -> str:
        return f"Query(batch={self.rows.shape[0]}, bucket={self.rows.shape[1]})"

    @property
    def tokens_only(self) -> Reals:
        """The rows, zero where they are padding."""
        return np.asarray(self.rows * self.mask[..., None])

    @property
    def batch(self) -> int:
        return int(self.rows.shape[0])

    @property
    def bucket(self) -> int:
        return int(self.rows.shape[1])


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public package's description: what `PublicModel` has beside the tables, by the same names."""

    stated: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    config: CometConfig
    value_bounds: tuple[float, ...]
    logit_bound: float
    tokenizer: str
    private_embeddings: bool
    answer_bits: Annotated[int, msgspec.Meta(ge=1, le=MOST_ANSWER_BITS)]


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicModel:
    """What a client is given."""

    stated: str
    """The digest of the weights, as the server states it: a client cannot check it."""
    config: CometConfig
    value_bounds: tuple[float, ...]
    logit_bound: float
    tokenizer: TextTokenizer
    embeddings: Mapping[str, npt.NDArray[np.float32]]
    """Tables of words, positions and types; empty if they stay at the server."""
    private_embeddings: bool = False
    answer_bits: int = ANSWER_BITS
    """Fraction bits of the logits that are revealed."""
    network: Network = USUAL_NETWORK
    """Between clients and the server, as its operator says: programs go the ways that cost the least there."""
    received: str = ""
    """The fingerprint of the package that this was unpacked from; empty where it was loaded from a checkpoint."""

    def __post_init__(self) -> None:
        if not 1 <= self.answer_bits <= MOST_ANSWER_BITS:
            raise ConfigurationError(f"an answer has 1 to {MOST_ANSWER_BITS} fraction bits, not {self.answer_bits}")
        if self.tokenizer.special(pair=True) >= self.longest:
            raise CheckpointError(f"the model's tokenizer cannot cut texts after {self.longest} tokens")
        if self.config.encoder.padding >= self.config.encoder.vocabulary:
            raise CheckpointError("the model's padding token is not in its vocabulary")
        for name, table in self.embeddings.items():
            if not np.all(np.isfinite(table)):
                raise CheckpointError(f"the model's embedding table of {name} has values that are not finite numbers")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fingerprint[:12]}, {self.config.encoder.architecture})"

    # The package -----------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the package: what a client computes from what it was given."""
        return self.received or hashlib.sha256(self.package()).hexdigest()

    def package(self) -> bytes:
        known = {name: getattr(self, name) for name in _Card.__struct_fields__}
        card = _Card(**known | {"tokenizer": self.tokenizer.text})
        tables = {name: value.astype(np.float16) for name, value in self.public_tables().items()}
        return save_tensors(tables, {"card": msgspec.json.encode(card).decode()})

    def public_tables(self) -> Mapping[str, npt.NDArray[np.float32]]:
        return {} if self.private_embeddings else self.embeddings

    @staticmethod
    def unpack(
        package: bytes, *, network: Network = USUAL_NETWORK, tokenizer: TextTokenizer | None = None
    ) -> PublicModel:
        """A downloaded package, checked as strictly as anything that comes from a peer.

        tokenizer: the client's own; that of the package is not even read then
        """
        try:
            card = msgspec.json.decode(_card_of(package), type=_Card)
            halves = load_tensors(package)
            known = card.config.encoder.vocabulary
        except Exception as error:
            raise CheckpointError(f"the model's public package is damaged: {type(error).__name__}") from error
        if any(value.dtype != np.float16 for value in halves.values()):
            raise CheckpointError("the model's public package has embedding tables that are not in half precision")
        tables = {name: value.astype(np.float32) for name, value in halves.items()}
        chosen = tokenizer or TextTokenizer(card.tokenizer)
        chosen.check_fits(known)
        fields_of = msgspec.structs.asdict(card) | {"tokenizer": chosen, "embeddings": tables, "network": network}
        model = PublicModel(**fields_of, received=hashlib.sha256(package).hexdigest())
        expected = {} if card.private_embeddings else _table_shapes(card.config)
        if {name: value.shape for name, value in tables.items()} != expected:
            raise CheckpointError("the model's public package has embedding tables of the wrong shapes")
        return model

    # The program -----------------------------------------------------------------------------------------

    @property
    def shape(self) -> EncoderShape:
        e = self.config.encoder
        return EncoderShape(
            layers=e.layers,
            hidden=e.hidden,
            heads=e.heads,
            intermediate=e.intermediate,
            labels=len(e.labels),
            symbols=e.vocabulary + e.types if self.private_embeddings else 0,
            positions=e.positions if self.private_embeddings else 0,
            buckets=e.buckets,
            head=self.config.head,
            pooler=self.config.pooler,
        )

    @property
    def rules(self) -> EncoderRules:
        """The rules as the checkpoint stores them: the one source of truth, and nothing to fit."""
        config, sites = self.config, self.config.sites
        form = certified_attention(
            config.attention.mu,
            scores=sites["scores"].rule,
            denominators=sites["denominators"].inverse,
            norms=sites["norms"].inverse,
        )
        activation = Smu(config.activation.mu, config.activation.alpha)
        others = {name: sites[name].inverse for name in ("pooler", "output.norm") if name in sites}
        return EncoderRules(
            layers=tuple(
                LayerRules(
                    activation=activation,
                    activation_rule=sites["activation"].rule,
                    attention=form,
                    variances=(sites[f"layers.{i}.attention_norm"].inverse, sites[f"layers.{i}.output_norm"].inverse),
                    value_bound=bound,
                    query_bound=math.sqrt(sites["norms"].inverse.high),
                )
                for i, bound in enumerate(self.value_bounds)
            ),
            head=HeadRules(
                pooler=others.get("pooler"),
                activation=(activation, sites["activation"].rule) if config.pooler == "smu" else None,
                length=others.get("output.norm"),
                bound=self.logit_bound,
            ),
            answer_bits=self.answer_bits,
            epsilon=config.encoder.epsilon,
            embeddings=sites["embeddings.norm"].inverse,
        )

    def weights(self) -> dict[str, Weight]:
        return public_weights(self.shape)

    def program(
        self, batch: int, bucket: int, query: Query | None = None
    ) -> Callable[[Session, Mapping[str, Weight]], Share]:
        """The answers for one bucket; the client supplies its query, the server and a plan do not."""
        shape, rules = self.shape, self.rules
        rows, mask_values = (None, None) if query is None else (query.tokens_only, query.mask)

        def run(session: Session, weights: Mapping[str, Weight]) -> Share:
            mask = input_mask(session, mask_values, (batch, bucket))
            if self.private_embeddings:
                symbols = input_symbols(session, rows, (batch, bucket, shape.symbols))
                embedded = embed_privately(session, symbols, mask, shape, rules, weights)
            else:
                embedded = input_rows(session, rows, (batch, bucket, shape.hidden))
            averages = None
            if shape.head.pooling == "mean":
                averages = input_averages(session, mask_values, (batch, bucket))
            return forward(session, embedded, mask, shape, rules, weights, averages)

        return run

    def answer(
        self, batch: int, bucket: int, query: Query | None = None
    ) -> Callable[[Session, Mapping[str, Weight]], Reals | None]:
        """The whole program: the answers (`answer_shape`), revealed to the client. None at the server and in a plan."""
        program = self.program(batch, bucket, query)

        def run(session: Session, weights: Mapping[str, Weight]) -> Reals | None:
            answers = program(session, weights)
            with session.part("result"):
                words = session.reveal(answers, CLIENT)
            return None if words is None else decode(words, answers.fraction, answers.width)

        return run

    def answer_shape(self, batch: int, bucket: int) -> tuple[int, ...]:
        outputs = len(self.config.encoder.labels) or self.config.encoder.hidden
        return (batch, bucket, outputs) if self.config.head.kind == "tokens" else (batch, outputs)

    def plan(self, batch: int, bucket: int, source: Source) -> Plan:
        """What an answer costs, by the ways that cost the least on the model's network: whoever runs it goes them too.

        Its digest names the digits of the answer as well.
        """
        run, shape, weights = self.answer(batch, bucket), self.shape, public_weights(self.shape)
        plan = plan_encoder(
            lambda session: run(session, weights), shape, self.rules, batch, bucket, source, self.network
        )
        return replace(plan, terms=f"answer bits: {self.answer_bits}")

    def planned_from(self) -> bytes:
        """All of the model that its plans depend on, and the fingerprint."""
        facts = (self.config, self.value_bounds, self.logit_bound, self.private_embeddings, self.answer_bits)
        return msgspec.msgpack.encode((self.fingerprint, *facts, self.network))

    # Texts -----------------------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        limit = self.config.encoder.longest
        return min(limit, self.config.length) if self.config.length else limit

    def buckets(self) -> tuple[int, ...]:
        """The public lengths that this model takes."""
        fitting = tuple(size for size in BUCKETS if size < self.longest)
        return (*fitting, self.longest)

    def bucket_of(self, text: Text, *, number: int = 1) -> int:
        """The bucket that a text (or a pair of texts) needs; nothing is embedded. number: by which errors name it."""
        return self.fitting(self.tokens([text], number=number)[0].length)

    def fitting(self, length: int) -> int:
        """The bucket for so many tokens."""
        return next(size for size in self.buckets() if size >= length)

    def tokens(self, texts: Sequence[Text], bucket: int | None = None, *, number: int = 1) -> list[Tokens]:
        """The tokens of some texts (or pairs of texts), cut after a bucket, or after what the model takes.

        number: of the first text, by which an error names it.
        """
        longest, words = bucket or self.longest, self.config.head.kind == "tokens"
        return [
            self.tokenizer.encode(text, longest, number=place, words=words)
            for place, text in enumerate(texts, start=number)
        ]

    def encode(self, texts: Sequence[Text], bucket: int | None = None, *, number: int = 1) -> Query:
        """Some texts (or pairs of texts) as `query` makes them of their tokens."""
        return self.query(self.tokens(texts, number=number), bucket)

    def query(self, tokens: Sequence[Tokens], bucket: int | None = None) -> Query:
        """Padding and embeddings of some texts, padded to one bucket. Its time depends on nothing but their number and
        the bucket."""
        if not tokens:
            raise ConfigurationError("there is no text to classify")
        needed = self.fitting(max(one.length for one in tokens))
        bucket = bucket or needed
        if bucket < needed:
            raise ShapeError(f"a text needs a bucket of {needed} tokens, got one of {bucket}")
        ids = np.full((len(tokens), bucket), self.config.encoder.padding, np.int64)
        types = np.zeros_like(ids)
        mask = np.zeros(ids.shape)
        for row, one in enumerate(tokens):
            ids[row, : one.length] = one.ids
            types[row, : one.length] = one.types
            mask[row, : one.length] = 1.0
        rows = self.one_hot(ids, types) if self.private_embeddings else self.embed(ids, types)
        return Query(
            rows,
            mask,
            truncated=tuple(one.truncated for one in tokens),
            tokens=tuple(one.total for one in tokens),
            words=tuple(one.words for one in tokens),
        )

    def _check_ids(self, ids: npt.NDArray[np.int64]) -> None:
        vocabulary = self.config.encoder.vocabulary
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
            raise ConfigurationError(f"a token id is outside the vocabulary of {vocabulary}")

    def one_hot(self, ids: npt.NDArray[np.int64], types: npt.NDArray[np.int64]) -> Reals:
        """Rows with a one for the word and a one for the type."""
        self._check_ids(ids)
        e = self.config.encoder
        rows = np.zeros((*ids.shape, e.vocabulary + e.types))
        np.put_along_axis(rows, ids[..., None], 1.0, axis=-1)
        if e.types:
            np.put_along_axis(rows, e.vocabulary + np.minimum(types, e.types - 1)[..., None], 1.0, axis=-1)
        return rows

    def embed(self, ids: npt.NDArray[np.int64], types: npt.NDArray[np.int64]) -> Reals:
        """Normalised embeddings, without γ and β, which the server has folded into its first layer.

        Whatever the tables are, every row can be encoded (`input_rows`), so that no text ends a run that was asked for.
        The tables were finite half precision numbers, so that sums and squares are finite; ε is above 0; and a
        normalised row is within √d but for rounding, which is cut off.
        """
        self._check_ids(ids)
        e = self.config.encoder
        tables = self.embeddings
        x = tables["words"][ids].astype(np.float64) + tables["positions"][e.first_position + np.arange(ids.shape[1])]
        if e.types:
            x = x + tables["types"][np.minimum(types, e.types - 1)]
        centred = x - x.mean(axis=-1, keepdims=True)
        top = math.sqrt(e.hidden)
        normalised = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + e.epsilon)
        return np.asarray(np.clip(normalised, -top, top))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ServedModel(PublicModel):
    """What the server holds."""

    folded: Mapping[str, Reals]
    """Weights in real numbers, by the names of `transformer.encoder_weights`."""
    fixed: Mapping[str, Weight]

    @staticmethod
    @small_matrices()
    def load(
        directory: Path,
        *,
        private_embeddings: bool = False,
        answer_bits: int = ANSWER_BITS,
        network: Network = USUAL_NETWORK,
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> ServedModel:
        """A Comet checkpoint in the certified form, its ranges proved again from the weights.

        private_embeddings  the embedding tables stay at the server; a query then starts with a one-hot product
        answer_bits         fraction bits of the logits that a client gets: fewer tell it less about the weights
        network             between clients and this server: what the bytes and rounds of its programs are weighed by
        told                how many layers are proved, which takes most of the time, and of how many
        """
        config, tensors = load_checkpoint(directory)
        check_ranges(config, tensors, told)
        folded, value_bounds, logit_bound = fold(config, tensors)
        public = public_part(directory, config, tensors, value_bounds, logit_bound)
        public = replace(public, private_embeddings=private_embeddings, answer_bits=answer_bits, network=network)
        e, tables = config.encoder, public.embeddings
        if private_embeddings:
            stacked = [tables["words"], *([tables["types"]] if e.types else [])]
            folded["embeddings.weight"] = np.concatenate(stacked).T.astype(np.float64)
            folded["embeddings.positions"] = np.roll(tables["positions"], -e.first_position, axis=0).astype(np.float64)
        fixed = encode_weights(public.shape, folded)
        check_fixed(public.shape, public.rules, fixed)
        return ServedModel(**vars(public), folded=folded, fixed=fixed)

    def weights(self) -> dict[str, Weight]:
        return dict(self.fixed)

    def public(self) -> PublicModel:
        known = {field.name: getattr(self, field.name) for field in fields(PublicModel)}
        return PublicModel(**known | {"embeddings": self.public_tables()})

    def plain_logits(self, query: Query, *, exact: bool = False) -> Reals:
        """The model in the clear, in real arithmetic: through the rules of the protocol, or with exact functions."""
        return self.plain_states(query, exact=exact)[-1]

    def plain_states(self, query: Query, *, exact: bool = False) -> list[Reals]:
        """The same with what is on the way: the normalised rows after every layer, then the logits."""
        if self.private_embeddings:
            split = self.config.encoder.vocabulary
            types = query.rows[..., split:].argmax(axis=-1) if self.config.encoder.types else None
            ids = query.rows[..., :split].argmax(axis=-1)
            query = replace(query, rows=self.embed(ids, np.zeros_like(ids) if types is None else types))
        return plain_states(query.rows, query.mask, self.shape, self.rules, self.folded, exact=exact)


def public_part(
    directory: Path,
    config: CometConfig,
    tensors: Tensors,
    value_bounds: tuple[float, ...],
    logit_bound: float,
) -> PublicModel:
    """What of a checkpoint's directory a client is given; tables in half precision, as they travel."""
    stored = read_tokenizer(directory)
    tokenizer = TextTokenizer.load(stored, Path(directory) / "tokenizer.json")
    tokenizer.check_fits(config.encoder.vocabulary)
    return PublicModel(
        stated=tensors_digest(tensors),
        config=_without_data(config),
        value_bounds=tuple(map(_rounded_up, value_bounds)),
        logit_bound=_rounded_up(logit_bound),
        tokenizer=tokenizer,
        embeddings={
            name: tensors[f"embeddings.{name}"].astype(np.float16).astype(np.float32) for name in _table_shapes(config)
        },
    )


def _without_data(config: CometConfig) -> CometConfig:
    """The configuration without what calibration has seen, and what it scored: that is the server's business."""
    sites = {name: msgspec.structs.replace(site, seen=()) for name, site in config.sites.items()}
    return msgspec.structs.replace(config, sites=sites, scores={})


def _rounded_up(bound: float) -> float:
    """To 24 bits: machines whose processors add up in another order still make the same package."""
    mantissa, exponent = math.frexp(bound)
    return math.ldexp(math.ceil(math.ldexp(mantissa, 24)), exponent - 24)


def _card_of(package: bytes) -> str:
    size = int.from_bytes(package[:8], "little")
    return str(msgspec.json.decode(package[8 : 8 + size])["__metadata__"]["card"])


def package_parts(package: bytes) -> dict[str, str]:
    """SHA-256 of every part of a package, by what people call it: two packages differ in the parts that differ."""
    size = int.from_bytes(package[:8], "little")
    card: dict[str, Any] = msgspec.json.decode(_card_of(package))
    config = card.pop("config")
    encoder = config.pop("encoder")
    parts: dict[str, Any] = {
        "tokenizer": card.pop("tokenizer"),
        "labels": encoder.pop("labels", None),
        "sizes": encoder,
        "rules": config,
        "weights": card.pop("stated"),
        "answers": card,
    }
    digests = {name: hashlib.sha256(msgspec.json.encode(part, order="sorted")) for name, part in parts.items()}
    digests["embedding tables"] = hashlib.sha256(package[8 + size :])
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _table_shapes(config: CometConfig) -> dict[str, tuple[int, ...]]:
    e = config.encoder
    shapes: dict[str, tuple[int, ...]] = {"words": (e.vocabulary, e.hidden), "positions": (e.positions, e.hidden)}
    return shapes | ({"types": (e.types, e.hidden)} if e.types else {})
