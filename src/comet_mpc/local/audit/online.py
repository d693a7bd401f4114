"""What the parties receive while a program runs, by either source of randomness.

The program uses every kind of message. Both parties run it for real, in two threads; a session that watches writes
down each message and what its receiver holds there: its share, the expansion of its own seed, their sum, what
it received earlier, its result. The two parties' inputs are one of two each, so that there is something to tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from comet_mpc.engine import Session, Weight, kernels, ops
from comet_mpc.engine import correlations as kinds
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.ops import Request, Step
from comet_mpc.engine.ops.operation import Drawn, Leg, Packed
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring, odd_ring
from comet_mpc.engine.seeds import Streams, derive_seed, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, WORD, Share, Words
from comet_mpc.engine.tables import PHASES, LineTable
from comet_mpc.local.audit.controls import BareBits, Control, OldMasks, Unmasked
from comet_mpc.local.audit.statistics import Message
from comet_mpc.net.channel import Channel
from comet_mpc.offline.bundle import Bundle, OpenBundle
from comet_mpc.offline.dealer.bundles import Dealing, DealtRandomness, mask_weight, weight_key, weights_digest
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.sources import find_source
from comet_mpc.testing import as_parties

Secrets = tuple[int, int]
"""Which of two inputs the client and the server have."""
Program = Callable[[Session, Mapping[str, Weight], Secrets], object]

X, Y = variables("x y")
_ROWS, _COLUMNS = 4, 8
_LINES = LineTable.of(4, [[(j, j % 3) for j in range(16)]], cut=9, shift=4, fraction=8, width=40)
_ODD = odd_ring(2.0**30)
_WHOLE_LINES = LineTable.unwrapping(
    4, 5, 8, _ODD, (64.0,), np.tile(np.arange(16, dtype=np.uint64), (PHASES, 1, 1)),
    np.tile(np.arange(16, dtype=np.uint64) % np.uint64(3), (PHASES, 1, 1)),
)  # fmt: skip
_EARLIER = 6
"""Messages of the same size that a message is compared with."""
_CORRECTIONS: dict[type[Correlation], str] = {
    kinds.BitProducts: "bits",
    kinds.Monomials: "powers",
    kinds.SquareSums: "squares",
    kinds.MatrixProduct: "matrix",
    kinds.WeightProduct: "weights",
    kinds.WeightScale: "scale",
    kinds.PointFunctions: "points",
}


def everything(session: Session, weights: Mapping[str, Weight], secrets: Secrets) -> object:
    """Every kind of message: x is the client's, y the server's, and the result is the client's."""
    shape = (_ROWS, _COLUMNS)
    x, y = (np.full(shape, (0.25, -0.75)[which]) for which in secrets)
    first = session.private(CLIENT, shape, 12, 1.0, x)
    second = session.private(SERVER, shape, 12, 1.0, y)
    a, b = session.open(first, second)
    product = session.evaluate(X**2 * Y + X, {"x": a, "y": b}, bound=2.0)
    truncated = session.truncate(product, 24)
    left, right = session.open(truncated.reshape(16, 2), second.reshape(16, 2))
    scores = session.truncate(session.matmul(left, right, transposed=True), 12, 32)
    fused = session.truncate_open(product, 20)
    for share in (first, second):
        session.truncate_open(share.lift(32), 20)
    session.open(session.evaluate(X**2, {"x": fused}, bound=4.1), session.square_sum(left))
    session.communicate(ops.Truncate(first.lift(36), 24), ops.Truncate(second.lift(36), 24))
    if session.odd:
        _in_an_odd_ring(session, first.lift(36), second.lift(36), product)
    if session.points:
        session.open(*(line for share in (first, second) for line in session.request(_read(session, share))))
    linear = session.linear(session.give(first), weights["matrix"])
    scaled = session.scale(session.give(linear), weights["vector"])
    return session.reveal(session.truncate(scaled, 20, 32) + scores[:_ROWS, :_COLUMNS], CLIENT)


