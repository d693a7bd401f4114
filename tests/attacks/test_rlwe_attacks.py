"""Homomorphic products with a peer that sends something else: a typed error at once, nothing half-prepared is used."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import ClientMask, Correlation, Mask, MatrixProduct, WeightProduct, program_digest
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import PeerClosed, PeerError, PeerTimeout, ProtocolMismatch, WrongSize
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.ot.extension import set_up_transfers
from comet_mpc.offline.pair.arrangement import WEIGHT_BITS
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.rlwe.packing import PackingKeys, packing_keys
from comet_mpc.offline.rlwe.products import Homomorphic, matrix_products
from comet_mpc.offline.rlwe.scheme import DEGREE, PublicKey, SecretKey
from comet_mpc.offline.rlwe.slots import choose_plan, slot_sums
from comet_mpc.offline.rlwe.tiling import choose_tiling

SHAPE, WIDTH, BITS = (4, 6, 5), 56, 24
TILING = choose_tiling(*SHAPE, WIDTH, BITS)
SOON = 5.0
RNG = np.random.default_rng(3)


def against(honest: Callable[[Channel], object], attack: Callable[[Channel], object]) -> Exception:
    """What the honest side raises. It must do so soon, and close its channel."""
    own, other = memory_pair(timeout=30.0)

    def wicked() -> None:
        with contextlib.suppress(PeerError):
            attack(other)

    with ThreadPoolExecutor(2) as pool:
        start = time.monotonic()
        wicked_side, honest_side = pool.submit(wicked), pool.submit(honest, own)
        error = honest_side.exception(timeout=SOON)
        assert time.monotonic() - start < SOON
        own.close()
        wicked_side.result(timeout=SOON)
    assert isinstance(error, PeerError)
    return error


def serve(channel: Channel) -> None:
    engine = Homomorphic(channel, SERVER, threads=1)
    matrix_products(engine, SHAPE, WIDTH, BITS, y=np.ones((1, 5, 6), np.int64))


def ask(channel: Channel) -> None:
    engine = Homomorphic(channel, CLIENT, threads=1)
    matrix_products(engine, SHAPE, WIDTH, BITS, x=np.ones((1, 4, 6), np.uint64))


def greet_as_client(channel: Channel) -> None:
    _, sent = SecretKey().public_key()
    channel.exchange([sent], 0)


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


def test_an_upload_of_zeros_is_a_valid_one_and_gets_a_masked_answer() -> None:
    """c0 = 0 is as good as any other: the server cannot tell, and what it answers is masked all the same."""
    answers = []

    def attack(channel: Channel) -> None:
        greet_as_client(channel)
        data = bytes(TILING.upload_bytes)
        channel.exchange([data], 0)
        answers.append(bytes(channel.exchange([], TILING.response_bytes)))

    own, other = memory_pair(timeout=30.0)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(serve, own), pool.submit(attack, other)
        first.result(timeout=SOON)
        second.result(timeout=SOON)
    assert len(answers[-1]) == TILING.response_bytes
    assert len(set(answers[-1])) > 200


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (RNG.bytes(TILING.response_bytes), PeerError),
        (bytes(TILING.response_bytes - 1), WrongSize),
        (bytes(TILING.response_bytes + 1), WrongSize),
        (None, PeerClosed),
    ],
)
def test_a_response_that_is_none(answer: bytes | None, kind: type[PeerError]) -> None:
    def attack(channel: Channel) -> None:
        channel.exchange([], PublicKey.SIZE)
        channel.exchange([], TILING.upload_bytes)
        if answer is not None:
            channel.exchange([answer], 0)
            channel.receive(0)
        channel.close()

    error = against(ask, attack)
    assert isinstance(error, kind)
    if answer is not None and len(answer) == TILING.response_bytes:
        assert "noise bound" in str(error)


def test_a_response_for_another_key_is_refused() -> None:
    def attack(channel: Channel) -> None:
        channel.exchange([], PublicKey.SIZE)
        data = channel.exchange([], TILING.upload_bytes)
        ours, theirs = memory_pair()
        with ThreadPoolExecutor(2) as pool:  # answers honestly, but under a key of its own
            server = pool.submit(serve, theirs)
            greet_as_client(ours)
            ours.exchange([data], 0)
            answer = ours.exchange([], TILING.response_bytes)
            server.result()
        channel.exchange([answer], 0)
        channel.receive(0)

    assert "noise bound" in str(against(ask, attack))


def test_slots_that_are_noise_are_refused() -> None:
    plan = choose_plan(1, ((0,),), 32, 32)

    def honest(channel: Channel) -> None:
        engine, transfers = Homomorphic(channel, CLIENT, threads=1), set_up_transfers(channel, CLIENT)
        slot_sums(engine, transfers, plan, 10, 32, left=[np.ones(10, np.int64)])

    def attack(channel: Channel) -> None:
        channel.exchange([], PublicKey.SIZE)
        set_up_transfers(channel, SERVER)
        channel.exchange([], plan.upload_bytes)
        channel.exchange([RNG.bytes(plan.response_bytes)], 0)
        channel.receive(0)

    assert "noise bound" in str(against(honest, attack))


@pytest.mark.parametrize(
    ("keys", "kind"),
    [(bytes(PackingKeys.SIZE - 1), WrongSize), (b"\xff" * PackingKeys.SIZE, PeerError), (b"", PeerClosed)],
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


def test_keys_for_packing_of_another_secret_show_up_as_noise() -> None:
    shape = (128, 32, 64)
    assert choose_tiling(*shape, 32, 24, packed=True).levels

    def honest(channel: Channel) -> None:
        engine = Homomorphic(channel, CLIENT, threads=1)
        engine.set_up_packing()
        matrix_products(engine, shape, 32, 24, x=np.ones((1, 128, 32), np.uint64))

    def attack(channel: Channel) -> None:
        engine = Homomorphic(channel, SERVER, threads=1)
        engine.set_up_packing()
        engine._packing = PackingKeys(b"".join(packing_keys(SecretKey())))
        matrix_products(engine, shape, 32, 24, y=np.ones((1, 64, 32), np.int64))
        channel.receive(0)

    assert "noise bound" in str(against(honest, attack))


def test_a_silent_peer_is_given_up() -> None:
    own, other = memory_pair(timeout=0.3)
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
    for rounds in range(1, 6):

        def attack(channel: Channel, rounds: int = rounds) -> None:
            inner = channel.exchange
            left = [rounds]

            def counted(outgoing: object, expected: int) -> memoryview:
                if left[0] == 0:
                    channel.close()
                left[0] -= 1
                return inner(outgoing, expected)  # type: ignore[arg-type]

            channel.exchange = counted  # type: ignore[method-assign]
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


def test_chosen_ciphertexts_do_not_bring_out_the_weights() -> None:
    """Without fresh encryptions of zero, c1 of the response to (0, c1) would be W·c1, for a c1 that the client knows.

    Here the same upload and the same weights give answers whose c1 differ in about half of all bits.
    """
    _, sent = SecretKey().public_key()
    data = new_seed() + bytes(TILING.upload_bytes - 16)
    answers = []
    for _ in range(2):
        own, other = memory_pair(timeout=30.0)
        with ThreadPoolExecutor(1) as pool:
            server = pool.submit(serve, own)
            other.exchange([sent], 0)
            other.exchange([data], 0)
            answers.append(np.frombuffer(other.exchange([], TILING.response_bytes), np.uint8).copy())
            server.result()
    start = TILING.response_bytes - DEGREE * TILING.scheme.bits1 // 8
    differing = np.unpackbits(answers[0][start:] ^ answers[1][start:]).mean()
    assert abs(differing - 0.5) < 0.01
    assert WEIGHT_BITS == BITS
