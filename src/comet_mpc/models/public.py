"""What a client is given of a model, and the program that both parties run.

`PublicModel` is all that a client needs: configuration with the public rules, tokenizer, and (with public embeddings,
the paper's setting) the embedding tables. It travels as one package of bytes, once per client and model, and its
fingerprint is the SHA-256 of that package: whoever has the package computes it. `served` adds the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from comet_mpc.functions.attention import AttentionForm, certified_attention, fitted_attention
from comet_mpc.functions.neurons import Neurons, Quartics, SmuNeurons, Square
from comet_mpc.functions.rule import InverseRule, Smu
from comet_mpc.functions.weighing import SQUARES
from comet_mpc.models.blocks import LayerRules
from comet_mpc.models.bounds import norm_before
from comet_mpc.models.checkpoint import FITTED, CometConfig
from comet_mpc.models.heads import HeadRules, input_averages
from comet_mpc.models.images.format import ImageFormat, Patches
from comet_mpc.models.planning import plan_encoder
from comet_mpc.models.queries import (
    BUCKETS,
    Ids,
    Input,
    Query,
    TextRun,
    embedded,
    image_only,
    image_query,
    one_hot,
    text_only,
)
from comet_mpc.models.tokenizers.texts import Text, TextTokenizer, Tokens
from comet_mpc.models.transformer import (
    ANSWER_BITS,
    EncoderRules,
    EncoderShape,
    embed_privately,
    forward,
    input_mask,
    input_rows,
    input_symbols,
    public_weights,
    query_bound,
)
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.source import Source

MOST_ANSWER_BITS = 16
"""More digits of a logit than these are noise of the fixed point numbers."""


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public package's description: what `PublicModel` has beside the tables, by the same names."""

    stated: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    config: CometConfig
    value_bounds: tuple[float, ...]
    logit_bound: float
    tokenizer: str
    """Empty: the model takes images."""
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
    tokenizer: TextTokenizer | None
    """None: the model takes images."""
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
        if (self.tokenizer is None) != (self.image is not None):
            raise CheckpointError("a model has a tokenizer for texts, or a format of images")
        if self.tokenizer is None:
            return
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
        card = _Card(**known | {"tokenizer": "" if self.tokenizer is None else self.tokenizer.text})
        tables = {name: value.astype(np.float16) for name, value in self.public_tables().items()}
        return save_tensors(tables, {"card": msgspec.json.encode(card).decode()})

    def public_tables(self) -> Mapping[str, npt.NDArray[np.float32]]:
        return {} if self.hidden_embeddings else self.embeddings

    @property
    def image(self) -> ImageFormat | None:
        """What the model takes of an image; None: it takes texts."""
        return self.config.encoder.image

    @property
    def text_tokenizer(self) -> TextTokenizer:
        """Of a model of texts."""
        if self.tokenizer is None:
            raise ConfigurationError("this model takes images, not texts")
        return self.tokenizer

    @property
    def hidden_embeddings(self) -> bool:
        """Whether embeddings stay at the server: those of images always do."""
        return self.private_embeddings or self.image is not None

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
        chosen = _tokenizer(card, tokenizer)
        if chosen is not None:
            chosen.check_fits(known)
        fields_of = msgspec.structs.asdict(card) | {"tokenizer": chosen, "embeddings": tables, "network": network}
        model = PublicModel(**fields_of, received=hashlib.sha256(package).hexdigest())
        expected = {} if model.hidden_embeddings else table_shapes(card.config)
        if {name: value.shape for name, value in tables.items()} != expected:
            raise CheckpointError("the model's public package has embedding tables of the wrong shapes")
        return model

    # The program -----------------------------------------------------------------------------------------

    @property
    def shape(self) -> EncoderShape:
        config, e = self.config, self.config.encoder
        return EncoderShape(
            layers=e.layers,
            hidden=e.hidden,
            heads=e.heads,
            intermediate=e.intermediate,
            labels=len(e.labels),
            symbols=0 if not self.hidden_embeddings else e.image.numbers if e.image else e.vocabulary + e.types,
            positions=e.positions if self.hidden_embeddings else 0,
            stream=e.stream,
            buckets=e.buckets,
            constants=SQUARES[config.attention.power].constants if config.attention.kind == FITTED else 0,
            neurons=_neurons(config).constants if config.activation.kind == FITTED else 0,
            head=self.config.head,
            pooler=self.config.pooler,
        )

    @property
    def rules(self) -> EncoderRules:
        """The rules as the checkpoint stores them: the one source of truth, and nothing to fit."""
        config, sites = self.config, self.config.sites
        form, neurons = _attention(config), _neurons(config)
        others = {name: sites[name].inverse for name in ("pooler", "output.norm") if name in sites}
        return EncoderRules(
            layers=tuple(
                LayerRules(
                    neurons=neurons,
                    attention=form,
                    variances=_variances(config, i),
                    value_bound=bound,
                    query_bound=query_bound(form),
                )
                for i, bound in enumerate(self.value_bounds)
            ),
            head=HeadRules(
                pooler=others.get("pooler"),
                activation=(_smu(config), sites["activation"].rule) if config.pooler == "smu" else None,
                length=others.get("output.norm"),
                bound=self.logit_bound,
            ),
            answer_bits=self.answer_bits,
            epsilon=config.encoder.epsilon,
            embeddings=sites["embeddings.norm"].inverse,
            last=sites[norm_before(config.encoder.layers)].inverse if config.encoder.stream else None,
        )

    def weights(self) -> dict[str, Weight]:
        return public_weights(self.shape)

    def program(
        self, batch: int, bucket: int, query: Query | None = None
    ) -> Callable[[Session, Mapping[str, Weight]], Share]:
        """The answers for one bucket; the client supplies its query, the server and a plan do not."""
        shape, rules = self.shape, self.rules
        if self.image is not None:
            from comet_mpc.models.vision.forward import input_pixels, see  # most models are of texts

            pixels, size = None if query is None else query.rows, (batch, self.image.patches, self.image.numbers)
            return lambda session, weights: see(session, input_pixels(session, pixels, size), shape, rules, weights)
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
        """The public lengths that this model takes. All images have the same."""
        if self.image is not None:
            return (self.longest,)
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
            self.text_tokenizer.encode(text, longest, number=index, words=words)
            for index, text in enumerate(texts, start=number)
        ]

    def encode(self, texts: Sequence[Text], bucket: int | None = None, *, number: int = 1) -> Query:
        """Some texts (or pairs of texts) as `query` makes them of their tokens."""
        return self.query(self.tokens(texts, number=number), bucket)

    def query(self, given: Sequence[Tokens] | Sequence[Patches], bucket: int | None = None) -> Query:
        """Padding and embeddings of some texts, padded to one bucket; or images. Its time depends on nothing but their
        number and the bucket."""
        if not given:
            raise ConfigurationError("there is no text to classify")
        if self.image is not None:
            return image_query([one for one in given if isinstance(one, Patches)], self.longest)
        tokens = [one for one in given if isinstance(one, Tokens)]
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
        rows = one_hot(self.config, ids, types) if self.private_embeddings else self.embed(ids, types)
        return Query(
            rows,
            mask,
            truncated=tuple(one.truncated for one in tokens),
            tokens=tuple(one.total for one in tokens),
            words=tuple(one.words for one in tokens),
        )

    def embed(self, ids: Ids, types: Ids) -> Reals:
        """Normalised embeddings from the tables that this model has."""
        return embedded(self.config, self.embeddings, ids, types)

    def runs(self, texts: Sequence[Input], largest: int, bucket: int | None = None) -> list[TextRun]:
        """The runs of the program that answer the texts, or images. All of them are encoded when this returns.

        largest: most texts in one run
        bucket: for all texts, whatever they say; longer ones are cut. None: for each the smallest that it fits into
        """
        what = "text" if self.image is None else "image"
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence):
            raise ConfigurationError(f"a list of {what}s is needed, not {type(texts).__name__}")
        if not texts:
            raise ConfigurationError(f"there is no {what} to classify")
        tokens: Sequence[Any]
        buckets: dict[int, list[int]] = {}
        if self.image is not None:
            from comet_mpc.models.images.reading import read_image

            wanted = self.image
            tokens = [read_image(image_only(one), wanted, number=i) for i, one in enumerate(texts, start=1)]
            buckets[self.longest] = list(range(len(texts)))
        else:
            tokens = self.tokens([text_only(one) for one in texts], bucket)
            for index, one in enumerate(tokens):
                buckets.setdefault(bucket or self.fitting(one.length), []).append(index)
        runs = []
        for size, indices in buckets.items():
            while indices:
                count = 1 << (min(len(indices), largest).bit_length() - 1)
                runs.append(TextRun(size, indices[:count], [tokens[index] for index in indices[:count]]))
                indices = indices[count:]
        return runs


