"""A checkpoint made ready to serve: what the server holds, what the client is given, and the program both run.

`PublicModel` is all that a client needs: configuration with the public rules, tokenizer, and (with public embeddings,
the paper's setting) the embedding tables. It travels as one package of bytes, once per client and model. `ServedModel`
adds the weights, folded and in fixed point.

Folding, with γ, β of the LayerNorm whose output a layer reads: W·(γ⊙n + β) + b = (W·diag(γ))·n + (W·β + b). Queries
and keys are divided by their heads' bounds, neurons by theirs, and W₂ multiplied: exact in real arithmetic, and it
publishes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from tokenizers import Tokenizer

from comet_mpc.activation import Smu
from comet_mpc.bounds import activation_bounds, power_of_two_above
from comet_mpc.certificates import attention_rules, check_certificates, normalised_neurons, normalised_queries
from comet_mpc.checkpoint import CheckpointError, CometConfig, Tensors, fingerprint, load_checkpoint
from comet_mpc.errors import ConfigurationError, ShapeError
from comet_mpc.plan import Plan, plan_program
from comet_mpc.session import Session, Weight
from comet_mpc.share import Share
from comet_mpc.transformer import (
    EncoderRules,
    EncoderShape,
    classify,
    encode_weights,
    input_mask,
    input_rows,
    public_weights,
)

__all__ = ["BUCKETS", "PublicModel", "Query", "ServedModel"]

BUCKETS = (16, 32, 64, 128, 256, 512)
"""Public lengths that texts are padded to; the server learns the bucket, not the length."""

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Query:
    """Texts of one bucket, as the program takes them. Private to the client."""

    rows: Reals
    mask: Reals
    truncated: tuple[bool, ...]
    """Whether a text was longer than the model takes."""

    def __repr__(self) -> str:
        return f"Query(batch={self.rows.shape[0]}, bucket={self.rows.shape[1]})"

    @property
    def batch(self) -> int:
        return int(self.rows.shape[0])

    @property
    def bucket(self) -> int:
        return int(self.rows.shape[1])


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public package's description."""

    fingerprint: str
    config: CometConfig
    value_bounds: tuple[float, ...]
    logit_bound: float
    tokenizer: str


