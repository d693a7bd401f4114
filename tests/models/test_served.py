"""A whole classifier: plan, twin, two parties and the plaintext model agree; no input leaves the certified ranges."""

from __future__ import annotations

import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CheckpointError, ConfigurationError, RangeError, ShapeError
from comet_mpc.models.bounds import Weights, activation_bounds
from comet_mpc.models.certify import certify
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.models.transformer import input_rows, public_weights
from comet_mpc.net.channel import FRAME_HEADER
from comet_mpc.offline.pair.workbench import check_weight
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.service.programs import Programs
from support.toy_model import make_checkpoint, some_texts
from support.two_parties import able, run_two_parties, together, twin_value

LOGITS = 0.02
"""Two parties against the twin: roundings of the toy model's two layers, with a wide margin."""
REAL = 0.01
"""The twin against the same rules in real arithmetic."""
LOADED = 2.25
"""Memory for a model that is loaded, in sizes of its file: itself, and in double precision one of eight layers, which
is what folding it takes. With a second copy of the weights it is 2.9."""
UNIT = 2.0**-8
"""The last digit of an answer. The parties are off by less than 1.5 of it in the end, the twin by at most half."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(directory: Path) -> ServedModel:
    return ServedModel.load(directory)


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEALER, PAIR])
@pytest.mark.parametrize("private", [False, True])
def test_two_parties_the_twin_and_the_plaintext_model_agree(directory: Path, private: bool, source: Source) -> None:
    model = ServedModel.load(directory, private_embeddings=private)
    client = PublicModel.unpack(model.package())
    query = client.encode(some_texts(2))
    program = client.program(query.batch, query.bucket, query)
    plain = model.plain_logits(query)
    twin = twin_value(program, model.weights())
    plan = client.plan(query.batch, query.bucket, source)
    run = run_two_parties(program, model.weights(), fused=source.abilities.fused, ways=plan.ways)
    assert np.abs(twin - plain).max() < REAL + UNIT / 2
    assert np.abs(together(run) - twin).max() < LOGITS + 2 * UNIT
    assert run.plan.correlations == model.plan(query.batch, query.bucket, source).correlations


def test_the_embedding_table_leaves_the_server_only_if_it_is_public(directory: Path) -> None:
    public = ServedModel.load(directory).package()
    private = ServedModel.load(directory, private_embeddings=True).package()
    assert len(private) < len(public)
    assert not PublicModel.unpack(private).embeddings
    with pytest.raises(KeyError):
        PublicModel.unpack(private).embed(np.zeros((1, 4), np.int64), np.zeros((1, 4), np.int64))


def test_the_package_has_no_weight_of_the_encoder(model: ServedModel) -> None:
    client = PublicModel.unpack(model.package())
    assert all(weight.values is None and weight.masked is None for weight in client.weights().values())
    assert set(client.embeddings) == {"words", "positions", "types"}
    assert client.plan(1, 16, PAIR) == model.plan(1, 16, PAIR)


@pytest.mark.parametrize("private", [False, True])
def test_the_package_tells_nothing_of_the_calibration_data(directory: Path, tmp_path: Path, private: bool) -> None:
    config, tensors = load_checkpoint(directory)
    seen = (0.123456789, 0.2, 0.3, 0.4, 0.987654321)
    sites = {name: msgspec.structs.replace(site, seen=seen) for name, site in config.sites.items()}
    shutil.copytree(directory, tmp_path / "calibrated")
    save_checkpoint(tmp_path / "calibrated", msgspec.structs.replace(config, sites=sites), tensors)
    model = ServedModel.load(tmp_path / "calibrated", private_embeddings=private)
    for package in (model.package(), model.public().package()):
        assert b"0.123456789" not in package
        assert b"0.987654321" not in package
        assert all(site.seen == () for site in PublicModel.unpack(package).config.sites.values())


@pytest.mark.slow
def test_an_answer_has_the_digits_that_the_operator_chose(directory: Path) -> None:
    text = some_texts(1)
    found, dealt = {}, set()
    for bits in (1, 4, 8, 16):
        model = ServedModel.load(directory, answer_bits=bits)
        client = PublicModel.unpack(model.package())
        assert client.answer_bits == bits
        query = client.encode(text)
        program = client.program(1, query.bucket, query)
        twin = twin_value(program, model.weights())
        secure = together(run_two_parties(program, model.weights(), fused=False))  # it compares bytes with the plan
        for logits in (twin, secure):
            assert np.array_equal(logits * 2.0**bits, np.rint(logits * 2.0**bits))
        assert np.abs(secure - twin).max() < LOGITS + 2.0 * 2.0**-bits
        plan = client.plan(1, query.bucket, PAIR)
        assert plan == model.plan(1, query.bucket, PAIR)
        assert plan.schedule[-1].part == "result"
        found[bits] = plan, twin
        dealt.add(client.plan(1, query.bucket, DEALER).correlations)
    assert np.abs(found[8][1] - found[16][1]).max() <= 2.0**-9 + 2.0**-17
    assert len({plan.digest for plan, _ in found.values()}) == len(found), "both sides must mean the same digits"
    assert len(dealt) == 1, "digits need no randomness"
    offline = [PAIR.offline_bytes(plan) for plan, _ in found.values()]
    assert offline == sorted(offline), "products under encryption are as exact as the digits need"


@pytest.mark.parametrize("bits", [1, 8, 16])
@pytest.mark.parametrize("source", [DEALER, PAIR])
def test_an_answer_is_revealed_in_the_narrowest_ring_that_holds_it(directory: Path, bits: int, source: Source) -> None:
    """Whoever adds a multiple of what it is after to an answer reads as many bits of it as the ring has to spare.

    What is sent is counted in the plan, which is what the wire has: so many bits for every label, in the last round.
    """
    model = ServedModel.load(directory, answer_bits=bits)
    shares = []
    plan_program(lambda session: shares.append(model.program(2, 16)(session, public_weights(model.shape))))
    (answer,) = shares
    largest = answer.bound * 2.0**bits
    assert answer.fraction == bits
    assert answer.ring.holds(largest)
    assert not Ring(answer.width - 1).holds(largest)
    last = model.plan(2, 16, source).schedule[-1]
    sent = (answer.count * answer.width + 7) // 8
    assert (last.part, last.from_client, last.from_server) == ("result", 0, sent + FRAME_HEADER)


@pytest.mark.parametrize("bits", [0, 17, -1])
def test_an_answer_without_sensible_digits_is_refused(directory: Path, bits: int) -> None:
    with pytest.raises(ConfigurationError, match="fraction bits"):
        ServedModel.load(directory, answer_bits=bits)


def test_padding_does_not_change_an_answer(model: ServedModel) -> None:
    texts = some_texts(1)
    short, long = model.encode(texts, 16), model.encode(texts, 32)
    logits = [twin_value(model.program(1, query.bucket, query), model.weights()) for query in (short, long)]
    assert np.abs(logits[0] - logits[1]).max() < 0.05  # the denominators' rule sees other values
    assert np.abs(model.plain_logits(short, exact=True) - model.plain_logits(long, exact=True)).max() < 1e-9


def test_what_stands_in_padding_is_never_seen(model: ServedModel) -> None:
    query = model.encode(some_texts(1))
    other = query.rows.copy()
    padded = query.mask[0] == 0.0
    assert padded.any()
    other[0, padded] = other[0, padded][:, ::-1]
    program = [model.program(1, query.bucket, Query(rows, query.mask, (False,))) for rows in (query.rows, other)]
    first, second = (twin_value(run, model.weights()) for run in program)
    np.testing.assert_array_equal(first, second)


def adversarial_ids(model: ServedModel, tokens: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    vocabulary = model.config.encoder.vocabulary
    largest = int(np.abs(model.embeddings["words"]).max(axis=1).argmax())
    return {
        "random": generator.integers(0, vocabulary, (4, tokens)),
        "one token repeated": np.full((1, tokens), 5),
        "the largest embedding repeated": np.full((1, tokens), largest),
        "padding everywhere": np.zeros((1, tokens), np.int64),
        "every token once": np.arange(tokens)[None] % vocabulary,
    }


@pytest.mark.parametrize(
    "which", ["random", "one token repeated", "the largest embedding repeated", "padding everywhere"]
)
@pytest.mark.parametrize("masked", [False, True])
def test_no_token_ids_leave_the_certified_ranges(model: ServedModel, which: str, masked: bool) -> None:
    """The twin raises RangeError at the first value outside the bound that was certified for it."""
    ids = adversarial_ids(model, 16)[which]
    mask = np.ones(ids.shape)
    if masked:
        mask[:, 1:] = 0.0
    query = Query(model.embed(ids, np.zeros_like(ids)), mask, (False,) * len(ids))
    logits = twin_value(model.program(len(ids), 16, query), model.weights())
    assert np.abs(logits - model.plain_logits(query)).max() < 0.1
    assert np.all(np.abs(logits) < model.logit_bound)


def test_rows_no_text_can_have_do_not_leave_the_ranges_either(model: ServedModel) -> None:
    """A client that lies about its embeddings, within LayerNorm's norm: one coordinate has all of it."""
    d = model.config.encoder.hidden
    rows = np.zeros((1, 16, d))
    rows[0, :, 0], rows[0, :, 1:] = np.sqrt(d - 1.0), -np.sqrt(1.0 / (d - 1.0))
    query = Query(rows, np.ones((1, 16)), (False,))
    logits = twin_value(model.program(1, 16, query), model.weights())
    assert np.all(np.isfinite(logits))


