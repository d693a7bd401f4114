"""Oblivious transfer gives both sides what an ideal third party would, at the declared cost."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from comet_mpc import _native
from comet_mpc.engine import kernels
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ProtocolMismatch, RandomnessExhausted, ShapeError, WrongSize
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.ot import extension
from comet_mpc.offline.ot.base import ReceiverKeys, ReceiverSetup, SenderKeys, SenderSetup
from comet_mpc.offline.ot.extension import (
    FOLDS,
    TransferReceiver,
    Transfers,
    TransferSender,
    bit_products,
    bit_products_sizes,
    bit_products_steps,
    bit_times_word,
    extension_bytes,
    set_up_traffic,
    set_up_transfers,
)
from comet_mpc.offline.streaming import planned_traffic
from support.two_parties import as_parties, outcome

Bytes = npt.NDArray[np.uint8]

ISAS = _native.transfer_isa_names()
every_isa = pytest.mark.parametrize("isa", ISAS)
every_fold = pytest.mark.parametrize("fold", FOLDS)
RNG = np.random.default_rng(5)


def random_bytes(size: int) -> Bytes:
    return np.frombuffer(RNG.bytes(size), np.uint8)


def unpacked(bits: Bytes, count: int) -> npt.NDArray[np.uint64]:
    return np.unpackbits(bits, bitorder="little")[:count].astype(np.uint64)


def low(width: int) -> np.uint64:
    return np.uint64(2**width - 1)


class Pair:
    """Two parties that are set up and connected."""

    def __init__(self, fold: int) -> None:
        self.fold = fold
        self.ends: tuple[Channel, Channel] = memory_pair()
        self.transfers: tuple[Transfers, Transfers] = as_parties(
            lambda end, party: set_up_transfers(end, party, fold), self.ends
        )

    def products(
        self, count: int, width: int, chunk: int = 512, *, modulus: int = 0
    ) -> tuple[tuple[Bytes, Words], tuple[Bytes, Words]]:
        return as_parties(
            lambda end, party: bit_products(end, self.transfers[party], count, width, modulus, chunk=chunk), self.ends
        )


@pytest.fixture(scope="module", params=FOLDS)
def any_pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(4)


# Primitives -----------------------------------------------------------------------------------------------------


def aes(key: Bytes, data: Bytes) -> Bytes:
    """AES-128 of the package `cryptography`."""
    encryptor = Cipher(algorithms.AES(key.tobytes()), modes.ECB()).encryptor()
    return np.frombuffer(encryptor.update(data.tobytes()), np.uint8)


@every_isa
def test_aes_gives_the_standards_example(isa: str) -> None:
    """FIPS 197, appendix C.1."""
    data = np.frombuffer(bytes.fromhex("00112233445566778899aabbccddeeff"), np.uint8)
    out = np.empty_like(data)
    _native.transfer_aes(np.arange(16, dtype=np.uint8), data, out, isa)
    assert out.tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@every_isa
@pytest.mark.parametrize("count", [0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 200])
def test_aes_is_the_one_of_cryptography(isa: str, count: int) -> None:
    for _ in range(4):
        key, data = random_bytes(16), random_bytes(16 * count)
        out = np.empty_like(data)
        _native.transfer_aes(key, data, out, isa)
        np.testing.assert_array_equal(out, aes(key, data))


@every_isa
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8, 13])
def test_the_transpose_is_numpys(isa: str, stride: int) -> None:
    planes = RNG.integers(0, 2**64, (128, stride), np.uint64)
    rows = np.empty(64 * stride * 16, np.uint8)
    _native.transfer_transpose(planes.reshape(-1), rows, isa)
    bits = np.unpackbits(planes.view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(rows.reshape(-1, 16), np.packbits(bits.T, axis=1, bitorder="little"))


@every_isa
@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 5), (64, 63), (127, 255)])
def test_one_bit_is_transposed_to_its_place(isa: str, row: int, column: int) -> None:
    planes = np.zeros((128, 4), np.uint64)
    planes[row, column // 64] = np.uint64(1) << np.uint64(column % 64)
    rows = np.empty(256 * 16, np.uint8)
    _native.transfer_transpose(planes.reshape(-1), rows, isa)
    assert int.from_bytes(rows.tobytes(), "little") == 1 << (128 * column + row)


def reference_hash(key: Bytes, first: int, rows: Bytes) -> Words:
    """π(π(x) + i) + π(x), low 64 bits."""
    once = aes(key, rows).reshape(-1, 16)
    index = np.zeros((len(once), 2), np.uint64)
    index[:, 0] = np.arange(first, first + len(once), dtype=np.uint64)
    twice = aes(key, once ^ index.view(np.uint8)).reshape(-1, 16)
    return np.ascontiguousarray(once ^ twice).view(np.uint64)[:, 0]


@every_isa
@pytest.mark.parametrize("count", [1, 64, 131])
def test_the_hash_is_its_formula(isa: str, count: int) -> None:
    key, rows, out = random_bytes(16), random_bytes(16 * count), np.empty(count, np.uint64)
    _native.transfer_hash(key, 2**40 + 7, rows, out, isa)
    np.testing.assert_array_equal(out, reference_hash(key, 2**40 + 7, rows))


# The extension --------------------------------------------------------------------------------------------------


def reference_receiver(keys: Bytes, fold: int, hash_key: Bytes, first: int, count: int) -> tuple[Bytes, Bytes, Words]:
    """native/ot/extension.hpp, written down with numpy and the package `cryptography`."""
    leaves = keys.reshape(128 // fold, 2**fold, 16)
    counters = np.zeros((count // 128, 2), np.uint64)
    counters[:, 0] = np.arange(first // 128, (first + count) // 128, dtype=np.uint64)
    sums, planes = [], []
    for digit in leaves:
        streams = [aes(key, counters.view(np.uint8).reshape(-1)) for key in digit]
        sums.append(np.bitwise_xor.reduce(streams))
        planes += [
            np.bitwise_xor.reduce([stream for x, stream in enumerate(streams) if x >> b & 1]) for b in range(fold)
        ]
    bits = np.unpackbits(np.stack(planes), axis=1, bitorder="little")
    rows = np.packbits(bits.T, axis=1, bitorder="little").reshape(-1)
    message = np.concatenate([total ^ sums[0] for total in sums[1:]])
    return message, sums[0], reference_hash(hash_key, first, rows)


def dealt_keys(fold: int) -> tuple[ReceiverKeys, SenderKeys]:
    """The keys of both sides as an ideal third party would deal them."""
    keys, secret, hash_key = random_bytes((128 // fold << fold) * 16), RNG.bytes(16), RNG.bytes(16)
    leaves = keys.reshape(128 // fold, 2**fold, 16)
    ordered = leaves.copy()
    for digit, own in enumerate(leaves):
        missing = int.from_bytes(secret, "little") >> (digit * fold) & (2**fold - 1)
        ordered[digit] = own[np.arange(2**fold) ^ missing]
        ordered[digit, 0] = 0
    receiver = ReceiverKeys(keys.tobytes(), fold, hash_key, hash_key)
    return receiver, SenderKeys(ordered.tobytes(), secret, fold, hash_key, hash_key)


@every_isa
@every_fold
@pytest.mark.parametrize(("first", "count"), [(0, 128), (1280, 384), (128, 8192 + 256)])
def test_the_extension_is_its_formula(isa: str, fold: int, first: int, count: int) -> None:
    receiver, sender = dealt_keys(fold)
    keys, hash_key = (np.frombuffer(data, np.uint8) for data in (receiver.keys, receiver.hash_key))
    message, bits, words = reference_receiver(keys, fold, hash_key, first, count)
    own_message, own_bits, own_words = np.empty_like(message), np.empty_like(bits), np.empty_like(words)
    mine, theirs = (np.empty(16 * count, np.uint8) for _ in range(2))
    _native.extend_receiver(keys, fold, hash_key, first, own_bits, own_message, own_words, 1, mine, isa)
    np.testing.assert_array_equal(own_message, message)
    np.testing.assert_array_equal(own_bits, bits)
    np.testing.assert_array_equal(own_words, words)
    zeros, ones = np.empty_like(words), np.empty_like(words)
    sender_keys, secret = (np.frombuffer(data, np.uint8) for data in (sender.keys, sender.secret))
    _native.extend_sender(sender_keys, fold, hash_key, first, secret, message, zeros, ones, 1, theirs, isa)
    planes = np.where(unpacked(secret, 128)[:, None] == 1, bits, np.uint8(0))
    np.testing.assert_array_equal(theirs.reshape(128, -1), mine.reshape(128, -1) ^ planes)
    chosen = unpacked(bits, count).astype(np.bool_)
    np.testing.assert_array_equal(np.where(chosen, ones, zeros), words)
    assert not np.any(np.where(chosen, zeros, ones) == words)


@every_fold
def test_the_sender_gets_all_keys_but_those_its_secret_names(fold: int) -> None:
    receiver, sender = ReceiverSetup("here"), SenderSetup("here")
    receiver_keys, tree = receiver.finish(sender.message, fold)
    sender_keys = sender.finish(receiver.message, tree, fold)
    assert receiver_keys.hash_key == sender_keys.hash_key
    leaves = np.frombuffer(receiver_keys.keys, np.uint8).reshape(128 // fold, 2**fold, 16)
    ordered = np.frombuffer(sender_keys.keys, np.uint8).reshape(leaves.shape)
    secret = int.from_bytes(sender_keys.secret, "little")
    assert len(np.unique(leaves.reshape(-1, 16), axis=0)) == 128 // fold << fold
    for digit, own in enumerate(leaves):
        missing = secret >> (digit * fold) & (2**fold - 1)
        np.testing.assert_array_equal(ordered[digit][1:], own[np.arange(2**fold) ^ missing][1:])
        assert not ordered[digit][0].any()


def test_the_key_of_the_check_is_bound_to_the_tree() -> None:
    """A receiver that knew it before it chose its tree could choose one whose choices hash as it likes."""
    receiver, sender = ReceiverSetup("here"), SenderSetup("here")
    (keys, tree), (others, other_tree) = (receiver.finish(sender.message, 8) for _ in range(2))
    assert keys.hash_key == others.hash_key
    assert tree != other_tree
    assert keys.check_key != others.check_key
    assert sender.finish(receiver.message, tree, 8).check_key == keys.check_key


def test_set_ups_are_fresh_and_bound_to_their_direction() -> None:
    receiver, sender, other = ReceiverSetup("here"), SenderSetup("here"), ReceiverSetup("there")
    assert receiver.message != ReceiverSetup("here").message
    keys, tree = receiver.finish(sender.message, 4)
    crossed, crossed_tree = other.finish(sender.message, 4)
    assert keys.hash_key != crossed.hash_key
    wrong = np.frombuffer(sender.finish(other.message, crossed_tree, 4).keys, np.uint8).reshape(-1, 16)
    right = {bytes(key) for key in np.frombuffer(crossed.keys, np.uint8).reshape(-1, 16)}
    assert not any(bytes(key) in right for key in wrong)
    assert keys.keys != crossed.keys
    assert tree != crossed_tree


def test_every_index_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, sender_keys = dealt_keys(8)
    receiver, sender = TransferReceiver(keys), TransferSender(sender_keys)
    seen = []
    for count in (1, 127, 128, 129):
        message, _, words = receiver.extend(count)
        sender.extend(message, count)
        seen.append(words)
    assert receiver.used == sender.used == 9 * 128
    assert len(np.unique(np.concatenate(seen))) == 1 + 127 + 128 + 129
    monkeypatch.setattr(extension, "LIMIT", 11 * 128)
    receiver.extend(128)
    for _ in range(2):
        with pytest.raises(RandomnessExhausted):
            receiver.extend(1)
    with pytest.raises(ShapeError):
        sender.extend(b"", -1)


@every_isa
def test_planes_are_hashed_as_polynomials_over_two(isa: str) -> None:
    """Against Python's own integers, modulo x^128 + x^7 + x^2 + x + 1."""

    def product(x: int, y: int) -> int:
        total = 0
        for place in range(128):
            total ^= (x << place) * (y >> place & 1)
        for place in range(255, 127, -1):
            total ^= (1 << place | 0x87 << (place - 128)) * (total >> place & 1)
        return total

    rng = np.random.default_rng(4)
    key, planes, out = rng.bytes(16), rng.bytes(16 * 11 * 5), np.empty(16 * 11, np.uint8)
    _native.transfer_hash_planes(np.frombuffer(key, np.uint8), np.frombuffer(planes, np.uint8), out, isa)
    for place, found in enumerate(out.reshape(11, 16)):
        total = 0
        for start in range(80 * place, 80 * place + 80, 16):
            total = product(total, int.from_bytes(key, "little")) ^ int.from_bytes(planes[start : start + 16], "little")
        assert total == int.from_bytes(found.tobytes(), "little")


