"""What the parties receive while they prepare randomness between themselves, and controls that must be caught.

The steps of a preparation run for real, in two threads, each many times on a connection; frames are written down step
by step, with what their receiver holds: its transfers, its key, its own factors, the frame of the run before. Beside
it stands what the receiver must not learn though it may not hold it, such as the choices of the other's transfers.
Ciphertexts are taken coefficient by coefficient, where their noise would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from comet_mpc import _native
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.online import Recorded
from comet_mpc.local.audit.products import LAYER_PRODUCTS, ODD, SLOT_PRODUCTS, LayerProduct, Repeating, SlotProduct
from comet_mpc.local.audit.statistics import Message
from comet_mpc.net.channel import Around, Channel
from comet_mpc.offline.ot.base import POINT_BYTES, TREE_BYTES
from comet_mpc.offline.ot.extension import (
    Transfers,
    bit_products,
    bit_times_word,
    extension_bytes,
    packed_bytes,
    set_up_transfers,
)
from comet_mpc.offline.ot.point_keys import Making, PointKind, key_steps
from comet_mpc.offline.ot.renewal import renewal_steps
from comet_mpc.offline.rlwe.defined import read_defined
from comet_mpc.offline.rlwe.packing import Packing, packing_keys
from comet_mpc.offline.rlwe.products import Homomorphic, Job, MatrixJob
from comet_mpc.offline.rlwe.public_key import make_public_key
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    PRIMES,
    Bytes,
    Residues,
    Scheme,
    SecretKey,
    Small,
    Stream,
    basis,
    read_uploads,
    unpack,
)
from comet_mpc.offline.streaming import carry_out
from comet_mpc.testing import as_parties

Places = npt.NDArray[np.uint32]
Guesses = Sequence[list[Bytes]]
"""Responses to the client's upload as they would be for either of the server's inputs, with nothing to hide them."""

_COUNT = 1024
"""Products of bits, of either direction half, and products of bits with words."""
_WIDTH = 24
_BLOCKS = 4
"""Runs are few and messages long: a message counts as that of so many runs."""
SET_UPS = 4
_ROWS = 64
"""Of a table, and the kind of its keys."""
_KEYS = PointKind(4, 8, ODD)
_DIGITS = 15
"""Bits that an extension sends for one transfer."""


class _Tap(Around):
    """A channel that keeps what it receives."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self._frames: list[bytes] = []

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        incoming = self._inner._transfer(outgoing, sizes, deadline)
        if sizes is not None:
            self._frames.append(bytes(incoming))
        return incoming

    def taken(self) -> list[bytes]:
        """The frames since the last call."""
        frames, self._frames = self._frames, []
        return frames


class _Silent(Stream):
    """No randomness at all."""

    def ternary(self) -> Small:
        return np.zeros(DEGREE, np.int8)

    def errors(self, count: int) -> Small:
        return np.zeros(count, np.int8)


class _NoSecret(Stream):
    """A key of zeros, with errors as they should be."""

    def ternary(self) -> Small:
        return np.zeros(DEGREE, np.int8)


def _bits(packed: bytes | Bytes, count: int) -> Words:
    data = np.frombuffer(packed, np.uint8) if isinstance(packed, bytes) else packed
    return np.unpackbits(data, count=count, bitorder="little").astype(np.uint64)


def _numbers(data: bytes, count: int, width: int, kept: int) -> Words:
    """Numbers of `width` bits without gaps: the highest bits of each, at most 64."""
    bits = _bits(data, count * width).reshape(count, width)[:, width - kept :]
    return np.asarray(bits @ (np.uint64(1) << np.arange(kept, dtype=np.uint64)), np.uint64)


def _parts_of_keys(party: int, frames: list[bytes]) -> Iterator[tuple[str, Words, int, int]]:
    """What a party receives while keys of point functions of four levels are made: (name, words, their ring, bytes).

    The extension of its transfers is not among it: it is one like all others.
    """
    ring, block, flips = _KEYS.ring, 16 * _ROWS, packed_bytes(2 * _ROWS, 1)
    one, two = ring.wire_bytes(_ROWS), ring.wire_bytes(2 * _ROWS)
    if party == CLIENT:
        _, bits, first, carry, second, signs, last = frames
        lowest = Ring(_KEYS.width)
        levels, chosen, products = first + second, signs[:flips], signs[flips:]
        yield "bits of masks", lowest.unpack(bits[: lowest.wire_bytes(_ROWS)], _ROWS), lowest.size, len(bits)
        yield "carries", ring.unpack(carry[:one], _ROWS), ring.size, one
    else:
        _, first, carry, second, signs, last = frames
        levels, chosen, products, last = first + second + signs[:block], signs[block:], last[:two], last[two:]
        yield "carries chosen", _bits(carry, _ROWS), 2, len(carry)
    yield "levels", np.frombuffer(levels, np.uint64).copy(), 2**64, len(levels)
    yield "signs chosen", _bits(chosen, 2 * _ROWS), 2, flips
    yield "signs", ring.unpack(products, 2 * _ROWS), ring.size, two
    yield "last", ring.unpack(last, 2 * _ROWS), ring.size, two