def test_bad_texts_are_refused(model: ServedModel) -> None:
    with pytest.raises(ConfigurationError, match="no text"):
        model.encode([])
    with pytest.raises(ConfigurationError, match="text 2 is empty"):
        model.encode(["good film", "   "])
    with pytest.raises(ConfigurationError, match="outside the vocabulary"):
        model.embed(np.array([[10_000]]), np.array([[0]]))
    with pytest.raises(ShapeError, match="needs a bucket of 32"):
        model.encode(["film " * 20], 16)


def test_a_long_text_is_truncated_and_said_so(model: ServedModel) -> None:
    query = model.encode(["film " * 500])
    assert query.truncated == (True,)
    assert query.bucket == model.longest
    assert query.mask.sum() == model.longest


def test_of_a_pair_the_longer_text_is_cut_as_in_training(model: ServedModel) -> None:
    query = model.encode([("film " * 500, "good")])
    kept = model.longest - 4  # besides the short text, three tokens separate the two
    wanted = model.encode([("film " * kept, "good")])
    assert query.truncated == (True,)
    assert wanted.truncated == (False,)
    assert np.array_equal(query.rows, wanted.rows)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:100], lambda data: b"\0" * 64, lambda data: b""]
)
def test_a_damaged_package_is_refused(model: ServedModel, damage: object) -> None:
    assert callable(damage)
    with pytest.raises(CheckpointError):
        PublicModel.unpack(damage(model.package()))


