"""Point functions of two parties alone: masks a with keys for their top bits (native/points/tree.hpp has the tree).

After Doerner and shelat 2017 ("Scaling ORAM for secure computation"), with half-trees. Bit i of a is b_c + b_s mod 2, a
bit of either party's. In random transfers that the client receives its bits are the choices; in those that the server
receives for the top bits, the place α, the choices are the server's. `ot.extension` gives shares of a choice times the
other one's secret Δ for nothing. The roots are the two secrets themselves, so with Δ = Δ_c + Δ_s

    (1 - α)·Δ = (1 + α_c)·Δ_c + (1 + α_s)·Δ_s + α_c·Δ_s + α_s·Δ_c    (bits and blocks, mod 2)

is shared at every level. What H gives on the way to α is what a party's sum over all its nodes of that level gives,
but for nodes that both have. So each party sends the sum plus its share: together they are the correction.

    a mod 2^w     Σ 2^i·(b_c + b_s - 2·b_c·b_s), the product of bit i mod 2^(w-i): so all of it is known mod 2^(w+1).
                  Bit w of the sum is 0: what the two parties' bits there add up to is the carry k of their parts below.
    a elsewhere   a_c + a_s - 2^w·k in the ring of the payload, k = h_c + h_s - 2·h_c·h_s
    the last      σ·(payload - leaves_c + leaves_s), where σ = ±1 says whose leaf at α has the control bit. Counts of
                  such leaves differ by σ, so their halves give shares of the sign, σ = σ_c·σ_s, and two products of
                  a bit with a word do the rest.

A level takes one latency: each message has a party's part of one level and of the next one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.correlations import PointFunctions
from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.engine.tables import Growing, PointShape
from comet_mpc.offline.ot.extension import Transfers, extension_bytes, packed_bytes
from comet_mpc.offline.streaming import Request, Sizes, Steps

if TYPE_CHECKING:
    from comet_mpc.net.channel import Sendable

_WORDS = 2  # of a payload


@dataclass(frozen=True)
class PointKind:
    """What keys that are prepared together have in common."""

    index_bits: int
    cut: int
    ring: Ring

    @staticmethod
    def of(entry: PointFunctions) -> PointKind:
        return PointKind(entry.index_bits, entry.cut, entry.ring)

    @property
    def width(self) -> int:
        """Of the masks."""
        return self.index_bits + self.cut

    @property
    def shape(self) -> PointShape:
        return PointShape(self.index_bits, _WORDS, self.ring)

    def bits(self, receiver: int) -> int:
        """Transfers of a row that a party receives first: for every bit of the mask at the client, and of the place at
        the server."""
        return self.width if receiver == CLIENT else self.index_bits

    def transfers(self, receiver: int, rows: int) -> int:
        """All that a party receives: then for the carry at the client, then for the signs of the payload."""
        return rows * (self.bits(receiver) + (receiver == CLIENT) + _WORDS)

    def bit_bytes(self, rows: int) -> int:
        return sum(Ring(self.width - i).wire_bytes(rows) for i in range(self.width))

    def sizes(self, rows: int) -> list[list[Sizes]]:
        """Step by step."""
        block, n, ring = 16 * rows, self.index_bits, self.ring
        extensions = [
            Sizes(CLIENT, extension_bytes(self.transfers(CLIENT, rows)), self.bit_bytes(rows)),
            Sizes(SERVER, extension_bytes(self.transfers(SERVER, rows)), 0),
        ]
        levels = [[Sizes(CLIENT, block * (2 if first else 1), block * min(2, n - first))] for first in range(0, n, 2)]
        levels[0].append(Sizes(CLIENT, packed_bytes(rows, 1), ring.wire_bytes(rows)))
        words, flips = ring.wire_bytes(_WORDS * rows), packed_bytes(_WORDS * rows, 1)
        left = block if n % 2 == 0 else 0
        return [extensions, *levels, [Sizes(CLIENT, left + flips, flips + words)], [Sizes(CLIENT, 2 * words, words)]]


def key_steps(made: Making) -> Steps[None]:
    """Makes the keys. Reveals nothing: the security document has the argument."""
    extensions, *levels, signs, last = made.kind.sizes(made.count)
    yield [_Bits(made, extensions[0]), _Choices(made, extensions[1])]
    for step, sizes in enumerate(levels):
        yield [_Levels(made, sizes[0], 2 * step), *(_Carry(made, size) for size in sizes[1:])]
    yield [_Signs(made, signs[0])]
    yield [_Last(made, last[0])]


@dataclass
class _Transfer:
    """Random transfers of one direction, at either end. There are 16 bytes of everything, so what no later step takes
    is not kept."""

    rows: Words = field(repr=False)
    """Shares of bits times secrets, for the levels, from the top at the server and from the bottom at the client."""
    choices: Bytes | None = field(default=None, repr=False)
    """The receiver's."""
    words: Sequence[Words] = field(default=(), repr=False)
    """m_c at the receiver, m_0 and m_1 at the sender: (transfers, 2)."""

    def keep_last(self, count: int) -> None:
        """Of the words only the last so many, from where places count."""
        self.words = tuple(words[-count:].copy() for words in self.words)


