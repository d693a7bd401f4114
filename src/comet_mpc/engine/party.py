"""The real thing: one party's side of a program, over a channel, with correlated randomness prepared before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import kernels, tables
from comet_mpc.engine import requests as ask
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.demand import DrawingSession, Drawn, MaskTerm, expansions
from comet_mpc.engine.requests import Opened, Request, Result, Step
from comet_mpc.engine.session import USUAL_WAYS, Abilities, Ways
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, WORD, Share, Words
from comet_mpc.errors import ForeignRandomness, ShapeError
from comet_mpc.net.channel import Channel, Traffic

Packed = npt.NDArray[np.uint8]
Sent = Callable[[ask.Message, Packed], None]
"""Is given each message that a party sends: what it consists of, and its bytes."""
Leg = tuple[Packed | None, Callable[[memoryview], Result]]
"""One request on its way: what this party sends, and what it makes of the answer."""


class Randomness(Protocol):
    """Correlated randomness, one party's side."""

    @property
    def party(self) -> int:
        """Whose side it is."""

    @property
    def abilities(self) -> Abilities:
        """Those of its source, for which the program was planned."""

    def draw(self, correlation: Correlation) -> Drawn:
        """The next of the program's correlations. They are handed out in order, each once."""


def _mask_bits(width: int) -> np.uint64:
    return np.uint64(2**width - 1)


@dataclass(frozen=True)
class Measured:
    """What a part of a program took."""

    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.traffic + other.traffic, self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds
        )


