"""Oblivious transfer with a peer that sends something else: a typed error at once, or a wrong number, never worse."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable

import numpy as np
import pytest
from nacl import bindings as sodium

from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import PeerClosed, PeerError, PeerGaveUp, PeerTimeout, WrongSize
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.ot.base import (
    OFFER_BYTES,
    POINT_BYTES,
    SECURITY,
    TREE_BYTES,
    ReceiverSetup,
    SenderSetup,
    _Transcript,
)
from comet_mpc.offline.ot.extension import (
    TransferReceiver,
    Transfers,
    bit_products,
    bit_times_word,
    extension_bytes,
    set_up_transfers,
)
from support.two_parties import as_parties, outcome
from support.waiting import PATIENCE

FOLD = 8
COUNT, WIDTH = 300, 17

Attack = Callable[[Channel], object]

IDENTITY = bytes([1]) + bytes(31)
ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
NOT_CANONICAL = bytes([0xEE]) + b"\xff" * 30 + b"\x7f"


def off_the_curve() -> bytes:
    """The first y that no point has: adding it to itself fails."""
    for y in range(2, 100):
        point = bytes([y]) + bytes(31)
        try:
            sodium.crypto_core_ed25519_add(point, point)
        except Exception:
            return point
    raise AssertionError("every y has a point?")


def good_point() -> bytes:
    return ReceiverSetup("any").message


BAD_POINTS = {
    "identity": IDENTITY,
    "order 2": bytes([0xEC]) + b"\xff" * 30 + b"\x7f",
    "order 4": bytes(32),
    "order 8": ORDER_8,
    "not canonical": NOT_CANONICAL,
    "off the curve": off_the_curve(),
    "outside the subgroup": sodium.crypto_core_ed25519_add(good_point(), ORDER_8),
    "all ones": b"\xff" * 32,
}
bad_points = pytest.mark.parametrize("point", list(BAD_POINTS.values()), ids=list(BAD_POINTS))


def versus(victim: Attack, attack: Attack, timeout: float = PATIENCE) -> tuple[object, object]:
    """What comes of the victim, who is the client, and of the attacker. Each closes its end when it is done.

    A patient one never waits for nothing: what is wrong is noticed, not timed out.
    """

    def side(end: Channel, party: int) -> object:
        with end:
            return outcome(lambda: (victim, attack)[party](end))

    ended = as_parties(side, memory_pair(timeout))
    assert timeout < PATIENCE or not any(isinstance(end, PeerTimeout) for end in ended)
    return ended


def set_up_victim(end: Channel) -> object:
    return set_up_transfers(end, CLIENT, FOLD)


def first_message(point: bytes, offers: bytes) -> list[bytes]:
    return [bytes([SERVER, FOLD]), point, offers]


OFFERS = SenderSetup("client receives").message
FIRST = 2 + POINT_BYTES + OFFER_BYTES


# The set-up -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sender() -> SenderSetup:
    return SenderSetup("here")


@bad_points
def test_a_bad_point_of_the_giver_is_refused(sender: SenderSetup, point: bytes) -> None:
    with pytest.raises(PeerError, match="prime-order group"):
        sender.finish(point, bytes(TREE_BYTES), FOLD)


@bad_points
@pytest.mark.parametrize("place", [0, 1, 2 * SECURITY - 1])
def test_a_bad_point_of_the_chooser_is_refused(point: bytes, place: int) -> None:
    start = place * POINT_BYTES
    offers = OFFERS[:start] + point + OFFERS[start + POINT_BYTES :]
    with pytest.raises(PeerError, match="prime-order group"):
        ReceiverSetup("here").finish(offers, FOLD)


def test_points_that_cancel_are_refused() -> None:
    """r_0 = -H_0(r_1) would make the first key the hash of a known point."""
    other = good_point()
    hashed = _Transcript("here", b"", b"").point(0, 0, other)
    cancelling = sodium.crypto_core_ed25519_sub(sodium.crypto_core_ed25519_sub(hashed, hashed), hashed)
    offers = cancelling + other + OFFERS[2 * POINT_BYTES :]
    with pytest.raises(PeerError, match="small order"):
        ReceiverSetup("here").finish(offers, FOLD)


@pytest.mark.parametrize("change", [-1, 1])
def test_set_up_messages_of_another_size_are_refused(sender: SenderSetup, change: int) -> None:
    with pytest.raises(WrongSize):
        ReceiverSetup("here").finish(bytes(OFFER_BYTES + change), FOLD)
    with pytest.raises(WrongSize):
        sender.finish(bytes(POINT_BYTES + change), bytes(TREE_BYTES), FOLD)
    with pytest.raises(WrongSize):
        sender.finish(good_point(), bytes(TREE_BYTES + change), FOLD)


@pytest.mark.parametrize("size", [0, 1, FIRST - 1, FIRST + 1, 1 << 20])
def test_a_first_message_of_another_size_is_cut_off(size: int) -> None:
    def attack(end: Channel) -> object:
        end.send(bytes(size))
        end.receive(1 << 20)
        return end.receive(1 << 20)

    error, theirs = versus(set_up_victim, attack)
    assert isinstance(error, WrongSize if size else PeerGaveUp)  # an empty message says that the peer gives up
    assert isinstance(theirs, PeerClosed)


@pytest.mark.parametrize("offers", [bytes(OFFER_BYTES), OFFERS])
def test_bad_points_over_a_channel_close_it(offers: bytes) -> None:
    def attack(end: Channel) -> object:
        end.exchange(first_message(bytes(POINT_BYTES), offers), FIRST)
        end.exchange([bytes(TREE_BYTES)], TREE_BYTES)
        return end.receive(1)

    error, theirs = versus(set_up_victim, attack)
    assert isinstance(error, PeerError)
    assert "prime-order group" in str(error)
    assert isinstance(theirs, PeerClosed)


@pytest.mark.parametrize("size", [TREE_BYTES - 1, TREE_BYTES + 1])
def test_a_second_message_of_another_size_is_cut_off(size: int) -> None:
    def attack(end: Channel) -> object:
        end.exchange(first_message(good_point(), OFFERS), FIRST)
        return end.exchange([bytes(size)], TREE_BYTES)

    error, _ = versus(set_up_victim, attack)
    assert isinstance(error, WrongSize)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_peer_that_leaves_the_set_up_is_noticed(rounds: int) -> None:
    def attack(end: Channel) -> object:
        return end.exchange(first_message(good_point(), OFFERS), FIRST) if rounds else None

    error, _ = versus(set_up_victim, attack)
    assert isinstance(error, PeerClosed)


def test_a_silent_peer_times_out() -> None:
    release = threading.Event()

    def victim(end: Channel) -> object:
        try:
            return set_up_victim(end)
        finally:
            release.set()

    error, _ = versus(victim, lambda end: release.wait(PATIENCE), timeout=0.1)
    assert isinstance(error, PeerTimeout)


def test_a_set_up_of_rubbish_shows_up_in_the_first_transfers() -> None:
    """Sums of no tree give the two sides different keys."""
    rng = np.random.default_rng(1)

    def attack(end: Channel) -> object:
        end.exchange(first_message(good_point(), OFFERS), FIRST)
        return end.exchange([rng.bytes(TREE_BYTES)], TREE_BYTES)

    transfers, _ = versus(set_up_victim, attack)
    assert isinstance(transfers, Transfers)
    with pytest.raises(PeerError, match="not consistent"):
        transfers.sender.extend(rng.bytes(extension_bytes(COUNT, FOLD)), COUNT)


# The extension --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def set_up() -> tuple[Transfers, Transfers]:
    return as_parties(lambda end, party: set_up_transfers(end, party, FOLD))


@pytest.fixture
def both_sides(set_up: tuple[Transfers, Transfers]) -> tuple[Transfers, Transfers]:
    """As they are right after the set-up."""
    return copy.deepcopy(set_up)


@pytest.fixture
def transfers(both_sides: tuple[Transfers, Transfers]) -> Transfers:
    """The victim's side."""
    return both_sides[CLIENT]


