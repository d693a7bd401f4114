"""BERT, DistilBERT, RoBERTa and MPNet, and every head: one checkpoint gives one model in torch, in real arithmetic, in
its twin and to two parties, layer by layer; and no input leaves the certified ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import Share, decode
from comet_mpc.engine.twin import TwinSession, run_twin
from comet_mpc.functions.root_rule import FINE_PRECISION
from comet_mpc.models.blocks import Sum, position_buckets
from comet_mpc.models.certify import certify
from comet_mpc.models.fold import in_form
from comet_mpc.models.heads import Head, input_averages
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.models.transformer import encoder_blocks, encoder_frame, input_mask, input_rows
from comet_mpc.offline.sources import PAIR
from support.small_models import CERTIFIED, UNMODIFIED, small_model
from support.toy_model import make_checkpoint, some_texts
from support.two_parties import run_two_parties, twin_value

Reals = npt.NDArray[np.float64]

MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"architecture": "roberta"},
    "mpnet": {"architecture": "mpnet"},
    "distilbert": {"architecture": "distilbert", "pooler": "smu", "labels": ("a", "b", "c")},
    "quadratic roots": {"rule": "quadratic"},
    "fine neurons": {"rule": "quadratic", "precision": FINE_PRECISION},
    "no power of two": {"hidden": 24},
    "no pooler": {"pooler": "none"},
    "regression of a mean": {"head": Head(pooling="mean"), "labels": ("score",)},
    "tokens": {"head": Head(kind="tokens"), "labels": ("O", "B-PER", "I-PER")},
    "embedding": {"head": Head(kind="embedding", pooling="mean", unit=True)},
    "embedding of the first": {"architecture": "mpnet", "head": Head(kind="embedding", pooling="first", unit=True)},
    "embedding of 24": {"hidden": 24, "head": Head(kind="embedding", pooling="mean", unit=True)},
    "embedding as it is": {"head": Head(kind="embedding", pooling="mean")},
}
TWIN = 0.006, 0.001
"""Coordinates of rows (about 1): the twin against the same rules in real arithmetic; largest, and root mean square."""
PARTIES = 0.015, 0.002
"""Two parties against the twin: their truncations round at random, by less than a unit."""
TORCH = 5e-5, 1e-5
"""Single against double precision, the same coefficients."""


@pytest.fixture(scope="module", params=MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), **MODELS[request.param])


@pytest.fixture(scope="module")
def model(directory: Path) -> ServedModel:
    return ServedModel.load(directory, answer_bits=16)


def states_program(model: PublicModel, query: Query) -> Callable[[Session, Mapping[str, Weight]], list[Share]]:
    """The rows after every layer, what is read of the last ones (`pooled`), then the logits."""
    shape, rules = model.shape, model.rules

    def run(session: Session, weights: Mapping[str, Weight]) -> list[Share]:
        rows = input_rows(session, query.tokens_only, query.rows.shape)
        mask = input_mask(session, query.mask, query.mask.shape)
        averages = input_averages(session, query.mask, query.mask.shape)
        blocks, frame = encoder_blocks(shape), encoder_frame(session, mask, rules, weights, averages)
        rings = [block.ring(frame, own) for block, own in zip(blocks, rules.layers, strict=True)]
        following = [*rings[1:], rules.head.ring(shape.hidden)]
        states = [
            rows := block.run(frame, rows, own, ring)
            for block, own, ring in zip(blocks, rules.layers, following, strict=True)
        ]
        return [*states, model.program(query.batch, query.bucket, query)(session, weights)]

    return run


def pooled(model: PublicModel, query: Query, states: list[Reals]) -> list[Reals]:
    """The same states, but of the last ones only what the head reads."""
    *before, last, answers = states
    if model.shape.head.reads == "first":
        last = last[:, 0]
    elif model.shape.head.reads == "mean":
        last = np.stack([rows[kept].mean(axis=0) for rows, kept in zip(last, query.mask == 1.0, strict=True)])
    return [*before, last, answers]


def opened(shares: list[Share], others: list[Share] | None = None) -> list[Reals]:
    """Values of a twin's shares, or of two parties'."""
    found = []
    for place, share in enumerate(shares):
        words = share.flat() if others is None else share.flat() + others[place].flat()
        found.append(decode(words, share.fraction, share.width).reshape(share.shape))
    return found


def torch_states(directory: Path, query: Query, ids: npt.NDArray[np.int64]) -> list[Reals]:
    """The same of the torch model, its rows before γ and β, as the protocol has them."""
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    from comet_mpc.train.model import UnifiedModel

    config, tensors = load_checkpoint(directory)
    for name in ("words", "positions", "types")[: 3 if config.encoder.types else 2]:
        tensors[f"embeddings.{name}"] = tensors[f"embeddings.{name}"].astype(np.float16).astype(np.float32)
    net = UnifiedModel.from_tensors(config, tensors).eval().use("served")
    with torch.no_grad():
        logits, hidden = net(torch.tensor(ids), torch.tensor(query.mask).long())
    norms = [f"layers.{i}.output_norm" for i in range(config.encoder.layers)]
    rows = [
        (x.numpy() - tensors[f"{norm}.bias"]) / tensors[f"{norm}.weight"]
        for x, norm in zip(hidden[1:], norms, strict=True)
    ]
    return [*rows, logits.numpy()]


def token_ids(model: ServedModel, texts: list[str], bucket: int) -> npt.NDArray[np.int64]:
    ids = np.full((len(texts), bucket), model.config.encoder.padding, np.int64)
    for row, text in zip(ids, texts, strict=True):
        found = model.text_tokenizer.encode(text, bucket).ids
        row[: len(found)] = found
    return ids


def of_tokens(model: ServedModel, query: Query, layer: int) -> npt.NDArray[np.bool_]:
    """What of a state (`pooled`), or of the answers, is not padding."""
    if layer < model.shape.layers - 1 or model.shape.head.reads == "all":
        return np.asarray(query.mask == 1.0)
    return np.ones(len(query.mask), bool)


def assert_close(found: Reals, wanted: Reals, limits: tuple[float, float], layer: int) -> None:
    difference = np.abs(found - wanted)
    assert difference.max() < limits[0], f"after layer {layer}"
    assert np.sqrt(np.mean(difference**2)) < limits[1], f"after layer {layer}"


TEXTS = [*some_texts(1, words=5), *some_texts(1, words=11, seed=4)]


@pytest.mark.slow
def test_the_twin_and_two_parties_agree_after_every_layer(model: ServedModel) -> None:
    query = PublicModel.unpack(model.package()).encode(TEXTS)
    program = states_program(model, query)
    real = pooled(model, query, model.plain_states(query))
    twin = opened(run_twin(lambda session: program(session, model.weights())))
    run = run_two_parties(program, model.weights())
    parties = opened(run.client, run.server)
    assert len(real) == len(twin) == len(parties) == model.shape.layers + 1
    for layer, (wanted, clear, secure) in enumerate(zip(real, twin, parties, strict=True)):
        chosen = of_tokens(model, query, layer)
        assert_close(clear[chosen], wanted[chosen], TWIN, layer)
        assert_close(secure[chosen], clear[chosen], PARTIES, layer)
        assert np.abs(wanted[chosen]).max() > 0.05, layer


@pytest.mark.train
def test_torch_has_the_same_states_from_the_same_file(directory: Path, model: ServedModel) -> None:
    query = model.encode(TEXTS)
    states = torch_states(directory, query, token_ids(model, TEXTS, query.bucket))
    both = [pooled(model, query, each) for each in (states, model.plain_states(query))]
    for layer, (wanted, found) in enumerate(zip(*both, strict=True)):
        chosen = of_tokens(model, query, layer)
        assert_close(found[chosen], wanted[chosen], TORCH, layer)


def test_private_embeddings_give_the_same_answer(directory: Path, model: ServedModel) -> None:
    private = ServedModel.load(directory, private_embeddings=True, answer_bits=16)
    found = [
        twin_value(served.program(len(TEXTS), 16, served.encode(TEXTS)), served.weights())
        for served in (model, private)
    ]
    assert_close(found[0], found[1], TWIN, model.shape.layers)


def test_positions_start_after_the_padding_id(model: ServedModel) -> None:
    e = model.config.encoder
    assert (e.padding, e.first_position) == ((0, 0) if e.architecture.endswith("bert") else (1, 2))
    assert model.longest == e.positions - e.first_position
    query = model.encode(["good film"])
    table = model.embeddings["words"][token_ids(model, ["good film"], 16)[0, 1]].astype(np.float64)
    table = table + model.embeddings["positions"][e.first_position + 1]
    if e.types:
        table = table + model.embeddings["types"][0]
    np.testing.assert_allclose(query.rows[0, 1], (table - table.mean()) / table.std(), atol=1e-6)


@pytest.mark.parametrize(("least", "longest"), [(0.02, 14), (0.002, 14)])
def test_an_encoder_with_very_long_rows(tmp_path: Path, least: float, longest: int) -> None:
    """As RoBERTa has them: a LayerNorm takes sums of very different lengths, and may have to take still longer ones.

    The second interval is too wide for a rule of few steps.
    """
    config, tensors = load_checkpoint(make_checkpoint(tmp_path, architecture="roberta"))
    tensors["layers.0.down.weight"][:2] *= 500.0
    lows = {"layers.0.output_norm": least}
    save_checkpoint(tmp_path, certify(msgspec.structs.replace(config, sites={}), tensors, lows), tensors)
    model = ServedModel.load(tmp_path, answer_bits=16)
    rule = model.config.sites["layers.0.output_norm"].minimax
    assert rule is not None
    assert rule.high > 2.0**longest * rule.low
    longer = replace(rule, high=2.0**8 * rule.high)
    assert Sum(model.shape.hidden, longer).ring == Sum(model.shape.hidden, rule).ring + 4
    query = model.encode(TEXTS)
    program = states_program(model, query)
    run = run_two_parties(program, model.weights())
    twin = opened(run_twin(lambda session: program(session, model.weights())))
    for layer, (clear, secure, wanted) in enumerate(
        zip(twin, opened(run.client, run.server), pooled(model, query, model.plain_states(query)), strict=True)
    ):
        chosen = of_tokens(model, query, layer)
        assert_close(clear[chosen], wanted[chosen], (0.04, 0.006), layer)
        assert_close(secure[chosen], clear[chosen], (0.08, 0.012), layer)


# Relative positions --------------------------------------------------------------------------------------


def test_buckets_are_those_of_mpnet() -> None:
    """Distances from which on a bucket is shared, as in `transformers` with 32 buckets up to 128."""
    row = position_buckets(300, 32)[0]
    starts = [int(np.argmax(row == bucket)) for bucket in range(17, 32)]
    assert starts == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    assert row[0] == 0
    np.testing.assert_array_equal(position_buckets(300, 32)[:, 0], np.where(row > 16, row - 16, 0))


def test_a_relative_bias_changes_the_answer_but_not_the_plan(tmp_path: Path) -> None:
    with_bias = ServedModel.load(make_checkpoint(tmp_path / "mpnet", architecture="mpnet"))
    without = ServedModel.load(make_checkpoint(tmp_path / "roberta", architecture="roberta"))
    assert with_bias.plan(1, 16, PAIR) == without.plan(1, 16, PAIR)
    threshold = np.abs(with_bias.folded["layer.0.threshold"])
    assert threshold.shape == (2, 32)
    assert (threshold == 1.0).any()  # clamped
    assert (threshold < 1.0).any()
    query = with_bias.encode(TEXTS)
    flat = dict(with_bias.folded) | {"layer.0.threshold": np.zeros_like(threshold)}
    changed = ServedModel(**vars(with_bias) | {"folded": flat})
    assert np.abs(changed.plain_logits(query) - with_bias.plain_logits(query)).max() > 1e-3


def test_biases_made_for_a_softmax_are_shrunk_head_by_head() -> None:
    config, tensors = small_model(UNMODIFIED, architecture="mpnet")
    tensors["relative_positions"] *= np.array([0.1, 1.0, 40.0], np.float32)
    activation, attention, _ = CERTIFIED
    choice = {"activation": activation, "attention": attention, "pooler": "algebraic", "labels": ("0", "1")}
    made = in_form(config, tensors, **choice)[1]["relative_positions"]  # type: ignore[arg-type]
    old = tensors["relative_positions"]
    np.testing.assert_array_equal(made[:, :2], old[:, :2])  # within 1 already
    np.testing.assert_allclose(made[:, 2], old[:, 2] / np.abs(old[:, 2]).max(), rtol=1e-6)


# Any input -----------------------------------------------------------------------------------------------

TOKENS = 16
PARTS = (
    *("layer 0/linear", "layer 0/attention/scores", "layer 0/attention/activation", "layer 0/attention/division"),
    *("layer 1/layer_norm", "layer 1/activation", "head"),
)
SEARCHERS = 13
CANDIDATES = len(PARTS) * SEARCHERS
"""Of all parts, in one batch. A number that no other axis has."""


class _Watching(TwinSession):
    """Notes how much of its bound every candidate uses in its part of the program. (A twin also raises beyond it.)"""

    def __init__(self) -> None:
        super().__init__()
        self.used = np.zeros((len(PARTS), SEARCHERS))

    def _check(self, share: Share) -> None:
        super()._check(share)
        for number, part in enumerate(PARTS):
            if self.here.startswith(part) and CANDIDATES in share.shape and share.bound:
                values = np.abs(decode(share.flat(), share.fraction, share.width)).reshape(share.shape)
                values = np.moveaxis(values, share.shape.index(CANDIDATES), 0).reshape(*self.used.shape, -1)
                self.used[number] = np.maximum(self.used[number], values[number].max(axis=1) / share.bound)


def used(model: ServedModel, ids: npt.NDArray[np.int64], mask: Reals) -> Reals:
    """By part and candidate, of ids and masks [part][candidate][token]."""
    session, flat = _Watching(), ids.reshape(CANDIDATES, TOKENS)
    query = Query(model.embed(flat, np.zeros_like(flat)), mask.reshape(flat.shape), (False,) * CANDIDATES)
    model.program(CANDIDATES, TOKENS, query)(session, model.weights())
    return session.used


def test_a_search_for_the_largest_value_finds_none_beyond_its_bound(model: ServedModel) -> None:
    """A search for every part of the program, all of them at once."""
    generator = np.random.default_rng(3)
    vocabulary = model.config.encoder.vocabulary
    ids = generator.integers(0, vocabulary, (len(PARTS), SEARCHERS, TOKENS))
    ids[:, 1], ids[:, 2] = 5, int(np.abs(model.embeddings["words"]).max(axis=1).argmax())  # one token repeated
    mask = np.ones(ids.shape)
    mask[:, 3:6, 1:] = 0.0
    first = found = used(model, ids, mask)
    assert first.max(axis=1).all()
    every = np.arange(len(PARTS))
    for _ in range(8):
        best = found.argmax(axis=1)
        changed = generator.random(ids.shape) < 0.15
        changed[:, 0] = False
        ids = np.where(changed, generator.integers(0, vocabulary, ids.shape), ids[every, best, None])
        mask = np.broadcast_to(mask[every, best, None], ids.shape).copy()
        found = used(model, ids, mask)
    assert (first.max(axis=1) <= found.max(axis=1)).all()
    assert (found <= 1.0 + 1e-9).all()


def test_answers_to_any_ids_stay_near_real_arithmetic(model: ServedModel) -> None:
    generator = np.random.default_rng(7)
    ids = generator.integers(0, model.config.encoder.vocabulary, (6, TOKENS))
    ids[1], ids[2] = 5, model.config.encoder.padding
    mask = np.ones(ids.shape)
    mask[3:5, 1:] = 0.0
    query = Query(model.embed(ids, np.zeros_like(ids)), mask, (False,) * len(ids))
    logits = twin_value(model.program(len(ids), TOKENS, query), model.weights())
    assert np.abs(logits - model.plain_logits(query)).max() < 0.1
    assert np.all(np.abs(logits) < model.logit_bound)