@every_fold
def test_a_message_of_another_size_is_not_used(fold: int) -> None:
    sender = TransferSender(dealt_keys(fold)[1])
    for size in (0, extension_bytes(200, fold) - 1, extension_bytes(200, fold) + 1):
        with pytest.raises(WrongSize):
            sender.extend(bytes(size), 200)
    assert sender.used == 0


def test_secrets_are_not_printed() -> None:
    receiver, sender = dealt_keys(1)
    shown = repr((receiver, sender, TransferReceiver(receiver), TransferSender(sender)))
    assert str(sender.secret) not in shown
    assert str(receiver.keys[:16])[2:-1] not in shown
    assert len(shown) < 400


# Products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "width"), [(0, 8), (1, 1), (5, 64), (255, 13), (512, 63), (1025, 17), (1543, 1)])
def test_products_cost_what_is_declared(any_pair: Pair, count: int, width: int) -> None:
    before = [end.traffic for end in any_pair.ends]
    (client_bits, client), (server_bits, server) = any_pair.products(count, width)
    assert client_bits.size == server_bits.size == (count + 7) // 8
    together = (client + server) & low(width)
    np.testing.assert_array_equal(together, unpacked(client_bits, count) & unpacked(server_bits, count))
    for party, end in enumerate(any_pair.ends):
        spent = end.traffic - before[party]
        assert spent == planned_traffic(party, [bit_products_sizes(count, width, fold=any_pair.fold, chunk=512)])
        assert spent.rounds == (1 + (width > 1) if count else 0)