class Making:
    """One party's side of making keys."""

    def __init__(self, kind: PointKind, tables: Sequence[tuple[int, int]], transfers: Transfers) -> None:
        """tables: the number of each table, and its rows"""
        self.kind, self.transfers, self.party = kind, transfers, transfers.party
        self.count = sum(rows for _, rows in tables)
        self.shape, self.ring = self.kind.shape, self.kind.ring
        self.root = transfers.sender.secret
        self.directions: dict[int, _Transfer] = {}
        self.asked: Sequence[Sendable] = ()
        levels, server = self.kind.index_bits, self.party == SERVER
        self.trees = [
            Growing(self.shape, number, server, self.root, np.zeros((rows, levels, 2), np.uint64))
            for number, rows in tables
        ]
        self.known, self.sent = 0, np.empty(0, np.uint64)
        self.pending: list[Bytes] = []
        self.mask, self.carry = np.empty(0, np.uint64), np.empty(0, np.uint64)
        self.payload = np.empty((0, _WORDS), np.uint64)
        self.sign = self.signed = self.product = self.own_last = np.empty(0, np.uint64)
        self.last = np.empty((0, _WORDS), np.uint64)

    def take_pending(self) -> list[Bytes]:
        """What goes along with the next question."""
        pending, self.pending = self.pending, []
        return pending

    def keys(self) -> list[tuple[Words, ...]]:
        """Of each table what `PointFunctions.layout` says, once all is done."""
        found: list[tuple[Words, ...]] = []
        start = 0
        for tree in self.trees:
            stop = start + len(tree.corrections)
            mask, last = self.mask[start:stop].copy(), self.last[start:stop].reshape(-1).copy()
            found.append((mask, self.root, tree.corrections.reshape(-1), last))
            start = stop
        return found

    # Transfers ---------------------------------------------------------------------------------------------

    def receive(self) -> Sequence[Sendable]:
        """This party's transfers as a receiver, and the message that makes them."""
        if self.party not in self.directions:
            count = self.kind.transfers(self.party, self.count)
            message, bits, words, rows = self.transfers.receiver.correlated(count)
            choices = np.unpackbits(bits, count=count, bitorder="little")
            self._direct(self.party, _Transfer(rows, choices, (words.reshape(-1, 2),)))
            self.asked = [message]
        return self.asked

    def send(self, question: memoryview) -> None:
        """Those of which the other party has sent its message."""
        count = self.kind.transfers(1 - self.party, self.count)
        zeros, ones, rows = self.transfers.sender.correlated(question, count)
        self._direct(1 - self.party, _Transfer(rows, words=(zeros.reshape(-1, 2), ones.reshape(-1, 2))))

    def _direct(self, receiver: int, transfer: _Transfer) -> None:
        first = self.kind.bits(receiver) - self.kind.index_bits
        transfer.rows = transfer.rows[first * self.count : self.kind.bits(receiver) * self.count].copy()
        if receiver == SERVER:
            transfer.keep_last(_WORDS * self.count)
        self.directions[receiver] = transfer

    def choices(self, level: int) -> Words:
        """This party's own for a level: at the client those of the mask's bits, the lowest first."""
        choices = self.directions[self.party].choices
        assert choices is not None
        at = self.kind.width - 1 - level if self.party == CLIENT else level
        return choices[at * self.count : (at + 1) * self.count].astype(np.uint64)

    def rows(self, receiver: int, level: int) -> Words:
        """Of the transfers for a level, in one direction."""
        at = self.kind.index_bits - 1 - level if receiver == CLIENT else level
        return self.directions[receiver].rows[at * self.count : (at + 1) * self.count]

    def signs(self) -> slice:
        """The transfers for the signs, from the end."""
        return slice(-_WORDS * self.count, None)

    def carries(self) -> slice:
        """Those for the carries, which only the client receives."""
        return slice(-(1 + _WORDS) * self.count, -_WORDS * self.count)

    # A bit of the receiver's times a word of the sender's, in the payloads' ring --------------------------------

    def _elements(self, words: Words) -> Words:
        ring = self.ring
        return ring.from_seed(np.ascontiguousarray(words).reshape(-1)) if ring.modulus else words[:, 0].copy()

    def flips(self, place: slice, bits: Words) -> Bytes:
        """Receiver: what makes its random choices the bits that it wants."""
        choices = self.directions[self.party].choices
        assert choices is not None
        return np.packbits(choices[place] ^ bits.astype(np.uint8), bitorder="little")

    def times_word(self, place: slice, flips: memoryview, words: Words) -> tuple[Words, Bytes]:
        """Sender: its shares, and what it sends."""
        ring = self.ring
        flipped = np.unpackbits(np.frombuffer(flips, np.uint8), count=words.size, bitorder="little").astype(bool)
        zeros, ones = self.directions[1 - self.party].words
        swapped = flipped[:, None]
        zero, one = np.where(swapped, ones[place], zeros[place]), np.where(swapped, zeros[place], ones[place])
        first = self._elements(zero)
        sent = ring.add(ring.subtract(first, self._elements(one)), words)
        return ring.subtract(np.zeros_like(words), first), ring.pack(sent)

    def times_bit(self, place: slice, bits: Words, sent: memoryview) -> Words:
        """Receiver: its shares."""
        (words,) = self.directions[self.party].words
        given = self.ring.unpack(sent, bits.size)
        return self.ring.add(self._elements(words[place]), np.where(bits == 1, given, np.uint64(0)))

    # Masks ---------------------------------------------------------------------------------------------------

    def send_bits(self) -> list[Bytes]:
        """Server: its bits of the masks, and the products with those of the client."""
        kind, rows = self.kind, self.count
        zeros, ones = (words[:, 0] for words in self.directions[CLIENT].words)
        total, sent = np.zeros(rows, np.uint64), []
        none = np.zeros(packed_bytes(rows, 1), np.uint8)
        for i in range(kind.width):
            if i < kind.cut:
                drawn = np.frombuffer(secrets.token_bytes(none.size), np.uint8)
                bits = np.unpackbits(drawn, count=rows, bitorder="little").astype(np.uint64)
            else:
                bits = self.choices(kind.width - 1 - i)
            width, at = kind.width - i, slice(i * rows, (i + 1) * rows)
            answer, shares = np.empty(packed_bytes(rows, width), np.uint8), np.empty(rows, np.uint64)
            zero, one = np.ascontiguousarray(zeros[at]), np.ascontiguousarray(ones[at])
            _native.correlate_sender(zero, one, none, bits, shares, answer, width)
            sent.append(answer)
            total += (bits << np.uint64(i)) - (shares << np.uint64(i + 1))
        self._masked(total)
        return sent

    def take_bits(self, answer: memoryview) -> None:
        """Client: the same."""
        kind, rows = self.kind, self.count
        own = self.directions[CLIENT]
        assert own.choices is not None
        total, start = np.zeros(rows, np.uint64), 0
        for i in range(kind.width):
            width, at = kind.width - i, slice(i * rows, (i + 1) * rows)
            bits, words = own.choices[at].astype(np.uint64), np.ascontiguousarray(own.words[0][at, 0])
            stop, shares = start + packed_bytes(rows, width), np.empty(rows, np.uint64)
            packed = np.packbits(own.choices[at], bitorder="little")
            _native.correlate_receiver(words, packed, np.frombuffer(answer[start:stop], np.uint8), shares, width)
            total += (bits << np.uint64(i)) - (shares << np.uint64(i + 1))
            start = stop
        self._masked(total)

    def _masked(self, total: Words) -> None:
        """The masks, and that the words of the transfers for their bits are used."""
        self.directions[CLIENT].keep_last((1 + _WORDS) * self.count)
        width = np.uint64(self.kind.width)
        self.mask = total & np.uint64((1 << self.kind.width) - 1)
        self.carry = (total >> width) & np.uint64(1)

    def paid(self, products: Words) -> None:
        """The payloads, once the carries are shared: products are shares of those of the two parties' bits."""
        ring = self.ring
        carry = ring.subtract(self.carry, ring.times(products, 2))
        values = ring.subtract(ring.reduced(self.mask), ring.times(carry, 1 << self.kind.width))
        ones = np.full(self.count, 1 - self.party, np.uint64)
        self.payload = np.stack([ones, values], axis=1)

    # Trees ---------------------------------------------------------------------------------------------------

    def part(self, level: int) -> Words:
        """This party's part of a level's corrections, (rows, 2): the corrections of those above are known."""
        assert level == self.known
        made = np.concatenate([tree.level_sums(level) for tree in self.trees])
        made ^= np.where(self.choices(level)[:, None] == 0, self.root, np.uint64(0))
        made ^= self.rows(CLIENT, level)
        made ^= self.rows(SERVER, level)
        self.sent = made
        return made

    def learn(self, theirs: memoryview) -> None:
        """The other party's part of the next level."""
        found, start = self.sent ^ np.frombuffer(theirs, np.uint64).reshape(-1, 2), 0
        for tree in self.trees:
            stop = start + len(tree.corrections)
            tree.corrections[:, self.known] = found[start:stop]
            start = stop
        self.known += 1

    # The last corrections --------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Sums of all leaves, and from them this party's part of the sign and of what it counts for."""
        ring = self.ring
        grown = [tree.leaf_sums() for tree in self.trees]
        sums, controls = (np.concatenate(parts) for parts in zip(*grown, strict=True))
        odd = controls & np.uint64(1)
        half = (controls >> np.uint64(1)) & np.uint64(1)
        self.sign = np.repeat(half if self.party == SERVER else half ^ odd ^ np.uint64(1), _WORDS)
        own = (ring.add if self.party == SERVER else ring.subtract)(self.payload, sums).reshape(-1)
        self.signed = np.where(self.sign == 1, ring.subtract(np.zeros_like(own), own), own)

    def combine(self, mine: Words, theirs: Words) -> Words:
        """This party's share of the last corrections, from its shares of the two products of a sign with a word."""
        ring = self.ring
        self.own_last = ring.subtract(self.signed, ring.times(ring.add(mine, theirs), 2))
        return self.own_last

    def take_last(self, data: memoryview) -> None:
        theirs = self.ring.unpack(data, self.own_last.size)
        self.last = self.ring.add(self.own_last, theirs).reshape(-1, _WORDS)