def _read(session: Session, share: Share) -> ops.TableLine:
    """Truncated on the way where the source can do that, else as an integer."""
    lines, read = (_LINES, share) if session.fused else (_WHOLE_LINES, session.truncate(share, 4, 32))
    return ops.TableLine(read.bounded(1.0), lines.shift, lines.width, lines.modulus, table=lines)


def _in_an_odd_ring(session: Session, *shares: Share) -> None:
    """Truncates and opens them there, and computes with the first and the last, so that ciphertexts define masks."""
    ring = session.ring(24, 4.1)
    opened = session.communicate(
        *(ops.TruncateOpen(share, share.fraction - 12, ring.width, ring.modulus) for share in shares)
    )
    squares = [session.evaluate(X**2, {"x": x}, bound=4.1) for x in opened[::2]]
    session.open(*squares)
    session.communicate(*(ops.Truncate(square, 12, 32) for square in squares))


def _models() -> tuple[dict[str, Weight], dict[str, Weight]]:
    rng = np.random.default_rng(3)
    matrix, vector = rng.uniform(-1, 1, (_COLUMNS, _COLUMNS)), rng.uniform(-1, 1, _COLUMNS)

    def model(scale: float) -> dict[str, Weight]:
        return {
            "matrix": Weight.encode("matrix", scale * matrix, 10, gain=20.0),
            "vector": Weight.encode("vector", scale * vector, 10, gain=20.0),
        }

    return model(1.0), model(-0.5)


MODELS = _models()


def _unpacked(bits: Packed | Words, count: int) -> Words:
    return np.unpackbits(bits.view(np.uint8), count=count, bitorder="little").astype(np.uint64)