@pytest.mark.parametrize("width", range(1, 65))
def test_products_are_exact_at_every_width(pair: Pair, width: int) -> None:
    count = 300 + width
    (client_bits, client), (server_bits, server) = pair.products(count, width)
    expected = unpacked(client_bits, count) & unpacked(server_bits, count)
    np.testing.assert_array_equal((client + server) & low(width), expected)
    assert not np.any((client | server) & ~low(width))
    for bits in (client_bits, server_bits):
        assert not np.any(np.unpackbits(bits, bitorder="little")[count:])


def test_set_up_costs_what_is_declared() -> None:
    ends = memory_pair()
    as_parties(set_up_transfers, ends)
    assert ends[0].traffic == ends[1].traffic == set_up_traffic()


def test_a_million_products_take_less_than_ten_bytes_each() -> None:
    spent = planned_traffic(CLIENT, [bit_products_sizes(1 << 20, 64)])
    assert spent.sent + spent.received < 10 * 2**20
    assert abs(spent.sent - spent.received) < 1000


def chi_square(cells: npt.NDArray[np.int64]) -> float:
    """In standard deviations from what uniform cells would give."""
    expected = cells.sum() / cells.size
    statistic = float(((cells - expected) ** 2).sum() / expected)
    freedom = cells.size - 1
    return (statistic - freedom) / float(np.sqrt(2.0 * freedom))


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_bits_and_shares_are_uniform_and_independent(pair: Pair, party: int) -> None:
    """Of (b_client, b_server, one share) all are equally likely: a share says nothing about the peer's bit."""
    count, width = 1 << 16, 4
    results = pair.products(count, width, 1 << 13)
    first, second = (unpacked(bits, count) for bits, _ in results)
    share = results[party][1]
    cells = np.bincount((first | second << np.uint64(1) | share << np.uint64(2)).astype(np.int64), minlength=64)
    assert abs(chi_square(cells)) < 8
    neighbours = first[0::2] | first[1::2] << np.uint64(1) | second[0::2] << np.uint64(2) | second[1::2] << np.uint64(3)
    assert abs(chi_square(np.bincount(neighbours.astype(np.int64), minlength=16))) < 8


