"""Oblivious transfer between the two parties, and the products of random bits that truncation uses.

In a random transfer the sender gets two uniform words m_0, m_1 and the receiver a uniform bit c and m_c; the sender
does not learn c, the receiver not the other word. 128 base transfers (`base`) are set up once per connection
and extended to any number by symmetric cryptography alone (native/ot/extension.hpp has the formulas): SoftSpokenOT (Roy
2022, "SoftSpokenOT: communication-computation tradeoffs in OT extension"), which with fold 1 is the extension of
Ishai, Kilian, Nissim and Petrank 2003. A random transfer costs 128/fold - 1 bits, from the receiver.

A receiver that deviates learns nothing that its own transfers do not tell it: it must use one choice for all digits of
a row, and that is checked before the sender uses a transfer. With a key χ that follows from the receiver's message by
SHA-256 both sides hash their matrix, column by column, with Σ x_i·χ^i in GF(2^128). The receiver sends the hash of its
choices and a digest of the others, 48 bytes; 128 more transfers, which nobody uses, hide what the hash would tell. One
that deviates anyway must guess the sender's digits where it does, and is cut off if it guesses wrong (Roy 2022, section
5). A sender that deviates makes results wrong, and learns nothing. Assumptions: those of `base`; AES-128 as a
pseudorandom generator; π(π(x) + i) + π(x), with AES under a public key bound to the set-up for π, as a
correlation-robust hash (Guo, Katz, Wang and Yu 2020, in the ideal cipher model).

Every transfer has an index of its own, which is used once. Nothing here is ever stored, but for the secret of
transfers that one bundle alone has (`renewal`): a new connection sets up anew.

Above 400 lines, because both sides of every message, and its bytes in a plan, stand beside each other.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from comet_mpc import _native
from comet_mpc.engine import kernels
from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, SERVER, WORD, Words, word_bytes
from comet_mpc.errors import PeerError, ProtocolMismatch, RandomnessExhausted, ShapeError, WrongSize
from comet_mpc.net.channel import FRAME_HEADER, Channel, Traffic
from comet_mpc.offline.ot.base import (
    OFFER_BYTES,
    POINT_BYTES,
    SECURITY,
    TREE_BYTES,
    ReceiverKeys,
    ReceiverSetup,
    SenderKeys,
    SenderSetup,
)
from comet_mpc.offline.streaming import Request, Sizes, Steps, carry_out

FOLDS = (1, 2, 4, 8)
FOLD = 8
"""Bits per digit: the extension sends 128/fold - 1 bits a transfer and encrypts 2^fold/fold blocks for it."""

CHUNK = 1 << 18
"""Products made with one message: bounds memory and messages. A multiple of 256."""

LIMIT = 1 << 40
"""Transfers of one set-up: far below where collisions of 128-bit blocks would begin to count."""

_BLOCK = 128  # transfers are made in whole AES blocks
_HASH_BYTES = 16
_CHECK_BYTES = _HASH_BYTES + hashlib.sha256().digest_size


def _padded(count: int) -> int:
    return -(-count // _BLOCK) * _BLOCK


def _made(count: int) -> int:
    """Transfers that are made for so many: whole blocks, and one block that hides the check."""
    return _padded(count) + _BLOCK if count > 0 else 0


def packed_bytes(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits without gaps."""
    return (count * width + 7) // 8


def _first_bits(packed: Bytes, count: int) -> Bytes:
    """A copy of the first `count` bits, padding zero."""
    bits = packed[: packed_bytes(count, 1)].copy()
    if count % 8:
        bits[-1] &= (1 << count % 8) - 1
    return bits