@dataclass(frozen=True, eq=False)
class PublicModel:
    """What a client is given."""

    fingerprint: str
    config: CometConfig
    value_bounds: tuple[float, ...]
    logit_bound: float
    tokenizer: Tokenizer
    embeddings: Mapping[str, npt.NDArray[np.float32]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fingerprint[:12]}, {self.config.encoder.architecture})"

    # The package -----------------------------------------------------------------------------------------

    def package(self) -> bytes:
        card = _Card(self.fingerprint, self.config, self.value_bounds, self.logit_bound, self.tokenizer.to_str())
        tables = {name: value.astype(np.float16) for name, value in self.embeddings.items()}
        return save_tensors(tables, {"card": msgspec.json.encode(card).decode()})

    @staticmethod
    def unpack(package: bytes) -> PublicModel:
        """A downloaded package, checked as strictly as anything that comes from a peer."""
        try:
            size = int.from_bytes(package[:8], "little")
            header = msgspec.json.decode(package[8 : 8 + size])
            card = msgspec.json.decode(header["__metadata__"]["card"], type=_Card)
            tables = {name: value.astype(np.float32) for name, value in load_tensors(package).items()}
            tokenizer = Tokenizer.from_str(card.tokenizer)
        except Exception as error:
            raise CheckpointError(f"the model's public package is damaged: {type(error).__name__}") from error
        model = PublicModel(card.fingerprint, card.config, card.value_bounds, card.logit_bound, tokenizer, tables)
        e = card.config.encoder
        expected = {"words": (e.vocabulary, e.hidden), "positions": (e.positions, e.hidden)}
        if e.types:
            expected["types"] = (e.types, e.hidden)
        if {name: value.shape for name, value in tables.items()} != expected:
            raise CheckpointError("the model's public package has embedding tables of other shapes than it says")
        return model

    # The program -----------------------------------------------------------------------------------------

    @property
    def shape(self) -> EncoderShape:
        e = self.config.encoder
        return EncoderShape(e.layers, e.hidden, e.heads, e.intermediate, len(e.labels))

    @property
    def rules(self) -> EncoderRules:
        """The rules as the checkpoint stores them: the one source of truth."""
        config, sites = self.config, self.config.sites
        form = attention_rules(config)
        return EncoderRules(
            activation=Smu(config.activation.mu, config.activation.alpha),
            activation_rule=sites["activation"].rule,
            attention=type(form)(
                form.power, form.cosine, form.smu, form.score_bound,
                sites["scores"].rule, sites["denominators"].rule, sites["norms"].rule,
            ),
            variances=tuple(
                (sites[f"layers.{i}.attention_norm"].rule, sites[f"layers.{i}.output_norm"].rule)
                for i in range(config.encoder.layers)
            ),
            pooler=sites["pooler"].rule,
            value_bounds=self.value_bounds,
            logit_bound=self.logit_bound,
            epsilon=config.encoder.epsilon,
        )  # fmt: skip

    def weights(self) -> dict[str, Weight]:
        return public_weights(self.shape)

    def program(
        self, batch: int, bucket: int, query: Query | None = None
    ) -> Callable[[Session, Mapping[str, Weight]], Share]:
        """Logits (batch, labels) for one bucket; the client supplies its query, the server and a plan do not."""
        shape, rules = self.shape, self.rules
        rows = (batch, bucket, shape.hidden)

        def run(session: Session, weights: Mapping[str, Weight]) -> Share:
            embedded = input_rows(session, None if query is None else query.rows, rows)
            mask = input_mask(session, None if query is None else query.mask, rows[:2])
            return classify(session, embedded, mask, shape, rules, weights)

        return run

    def plan(self, batch: int, bucket: int, *, fused: bool = True) -> Plan:
        run, weights = self.program(batch, bucket), self.weights()
        return plan_program(lambda session: run(session, weights), fused=fused)

    # Texts -----------------------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        limit = self.config.encoder.longest
        return min(limit, self.config.length) if self.config.length else limit

    def buckets(self) -> tuple[int, ...]:
        """The public lengths that this model takes."""
        fitting = tuple(size for size in BUCKETS if size < self.longest)
        return (*fitting, self.longest)

    def prepare(self, texts: Sequence[str | tuple[str, str]], bucket: int | None = None) -> Query:
        """Tokens, padding and embeddings of some texts (or pairs of texts), padded to one bucket."""
        if not texts:
            raise ConfigurationError("there is no text to classify")
        encodings = []
        for place, text in enumerate(texts):
            parts = (text,) if isinstance(text, str) else text
            if not any(part.strip() for part in parts):
                raise ConfigurationError(f"text {place + 1} is empty: there is nothing to classify")
            encodings.append(self.tokenizer.encode(*parts))
        lengths = [min(len(encoding.ids), self.longest) for encoding in encodings]
        needed = next(size for size in self.buckets() if size >= max(lengths))
        bucket = bucket or needed
        if bucket < needed:
            raise ShapeError(f"a text needs the bucket of {needed} tokens, asked for was {bucket}")
        ids = np.full((len(texts), bucket), self.config.encoder.padding, np.int64)
        types = np.zeros_like(ids)
        mask = np.zeros(ids.shape)
        for row, (encoding, length) in enumerate(zip(encodings, lengths, strict=True)):
            ids[row, :length] = encoding.ids[:length]
            if length < len(encoding.ids):
                ids[row, length - 1] = encoding.ids[-1]  # the closing token stays
            types[row, :length] = encoding.type_ids[:length]
            mask[row, :length] = 1.0
        truncated = tuple(len(encoding.ids) > self.longest for encoding in encodings)
        return Query(self.embed(ids, types), mask, truncated)

    def embed(self, ids: npt.NDArray[np.int64], types: npt.NDArray[np.int64]) -> Reals:
        """Normalised embeddings, without γ and β, which the server has folded into its first layer."""
        e = self.config.encoder
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= e.vocabulary):
            raise ConfigurationError(f"a token id is outside the vocabulary of {e.vocabulary}")
        tables = {name: value.astype(np.float64) for name, value in self.embeddings.items()}
        x = tables["words"][ids] + tables["positions"][e.first_position + np.arange(ids.shape[1])]
        if e.types:
            x = x + tables["types"][np.minimum(types, e.types - 1)]
        centred = x - x.mean(axis=-1, keepdims=True)
        return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + e.epsilon))


@dataclass(frozen=True, eq=False, repr=False)
class ServedModel(PublicModel):
    """What the server holds."""

    folded: Mapping[str, Reals]
    """Weights in real numbers, by the names of `transformer.encoder_weights`."""
    fixed: Mapping[str, Weight]

    @staticmethod
    def load(directory: Path) -> ServedModel:
        """A Comet checkpoint in the certified form, its certificates proved again from the weights."""
        config, tensors = load_checkpoint(directory)
        check_certificates(config, tensors)
        path = Path(directory) / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        e = config.encoder
        names = ("words", "positions", *(("types",) if e.types else ()))
        tables = {name: tensors[f"embeddings.{name}"].astype(np.float16).astype(np.float32) for name in names}
        folded, value_bounds, logit_bound = _fold(config, tensors)
        shape = EncoderShape(e.layers, e.hidden, e.heads, e.intermediate, len(e.labels))
        return ServedModel(
            fingerprint=fingerprint(config, tensors),
            config=config,
            value_bounds=value_bounds,
            logit_bound=logit_bound,
            tokenizer=tokenizer,
            embeddings=tables,
            folded=folded,
            fixed=encode_weights(shape, folded),
        )

    def weights(self) -> dict[str, Weight]:
        return dict(self.fixed)

    def public(self) -> PublicModel:
        return PublicModel(
            self.fingerprint, self.config, self.value_bounds, self.logit_bound, self.tokenizer, self.embeddings
        )

    def plain_logits(self, query: Query, *, exact: bool = False) -> Reals:
        """The model in the clear, in real arithmetic: through the rules of the protocol, or with exact functions."""
        return _plain(query, self.shape, self.rules, self.folded, exact=exact)