SMALL_MODULI = [3, 7, 13, 8193, 100_357, 613_552_045, 2**39 + 7]


@pytest.mark.parametrize("modulus", SMALL_MODULI)
def test_products_are_exact_modulo_any_small_odd_number_and_cost_what_is_declared(pair: Pair, modulus: int) -> None:
    count, width, before = 1543, modulus.bit_length(), [end.traffic for end in pair.ends]
    (client_bits, client), (server_bits, server) = pair.products(count, width, modulus=modulus)
    expected = unpacked(client_bits, count) & unpacked(server_bits, count)
    np.testing.assert_array_equal((client + server) % np.uint64(modulus), expected)
    for party, end in enumerate(pair.ends):
        spent = end.traffic - before[party]
        sizes = bit_products_sizes(count, width, modulus, fold=pair.fold, chunk=512)
        assert spent == planned_traffic(party, [sizes])


def cells_modulo(results: tuple[tuple[Bytes, Words], tuple[Bytes, Words]], party: int, modulus: int) -> float:
    """How far (b_client, b_server, one share) are from uniform."""
    share = results[party][1]
    first, second = (unpacked(bits, share.size) for bits, _ in results)
    cells = (first + np.uint64(2) * second + np.uint64(4) * share).astype(np.int64)
    return abs(chi_square(np.bincount(cells, minlength=4 * modulus)))