class PartySession(DrawingSession):
    """Party 0 is the client, party 1 the server. Both run the same program in lockstep."""

    def __init__(
        self,
        party: int,
        channel: Channel,
        randomness: Randomness,
        *,
        permits_leaks: bool = False,
        ways: Ways = USUAL_WAYS,
        watch: Sent | None = None,
    ) -> None:
        super().__init__(abilities=randomness.abilities, permits_leaks=permits_leaks, ways=ways)
        if party not in (CLIENT, SERVER):
            raise ShapeError(f"a party is {CLIENT} (client) or {SERVER} (server), not {party}")
        if randomness.party != party:
            raise ForeignRandomness("the randomness was prepared for the other party")
        self.party = party
        self.channel = channel
        self._randomness = randomness
        self._watch = watch
        self._leader = party == CLIENT
        self.measured: dict[str, Measured] = {}
        """By part of the program, the parts within it included."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """As in any session; and what was measured in it is added up in `measured`."""
        traffic, cpu, wall = self.channel.traffic, time.thread_time(), time.perf_counter()
        with super().part(name):
            here = self.here
            try:
                yield
            finally:
                spent = Measured(self.channel.traffic - traffic, time.perf_counter() - wall, time.thread_time() - cpu)
                self.measured[here] = self.measured.get(here, Measured()) + spent

    def holds(self, party: int) -> bool:
        return party == self.party

    def _trivial(self, owner: int, shape: tuple[int, ...], words: Words | None) -> Words | None:
        return words if owner == self.party and words is not None else np.zeros(shape, np.uint64)

    def _dithered(self, share: Share, bits: int) -> Words | None:
        if self.party != SERVER or share.values is None:
            return share.values
        noise = np.frombuffer(os.urandom(8 * share.count), np.uint64) & np.uint64(2**bits - 1)
        return share.values + noise.reshape(share.shape) - np.uint64(2**bits // 2)

    def _draw(self, correlation: Correlation) -> Drawn:
        return self._randomness.draw(correlation)

    # One round -----------------------------------------------------------------------------------------

    def _carry_out(self, requests: Sequence[Request], drawn: Sequence[Drawn | None]) -> list[Result]:
        legs = [self._leg(request, entry) for request, entry in zip(requests, drawn, strict=True)]
        expected = [ask.wire_bytes(request)[1 - self.party] for request in requests]
        outgoing = [sent for sent, _ in legs if sent is not None]
        if self._watch is not None:
            for request, (sent, _) in zip(requests, legs, strict=True):
                if sent is not None:
                    self._watch(ask.messages(request)[self.party], sent)
        answer = memoryview(self.channel.exchange(outgoing, sum(expected)))
        results = []
        place = 0
        for (_, finish), size in zip(legs, expected, strict=True):
            results.append(finish(answer[place : place + size]))
            place += size
        return results

    def _leg(self, request: Request, drawn: Drawn | None) -> Leg:
        match request, drawn:
            case ask.Open(share=share), Drawn(index=index, arrays=(mask,)):
                own = share.ring.subtract(share.flat(), mask)
                return share.ring.pack(own), lambda data: self._finish_open(request, index, mask, own, data)
            case ask.TruncateOpen(share=share, ring=ring), Drawn(index=index, arrays=(mask, bits)):
                own = ring.subtract(request.conversion.part(share.flat(), self._leader), mask)
                packed = np.packbits(bits.astype(np.uint8), bitorder="little")
                mine = request.conversion.mask(share.flat(), packed, self._leader)
                message = np.concatenate([ring.pack(own), mine])
                return message, lambda data: self._finish_odd_open(request, index, mask, own, mine, data)
            case ask.TruncateOpen(share=share), Drawn(index=index, arrays=(mask,)):
                own = share.flat() - mask
                if self._leader:
                    own += np.uint64(2 ** (share.width - 2) - 1)
                return share.ring.pack(own), lambda data: self._finish_truncate_open(request, index, own, data)
            case ask.Truncate(share=share, shift=shift), None:
                words = self._shifted(share, shift)
                return None, lambda data: ask.truncated(request, words.reshape(share.shape))
            case ask.Truncate(share=share), Drawn(arrays=(bits, product)):
                packed = bits.view(np.uint8)
                mine = request.conversion.mask(share.flat(), packed, self._leader)
                return mine, lambda data: self._finish_truncate(request, packed, mine, product, data)
            case ask.Give(share=share), Drawn(index=index, arrays=arrays):
                if self.party == CLIENT:
                    sent = share.ring.pack(share.flat() - arrays[0])
                    return sent, lambda data: ask.given(request, index, None)
                return None, lambda data: ask.given(request, index, self._sum(share, share.flat(), data))
            case ask.Reveal(share=share, to=to), None:
                shown = share.ring.pack(share.flat()) if to in (1 - self.party, BOTH) else None
                learns = to in (self.party, BOTH)
                return shown, lambda data: self._sum(share, share.flat(), data) if learns else None
            case ask.Choose(share=share, table=table), Drawn(arrays=arrays):
                if self.party == CLIENT:
                    return None, lambda data: ask.Chosen(share, table, arrays, self._start(share, data))
                sent = share.ring.pack(arrays[0] - share.flat())
                return sent, lambda data: ask.Chosen(share, table, arrays)
            case ask.Fetch(chosen=chosen), None:
                return self._fetch(chosen)
        raise ShapeError(f"{self.here}: the randomness does not fit the request")

    @staticmethod
    def _start(share: Share, data: memoryview) -> Words:
        """The entry that lies under a row's first pad: x_c - (c - x_s), c the pad that the server knows."""
        return share.flat() - share.ring.unpack(data, share.count)

    def _fetch(self, chosen: ask.Chosen) -> Leg:
        """Column by column. The server's share is entry + word of the client's, the client's is minus that word."""
        table, columns = chosen.table, len(chosen.table.columns)
        if self.party == CLIENT:
            own, pads = chosen.drawn[:columns], chosen.drawn[columns:]
            assert chosen.start is not None
            hidden = [
                tables.hide(words, chosen.start, pad.view(np.uint8), size)
                for words, pad, size in zip(table.words, pads, table.sizes, strict=True)
            ]
            result = ask.looked_up(chosen, [np.uint64(0) - words for words in own])
            return np.concatenate(hidden), lambda data: result
        place, *pads_known = chosen.drawn

        def finish(data: memoryview) -> Result:
            found, at = [], 0
            for size, pad in zip(table.sizes, pads_known, strict=True):
                length = place.size * table.entries * size
                found.append(tables.pick(np.frombuffer(data[at : at + length], np.uint8), place, size) - pad)
                at += length
            return ask.looked_up(chosen, found)

        return None, finish

    def _shifted(self, share: Share, shift: int) -> Words:
        """Each party's own share of z - 1, shifted; with the one given back it is as unbiased as any truncation."""
        one = np.uint64(1 if self._leader else 0)
        return (((share.flat() - one) & _mask_bits(share.width)) >> np.uint64(shift)) + one

    @staticmethod
    def _sum(share: Share, own: Words, data: memoryview) -> Words:
        total = share.ring.add(own, share.ring.unpack(data, share.count))
        if not share.modulus and share.width < WORD:
            total &= _mask_bits(share.width)
        return total.reshape(share.shape)

    def _finish_open(self, request: ask.Open, index: int, mask: Words, own: Words, data: memoryview) -> Opened:
        result = ask.opened(request, index, self._sum(request.share, own, data))
        result.known[((index,), (1,), (0,))] = mask.reshape(request.share.shape)
        return result

    def _finish_truncate_open(self, request: ask.TruncateOpen, index: int, own: Words, data: memoryview) -> Opened:
        """c = z' - r is public, z' = z + 2^(w-2) - 1; z' = c* + r* - 2^(w-1)·(c_top xor r_top), * the low w-1 bits.

        As in an ordinary truncation, (c* >> d) + (r* >> d) + 1 is off by less than a unit, and unbiased.
        """
        width, shift = request.share.width, request.shift
        c = self._sum(request.share, own, data)
        top = (c >> np.uint64(width - 1)) & np.uint64(1)
        low = c & _mask_bits(width - 1)
        offset = 1 - 2 ** (width - 2 - shift)
        step = np.uint64(2 ** (width - 1 - shift))
        public = (low >> np.uint64(shift)) + np.uint64(offset % 2**WORD) - top * step
        result = ask.opened(request, index, public)
        return replace(result, factors=(np.uint64(1) - np.uint64(2) * top,))

    def _finish_odd_open(
        self, request: ask.TruncateOpen, index: int, mask: Words, own: Words, mine: Packed, data: memoryview
    ) -> Opened:
        """What is missing is wrap·n_0·n_1, n_i being the bit that came as v_i = n_i xor b_i: its factors are public.

        n_0·n_1 = v_0·v_1 + v_1·s_0·b_0 + v_0·s_1·b_1 + s_0·s_1·b_0·b_1 with s_i = 1 - 2·v_i.
        """
        share, ring = request.share, request.ring
        size = ring.wire_bytes(share.count)
        public = ring.add(own, ring.unpack(data[:size], share.count)).reshape(share.shape)
        bits = [
            np.unpackbits(packed, count=share.count, bitorder="little").astype(np.uint64).reshape(share.shape)
            for packed in (mine, np.frombuffer(data[size:], np.uint8))
        ]
        v0, v1 = bits if self._leader else reversed(bits)
        s0, s1 = (np.where(v == 0, np.uint64(1), np.uint64(ring.modulus - 1)) for v in (v0, v1))
        result = ask.opened(request, index, public)
        result.known[((index,), (1,), (0,))] = mask.reshape(share.shape)
        return replace(result, factors=(v0 * v1, v1 * s0, v0 * s1, ring.multiply(s0, s1)))

    def _finish_truncate(
        self, request: ask.Truncate, bits: Packed, mine: Packed, product: Words, data: memoryview
    ) -> Share:
        share = request.share
        theirs = np.frombuffer(data, np.uint8)
        words = request.conversion.finish(share.flat(), bits, mine, theirs, product, self._leader)
        return ask.truncated(request, words.reshape(share.shape))

    # Local work ----------------------------------------------------------------------------------------

    def _compute(self, step: Step, drawn: Drawn | None) -> Words:
        match step, drawn:
            case ask.Evaluate(), None:
                return self._evaluate(step)
            case ask.SquareSum(x=x), Drawn(arrays=(share,)):
                return self._square_sum(x, share)
            case ask.MatMul(), Drawn(arrays=(share,)):
                return self._matmul(step, share)
            case ask.Weigh(weight=weight, shape=shape), Drawn(arrays=(share,)):
                if self.party == CLIENT:
                    return share.reshape(shape)
                if len(weight.shape) == 2:  # the server's share comes output by output
                    share = share.reshape(weight.shape[0], -1).T
                return step.public_product() + share.reshape(shape)
        raise ShapeError(f"{self.here}: the randomness does not fit the step")

    def _evaluate(self, step: ask.Evaluate) -> Words:
        def spread(words: Words) -> Words:
            whole = words if words.shape == step.shape else np.broadcast_to(words, step.shape)
            return np.ascontiguousarray(whole).reshape(-1)

        monomials = {
            monomial: spread(self._monomial(expansion, step)) for monomial, expansion in expansions(step).items()
        }
        publics = [spread(operand.words()) for operand in step.operands]
        total = kernels.evaluate(step.terms, publics, monomials, self._leader, modulus=step.ring.modulus)
        return total.reshape(step.shape)

    def _monomial(self, expansion: Sequence[MaskTerm], step: ask.Evaluate) -> Words:
        """A share of a mask monomial, put together from what was drawn."""
        operands, ring = step.operands, step.ring
        total: Words | None = None
        for term in expansion:
            if term.places:
                words = term.holder(operands).known[term.name(operands)]
            else:  # a public number: the leader's
                words = np.full((), np.uint64(self._leader))
            if term.coefficient != 1:
                words = ring.times(words, term.coefficient)
            for operand, which in term.factors:
                words = ring.multiply(words, operands[operand].factors[which])
            total = words if total is None else ring.add(total, words)
        assert total is not None
        return total

    def _own(self, x: Opened) -> Words:
        """This party's share of an ordinary mask."""
        return x.known[((x.mask,), (1,), (0,))]

    def _square_sum(self, x: Opened, share: Words) -> Words:
        """Σ (P + a)² = Σ P·(P + 2a) + Σ a²; the leader takes P²."""
        public, ring = x.words(), x.ring
        beside = ring.times(self._own(x), 2)
        if self._leader:
            beside = ring.add(beside, public)
        crossed = ring.sum(ring.multiply(public, beside), -1, keep=True)
        return ring.add(crossed, share.reshape(crossed.shape))

    def _matmul(self, step: ask.MatMul, share: Words) -> Words:
        """(P + a)(R + b) = P·R + P·b + a·R + a·b; the leader takes P·R along with P·b."""
        x, y, transposed, width = step.x, step.y, step.transposed, step.width
        right = self._own(y) + y.words() if self._leader else self._own(y)
        first = kernels.matmul(x.words(), right, transpose_right=transposed, width=width)
        second = kernels.matmul(self._own(x), y.words(), transpose_right=transposed, width=width)
        return first + second + share.reshape(step.shape)