def _fold(config: CometConfig, tensors: Tensors) -> tuple[dict[str, Reals], tuple[float, ...], float]:
    """Folded weights, and public bounds of attention's values and of the logits."""
    e = config.encoder

    def get(name: str) -> tuple[Reals, Reals]:
        return tensors[name + ".weight"].astype(np.float64), tensors[name + ".bias"].astype(np.float64)

    folded: dict[str, Reals] = {}
    value_bounds = []
    gamma, beta = get("embeddings.norm")
    for i in range(e.layers):
        source, target = f"layers.{i}.", f"layer.{i}."
        parts = [normalised_queries(tensors, i, part, e.heads) for part in ("query", "key")]
        parts.append(get(source + "value"))
        value_bounds.append(power_of_two_above(float(np.max(activation_bounds(*parts[2], gamma, beta)))))
        folded[target + "qkv.weight"] = np.concatenate([w * gamma for w, _ in parts])
        folded[target + "qkv.bias"] = np.concatenate([w @ beta + b for w, b in parts])
        folded[target + "threshold"] = tensors[source + "thresholds"].astype(np.float64)
        output, bias = get(source + "attention_output")
        folded[target + "output.weight"], folded[target + "output.bias"] = output, bias + beta
        folded[target + "first.gamma"] = gamma
        gamma, beta = get(source + "attention_norm")
        up, up_bias, down = normalised_neurons(tensors, i)
        folded[target + "up.weight"], folded[target + "up.bias"] = up * gamma, up @ beta + up_bias
        folded[target + "down.weight"], folded[target + "down.bias"] = down, get(source + "down")[1] + beta
        folded[target + "second.gamma"] = gamma
        gamma, beta = get(source + "output_norm")
    pooler, bias = get("pooler")
    folded["pooler.weight"], folded["pooler.bias"] = pooler * gamma, pooler @ beta + bias
    folded["classifier.weight"], folded["classifier.bias"] = get("classifier")
    row_sums = np.abs(folded["classifier.weight"]).sum(axis=1) + np.abs(folded["classifier.bias"])
    return folded, tuple(value_bounds), power_of_two_above(1.1 * float(np.max(row_sums)))


def _plain(query: Query, shape: EncoderShape, rules: EncoderRules, w: Mapping[str, Reals], *, exact: bool) -> Reals:
    """`transformer.classify` in real arithmetic."""

    def root(rule: object, t: Reals) -> Reals:
        """1/sqrt(t)."""
        return np.asarray(1.0 / np.sqrt(t) if exact or not callable(rule) else rule(t))

    def norm(x: Reals, rule: object) -> Reals:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True) + rules.epsilon
        if exact or not callable(rule):
            return np.asarray(centred / np.sqrt(variance))
        shrink = shape.hidden / 2 ** math.ceil(math.log2(shape.hidden))
        return np.asarray(centred * shrink * rule(variance * shrink**3))

    def smu(x: Reals, form: Smu, rule: object) -> Reals:
        t = x**2 + np.square(form.mu)
        return np.asarray(0.5 * x + 0.5 * t * root(rule, t))

    def linear(x: Reals, name: str) -> Reals:
        return np.asarray(x @ w[name + ".weight"].T + w[name + ".bias"])

    form, d = rules.attention, shape.hidden
    rows = query.rows
    batch, tokens, _ = rows.shape
    for i in range(shape.layers):
        layer = f"layer.{i}."
        qkv = (
            linear(rows, layer + "qkv")
            .reshape(batch, tokens, 3, shape.heads, d // shape.heads)
            .transpose(2, 0, 3, 1, 4)
        )
        q, k, v = qkv
        q, k = (z * root(form.norms, (z**2).sum(axis=-1, keepdims=True)) for z in (q, k))
        scores = (q @ k.swapaxes(-1, -2) - w[layer + "threshold"][:, None, None]) / form.score_bound
        r = smu(scores, form.smu, form.scores) ** form.power * query.mask[:, None, None, :]
        scale = 2.0 ** math.ceil(math.log2(tokens))
        reciprocal = root(form.denominators, r.sum(axis=-1, keepdims=True) / scale)
        context = (r @ v / scale * reciprocal**2).transpose(0, 2, 1, 3).reshape(rows.shape)
        rows = norm(linear(context, layer + "output") + w[layer + "first.gamma"] * rows, rules.variances[i][0])
        active = smu(linear(rows, layer + "up"), rules.activation, rules.activation_rule)
        rows = norm(linear(active, layer + "down") + w[layer + "second.gamma"] * rows, rules.variances[i][1])
    pooled = linear(rows[:, 0], "pooler")
    squashed = pooled * root(rules.pooler, 1.0 + pooled**2)
    return linear(squashed, "classifier")