class _Step(Request):
    def __init__(self, made: Making, sizes: Sizes) -> None:
        self.made, self._sizes = made, sizes

    @property
    def sizes(self) -> Sizes:
        return self._sizes


class _Bits(_Step):
    """The client receives; the server answers with products of bits."""

    def ask(self) -> Sequence[Sendable]:
        return self.made.receive()

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        self.made.receive()  # the server's own choices are its bits
        self.made.send(question)
        return self.made.send_bits()

    def finish(self, answer: memoryview) -> None:
        self.made.take_bits(answer)


class _Choices(_Step):
    """The server receives."""

    def ask(self) -> Sequence[Sendable]:
        return self.made.receive()

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        self.made.send(question)
        return []


class _Carry(_Step):
    """The client's bits of the carries times the server's."""

    def ask(self) -> Sequence[Sendable]:
        made = self.made
        return [made.flips(made.carries(), made.carry)]

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        made = self.made
        shares, sent = made.times_word(made.carries(), question, made.carry)
        made.paid(shares)
        return [sent]

    def finish(self, answer: memoryview) -> None:
        made = self.made
        made.paid(made.times_bit(made.carries(), made.carry, answer))


class _Levels(_Step):
    """Parts of corrections: the client's of the level before and of this one, the server's of this one and the next."""

    def __init__(self, made: Making, sizes: Sizes, first: int) -> None:
        super().__init__(made, sizes)
        self._first = first

    def ask(self) -> Sequence[Sendable]:
        made = self.made
        return [*made.take_pending(), made.part(self._first).view(np.uint8)]

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        made, block = self.made, 16 * self.made.count
        if self._first:
            made.learn(question[:block])
        answer = [made.part(self._first).view(np.uint8)]
        made.learn(question[-block:])
        if made.known < made.kind.index_bits:
            answer.append(made.part(made.known).view(np.uint8))
        return answer

    def finish(self, answer: memoryview) -> None:
        made, block = self.made, 16 * self.made.count
        made.learn(answer[:block])
        if made.known < made.kind.index_bits:
            made.pending = [made.part(made.known).view(np.uint8)]
            made.learn(answer[block:])