@pytest.mark.parametrize("label", ["\x1b[2J", "good\n", "a\u202eb", "\x9b1m", "a\r", "long" * 300])
def test_a_label_that_could_steer_a_terminal_is_refused(model: ServedModel, label: str) -> None:
    """Labels are shown as the server calls them."""
    package = model.package()
    size = int.from_bytes(package[:8], "little")
    (name,) = (metadata := msgspec.json.decode(package[8 : 8 + size])["__metadata__"])
    card = msgspec.json.decode(metadata[name])
    card["config"]["encoder"]["labels"][0] = label
    with pytest.raises(CheckpointError):
        PublicModel.unpack(save_tensors(load_tensors(package), {name: msgspec.json.encode(card).decode()}))


def with_row(package: bytes, table: str, row: npt.NDArray[Any]) -> bytes:
    """The package of a server that has one row of a table for some texts alone."""
    tables, size = load_tensors(package), int.from_bytes(package[:8], "little")
    changed = tables[table].astype(row.dtype)
    changed[5] = row
    return save_tensors(tables | {table: changed}, msgspec.json.decode(package[8 : 8 + size])["__metadata__"])


@pytest.mark.parametrize("table", ["words", "positions"])
@pytest.mark.parametrize("value", [np.nan, np.inf, np.float32(1e38), np.float64(1e300)])
def test_tables_that_fail_for_some_texts_alone_are_refused(model: ServedModel, table: str, value: Any) -> None:
    """A client that gives up after it has asked for a run tells the server that such a token was in the text."""
    kind = value.dtype if isinstance(value, np.generic) else np.float16
    with pytest.raises(CheckpointError, match=r"not finite|half precision"):
        PublicModel.unpack(with_row(model.package(), table, np.full(model.config.encoder.hidden, value, kind)))


def test_every_row_of_a_table_that_is_taken_can_be_encoded(model: ServedModel) -> None:
    """The largest and the smallest numbers that there are, alone and beside each other."""
    d = model.config.encoder.hidden
    top, tiny = np.finfo(np.float16).max, np.finfo(np.float16).smallest_subnormal
    for row in (np.full(d, top), np.full(d, tiny), np.eye(1, d)[0] * top, np.eye(1, d)[0] * tiny, np.zeros(d)):
        package = with_row(model.package(), "words", row.astype(np.float16))
        client = PublicModel.unpack(package)
        rows = client.embed(np.full((1, 16), 5), np.zeros((1, 16), np.int64))
        assert np.abs(rows).max() <= np.sqrt(d)
        given = input_rows(TwinSession(abilities=able(False)), rows, rows.shape)  # raises for what cannot be encoded
        assert given.values is not None


