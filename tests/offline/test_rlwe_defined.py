"""Ciphertexts that define their messages: they decrypt to them, the masks are uniform, and bytes are as promised."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine.correlations import ClientMask, Correlation, Mask, MatrixProduct, WeightProduct, WeightScale
from comet_mpc.engine.seeds import SEED_BYTES, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ShapeError, WrongSize
from comet_mpc.net.channel import FRAME_HEADER, Channel, memory_pair
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.pair.matrices import matrix_products
from comet_mpc.offline.pair.shares import PairRandomness, Prepared, layouts, stored_bytes
from comet_mpc.offline.pair.stages import masks_by_ciphertext
from comet_mpc.offline.pair.workbench import WEIGHT_BITS, WEIGHT_LENGTH, HeldShares
from comet_mpc.offline.rlwe.defined import define_words, public_words, read_defined
from comet_mpc.offline.rlwe.packing import Packing, most_turns
from comet_mpc.offline.rlwe.products import Homomorphic, MatrixJob, run_products
from comet_mpc.offline.rlwe.public_key import PublicKey, make_public_key, respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    Fractions,
    Residues,
    Scheme,
    SecretKey,
    Stream,
    by_rows,
    choose_scheme,
    multiply_short,
    round_words,
)
from comet_mpc.offline.rlwe.tiling import Tiling, centred, choose_tiling
from support.two_parties import as_parties, equal

RNG = np.random.default_rng(5)
EVERYWHERE = np.arange(DEGREE, dtype=np.uint32)
LIMIT = 255 + 6 * math.sqrt(2 * 255)


def chi_squared(data: npt.NDArray[np.uint8]) -> float:
    counts = np.bincount(data, minlength=256)
    return float(((counts - data.size / 256) ** 2 / (data.size / 256)).sum())


def top_bytes(words: Words, width: int) -> npt.NDArray[np.uint8]:
    return (words >> np.uint64(width - 8)).astype(np.uint8)


@pytest.mark.parametrize(("limbs", "width"), [(4, 8), (5, 32), (5, 56), (6, 53), (6, 64), (7, 64)])
def test_a_ciphertext_decrypts_to_the_words_it_defines(limbs: int, width: int) -> None:
    """Times one and shared: the parties' shares add up to the words, so the error is as small as an encryption's."""
    scheme, key, seed = Scheme(limbs, width), SecretKey(), new_seed()
    made = [define_words(key, scheme, width, seed, index) for index in range(2)]
    data = b"".join(rest.tobytes() for _, rest in made)
    assert len(data) == 2 * (30 * limbs - width) * DEGREE // 8
    one = np.zeros((1, 1, 2), np.int64)
    one[0, 0, 0] = 1
    common = new_seed()
    public = PublicKey.decode(make_public_key(key, common), common)
    for (words, _), upload in zip(made, read_defined(scheme, width, 2, seed, data), strict=True):
        assert int(words.max()) < 2**width
        ciphertext = multiply_short(scheme, by_rows(upload[None, None]), one)[0, 0]
        sent, kept = respond(scheme, ciphertext, public, EVERYWHERE, Stream())
        phases = key.phase(scheme, sent, EVERYWHERE)
        assert equal(round_words(kept, width) + round_words(phases, width), words, width)
        if width < 64 - 20:  # what is left above the words' bits is the error, a tiny fraction of a step
            rest = (kept.reshape(-1, 3)[:, 2] + phases.reshape(-1, 3)[:, 2]) << np.uint64(width)
            assert np.abs(rest.view(np.int64)).max() < 2**50
    with pytest.raises(WrongSize):
        read_defined(scheme, width, 2, seed, data[:-1])


class Careless(SecretKey):
    """Puts the message on nothing: the words are u."""

    def blind(self, scheme: Scheme, seed: bytes, index: int) -> tuple[Residues, Fractions]:
        return np.zeros(scheme.limbs * DEGREE, np.uint32), np.zeros(3 * DEGREE, np.uint64)


def unlikeliest(key: SecretKey) -> float:
    """Of the words, alone and beside what the server sees of them: u and the top of the rest."""
    width, scheme, found = 56, choose_scheme(56, 2.0**23), []
    for _ in range(8):
        seed = new_seed()
        words, rest = define_words(key, scheme, width, seed, 0)
        bits = np.unpackbits(rest, bitorder="little").reshape(DEGREE, scheme.rest_bits)
        tops = np.packbits(bits[:, -8:], axis=1, bitorder="little").reshape(-1)
        found.append((top_bytes(words, width), top_bytes(words - public_words(seed, 0), width), tops))
    whole, less, tops = (np.concatenate(part) for part in zip(*found, strict=True))
    return max(chi_squared(sample) for sample in (whole, less, tops, whole - tops, whole ^ tops, less - tops))


def test_defined_words_are_uniform_also_beside_what_the_server_sees() -> None:
    assert unlikeliest(SecretKey()) < LIMIT
    assert unlikeliest(Careless()) > LIMIT


def test_a_second_ciphertext_of_a_seed_defines_other_words() -> None:
    scheme, key, seed = Scheme(5, 32), SecretKey(), new_seed()
    first, second = (define_words(key, scheme, 32, seed, index)[0] for index in range(2))
    again = define_words(key, scheme, 32, seed, 0)[0]
    assert np.count_nonzero(first == second) < 10
    assert np.count_nonzero(first == again) > DEGREE * 0.999  # why an index is used once with a seed


DENSE = [(128, 64, 70, 64), (5, 40, 3, 16), (300, 100, 9, 32), (2, 2, 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "inputs", "outputs", "block"), DENSE)
@pytest.mark.parametrize(("levels", "turns", "more"), [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 2, 1), (1, 4, 1)])
def test_products_of_defined_masks_are_exact_whatever_the_gaps_hold(
    rows: int, inputs: int, outputs: int, block: int, levels: int, turns: int, more: int
) -> None:
    """Also rows and inputs that fill no whole block: there the polynomials hold other uniform words."""
    width, bits = 48, 20
    scheme = choose_tiling(rows, inputs, outputs, width, bits, packing=Packing.TURNS).scheme
    levels = levels * (block.bit_length() - 1)
    turns = min(turns, most_turns(levels))
    tiling = Tiling(
        *(rows, inputs, outputs, block, block, scheme, levels, 1, bits, 2, True),
        turns=turns,
        turned_limbs=scheme.limbs + more,
    )
    y = centred(RNG.integers(0, 2**64, (1, outputs, inputs), dtype=np.uint64), bits)
    scales = list(centred(RNG.integers(0, 2**64, (2, inputs), dtype=np.uint64), bits))

    def work(channel: Channel, party: int) -> MatrixJob:
        engine = Homomorphic(channel, party, threads=1)
        engine.set_up_packing()
        mine = {} if party == CLIENT else {"y": y, "scales": scales}
        before = channel.traffic
        (job,) = run_products(engine, tiling, width, **mine)  # type: ignore[arg-type]
        spent = channel.traffic - before
        sent, received = (spent.sent, spent.received) if party == CLIENT else (spent.received, spent.sent)
        assert (sent, received) == (tiling.upload_bytes + FRAME_HEADER, tiling.response_bytes + FRAME_HEADER)
        return job

    client, server = as_parties(work, memory_pair())
    assert client.x.shape == (rows, inputs)
    assert equal(client.share + server.share, client.x @ y[0].view(np.uint64).T, width)
    for own, other, scale in zip(client.shares[1:], server.shares[1:], scales, strict=True):
        assert equal(own + other, client.x * scale.view(np.uint64), width)
    assert server.x.size == 0


def test_a_client_cannot_give_what_its_ciphertexts_define() -> None:
    tiling = Tiling(2, 2, 2, 2, 2, Scheme(5, 32), 1, defines=True)

    def work(channel: Channel, party: int) -> None:
        engine = Homomorphic(channel, party, threads=1)
        if party == CLIENT:
            with pytest.raises(ShapeError):
                run_products(engine, tiling, 32, x=np.zeros((1, 2, 2), np.uint64))
        else:
            with pytest.raises(ShapeError):
                run_products(engine, tiling, 32, y=np.zeros((1, 2, 2), np.int64), scales=[np.zeros(2, np.int64)])

    as_parties(work)


LAYER: list[Correlation] = [
    ClientMask((1, 128, 768), 56),
    WeightProduct(0, "w", 128, 768, 768, 56),
    WeightScale(0, "v", 128, 768, 56),
    WeightProduct(0, "w", 128, 768, 768, 56),
    Mask((128, 64), 32, 0, 32),
    Mask((128, 64), 64, 0, 64),
    MatrixProduct(4, 5, 1, 128, 64, 128, True, 32),
    MatrixProduct(4, 4, 1, 128, 64, 128, True, 32),
]


def test_the_first_product_of_a_mask_defines_it_if_it_has_its_width() -> None:
    assert masks_by_ciphertext(LAYER) == {0, 4}
    defining = [(entry.indices, entry.masks) for entry in matrix_products(LAYER) if entry.tiling.defines]
    assert defining == [((1,), (0,)), ((6,), (4,))]
    assert [sum(entry.scales, ()) for entry in matrix_products(LAYER)] == [(2,), (), (), (), (), ()]


def test_a_layer_is_uploaded_without_gaps_and_without_what_a_seed_says() -> None:
    tiling = choose_tiling(128, 768, 768, 56, WEIGHT_BITS, True, length=WEIGHT_LENGTH, diagonals=1, free=True)
    assert tiling.upload_bytes == SEED_BYTES + 128 * 768 * (30 * tiling.scheme.limbs - 56) // 8
    assert tiling.response_bytes == 128 * (768 + 768) * tiling.scheme.response_bits // 8


def test_only_the_client_stores_the_masks_that_ciphertexts_define() -> None:
    stored = {party: stored_bytes(party, LAYER) for party in (CLIENT, SERVER)}
    assert stored[CLIENT] - stored[SERVER] == 128 * 768 * 7 + 128 * 64 * 4
    words = RNG.integers(0, 2**56, 128 * 768, dtype=np.uint64)
    program = LAYER[:2] + [WeightProduct(0, "w", 128, 768, 768, 56)] * 4
    shares = HeldShares(layouts(CLIENT, program))
    for place in range(1, 6):
        shares[place] = (np.zeros(128 * 768, np.uint64),)
    shares[0] = (words,)
    prepared = Prepared(CLIENT, new_seed(), program, shares)
    assert masks_by_ciphertext(program) == {0}
    data = b"".join(bytes(piece) for piece in prepared.packed())
    assert len(data) == stored_bytes(CLIENT, program)

    class Memory:
        def __init__(self) -> None:
            self.at = 0

        def read(self, size: int, /) -> bytes:
            self.at += size
            return data[self.at - size : self.at]

        def close(self) -> None:
            pass

    drawn = PairRandomness(Bundle(CLIENT, prepared.seed, program, Memory())).draw(program[0])
    assert np.array_equal(drawn.arrays[0], words)
