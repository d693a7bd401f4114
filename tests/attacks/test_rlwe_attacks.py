"""Homomorphic products with a peer that sends something else: a typed error at once, nothing half-prepared is used."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import ClientMask, Correlation, Mask, MatrixProduct, WeightProduct, program_digest
from comet_mpc.engine.seeds import SEED_BYTES, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import PeerClosed, PeerError, PeerTimeout, ProtocolMismatch, WrongSize
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.pair.workbench import WEIGHT_BITS
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import Homomorphic, matrix_products
from comet_mpc.offline.rlwe.public_key import PublicKey, common_seed, make_public_key, respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    PRIMES,
    Bytes,
    Fractions,
    Residues,
    SecretKey,
    Stream,
    by_rows,
    multiply_short,
)
from comet_mpc.offline.rlwe.tiling import Integers, centred, choose_tiling
from support.two_parties import both, outcome
from support.waiting import PATIENCE

SHAPE, WIDTH, BITS = (4, 6, 5), 56, 24
TILING = choose_tiling(*SHAPE, WIDTH, BITS)
RNG = np.random.default_rng(3)


def against(honest: Callable[[Channel], object], attack: Callable[[Channel], object]) -> PeerError:
    """What the honest side raises. It does so at once: neither side waits until its patience ends."""
    own, other = memory_pair(PATIENCE)

    def defend() -> object:
        with own:
            return outcome(lambda: honest(own))

    error, theirs = both(defend, lambda: outcome(lambda: attack(other)))
    assert isinstance(error, PeerError)
    assert not isinstance(error, PeerTimeout)
    assert not isinstance(theirs, PeerTimeout)
    return error


def serve(channel: Channel) -> None:
    engine = Homomorphic(channel, SERVER, threads=1)
    matrix_products(engine, SHAPE, WIDTH, BITS, y=np.ones((1, 5, 6), np.int64))


def ask(channel: Channel) -> None:
    engine = Homomorphic(channel, CLIENT, threads=1)
    matrix_products(engine, SHAPE, WIDTH, BITS, x=np.ones((1, 4, 6), np.uint64))


def greet_as_client(channel: Channel) -> None:
    own = new_seed()
    theirs = channel.exchange([own], len(own)).tobytes()
    channel.exchange([make_public_key(SecretKey(), common_seed(own, theirs))], 0)


def greet_as_server(channel: Channel) -> None:
    channel.exchange([new_seed()], SEED_BYTES)
    channel.exchange([], PublicKey.SIZE)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (b"", PeerClosed),
        (b"\0", WrongSize),
        (bytes(PublicKey.SIZE + 1), WrongSize),
        (b"\xff" * PublicKey.SIZE, PeerError),
    ],
)
def test_a_key_that_is_none(key: bytes, kind: type[PeerError]) -> None:
    def attack(channel: Channel) -> None:
        if key:
            channel.exchange([new_seed()], SEED_BYTES)
            channel.exchange([key], 0)
            channel.receive(0)
        channel.close()

    assert isinstance(against(serve, attack), kind)


def one_residue_too_large(data: bytearray) -> bytearray:
    data[16:20] = b"\xff\xff\xff\x3f"  # 2^30 - 1, above every prime
    return data


def last_residue_too_large(data: bytearray) -> bytearray:
    data[-4:] = b"\xff\xff\xff\xff"
    return data


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda data: data[:-1], WrongSize),
        (lambda data: data + b"\0", WrongSize),
        (one_residue_too_large, PeerError),
        (last_residue_too_large, PeerError),
    ],
)
def test_an_upload_that_is_none(spoil: Callable[[bytearray], bytearray], kind: type[PeerError]) -> None:
    def attack(channel: Channel) -> None:
        greet_as_client(channel)
        channel.exchange([spoil(bytearray(TILING.upload_bytes))], 0)
        channel.receive(0)

    error = against(serve, attack)
    assert isinstance(error, kind)


def test_an_upload_of_zeros_is_a_valid_one_and_gets_a_uniform_answer() -> None:
    """c0 = 0 is as good as any other: the server cannot tell, and what it answers is uniform all the same."""
    answers = []

    def attack(channel: Channel) -> None:
        greet_as_client(channel)
        data = bytes(TILING.upload_bytes)
        channel.exchange([data], 0)
        answers.append(bytes(channel.exchange([], TILING.response_bytes)))

    own, other = memory_pair()
    both(lambda: serve(own), lambda: attack(other))
    assert len(answers[-1]) == TILING.response_bytes
    assert len(set(answers[-1])) > 200


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (bytes(TILING.response_bytes - 1), WrongSize),
        (bytes(TILING.response_bytes + 1), WrongSize),
        (None, PeerClosed),
    ],
)
def test_a_response_that_is_none(answer: bytes | None, kind: type[PeerError]) -> None:
    def attack(channel: Channel) -> None:
        greet_as_server(channel)
        channel.exchange([], TILING.upload_bytes)
        if answer is not None:
            channel.exchange([answer], 0)
            channel.receive(0)
        channel.close()

    assert isinstance(against(ask, attack), kind)


KEY_BYTES = Packing.TURNS.key_bytes


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (bytes(Packing.TURNS.key_bytes - 1), WrongSize),
        (b"\xff" * Packing.TURNS.key_bytes, PeerError),
        (b"", PeerClosed),
    ],
)
def test_keys_for_packing_that_are_none(keys: bytes, kind: type[PeerError]) -> None:
    def honest(channel: Channel) -> None:
        Homomorphic(channel, SERVER, threads=1).set_up_packing()

    def attack(channel: Channel) -> None:
        greet_as_client(channel)
        if keys:
            channel.exchange([keys], 0)
            channel.receive(0)
        channel.close()

    assert isinstance(against(honest, attack), kind)


def test_a_silent_peer_is_given_up() -> None:
    own, other = memory_pair(timeout=0.1)
    with pytest.raises(PeerTimeout):
        ask(own)
    assert own.closed
    other.close()


PROGRAM: list[Correlation] = [
    ClientMask((4, 6), WIDTH),
    WeightProduct(0, "w", 4, 6, 5, WIDTH),
    Mask((1, 4, 6), 32, 0, 32),
    MatrixProduct(2, 2, 1, 4, 6, 4, True, 32),
]


def test_a_peer_that_leaves_midway_leaves_nothing_behind() -> None:
    """However far it got, the honest side has no source to draw from, only an error."""
    weight = {"w": Weight("w", (5, 6), 14, 1.0, values=np.ones((5, 6), np.int32))}
    for messages in range(1, 11):

        def attack(channel: Channel, messages: int = messages) -> None:
            inner = channel._transfer
            left = [messages]

            def counted(outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
                if left[0] == 0:
                    channel.close()
                left[0] -= 1
                return inner(outgoing, sizes, deadline)

            channel._transfer = counted  # type: ignore[method-assign]
            prepare_bundle(channel, SERVER, PROGRAM, weight, threads=1)

        error = against(lambda channel: prepare_bundle(channel, CLIENT, PROGRAM, threads=1), attack)
        assert isinstance(error, PeerClosed)


def test_a_program_of_the_peers_own_is_refused() -> None:
    def attack(channel: Channel) -> None:
        channel.exchange([bytes.fromhex(program_digest(PROGRAM[:1]))], 32)
        channel.receive(0)

    assert isinstance(
        against(lambda channel: prepare_bundle(channel, CLIENT, PROGRAM, threads=1), attack), ProtocolMismatch
    )


# A client that deviates ----------------------------------------------------------------------------------------


def extracted(numbers: Fractions, width: int, below: int) -> Integers:
    """What a fraction of q says in steps of 2^-(width + below): the weight, where one was multiplied by that step."""
    top = np.uint64(64 - width - below)
    words = numbers.reshape(-1, 3)[:, 2] + (np.uint64(1) << (top - np.uint64(1)))
    return centred(words >> top, width + below)


def test_uploads_below_a_step_do_not_bring_out_the_weights() -> None:
    """The upload (q/2^(w+k))·e_j, no encryption at all, puts W[o, j]/2^k mod 1 into C0: all of it below a step.

    The control reads C0, which the server keeps: every weight comes out. What is sent, C1, has none of them, whatever
    the client does with it.
    """
    width, below, rows = 32, 24, 2000
    weights = RNG.integers(-(2**23), 2**23, (rows, 1)).astype(np.int64)
    tiling = choose_tiling(1, 1, rows, width, 24)
    scheme, q = tiling.scheme, math.prod(tiling.scheme.primes)
    step = q // 2 ** (width + below)
    key, seed = SecretKey(), new_seed()
    upload = np.zeros((2, scheme.limbs, DEGREE), np.uint32)
    for row, prime in zip(upload[0], scheme.primes, strict=True):
        row[:] = step % prime  # a constant polynomial, transformed
    left = by_rows(upload[None, None])
    sums = multiply_short(scheme, left, tiling.pack_right(weights, 0, tiling.blocks[2]))
    positions = tiling.positions(0, 0)
    for chosen in (np.zeros(len(PRIMES) * DEGREE, np.uint32), None):  # pk0 = 0, or an honest one
        public = PublicKey.decode(make_public_key(key, seed), seed)
        if chosen is not None:
            public._both[0] = 0
        sent, kept = respond(scheme, sums[0, 0].copy(), public, positions, Stream())
        wanted = weights[: positions.size, 0]
        if chosen is not None:
            assert np.array_equal(extracted(kept, width, below), wanted)  # the control
        raw = np.frombuffer(sent, np.uint8)
        answers = [
            extracted(key.phase(scheme, sent, positions), width, below),
            centred(read_bits(raw, scheme.response_bits, positions, width + below), width + below),
        ]
        for found in answers:
            assert np.count_nonzero(found == wanted) == 0
            assert abs(float(np.corrcoef(found.astype(float), wanted.astype(float))[0, 1])) < 6 / math.sqrt(wanted.size)


def read_bits(data: Bytes, width: int, positions: Residues, kept: int) -> Words:
    """The highest `kept` bits of numbers of `width` bits."""
    number = int.from_bytes(data.tobytes(), "little")
    values = [number >> (int(place) * width + width - kept) & (2**kept - 1) for place in positions]
    return np.array(values, np.uint64)


def test_answers_to_one_upload_have_nothing_in_common() -> None:
    """Without fresh encryptions of zero, C1 of the answer to (0, c1) would be W·c1, for a c1 that the client knows."""
    data = new_seed() + bytes(TILING.upload_bytes - 16)

    def answer() -> Bytes:
        own, other = memory_pair()

        def upload() -> memoryview:
            greet_as_client(other)
            other.exchange([data], 0)
            return other.exchange([], TILING.response_bytes)

        _, sent = both(lambda: serve(own), upload)
        return np.frombuffer(sent, np.uint8)

    answers = [answer() for _ in range(2)]
    assert abs(np.unpackbits(answers[0] ^ answers[1]).mean() - 0.5) < 0.01
    assert np.unpackbits(answers[0] ^ answers[0]).mean() == 0  # the control: an answer that was given twice
    assert WEIGHT_BITS == BITS