def extension_bytes(count: int, fold: int = FOLD) -> int:
    """Bytes that the receiver sends for so many transfers: 128/fold - 1 bits each that is made, and the check."""
    return (SECURITY // fold - 1) * (_made(count) // 8) + (_CHECK_BYTES if count > 0 else 0)


def _rows(planes: Bytes, count: int) -> Words:
    """The matrix row by row, two words each, from its planes."""
    rows = np.empty(planes.size, np.uint8)
    _native.transfer_transpose(planes.view(np.uint64), rows, "")
    return rows.view(np.uint64).reshape(-1, 2)[:count]


class _Extension:
    def __init__(self, keys: ReceiverKeys | SenderKeys) -> None:
        self.fold = keys.fold
        self.used = 0
        """Indices used so far; the same at the other side, which works in lockstep."""
        self._keys = np.frombuffer(keys.keys, np.uint8)
        self.hash_key = np.frombuffer(keys.hash_key, np.uint8)
        self._check_key = keys.check_key

    def _take(self, count: int) -> int:
        """The first index of a fresh range. It counts as used from here on, whatever happens next."""
        if count < 0:
            raise ShapeError(f"a number of transfers cannot be negative, got {count}")
        first, self.used = self.used, self.used + _made(count)
        if self.used > LIMIT:
            raise RandomnessExhausted(f"more than {LIMIT} transfers from one set-up: connect anew")
        return first

    def _hashed(self, first: int, message: Bytes, planes: Bytes, count: int) -> bytes:
        """Hashes of so many planes, one after the other, under a key that is not known before the message."""
        transcript = hashlib.sha256(b"comet transfers" + self._check_key + first.to_bytes(8, "little"))
        transcript.update(message.data)
        key = np.frombuffer(transcript.digest()[:_HASH_BYTES], np.uint8)
        digests = np.empty(count * _HASH_BYTES, np.uint8)
        _native.transfer_hash_planes(key, planes, digests, "")
        return digests.tobytes()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fold={self.fold}, used={self.used})"