def test_a_padding_token_that_the_model_does_not_know_is_refused(model: ServedModel) -> None:
    """Only texts that do not fill their bucket would fail."""
    encoder = msgspec.structs.replace(model.config.encoder, padding=model.config.encoder.vocabulary)
    with pytest.raises(CheckpointError, match="padding token"):
        replace(model.public(), config=msgspec.structs.replace(model.config, encoder=encoder))


def test_a_top_below_what_the_weights_allow_is_refused(directory: Path, tmp_path: Path) -> None:
    config, tensors = load_checkpoint(directory)
    site = config.sites["layers.0.output_norm"]
    assert site.minimax is not None
    rule = replace(site.minimax, high=site.minimax.high / 4)
    sites = config.sites | {"layers.0.output_norm": msgspec.structs.replace(site, minimax=rule)}
    save_checkpoint(tmp_path, msgspec.structs.replace(config, sites=sites), tensors)
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match="output_norm"):
        ServedModel.load(tmp_path)


def test_nothing_secret_is_printed(model: ServedModel) -> None:
    query = model.encode(["good film"])
    assert repr(query) == "Query(batch=1, bucket=16)"
    assert model.fingerprint[:12] in repr(model)
    assert len(repr(model)) < 60


@pytest.mark.parametrize("text", [3, None, b"good", ("a", "b", "c"), ("a",), (), ("good", 3), {"good": 1}])
def test_what_is_no_text_is_refused(model: ServedModel, text: Any) -> None:
    with pytest.raises(ConfigurationError, match="text 4 is neither a text nor a pair of texts"):
        model.encode([text], number=4)


def test_a_text_that_is_not_utf_8_is_refused(model: ServedModel) -> None:
    """As a command line has it: bytes that are no text come as lone surrogates."""
    with pytest.raises(ConfigurationError, match="text 1 is not valid text"):
        model.encode([b"caf\xe9".decode(errors="surrogateescape")])


def test_a_few_very_large_weights_can_be_served_without_a_dealer(directory: Path, tmp_path: Path) -> None:
    """As MiniLM has them, after the activations; and biases are not multiplied with anything."""
    shutil.copytree(directory, tmp_path / "large")
    config, tensors = load_checkpoint(tmp_path / "large")
    bound = float(
        activation_bounds(*Weights(tensors).pair("layers.0.up"), *Weights(tensors).pair("layers.0.attention_norm"))[0]
    )
    tensors["layers.0.down.weight"][0, 0] = 540.0 / bound
    tensors["layers.0.down.bias"][1] = 9.0
    config = certify(msgspec.structs.replace(config, sites={}), tensors)
    save_checkpoint(tmp_path / "large", config, tensors)
    model = ServedModel.load(tmp_path / "large")
    assert np.abs(model.folded["layer.0.down.weight"]).max() > 520.0  # centred, and so a little smaller
    masked = [weight.name for weight in Programs(model, PAIR).weights()]
    assert not any(name.endswith("bias") for name in masked)
    for name in masked:
        values = model.weights()[name].values
        assert values is not None
        check_weight(values)
    with pytest.raises(RangeError, match="24 bits"):
        check_weight(np.full((1, 1), 520 * 2**14, np.int32))
    query = model.encode(some_texts(2))
    program = model.program(query.batch, query.bucket, query)
    assert np.abs(twin_value(program, model.weights()) - model.plain_logits(query)).max() < REAL + UNIT


# Memory ---------------------------------------------------------------------------------------------------------------


def _most_while_loading(directory: Path, *, plain: bool) -> int:
    """Bytes that Python and numpy hold at once, at most: the same every time."""
    tracemalloc.start()
    try:
        ServedModel.load(directory, plain=plain)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_server_loads_a_model_without_a_second_copy_of_it(tmp_path: Path) -> None:
    """Of two models with the same layers and rules, one larger: by the difference, so what both need does not count."""
    sizes, most, whole = [], [], []
    for hidden in (64, 192):
        directory = make_checkpoint(
            tmp_path / str(hidden), hidden=hidden, intermediate=4 * hidden, layers=8, positions=16, heads=hidden // 32
        )
        sizes.append((directory / "model.safetensors").stat().st_size)
        most.append(_most_while_loading(directory, plain=False))
        whole.append(_most_while_loading(directory, plain=True))
    grown = (most[1] - most[0]) / (sizes[1] - sizes[0])
    assert grown < LOADED, f"{grown:.2f} times the file"
    assert (whole[1] - whole[0]) / (sizes[1] - sizes[0]) > LOADED + 1.0, "the measure finds a second copy"