@pytest.mark.parametrize("party", [CLIENT, SERVER])
@pytest.mark.parametrize("modulus", [3, 7, 13])
def test_shares_modulo_a_small_odd_number_are_uniform_and_independent(pair: Pair, party: int, modulus: int) -> None:
    """A share says nothing about the peer's bit. The control: the product itself in place of one in 16 shares."""
    results = pair.products(1 << 16, modulus.bit_length(), 1 << 13, modulus=modulus)
    assert cells_modulo(results, party, modulus) < 8
    bits, shares = results[party]
    product = unpacked(results[0][0], shares.size) & unpacked(results[1][0], shares.size)
    told = np.where(np.arange(shares.size) % 16 == 0, product, shares)
    spoilt = (results[0], (bits, told)) if party else ((bits, told), results[1])
    assert cells_modulo(spoilt, party, modulus) > 8


@pytest.mark.parametrize("modulus", [0, 8193])
def test_products_that_wait_for_answers_take_no_more_memory_than_their_bytes(modulus: int) -> None:
    """Very many wait at once. A receiver holds its bits and two bytes a product of 14 bits, a sender nothing yet."""
    count, width, pair = 1 << 16, 14, Pair(4)  # of its own: here only one side uses transfers
    tracemalloc.start()
    try:
        steps = bit_products_steps(pair.transfers[CLIENT], count, width, modulus)
        (asks, answers) = next(steps)
        assert (asks.sizes.asker, answers.sizes.asker) == (CLIENT, SERVER)
        asks.ask()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.1 * (count // 8 + count // 2 * 2)


def test_wide_shares_are_uniform_in_every_byte(pair: Pair) -> None:
    (_, client), (_, server) = pair.products(1 << 15, 64, 1 << 13)
    for shares in (client, server):
        for column in shares.view(np.uint8).reshape(-1, 8).T:
            assert abs(chi_square(np.bincount(column, minlength=256))) < 8


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_what_travels_is_uniform_whatever_the_receivers_bits(party: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte that a party receives, apart for the two values of the bit that it must not learn."""
    pair, count = Pair(8), 1 << 15
    seen: list[Bytes] = []
    take = type(pair.ends[0]).take

    def recorded(channel: Channel, expected: int) -> memoryview:
        answer = take(channel, expected)
        if channel is pair.ends[party]:
            seen.append(np.frombuffer(answer, np.uint8).copy())
        return answer

    monkeypatch.setattr(type(pair.ends[0]), "take", recorded)
    results = pair.products(count, 9, count)
    question, answers = seen
    assert abs(chi_square(np.bincount(question, minlength=256))) < 8
    own = slice(0, count // 2) if party == CLIENT else slice(count // 2, count)
    theirs = unpacked(results[1 - party][0], count)[own]
    for value in (0, 1):
        assert abs(chi_square(np.bincount(answers[theirs == value], minlength=256))) < 8


@pytest.mark.parametrize(("width", "shift"), [(64, 16), (40, 12), (20, 18), (8, 0)])
def test_truncation_with_these_products_is_exact(pair: Pair, width: int, shift: int) -> None:
    count = 1001
    z = RNG.integers(-(2 ** (width - 2)), 2 ** (width - 2), count)
    share = RNG.integers(0, 2**64, count, np.uint64)
    shares = (share, z.view(np.uint64) - share)
    products = pair.products(count, shift or 1)
    masked = [kernels.truncate_mask(shares[p], products[p][0], width, p == CLIENT) for p in (CLIENT, SERVER)]
    parts = [
        kernels.truncate_finish(
            shares[p], products[p][0], masked[p], masked[1 - p], products[p][1], width, shift, p == CLIENT
        )
        for p in (CLIENT, SERVER)
    ]
    total = (parts[0] + parts[1]) << np.uint64(64 - width) if width < 64 else parts[0] + parts[1]
    error = (total.view(np.int64) >> np.int64(64 - width)) - (z >> shift)
    assert set(np.unique(error)) <= ({0, 1} if shift else {0})


@pytest.mark.parametrize("owner", [CLIENT, SERVER])
@pytest.mark.parametrize(("count", "width"), [(0, 5), (1, 64), (513, 1), (1100, 37)])
def test_chosen_bits_times_chosen_words(pair: Pair, owner: int, count: int, width: int) -> None:
    words, bits = RNG.integers(0, 2**64, count, np.uint64), random_bytes((count + 7) // 8)

    def work(end: Channel, party: int) -> Words:
        transfers = pair.transfers[party]
        if party == owner:
            return bit_times_word(end, transfers, count, width, bits=bits, chunk=256)
        return bit_times_word(end, transfers, count, width, words=words, chunk=256)

    client, server = as_parties(work, pair.ends)
    np.testing.assert_array_equal((client + server) & low(width), (unpacked(bits, count) * words) & low(width))


# Mistakes -------------------------------------------------------------------------------------------------------


def test_numbers_that_make_no_sense_are_refused(pair: Pair) -> None:
    end, transfers = pair.ends[0], pair.transfers[0]
    for count, width, chunk in ((8, 0, 256), (8, 65, 256), (-1, 8, 256), (8, 8, 0), (8, 8, 100)):
        with pytest.raises(ShapeError):
            bit_products(end, transfers, count, width, chunk=chunk)
    word, bit = np.zeros(8, np.uint64), np.zeros(1, np.uint8)
    with pytest.raises(ShapeError):
        bit_times_word(end, transfers, 8, 8)
    with pytest.raises(ShapeError):
        bit_times_word(end, transfers, 8, 8, bits=bit, words=word)
    with pytest.raises(ShapeError):
        bit_times_word(end, transfers, 9, 8, bits=bit)
    with pytest.raises(ShapeError):
        bit_times_word(end, transfers, 9, 8, words=word)
    with pytest.raises(ShapeError):
        set_up_transfers(end, 2)
    with pytest.raises(ShapeError):
        set_up_transfers(end, CLIENT, 3)
    with pytest.raises(ValueError, match="instruction set"):
        _native.transfer_aes(bit, bit, bit, "abacus")


@pytest.mark.parametrize(("parties", "folds"), [((0, 1), (4, 8)), ((0, 0), (8, 8)), ((1, 1), (8, 8))])
def test_two_sides_that_disagree_find_out_at_once(parties: tuple[int, int], folds: tuple[int, int]) -> None:
    ends = memory_pair()

    def work(end: Channel, side: int) -> object:
        return outcome(lambda: set_up_transfers(end, parties[side], folds[side]))

    assert all(isinstance(error, ProtocolMismatch) for error in as_parties(work, ends))
    assert ends[0].closed
    assert ends[1].closed
