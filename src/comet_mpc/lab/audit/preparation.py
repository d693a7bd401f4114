"""What the parties receive while they prepare randomness between themselves, and controls that must be caught.

The steps of a preparation run for real, in two threads, each many times on a connection; frames are written down step
by step, with what their receiver holds: its transfers, its key, its own factors, the frame of the run before. Beside
it stands what the receiver must not learn though it may not hold it, such as the choices of the other's transfers.
Ciphertexts are taken coefficient by coefficient, where their noise would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from comet_mpc import _native
from comet_mpc.engine.ring import odd_ring
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.lab.audit.controls import Control
from comet_mpc.lab.audit.online import Recorded, as_parties
from comet_mpc.lab.audit.statistics import Message
from comet_mpc.net.channel import Channel
from comet_mpc.offline.ot.base import POINT_BYTES, TREE_BYTES
from comet_mpc.offline.ot.extension import (
    Transfers,
    bit_products,
    bit_times_word,
    extension_bytes,
    packed_bytes,
    set_up_transfers,
)
from comet_mpc.offline.rlwe.odd_slots import OddJob, odd_plan, read_slots
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
from comet_mpc.offline.rlwe.tiling import Tiling, choose_tiling

Places = npt.NDArray[np.uint32]
Guesses = Sequence[list[Bytes]]
"""Responses to the client's upload as they would be for either of the server's inputs, with nothing to hide them."""

_COUNT = 1024
"""Products of bits, of either direction half, and products of bits with words."""
_WIDTH = 24
_ROWS, _INPUTS, _OUTPUTS = 8, 8, 8
_BLOCKS = 4
"""Runs are few and messages long: a message counts as that of so many runs."""
SET_UPS = 4
_DIGITS = 15
"""Bits that an extension sends for one transfer."""


class _Tap(Channel):
    """A channel that keeps what it receives."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner.timeout)
        self._inner = inner
        self._frames: list[bytes] = []

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        incoming = self._inner._transfer(outgoing, sizes, deadline)
        if sizes is not None:
            self._frames.append(bytes(incoming))
        return incoming

    def _release(self) -> None:
        self._inner.close()

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