@pytest.fixture
def peer(both_sides: tuple[Transfers, Transfers]) -> Transfers:
    """The attacker's side, set up well."""
    return both_sides[SERVER]


def question(peer: Transfers, count: int = 44) -> bytes:
    """What the attacker asks, well made."""
    return peer.receiver.extend(count)[0].tobytes()


# Of 300 products the client receives in the first 256, the server in the last 44.
OURS, THEIRS = extension_bytes(256, FOLD), extension_bytes(44, FOLD)
ANSWER_TO_US, ANSWER_TO_THEM = 256 * (WIDTH - 1) // 8, 44 * (WIDTH - 1) // 8


def test_the_sizes_above_are_those_of_the_protocol(transfers: Transfers, peer: Transfers) -> None:
    def attack(end: Channel) -> object:
        end.exchange([question(peer)], OURS)
        return end.exchange([bytes(ANSWER_TO_US)], ANSWER_TO_THEM)

    mine, theirs = versus(lambda end: bit_products(end, transfers, COUNT, WIDTH), attack)
    assert isinstance(mine, tuple)
    assert isinstance(theirs, memoryview)


@pytest.mark.parametrize("change", [-THEIRS + 1, -1, 1, 1 << 20])
def test_a_question_of_another_size_is_cut_off(transfers: Transfers, change: int) -> None:
    def attack(end: Channel) -> object:
        end.exchange([bytes(THEIRS + change)], OURS)
        return end.receive(1 << 20)

    error, theirs = versus(lambda end: bit_products(end, transfers, COUNT, WIDTH), attack)
    assert isinstance(error, WrongSize)
    assert isinstance(theirs, PeerClosed)