def _tokenizer(card: _Card, own: TextTokenizer | None) -> TextTokenizer | None:
    """That of the package, unless the client has its own. None for a model of images."""
    if card.config.encoder.image is None:
        return own or TextTokenizer(card.tokenizer)
    if own is not None:
        raise ConfigurationError("this model takes images, which need no tokenizer: leave it out")
    return None


def _variances(config: CometConfig, layer: int) -> tuple[InverseRule, InverseRule]:
    """Of the LayerNorms behind a layer's two parts, or, with pre-normalised blocks, before them."""
    within, behind = f"layers.{layer}.attention_norm", f"layers.{layer}.output_norm"
    names = (norm_before(layer), within) if config.encoder.stream else (within, behind)
    first, second = (config.sites[name].inverse for name in names)
    return first, second


def _smu(config: CometConfig) -> Smu:
    return Smu(config.activation.mu, config.activation.alpha)


def _neurons(config: CometConfig) -> Neurons:
    """By what the checkpoint stores of them."""
    if config.activation.kind == FITTED:
        return Square() if config.activation.degree == 2 else Quartics()
    return SmuNeurons(_smu(config), config.sites["activation"].rule)


def _attention(config: CometConfig) -> AttentionForm:
    """The same."""
    denominators, norms = (config.sites[name].inverse for name in ("denominators", "norms"))
    if config.attention.kind == FITTED:
        return fitted_attention(denominators=denominators, norms=norms, power=config.attention.power)
    scores = config.sites["scores"].rule
    return certified_attention(config.attention.mu, scores=scores, denominators=denominators, norms=norms)


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


def table_shapes(config: CometConfig) -> dict[str, tuple[int, ...]]:
    e = config.encoder
    if e.image is not None:
        return {}  # they stay at the server
    shapes: dict[str, tuple[int, ...]] = {"words": (e.vocabulary, e.hidden), "positions": (e.positions, e.hidden)}
    return shapes | ({"types": (e.types, e.hidden)} if e.types else {})