class TransferReceiver(_Extension):
    """The side that gets a random bit c and the word m_c of every transfer."""

    def extend(self, count: int, *, halves: int = 1) -> tuple[Bytes, Bytes, Words]:
        """Random transfers: (message to the sender, bits c packed in little order, words m_c).

        With `halves` = 2 messages have 128 bits, two words each.
        """
        message, bits, words, _ = self._extend(count, halves)
        return message, bits, words

    def correlated(self, count: int) -> tuple[Bytes, Bytes, Words, Words]:
        """The same with 128 bits, and rows v_i, of which the sender has v_i + c_i·Δ: shares of c_i times its secret."""
        message, bits, words, planes = self._extend(count, 2)
        return message, bits, words, _rows(planes, count)

    def _extend(self, count: int, halves: int) -> tuple[Bytes, Bytes, Words, Bytes]:
        first, made = self._take(count), _made(count)
        message = np.empty(extension_bytes(count, self.fold), np.uint8)
        bits, planes = np.empty(made // 8, np.uint8), np.empty(SECURITY * made // 8, np.uint8)
        words = np.empty(halves * made, np.uint64)
        if count:
            corrections = message[:-_CHECK_BYTES]
            _native.extend_receiver(
                self._keys, self.fold, self.hash_key, first, bits, corrections, words, halves, planes, ""
            )
            matrix = self._hashed(first, corrections, planes, SECURITY)
            check = self._hashed(first, corrections, bits, 1) + hashlib.sha256(matrix).digest()
            message[-_CHECK_BYTES:] = np.frombuffer(check, np.uint8)
        return message, _first_bits(bits, count), words[: halves * count], planes


class TransferSender(_Extension):
    """The side that gets both words of every transfer."""

    def __init__(self, keys: SenderKeys) -> None:
        super().__init__(keys)
        self._secret = np.frombuffer(keys.secret, np.uint8)

    @property
    def secret(self) -> Words:
        """Δ, 128 bits."""
        return self._secret.copy().view(np.uint64)

    def extend(self, message: memoryview | bytes | Bytes, count: int, *, halves: int = 1) -> tuple[Words, Words]:
        """Random transfers from the receiver's message: (words m_0, words m_1); `halves` as at the receiver."""
        zeros, ones, _ = self._extend(message, count, halves)
        return zeros, ones

    def correlated(self, message: memoryview, count: int) -> tuple[Words, Words, Words]:
        """The same with 128 bits, and rows w_i = v_i + c_i·Δ."""
        zeros, ones, planes = self._extend(message, count, 2)
        return zeros, ones, _rows(planes, count)

    def _extend(self, message: memoryview | bytes | Bytes, count: int, halves: int) -> tuple[Words, Words, Bytes]:
        received = np.frombuffer(message, np.uint8)
        expected = extension_bytes(count, self.fold)
        if received.size != expected:
            raise WrongSize(got=received.size, expected=expected)
        first, made = self._take(count), _made(count)
        zeros, ones = (np.empty(halves * made, np.uint64) for _ in range(2))
        planes = np.empty(SECURITY * made // 8, np.uint8)
        if count:
            corrections, check = received[:-_CHECK_BYTES], received[-_CHECK_BYTES:]
            _native.extend_sender(
                self._keys, self.fold, self.hash_key, first, self._secret, corrections, zeros, ones, halves, planes, ""
            )
            self._verify(check, self._hashed(first, corrections, planes, SECURITY))
        return zeros[: halves * count], ones[: halves * count], planes

    def _verify(self, check: Bytes, hashes: bytes) -> None:
        """Plane b of this matrix is the receiver's, plus its choices where bit b of the secret is set: hashes too."""
        chosen = np.unpackbits(self._secret, bitorder="little")[:, None] * check[:_HASH_BYTES]
        theirs = np.frombuffer(hashes, np.uint8).reshape(-1, _HASH_BYTES) ^ chosen
        expected = hashlib.sha256(theirs.tobytes()).digest()
        if not hmac.compare_digest(expected, check[_HASH_BYTES:].tobytes()):
            raise PeerError("the other side's oblivious transfers are not consistent: nothing of them is used")


@dataclass(frozen=True)
class Transfers:
    """Both directions between two parties, so that work and bytes can be split evenly between them."""

    party: int
    sender: TransferSender
    receiver: TransferReceiver

    @property
    def fold(self) -> int:
        return self.sender.fold


def set_up_transfers(channel: Channel, party: int, fold: int = FOLD) -> Transfers:
    """The base transfers of both directions. Once per connection; both parties name the same `fold`.

    Rounds: 2. Bytes: 12,322 each way and two frame headers. Reveals nothing.
    """
    if party not in (CLIENT, SERVER):
        raise ShapeError(f"a party is {CLIENT} (client) or {SERVER} (server), not {party}")
    if fold not in FOLDS:
        raise ShapeError(f"fold: got {fold}, expected one of {FOLDS}")
    directions = ("client receives", "server receives")
    receiver, sender = ReceiverSetup(directions[party]), SenderSetup(directions[1 - party])
    try:
        first = channel.exchange(
            [bytes([party, fold]), receiver.message, sender.message], 2 + POINT_BYTES + OFFER_BYTES
        ).tobytes()
        if first[0] != 1 - party:
            raise ProtocolMismatch("the party of the other side", got=first[0], expected=1 - party)
        if first[1] != fold:
            raise ProtocolMismatch("the fold of oblivious transfers", got=first[1], expected=fold)
        receiver_keys, tree = receiver.finish(first[2 + POINT_BYTES :], fold)
        second = channel.exchange([tree], TREE_BYTES).tobytes()
        sender_keys = sender.finish(first[2 : 2 + POINT_BYTES], second, fold)
    except PeerError:
        channel.close()
        raise
    return Transfers(party, TransferSender(sender_keys), TransferReceiver(receiver_keys))


def set_up_traffic() -> Traffic:
    """What `set_up_transfers` costs either party."""
    size = 2 + POINT_BYTES + OFFER_BYTES + TREE_BYTES + 2 * FRAME_HEADER
    return Traffic(size, size, 2)


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _received(count: int, chunk: int) -> Iterator[tuple[int, slice]]:
    """Who receives in which products: in the first half of a chunk the client, in the other the server."""
    for start in range(0, count, chunk):
        stop = min(count, start + chunk)
        middle = min(stop, start + _padded((stop - start + 1) // 2))
        yield CLIENT, slice(start, middle)
        if middle < stop:
            yield SERVER, slice(middle, stop)


def _check_numbers(count: int, width: int, chunk: int) -> None:
    if not 1 <= width <= WORD:
        raise ShapeError(f"width: got {width}, expected 1..{WORD}")
    if count < 0:
        raise ShapeError(f"count: got {count}, expected at least 0")
    if chunk < 1 or chunk % (2 * _BLOCK):
        raise ShapeError(f"chunk: got {chunk}, expected a multiple of {2 * _BLOCK}")


def bit_products(
    channel: Channel, transfers: Transfers, count: int, width: int, modulus: int = 0, *, chunk: int = CHUNK
) -> tuple[Bytes, Words]:
    """`bit_products_steps`, and nothing else meanwhile. Rounds: 2, unless it exceeds the window of `streaming`."""
    return carry_out(channel, transfers.party, bit_products_steps(transfers, count, width, modulus, chunk=chunk))


def bit_products_steps(
    transfers: Transfers, count: int, width: int, modulus: int = 0, *, chunk: int = CHUNK
) -> Steps[tuple[Bytes, Words]]:
    """Uniform bits b_client, b_server, one known to each party, and shares of b_client·b_server mod 2^width.

    Returns (this party's bits, packed in little order, padding zero; its shares, bits above `width` zero): what the
    correlation `BitProducts` asks for. Both parties call it with the same numbers.

    A transfer's receiver takes c as its bit. D = m_0 - m_1 is uniform to it, so the sender may take b = D mod 2 as its
    own bit and send (D + b) / 2 alone, one bit less than the width. Shares: -m_0 and m_c + c·(D + b) = m_0 + c·b.
    Modulo an odd `modulus` of `width` bits the sender draws its bit and sends D + b, from messages of 128 bits.
    In one half of the products the client receives, in the other the server.

    Bytes: 128/fold - 1 + width - 1 bits a product, half of them from each party (`bit_products_sizes` is exact).
    One step. Reveals nothing: every byte received is uniform given what its receiver knows.
    """
    _check_numbers(count, width, chunk)
    made = _Products(transfers, Ring(width, modulus), np.zeros(packed_bytes(count, 1), np.uint8))
    parts = [_SomeProducts(made, receiver, place) for receiver, place in _received(count, chunk)]
    yield parts
    shares = np.empty(count, np.uint64)
    for part in parts:
        shares[part.place] = part.words()
    return made.bits, shares


def bit_products_sizes(
    count: int, width: int, modulus: int = 0, *, fold: int = FOLD, chunk: int = CHUNK
) -> list[Sizes]:
    """Of its requests."""
    _check_numbers(count, width, chunk)
    ring = Ring(width, modulus)
    return [_product_sizes(receiver, _size(place), ring, fold) for receiver, place in _received(count, chunk)]


def _product_sizes(receiver: int, size: int, ring: Ring, fold: int) -> Sizes:
    return Sizes(receiver, extension_bytes(size, fold), packed_bytes(size, _product_bits(ring)))


@dataclass(frozen=True)
class _Products:
    """Products of bits as they are made, at one party."""

    transfers: Transfers
    ring: Ring
    bits: Bytes = field(repr=False)

    @property
    def halves(self) -> int:
        return self.ring.seed_words


class _SomeProducts(Request):
    """Those of which one party receives the transfers, from one place to another.

    Very many wait for their answers at once. So each has its words in as few bytes as they need, and none before.
    """

    def __init__(self, made: _Products, receiver: int, place: slice) -> None:
        self._made, self.place = made, place
        self._sizes = _product_sizes(receiver, _size(place), made.ring, made.transfers.fold)
        self._word_bytes = word_bytes(made.ring.width)
        self._held = np.empty(0, np.uint8)

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def words(self) -> Words:
        """This party's shares, in the end; until the receiver has an answer, m_c."""
        return kernels.unpack_words(self._held, self._word_bytes, _size(self.place))

    def _hold(self, words: Words) -> None:
        self._held = kernels.pack_words(words, self._word_bytes)

    def ask(self) -> list[Bytes]:
        made = self._made
        message, choices, words = made.transfers.receiver.extend(_size(self.place), halves=made.halves)
        _store_bits(made.bits, self.place, choices)
        self._hold(made.ring.from_seed(words))
        return [message]

    def answer(self, question: memoryview) -> list[Bytes]:
        made, shares = self._made, np.empty(_size(self.place), np.uint64)
        zeros, ones = made.transfers.sender.extend(question, shares.size, halves=made.halves)
        own, answer = _sent_products(zeros, ones, shares, made.ring)
        _store_bits(made.bits, self.place, own)
        self._hold(shares)
        return [answer]

    def finish(self, answer: memoryview) -> None:
        bits = self._made.bits[self.place.start // 8 : -(-self.place.stop // 8)]
        self._hold(_received_products(self.words(), bits, answer, self._made.ring))


def _product_bits(ring: Ring) -> int:
    """Bits that the sender answers with for one product."""
    return ring.width if ring.modulus else ring.width - 1


def _received_products(words: Words, choices: Bytes, reply: memoryview, ring: Ring) -> Words:
    """The receiver's shares, from m_c."""
    if ring.modulus:
        chosen = np.unpackbits(choices, count=words.size, bitorder="little").astype(bool)
        return ring.add(words, np.where(chosen, ring.unpack(reply, words.size), np.uint64(0)))
    shares = np.empty_like(words)
    _native.products_receiver(words, choices, np.frombuffer(reply, np.uint8), shares, ring.width)
    return shares


def _sent_products(zeros: Words, ones: Words, shares: Words, ring: Ring) -> tuple[Bytes, Bytes]:
    """The sender's bits and its answer; fills in its shares."""
    count = shares.size
    answer = np.empty(packed_bytes(count, _product_bits(ring)), np.uint8)
    if ring.modulus:
        own = _first_bits(np.frombuffer(secrets.token_bytes(packed_bytes(count, 1)), np.uint8), count)
        _native.odd_products_sender(zeros, ones, own, shares, answer, ring.width, ring.modulus)
    else:
        own = np.empty(packed_bytes(count, 1), np.uint8)
        _native.products_sender(zeros, ones, own, shares, answer, ring.width)
    return own, answer


def _store_bits(bits: Bytes, place: slice, packed: Bytes) -> None:
    bits[place.start // 8 : place.start // 8 + packed.size] = packed


def bit_times_word(
    channel: Channel,
    transfers: Transfers,
    count: int,
    width: int,
    *,
    bits: Bytes | None = None,
    words: Words | None = None,
    chunk: int = CHUNK,
) -> Words:
    """`bit_times_word_steps`, and nothing else meanwhile. Rounds: 2, unless it exceeds the window of `streaming`."""
    steps = bit_times_word_steps(transfers, count, width, bits=bits, words=words, chunk=chunk)
    return carry_out(channel, transfers.party, steps)


def bit_times_word_steps(
    transfers: Transfers,
    count: int,
    width: int,
    *,
    bits: Bytes | None = None,
    words: Words | None = None,
    chunk: int = CHUNK,
) -> Steps[Words]:
    """Shares mod 2^width of c·x, for chosen bits c of one party's and chosen words x of the other's (correlated OT).

    One party gives `bits` (packed in little order), the other `words`. The first corrects its random choice r to c by
    sending c xor r, the second then sends (m_0 - m_1 + x), the two words in the order so corrected.

    Bytes: 128/fold bits an element from the owner of the bits, `width` bits from the owner of the words.
    One step. Reveals nothing.
    """
    _check_numbers(count, width, chunk)
    if (bits is None) == (words is None):
        raise ShapeError("one party gives bits, the other words: exactly one of the two")
    if bits is not None and (bits.dtype != np.uint8 or bits.shape != (packed_bytes(count, 1),)):
        raise ShapeError(
            f"bits: got {bits.dtype} of shape {bits.shape}, expected {packed_bytes(count, 1)} packed bytes"
        )
    if words is not None and (words.dtype != np.uint64 or words.shape != (count,)):
        raise ShapeError(f"words: got {words.dtype} of shape {words.shape}, expected {count} words")
    shares = np.empty(count, np.uint64)
    asker = transfers.party if bits is not None else 1 - transfers.party
    sizes = bit_times_word_sizes(asker, count, width, fold=transfers.fold, chunk=chunk)
    places = [slice(start, min(count, start + chunk)) for start in range(0, count, chunk)]
    requests = []
    for size, place in zip(sizes, places, strict=True):
        chosen = np.empty(0, np.uint8) if bits is None else _first_bits(bits[place.start // 8 :], _size(place))
        given = np.empty(0, np.uint64) if words is None else np.ascontiguousarray(words[place])
        requests.append(_BitsTimesWords(transfers, size, width, shares[place], chosen, given))
    yield requests
    return shares


def bit_times_word_sizes(asker: int, count: int, width: int, *, fold: int = FOLD, chunk: int = CHUNK) -> list[Sizes]:
    """Of its requests. asker: who has the bits"""
    sizes = [min(chunk, count - start) for start in range(0, count, chunk)]
    return [
        Sizes(asker, extension_bytes(size, fold) + packed_bytes(size, 1), packed_bytes(size, width)) for size in sizes
    ]


class _BitsTimesWords(Request):
    """Some of them: with the bits of one party, the words of the other, and shares that are filled in."""

    def __init__(
        self, transfers: Transfers, sizes: Sizes, width: int, shares: Words, bits: Bytes, words: Words
    ) -> None:
        self._transfers, self._sizes, self._width, self._shares = transfers, sizes, width, shares
        self._bits, self._words = bits, words
        self._known = np.empty(0, np.uint64)

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def ask(self) -> list[Bytes]:
        message, choices, self._known = self._transfers.receiver.extend(self._shares.size)
        return [message, self._bits ^ choices]

    def answer(self, question: memoryview) -> list[Bytes]:
        size, sender, width = self._shares.size, self._transfers.sender, self._width
        split = extension_bytes(size, sender.fold)
        zeros, ones = sender.extend(question[:split], size)
        flips, answer = np.frombuffer(question[split:], np.uint8), np.empty(packed_bytes(size, width), np.uint8)
        _native.correlate_sender(zeros, ones, flips, self._words, self._shares, answer, width)
        return [answer]

    def finish(self, answer: memoryview) -> None:
        reply = np.frombuffer(answer, np.uint8)
        _native.correlate_receiver(self._known, self._bits, reply, self._shares, self._width)