@pytest.mark.parametrize("change", [-ANSWER_TO_US + 1, -1, 1, 1 << 20])
def test_an_answer_of_another_size_is_cut_off(transfers: Transfers, peer: Transfers, change: int) -> None:
    def attack(end: Channel) -> object:
        end.exchange([question(peer)], OURS)
        end.exchange([bytes(ANSWER_TO_US + change)], ANSWER_TO_THEM)
        return end.receive(1 << 20)

    error, theirs = versus(lambda end: bit_products(end, transfers, COUNT, WIDTH), attack)
    assert isinstance(error, WrongSize)
    assert isinstance(theirs, PeerClosed)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_peer_that_leaves_between_messages_is_noticed(transfers: Transfers, peer: Transfers, rounds: int) -> None:
    def attack(end: Channel) -> object:
        return end.exchange([question(peer)], OURS) if rounds else None

    error, _ = versus(lambda end: bit_products(end, transfers, COUNT, WIDTH), attack)
    assert isinstance(error, PeerClosed)


@pytest.mark.parametrize("fill", [b"\x00", b"\xff", None])
def test_a_rubbish_question_is_noticed_and_a_rubbish_answer_gives_wrong_numbers_and_nothing_worse(
    transfers: Transfers, peer: Transfers, fill: bytes | None
) -> None:
    rng = np.random.default_rng(2)

    def rubbish(size: int) -> bytes:
        return rng.bytes(size) if fill is None else fill * size

    def attack(end: Channel) -> object:
        end.exchange([question(peer)], OURS)
        return end.exchange([rubbish(ANSWER_TO_US)], ANSWER_TO_THEM)

    result, _ = versus(lambda end: bit_products(end, transfers, COUNT, WIDTH), attack)
    assert isinstance(result, tuple)
    bits, shares = result
    assert bits.shape == ((COUNT + 7) // 8,)
    assert bits[-1] < 1 << COUNT % 8
    assert shares.shape == (COUNT,)
    assert int(shares.max()) < 2**WIDTH
    error, _ = versus(
        lambda end: bit_products(end, transfers, COUNT, WIDTH), lambda end: end.exchange([rubbish(THEIRS)], OURS)
    )
    assert isinstance(error, PeerError)


def one_choice_changed(receiver: TransferReceiver, count: int, digit: int, guess: int) -> Bytes:
    """A question with another choice of transfer 0 in one digit; its check fits if the secret digit is `guess`."""
    recorded: list[Bytes] = []
    hashed = receiver._hashed

    def record(first: int, message: Bytes, planes: Bytes, count: int) -> bytes:
        recorded.append(planes)
        return hashed(first, message, planes, count)

    first = receiver.used
    receiver._hashed = record  # type: ignore[method-assign]
    message, *_ = receiver.extend(count)
    del receiver._hashed
    matrix, choices = recorded
    corrections = message[:-48].copy()
    corrections.reshape(128 // FOLD - 1, -1)[digit - 1, 0] ^= 1
    unit = np.zeros_like(choices)
    unit[0] = 1
    shift = np.frombuffer(hashed(first, corrections, unit, 1), np.uint8)
    hashes = np.frombuffer(hashed(first, corrections, matrix, 128), np.uint8).reshape(128, 16).copy()
    for bit in range(FOLD):
        if guess >> bit & 1:
            hashes[digit * FOLD + bit] ^= shift
    check = hashed(first, corrections, choices, 1) + hashlib.sha256(hashes.tobytes()).digest()
    return np.concatenate([corrections, np.frombuffer(check, np.uint8)])


@pytest.mark.parametrize("digit", [1, 128 // FOLD - 1])
def test_choices_that_differ_by_digit_are_caught_unless_the_secret_digit_is_guessed(
    transfers: Transfers, peer: Transfers, digit: int
) -> None:
    """Unchecked, the words of that transfer would tell the secret, and with it every word of the other side's."""
    secret = int.from_bytes(transfers.sender._secret.tobytes(), "little") >> (digit * FOLD) & (2**FOLD - 1)
    transfers.sender.extend(one_choice_changed(peer.receiver, 200, digit, secret), 200)  # the control: a right guess
    for guess in (secret ^ 1, secret ^ 2**FOLD - 1):
        with pytest.raises(PeerError, match="not consistent"):
            transfers.sender.extend(one_choice_changed(peer.receiver, 200, digit, guess), 200)


def test_what_was_asked_in_a_run_that_failed_is_never_asked_again(transfers: Transfers, peer: Transfers) -> None:
    """A peer that breaks off and comes back sees fresh transfers: no bit of the first run is used twice."""
    seen: list[bytes] = []

    def attack(end: Channel) -> object:
        seen.append(end.exchange([question(peer)], OURS).tobytes())
        return None

    before = transfers.receiver.used
    for _ in range(2):
        error, _ = versus(lambda end: bit_products(end, transfers, COUNT, WIDTH), attack)
        assert isinstance(error, PeerClosed)
    assert seen[0] != seen[1]
    assert transfers.receiver.used == before + 2 * (256 + 128)


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_sizes_around_chosen_bits_and_words_are_cut_off(transfers: Transfers, change: int) -> None:
    asked, flips, answer = extension_bytes(COUNT, FOLD), (COUNT + 7) // 8, (COUNT * WIDTH + 7) // 8
    bits, words = np.zeros(flips, np.uint8), np.zeros(COUNT, np.uint64)

    def bad_answer(end: Channel) -> object:
        end.exchange([], asked + flips)
        return end.exchange([bytes(answer + change)], 0)

    error, _ = versus(lambda end: bit_times_word(end, transfers, COUNT, WIDTH, bits=bits), bad_answer)
    assert isinstance(error, WrongSize)
    error, _ = versus(
        lambda end: bit_times_word(end, transfers, COUNT, WIDTH, words=words),
        lambda end: end.exchange([bytes(asked + flips + change)], answer),
    )
    assert isinstance(error, WrongSize)