class _Party:
    """One side of a connection: notes its messages, run by run."""

    def __init__(self, channel: Channel, party: int, control: Control) -> None:
        self.channel, self.party, self.control = _Tap(channel), party, control
        self.runs: list[list[Message]] = []
        self._last: dict[str, Words] = {}
        self.guesses: Guesses = ()

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

    def products_of_bits(self, transfers: Transfers) -> Callable[[Words], None]:
        """Truncation's bits. What comes back notes the messages, told the other's bits, which it must not learn."""
        if self.control == "old mask":
            transfers.sender.used = transfers.receiver.used = 0
        half = _COUNT // 2
        mine = slice(0, half) if self.party == CLIENT else slice(half, _COUNT)
        theirs = slice(half, _COUNT) if self.party == CLIENT else slice(0, half)
        bits, shares = bit_products(self.channel, transfers, _COUNT, _WIDTH)
        question, answer = self.channel.taken()
        choices = _bits(bits, _COUNT)
        self.bits = choices
        rows = np.frombuffer(question[: extension_bytes(half) - 48], np.uint8).reshape(_DIGITS, -1)
        digits = np.unpackbits(rows, axis=1, count=half, bitorder="little").astype(np.uint64)
        extension = np.asarray((np.uint64(1) << np.arange(_DIGITS, dtype=np.uint64)) @ digits, np.uint64)
        reply = _numbers(answer, half, _WIDTH - 1, _WIDTH - 1)
        known = shares[mine] - np.uint64(2) * choices[mine] * reply

        def note(hidden: Words) -> None:
            own = np.uint64(0) - shares[theirs]
            self.note("extension", extension, 2**_DIGITS, len(question), word=own, bit=choices[theirs],
                      hidden=hidden[theirs] * np.uint64(2**_DIGITS - 1))  # fmt: skip
            self.note("answer", reply, 2 ** (_WIDTH - 1), len(answer), word=known, half=known >> np.uint64(1),
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
        return engine

    def upload(self, engine: Homomorphic, data: bytes, tiling: Tiling) -> None:
        """Server: the client's ciphertext."""
        seed, packed = engine.read_seed(memoryview(data))
        (both,) = read_uploads([tiling.scheme], seed, packed[: tiling.scheme.upload_bytes])
        c0, c1 = (_coefficients(tiling.scheme.primes, each.reshape(-1)) for each in both)
        self.note("upload", c0[0], PRIMES[0], len(data), public=c1[0])

    def product_in_slots(self, engine: Homomorphic, which: int, seed: bytes) -> Callable[[Guesses], None] | None:
        """The same in the slots of an odd ring, with a mask of the client's that its ciphertext defines."""
        scheme = _SLOTS.scheme
        if self.party == SERVER:
            if self.control == "no mask":
                engine.stream = _Silent()
            engine.run([_SlotJob(which)])
            (data,) = self.channel.taken()
            uploads = read_slots(_SLOTS, *engine.read_seed(memoryview(data)))
            for kind, both in zip(("upload, defined", "upload"), uploads, strict=True):
                c0, c1 = (_coefficients(scheme.primes, each.reshape(-1)) for each in both)
                size = len(data) if kind == "upload, defined" else 0
                self.note(kind, c0[0], PRIMES[0], size, public=c1[0])
            self.guesses = self._guesses(engine, data, [_SlotJob(guess) for guess in (0, 1)])
            return None
        engine.run([_SlotJob(which, seed if self.control == "old mask" else None)])
        (data,) = self.channel.taken()
        positions = np.arange(DEGREE, dtype=np.uint32)
        return lambda guesses: self.response("response in slots", engine, scheme, data, positions, guesses)

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

    def product(self, engine: Homomorphic, which: int, seed: bytes) -> Callable[[Guesses], None] | None:
        """A product of the client's words with the server's integers; what comes back notes the response."""
        tiling = choose_tiling(_ROWS, _INPUTS, _OUTPUTS, 64, 24)
        if self.party == SERVER:
            if self.control == "no mask":
                engine.stream = _Silent()
            engine.run([MatrixJob(tiling, 64, y=_weights(which))])
            (data,) = self.channel.taken()
            self.upload(engine, data, tiling)
            jobs = [MatrixJob(tiling, 64, y=_weights(guess)) for guess in (0, 1)]
            self.guesses = self._guesses(engine, data, jobs)
            return None
        x = np.full((_ROWS, _INPUTS), (0, 2**63)[which], np.uint64)
        job = _Repeating(tiling, x, seed) if self.control == "old mask" else MatrixJob(tiling, 64, x=x)
        engine.run([job])
        (data,) = self.channel.taken()
        positions = tiling.positions(0, 0)
        return lambda guesses: self.response("response", engine, tiling.scheme, data, positions, guesses)


_ODD = odd_ring(2.0**30)
_SLOTS = odd_plan(_ODD, 1, 2, (((0, 0), (1, 1)),))
"""One mask that is defined and one factor that is chosen, each times a factor of the server's."""


class _SlotJob(OddJob):
    """What is chosen is one of two, at either party. seed: for uploads under the same public polynomials every time."""

    def __init__(self, which: int, seed: bytes | None = None) -> None:
        super().__init__(_SLOTS)
        self._which, self._seed = which, seed

    def chosen(self, defined: list[Words]) -> list[Words]:
        return [np.full(DEGREE, (0, _ODD.modulus // 2)[self._which], np.uint64)]

    def factors(self) -> list[Words]:
        return [np.full(DEGREE, (1, _ODD.modulus - 3)[self._which], np.uint64)] * 2

    def drawn_seed(self) -> bytes:
        return self._seed or super().drawn_seed()


class _Repeating(MatrixJob):
    """Uploads under the same public polynomials every time."""

    def __init__(self, tiling: Tiling, x: Words, seed: bytes) -> None:
        super().__init__(tiling, 64, x=x)
        self._seed = seed

    def drawn_seed(self) -> bytes:
        return self._seed


def _weights(which: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.full((_OUTPUTS, _INPUTS), (1, -3)[which], np.int64)


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
            note_bits = one.products_of_bits(transfers)
            one.wait()
            note_bits(parties[1 - party].bits)
            one.bits_times_words(transfers, inputs[party][run])
            for product in (one.product, one.product_in_slots):
                note_response = product(engine, inputs[party][run], seed)
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