class Watching(PartySession):
    """Writes down what it receives. Another package extends it for its own requests and kinds."""

    def __init__(
        self, party: int, channel: Channel, randomness: OpenBundle | OldMasks, *, dealt: bool, **more: Any
    ) -> None:
        super().__init__(party, channel, randomness, **more)
        self.messages: list[Message] = []
        self._streams, self._dealt = Streams(randomness.bundle.seed), dealt
        self._values: dict[tuple[int, int, int], list[Words]] = {}
        self._masks: dict[int, Words] = {}
        self._keys: dict[tuple[int, int], Words] = {}
        self.key = b""

    def _expansion(self, index: int, count: int, array: int = 0) -> Words:
        """Of this party's own seed, at the stream from which the other's words come."""
        return self._streams.words(index << 16 | array if self._dealt else index, count)

    @property
    def _like(self) -> int:
        """Messages of the same size are compared with each other if they have the same number."""
        return 0

    def _note(self, kind: str, words: Words, modulus: int, size: int, **held: Words) -> None:
        self.messages.append(Message(kind, self.party, words, modulus, held, size))

    def _note_masked(self, kind: str, words: Words, modulus: int, size: int, own: Words, seed: Words) -> None:
        """A message ±(share - mask), with the receiver's own share and what it could take for the mops.

        With the receiver's share it is a masked value; the difference of two of them tells if one mask hides both.
        """
        ring = Ring(modulus.bit_length(), modulus) if modulus & 1 else Ring(WORD)
        before = self._values.setdefault((self._like, modulus, words.size), [])
        earlier = {f"earlier {i}": ring.subtract(other, own) for i, other in enumerate(before[-_EARLIER:])}
        before.append(ring.add(words, own))
        self._note(kind, words, modulus, size, share=own, seed=seed, both=ring.add(own, seed), **earlier)

    def _leg(self, request: Request[Any], drawn: Drawn | None) -> Leg[Any]:
        sent, finish = super()._leg(request, drawn)

        def watched(data: memoryview) -> Any:
            if len(data):
                self._received(request, drawn, np.frombuffer(bytes(data), np.uint8))
            result = finish(data)
            if isinstance(request, ops.Reveal) and isinstance(result, np.ndarray):
                self._add_result(result)
            return result

        return sent, watched

    def _received(self, request: Request[Any], drawn: Drawn | None, data: Packed) -> None:
        share, size = request.share, data.size
        if isinstance(request, ops.TableLine):
            share = replace(share, width=request.own_ring.width)
        kind, modulus = type(request).__name__, share.ring.size
        match request, drawn:
            case ops.TruncateOpen(ring=ring, conversion=conversion), Drawn(index=index) if request.modulus:
                length = ring.wire_bytes(share.count)
                words, own = (
                    ring.unpack(data[:length], share.count),
                    conversion.part(share.flat(), self.party == CLIENT),
                )
                self._note_masked(kind, words, ring.size, length, own, self._mask(index, share.count, ring))
                bits, other = _unpacked(data[length:], share.count), index + 2 - self.party  # of the other party's bits
                seed = self._expansion(other, share.count) & np.uint64(1)
                self._note_masked(f"{kind}, bit", bits, 2, size - length, self._likely_bit(share), seed)
            case ops.TruncateOpen(ring=ring), Drawn(index=index):
                words = ring.unpack(data, share.count)
                mask = self._mask(index, share.count, ring)
                self._note_masked(kind, words, ring.size, size, request.cut(self.party), mask)
            case ((ops.Open() | ops.Give() | ops.TableLine()), Drawn(index=index)):
                words = share.ring.unpack(data, share.count)
                self._note_masked(kind, words, modulus, size, share.flat(), self._mask(index, share.count, share.ring))
            case ops.Truncate(), Drawn(arrays=(bits, _)):
                theirs, mine = _unpacked(data, share.count), _unpacked(bits, share.count)
                likely = self._likely_odd_bit(request) if share.modulus else self._likely_bit(share)
                self._note_masked(kind, theirs, 2, size, likely, mine)

    def _mask(self, index: int, count: int, ring: Ring) -> Words:
        """What the other's part of a mask would be, had it the same seed."""
        return ring.from_seed(self._expansion(index, ring.seed_words * count))

    def _likely_bit(self, share: Share) -> Words:
        """That of the other's share, in Z_2^w, if the value were zero."""
        likely = np.uint64(0 if self.party == CLIENT else 2 ** (share.width - 2)) - share.flat()
        return np.asarray(likely >> np.uint64(share.width - 1) & np.uint64(1))

    def _likely_odd_bit(self, request: ops.Truncate) -> Words:
        """The same in an odd ring."""
        other = request.share.ring.subtract(np.zeros(request.share.count, np.uint64), request.share.flat())
        none = np.zeros((other.size + 7) // 8, np.uint8)
        return _unpacked(request.cut.mask(other, none, self.party != CLIENT), other.size)

    def _draw(self, correlation: Correlation) -> Drawn:
        drawn = super()._draw(correlation)
        if isinstance(correlation, AnyMask) and drawn.arrays:
            self._masks[drawn.index] = drawn.arrays[0]
        if isinstance(correlation, kinds.PointFunctions):
            self._keyed(drawn, correlation)
        elif self.party == SERVER and self._dealt and not isinstance(correlation, AnyMask | kinds.WeightCorrelation):
            self._corrected(drawn, correlation)
        return drawn

    def _keyed(self, drawn: Drawn, correlation: kinds.PointFunctions) -> None:
        """The corrections of keys, beside this party's own mask, its root, and the corrections of the keys before."""
        mask, root, corrections, last = drawn.arrays
        ring = correlation.ring
        for words, modulus in ((corrections, 2**WORD), (last, ring.size)):
            count, size = words.size, words.size * (modulus - 1).bit_length() // 8
            held = {"mask": np.resize(mask, count), "root": np.resize(root, count)}
            held["earlier"] = self._keys.get((count, modulus), np.zeros_like(words))
            self._keys[count, modulus] = words
            self._note(f"products, {_CORRECTIONS[kinds.PointFunctions]}", words, modulus, size, **held)

    def _corrected(self, drawn: Drawn, correlation: Correlation) -> None:
        """What the dealer has sent for this correlation."""
        corrections = correlation.facts.corrections
        own = {
            f"mask {reference.mask}": self._masks[reference.mask]
            for reference in correlation.facts.references
            if reference.mask in self._masks
        }
        if isinstance(correlation, kinds.BitProducts):
            own["bits"] = _unpacked(drawn.arrays[0], correlation.count)
        for array, (words, (count, ring)) in enumerate(
            zip(drawn.arrays[-len(corrections) :], corrections, strict=True), start=1
        ):
            held = {name: each for name, each in own.items() if each.size == count}
            held["seed"] = self._expansion(drawn.index, count, array)
            held |= self._held_besides(drawn, correlation, array, held["seed"])
            kind = f"products, {_CORRECTIONS.get(type(correlation), type(correlation).__name__)}"
            self._note(kind, words, ring.size, ring.wire_bytes(count), **held)

    def _held_besides(self, drawn: Drawn, correlation: Correlation, array: int, seed: Words) -> dict[str, Words]:
        """What else the server holds beside the correction of an array."""
        return {}

    def _compute(self, step: Step, drawn: Drawn | None) -> Words | None:
        """At the server, a product of the client's mask with that of a weight: what it tells of x, with x - mops."""
        if isinstance(step, ops.Weigh) and drawn is not None and self.party == SERVER and self._dealt:
            fixed = step.weight.fixed().astype(np.int64).view(np.uint64)
            mask, given = fixed - mask_weight(self.key, step.weight), step.x.words()
            if fixed.ndim == 2:
                rows = given.reshape(-1, fixed.shape[1])
                known = np.ascontiguousarray(kernels.matmul(rows, mask, transpose_right=True).T)
            else:
                known = given * mask
            correlation = kinds.WeightProduct if fixed.ndim == 2 else kinds.WeightScale
            words, count = drawn.arrays[0], known.size
            kind = f"products, {_CORRECTIONS[correlation]}"
            seed = self._expansion(drawn.index, count, 1)
            held = known.reshape(-1)
            self._note(kind, words, 2**64, 8 * count, seed=seed, given=held, both=held + seed)
        return super()._compute(step, drawn)

    def _add_result(self, result: Words) -> None:
        """All that was received before, beside the result; its last bits are the rounding's, so they are left out."""
        words = result.reshape(-1) >> np.uint64(8)
        self.messages = [
            replace(m, held={**m.held, "result": np.resize(words, m.words.size)}) if m.words.size else m
            for m in self.messages
        ]


@dataclass(frozen=True)
class Recorded:
    """The messages to one party, run by run, and which input the other one had, and it itself."""

    runs: list[list[Message]]
    secret: list[int]
    own: list[int]
    blocks: int = 1


@dataclass(frozen=True)
class Case:
    """All that both parties of many runs know. models: the server's, of which it has one"""

    source: str
    plan: Plan
    control: Control
    seeds: Sequence[tuple[bytes, bytes]]
    secret: bytes
    models: tuple[Mapping[str, Weight], Mapping[str, Weight]] = MODELS

    @staticmethod
    def of(source: str, plan: Plan, control: Control, runs: int, secret: bytes | None = None, **more: Any) -> Case:
        """secret: from which all seeds of a dealer are derived; only tests pass one"""
        secret = secret or new_seed()
        seeds = [(derive_seed(secret, "client", str(n)), derive_seed(secret, "server", str(n))) for n in range(runs)]
        return Case(source, plan, control, seeds, secret, **more)

    def weights(self, run: int, which: int, party: int) -> tuple[dict[str, Weight], bytes]:
        """What a party has of them, and the key of their masks: it is new in every run."""
        held = dict(self.models[which])
        secret = self.secret if self.control == "old mask" else derive_seed(self.secret, str(run))
        digest = "the same" if self.control == "old mask" else weights_digest(held)
        key = weight_key(secret, digest)
        if party == SERVER:
            return held, key
        if self.source == "pair":
            return {name: weight.public() for name, weight in held.items()}, key
        return {name: replace(w.public(), masked=mask_weight(key, w)) for name, w in held.items()}, key

    def dealt(self, run: int, party: int, weights: Mapping[str, Weight], key: bytes) -> OpenBundle:
        seeds = self.seeds[run]
        if self.control == "same seed":
            seeds = seeds[0], seeds[0]
        dealing = (Unmasked if self.control == "no mask" else Dealing)(self.plan.correlations, key, seeds)
        stored = io.BytesIO(b"".join(dealing.corrections() if party == SERVER else dealing.common()))
        return DealtRandomness(Bundle(party, seeds[party], self.plan.correlations, stored), weights)

    def prepared(self, run: int, preparer: Preparer, weights: Mapping[str, Weight]) -> OpenBundle:
        preparer.weights = weights
        (made,) = preparer.prepare()
        if self.control == "same seed":
            made = replace(made, seed=self.seeds[run][0])
        return made.open()


def record(
    source: str,
    runs: int,
    control: Control = "",
    *,
    program: Program = everything,
    watching: type[Watching] = Watching,
    secret: bytes | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Recorded]:
    """What client and server receive online (and from a dealer) in so many runs, with fresh randomness each.

    program   what is run; the usual one has every kind of message
    watching  the session that writes down what a party receives
    secret    from which all seeds of a dealer are derived; only tests pass one
    """
    public = {name: weight.public() for name, weight in MODELS[0].items()}
    plan = plan_program(lambda session: program(session, public, (0, 0)), abilities=find_source(source).abilities)

    def run(held: Held, channel: Channel, secrets: Secrets) -> Watching:
        broken = {"old mask": OldMasks, "no mask": BareBits}.get(control)
        session = watching(
            held.party, channel, broken(held.randomness) if broken else held.randomness, dealt=source != "pair"
        )
        session.key = held.key
        if held.party == CLIENT and source != "pair":
            for weight in held.weights.values():
                assert weight.masked is not None
                words = weight.masked.reshape(-1)
                session._note("weights", words, 2**64, 8 * words.size, seed=session._expansion(0, words.size))
        program(session, held.weights, secrets)
        return session

    return recorded(Case.of(source, plan, control, runs, secret), run, tick)


@dataclass(frozen=True)
class Held:
    """What a party has for one run. key: of the weights' masks"""

    party: int
    weights: Mapping[str, Weight]
    key: bytes
    randomness: OpenBundle


def recorded(
    case: Case, run: Callable[[Held, Channel, Secrets], Watching], tick: Callable[[], None] = lambda: None
) -> list[Recorded]:
    """What client and server receive in all runs of a case. run: a party's side of one"""
    runs = len(case.seeds)
    inputs = [number % 2 for number in range(runs)], [number // 2 % 2 for number in range(runs)]

    def work(channel: Channel, party: int) -> list[list[Message]]:
        preparer = Preparer(channel, party, case.plan.correlations, threads=1) if case.source == "pair" else None
        noted = []
        for number in range(runs):
            secrets = inputs[CLIENT][number], inputs[SERVER][number]
            weights, key = case.weights(number, secrets[SERVER], party)
            drawn = case.prepared(number, preparer, weights) if preparer else case.dealt(number, party, weights, key)
            noted.append(run(Held(party, weights, key, drawn), channel, secrets).messages)
            if party == CLIENT:
                tick()
        return noted

    client, server = as_parties(work)
    return [Recorded(client, inputs[SERVER], inputs[CLIENT]), Recorded(server, inputs[CLIENT], inputs[SERVER])]