class _Party:
    """One side of a connection: notes its messages, run by run."""

    def __init__(self, channel: Channel, party: int, control: Control) -> None:
        self.channel, self.party, self.control = _Tap(channel), party, control
        self.runs: list[list[Message]] = []
        self._last: dict[str, Words] = {}
        self.guesses: Guesses = ()
        self._renewed: Transfers | None = None

    def note(self, kind: str, words: Words, modulus: int, size: int, **held: Words) -> None:
        """Beside the words of the run before, which an old mask would betray."""
        earlier = self._last.get(kind, np.zeros_like(words))
        self._last[kind] = words
        self.runs[-1].append(Message(kind, self.party, words, modulus, {**held, "earlier": earlier}, size))

    def wait(self) -> None:
        """For the other party."""
        self.channel.exchange([b"."], 1)
        self.channel.taken()

    # Oblivious transfers ---------------------------------------------------------------------------------

    def set_up(self) -> Transfers:
        """Points and trees; those of the run before once more, if that is the control."""
        transfers = set_up_transfers(self.channel, self.party)
        first, tree = self.channel.taken()
        points = np.frombuffer(first[2:], np.uint64).reshape(-1, POINT_BYTES // 8)[:, :3]
        pairs = points[1:].reshape(-1, 2, 3)
        zero, one = (np.ascontiguousarray(pairs[:, side]).reshape(-1) for side in (0, 1))
        if self.control == "old mask" and "points" in self._last:
            zero, one = self._last["points"], self._last["points"]
        self.note("points", zero, 2**64, len(first), other=one)
        words = np.frombuffer(tree[:TREE_BYTES], np.uint64).copy()
        if self.control == "old mask" and "trees" in self._last:
            words = self._last["trees"]
        self.note("trees", words, 2**64, len(tree))
        return transfers

    def products_of_bits(self, transfers: Transfers, ring: Ring) -> Callable[[Words], None]:
        """Truncation's bits. What comes back notes the messages, told the other's bits, which it must not learn."""
        if self.control == "old mask":
            transfers.sender.used = transfers.receiver.used = 0
        half, odd = _COUNT // 2, ", odd" if ring.modulus else ""
        mine = slice(0, half) if self.party == CLIENT else slice(half, _COUNT)
        theirs = slice(half, _COUNT) if self.party == CLIENT else slice(0, half)
        bits, shares = bit_products(self.channel, transfers, _COUNT, ring.width, ring.modulus)
        question, answer = self.channel.taken()
        choices = _bits(bits, _COUNT)
        self.bits = choices
        rows = np.frombuffer(question[: extension_bytes(half) - 48], np.uint8).reshape(_DIGITS, -1)
        digits = np.unpackbits(rows, axis=1, count=half, bitorder="little").astype(np.uint64)
        extension = np.asarray((np.uint64(1) << np.arange(_DIGITS, dtype=np.uint64)) @ digits, np.uint64)
        sent = ring if ring.modulus else Ring(ring.width - 1)
        reply = _numbers(answer, half, sent.width, sent.width)
        step = choices[mine] * reply
        known = ring.subtract(shares[mine], step) if ring.modulus else shares[mine] - np.uint64(2) * step

        def note(hidden: Words) -> None:
            own = ring.subtract(np.zeros(half, np.uint64), shares[theirs])
            self.note(f"extension{odd}", extension, 2**_DIGITS, len(question), word=own, bit=choices[theirs],
                      hidden=hidden[theirs] * np.uint64(2**_DIGITS - 1))  # fmt: skip
            self.note(f"answer{odd}", reply, sent.size, len(answer), word=known, half=known >> np.uint64(1),
                      bit=choices[mine], hidden=hidden[mine])  # fmt: skip

        return note

    def bits_times_words(self, transfers: Transfers, which: int) -> None:
        """The client's bits times the server's words, all of them one of two."""
        if self.control == "old mask":
            transfers.sender.used = transfers.receiver.used = 0
        if self.party == CLIENT:
            bits = np.full(_COUNT // 8, (0, 255)[which], np.uint8)
            share = bit_times_word(self.channel, transfers, _COUNT, _WIDTH, bits=bits)
            (data,) = self.channel.taken()
            words = _numbers(data, _COUNT, _WIDTH, _WIDTH)
            known = share - words if which else share
            self.note("words", words, 2**_WIDTH, len(data), word=known)
        else:
            own = np.full(_COUNT, (5, 2**20)[which], np.uint64)
            share = bit_times_word(self.channel, transfers, _COUNT, _WIDTH, words=own)
            (data,) = self.channel.taken()
            flips = _bits(data[extension_bytes(_COUNT) :], _COUNT)
            self.note("flips", flips, 2, packed_bytes(_COUNT, 1), word=share)

    def row_tables(self, old: Transfers) -> None:
        """Keys of point functions, with transfers of their own. Their randomness is all that they depend on."""
        transfers = carry_out(self.channel, self.party, renewal_steps(old))
        _, tree = self.channel.taken()
        words = np.frombuffer(tree, np.uint64).copy()
        if self.control == "old mask":
            words = self._last.get("trees, renewed", words)
        self.note("trees, renewed", words, 2**64, len(tree))
        if self.control == "old mask":
            transfers = self._renewed or transfers
            transfers.sender.used = transfers.receiver.used = 0
        self._renewed = transfers
        made = Making(_KEYS, [(0, _ROWS)], transfers)
        carry_out(self.channel, self.party, key_steps(made))
        for kind, words, modulus, size in _parts_of_keys(self.party, self.channel.taken()):
            held = {"root": np.resize(made.root, words.size), "mask": np.resize(made.mask, words.size)}
            self.note(f"keys, {kind}", words, modulus, size, **held)

    # Homomorphic products --------------------------------------------------------------------------------

    def keys(self) -> Homomorphic:
        engine = Homomorphic(self.channel, self.party, threads=1)
        frames = self.channel.taken()
        if self.party == SERVER:
            data = frames[1]
            if self.control == "no mask":
                data = make_public_key(SecretKey(_NoSecret()), new_seed())
            key = unpack(np.frombuffer(data, np.uint8)[: Scheme(len(PRIMES), 0).upload_bytes], PRIMES)
            self.note("public key", _coefficients(PRIMES, key)[0], PRIMES[0], len(data))
        engine.set_up_packing(Packing.TURNS)
        frames = self.channel.taken()
        if self.party == SERVER:
            seed, packed = engine.read_seed(memoryview(frames[0]))
            if self.control == "no mask":
                packed = memoryview(packing_keys(SecretKey(_NoSecret()), Packing.MERGES, seed)[0])
            self._ciphertexts("packing keys", [Scheme(len(PRIMES), 0)], seed, packed, len(frames[0]))
        return engine

    def _ciphertexts(self, kind: str, schemes: Sequence[Scheme], seed: bytes, packed: memoryview, size: int) -> None:
        """Server: the first ciphertexts of a message of the client's."""
        for both in read_uploads(schemes, seed, packed[: sum(scheme.upload_bytes for scheme in schemes)]):
            self._ciphertext(kind, both, size)

    def _ciphertext(self, kind: str, both: Residues, size: int) -> None:
        """Server: c0 beside the c1 that both sides expand, modulo the first prime."""
        c0, c1 = (_coefficients(PRIMES[: len(each)], each.reshape(-1)) for each in both)
        self.note(kind, c0[0], PRIMES[0], size, public=c1[0])

    def upload(self, engine: Homomorphic, data: bytes, product: LayerProduct) -> None:
        """Server: the client's first ciphertext."""
        tiling, (seed, packed) = product.tiling, engine.read_seed(memoryview(data))
        if tiling.defines:
            rest = packed[: tiling.scheme.rest_bytes]
            (both,) = read_defined(tiling.scheme, product.width, 1, seed, rest)
            self._ciphertext(f"upload{product.kind}", both, len(data))
        else:
            self._ciphertexts("upload", [tiling.scheme], seed, packed, len(data))

    def product_in_slots(
        self, engine: Homomorphic, product: SlotProduct, which: int, seed: bytes
    ) -> Callable[[Guesses], None] | None:
        """The same in slots. In those of an odd ring the client has a mask that its ciphertext defines."""
        if self.party == SERVER:
            if self.control == "no mask":
                engine.stream = _Silent()
            engine.run([product.job(SERVER, which)])
            (data,) = self.channel.taken()
            for kind, both in product.uploads(*engine.read_seed(memoryview(data))):
                self._ciphertext(kind, both, len(data))
            self.guesses = self._guesses(engine, data, [product.job(SERVER, guess) for guess in (0, 1)])
            return None
        engine.run([product.job(CLIENT, which, seed if self.control == "old mask" else None)])
        (data,) = self.channel.taken()
        positions = np.arange(DEGREE, dtype=np.uint32)
        return lambda guesses: self.response(product.kind, engine, product.scheme, data, positions, guesses)

    def _guesses(self, engine: Homomorphic, data: bytes, jobs: Sequence[Job]) -> Guesses:
        """Server: what it would answer with nothing to hide it."""
        real, engine.stream = engine.stream, _Silent()
        guesses = [job.answer(engine, memoryview(data)) for job in jobs]
        engine.stream = real
        return guesses

    def response(
        self, kind: str, engine: Homomorphic, scheme: Scheme, data: bytes, positions: Places, guesses: Guesses
    ) -> None:
        """Client: the server's answer, and what its key makes of it."""
        parts = [np.frombuffer(data[: scheme.response_bytes], np.uint8), *(guess[0] for guess in guesses)]
        high = [_numbers(part.tobytes(), DEGREE, scheme.response_bits, 62) for part in parts]
        phases = [engine.secret.phase(scheme, part, positions).reshape(-1, 3)[:, 2].copy() for part in parts]
        self.note(kind, high[0], 2**62, len(data), first=high[1], second=high[2])
        self.note(f"{kind}, decrypted", phases[0], 2**64, 0, first=phases[1], second=phases[2])

    def product(
        self, engine: Homomorphic, product: LayerProduct, which: int, seed: bytes
    ) -> Callable[[Guesses], None] | None:
        """A product of the client's words with the server's integers; what comes back notes the response."""
        tiling, width = product.tiling, product.width
        if self.party == SERVER:
            if self.control == "no mask":
                engine.stream = _Silent()
            engine.run([MatrixJob(tiling, width, y=product.weights(which))])
            (data,) = self.channel.taken()
            self.upload(engine, data, product)
            jobs = [MatrixJob(tiling, width, y=product.weights(guess)) for guess in (0, 1)]
            self.guesses = self._guesses(engine, data, jobs)
            return None
        x = None if tiling.defines else np.full((tiling.rows, tiling.inputs), (0, 2**63)[which], np.uint64)
        engine.run([Repeating(tiling, width, x, seed if self.control == "old mask" else None)])
        (data,) = self.channel.taken()
        positions = tiling.positions(0, 0)
        kind, scheme = f"response{product.kind}", tiling.answer_scheme
        return lambda guesses: self.response(kind, engine, scheme, data, positions, guesses)


def _coefficients(primes: tuple[int, ...], transformed: Residues) -> Words:
    """(primes, 8192)."""
    out = np.empty_like(transformed)
    _native.lattice_backward(basis(primes), np.ascontiguousarray(transformed), out, "")
    return out.reshape(-1, DEGREE).astype(np.uint64)


def record_preparation(
    runs: int, control: Control = "", *, set_ups: int = SET_UPS, tick: Callable[[], None] = lambda: None
) -> list[Recorded]:
    """What either party receives in so many set-ups, and then in so many runs of the other steps."""
    parties: dict[int, _Party] = {}
    seed, count = new_seed(), set_ups + runs
    inputs = [run % 2 for run in range(count)], [run // 2 % 2 for run in range(count)]

    def work(channel: Channel, party: int) -> None:
        one = parties[party] = _Party(channel, party, control)
        for _ in range(set_ups):
            one.runs.append([])
            transfers, engine = one.set_up(), one.keys()
            tick_of(party)
        for run in range(set_ups, count):
            one.runs.append([])
            for ring in (Ring(_WIDTH), ODD):
                note_bits = one.products_of_bits(transfers, ring)
                one.wait()
                note_bits(parties[1 - party].bits)
                one.wait()
            one.bits_times_words(transfers, inputs[party][run])
            one.row_tables(transfers)
            steps = [partial(one.product, engine, product) for product in LAYER_PRODUCTS]
            steps += [partial(one.product_in_slots, engine, product) for product in SLOT_PRODUCTS]
            for step in steps:
                note_response = step(inputs[party][run], seed)
                one.wait()
                if note_response is not None:
                    note_response(parties[SERVER].guesses)
            tick_of(party)

    def tick_of(party: int) -> None:
        if party == CLIENT:
            tick()

    as_parties(work)
    return [
        Recorded(parties[party].runs[part], inputs[1 - party][part], inputs[party][part], _BLOCKS)
        for part in (slice(0, set_ups), slice(set_ups, count))
        for party in (CLIENT, SERVER)
    ]
