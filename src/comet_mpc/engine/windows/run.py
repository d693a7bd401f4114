"""Planning a program of many positions, and a party's side of its windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from comet_mpc.engine.correlations import AnyMask, BitProducts, Correlation, Monomials, PointFunctions, WeightProduct
from comet_mpc.engine.ops.operation import FUSED, Abilities, Drawn
from comet_mpc.engine.party import PartySession, Randomness, Sent
from comet_mpc.engine.plan import Plan, PlanSession
from comet_mpc.engine.session import USUAL_WAYS, Session, Ways
from comet_mpc.engine.share import SERVER, Words
from comet_mpc.engine.windows.window import Shape, Window
from comet_mpc.errors import ForeignRandomness, RandomnessExhausted, RandomnessSpent
from comet_mpc.net.channel import Channel

WindowProgram = Callable[[Session, Window], object]


class WindowPlan:
    """A program of `total` positions: what is prepared for it, and what each window sends."""

    def __init__(
        self, program: WindowProgram, total: int, *, abilities: Abilities = FUSED, ways: Ways = USUAL_WAYS
    ) -> None:
        session = PlanSession(abilities=abilities, ways=ways)
        program(session, Window(0, total, total))
        session.end_program()
        self.total = total
        self.whole: Plan = replace(session.plan(), terms=f"{total} positions")
        self.extents: tuple[Shape, ...] = tuple(session.extents)
        """The shape of what each of the correlations is for."""
        self._program, self._abilities, self._ways, self._kept = program, abilities, ways, session.everything_kept()

    def window(self, first: int, stop: int) -> Plan:
        """What these positions send and draw, once all before them were run."""
        session = PlanSession(abilities=self._abilities, ways=self._ways)
        for name, tensor in self._kept.items():
            session.keep(name, tensor)
        self._program(session, Window(first, stop, self.total))
        session.end_program()
        return session.plan()


class WindowSession(PartySession):
    """A party's side of such a program: `begin` says which positions are run next."""

    def __init__(
        self,
        party: int,
        channel: Channel,
        randomness: Randomness,
        plan: WindowPlan,
        *,
        watch: Sent | None = None,
    ) -> None:
        super().__init__(party, channel, randomness, ways=plan.whole.ways, watch=watch)
        self._plan = plan
        self._all = [randomness.draw(correlation) for correlation in plan.whole.correlations]
        self._window: Window | None = None
        self._next = len(self._all)

    @property
    def position(self) -> int:
        """How many positions were run."""
        return 0 if self._window is None else self._window.stop

    def begin(self, size: int) -> Window:
        """The next positions. Whatever happens from now on, their randomness is not used for others."""
        if self._next != len(self._all):
            raise RandomnessSpent("the positions before were not run to their end: this conversation cannot go on")
        if self.position + size > self._plan.total:
            raise RandomnessExhausted(f"{size} more positions after {self.position} of {self._plan.total}")
        self._window, self._next = Window(self.position, self.position + size, self._plan.total), 0
        return self._window

    def _draw(self, correlation: Correlation) -> Drawn:
        index = self._next
        if self._window is None or index >= len(self._all):
            raise RandomnessExhausted("the program asks for more than was prepared for these positions")
        self._next += 1
        whole = self._plan.whole.correlations[index]
        arrays = part_of(whole, correlation, self._all[index].arrays, self._window, self._plan.extents[index], self)
        return replace(self._all[index], arrays=arrays)

    @property
    def extent(self) -> Shape:
        """The shape of what is being drawn for."""
        return self._extent


def part_of(
    whole: Correlation,
    own: Correlation,
    arrays: Sequence[Words],
    window: Window,
    extent: Shape,
    session: WindowSession,
) -> tuple[Words, ...]:
    """A window's words of a correlation. extent: of the whole"""
    if type(whole) is not type(own):
        raise ForeignRandomness(f"{type(whole).__name__} was prepared, and this program asks for {type(own).__name__}")
    shapes = extent, session.extent
    if isinstance(whole, (AnyMask, Monomials)):
        assert isinstance(own, (AnyMask, Monomials))
        shapes = whole.shape, own.shape
    cut = window.cut(*shapes)
    shape = shapes[0]
    if isinstance(whole, WeightProduct) and session.party == SERVER:  # its share comes output by output
        shape, cut = (shape[-1], *shape[:-1]), (cut[-1], *cut[:-1])

    def taken(words: Words) -> Words:
        return np.ascontiguousarray(words.reshape(*shape, -1)[cut]).reshape(-1)

    if isinstance(whole, PointFunctions):  # all rows have one root, and each its number
        mask, root, corrections, last = arrays
        return taken(mask), root, taken(corrections), taken(last), taken(np.arange(mask.size, dtype=np.uint64))
    if isinstance(whole, BitProducts):
        packed, product = arrays
        bits = np.unpackbits(packed.view(np.uint8), count=math.prod(shape), bitorder="little")
        some = np.packbits(taken(bits.astype(np.uint64)).astype(np.uint8), bitorder="little")
        return cast(Words, some), taken(product)
    return tuple(taken(words) for words in arrays)