class _Signs(_Step):
    """The client's sign times the server's words; the server says what it wants to choose."""

    def ask(self) -> Sequence[Sendable]:
        made = self.made
        made.grow()
        return [*made.take_pending(), made.flips(made.signs(), made.sign)]

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        made = self.made
        if made.known < made.kind.index_bits:
            block = 16 * made.count
            made.learn(question[:block])
            question = question[block:]
        made.grow()
        made.product, sent = made.times_word(made.signs(), question, made.signed)
        return [made.flips(made.signs(), made.sign), sent]

    def finish(self, answer: memoryview) -> None:
        made = self.made
        flips = packed_bytes(made.sign.size, 1)
        mine = made.times_bit(made.signs(), made.sign, answer[flips:])
        theirs, sent = made.times_word(made.signs(), answer[:flips], made.signed)
        made.pending = [sent, made.ring.pack(made.combine(mine, theirs))]


class _Last(_Step):
    """The server's sign times the client's words, and both parties' parts of the last corrections."""

    def ask(self) -> Sequence[Sendable]:
        return self.made.take_pending()

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        made, size = self.made, self.made.ring.wire_bytes(self.made.sign.size)
        theirs = made.times_bit(made.signs(), made.sign, question[:size])
        own = made.combine(made.product, theirs)
        made.take_last(question[size:])
        return [made.ring.pack(own)]

    def finish(self, answer: memoryview) -> None:
        self.made.take_last(answer)
