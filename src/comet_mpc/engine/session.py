"""What a program is written against: one interface, three ways to run it.

A program is an ordinary function of a `Session` and some shares. It can be *planned* (`plan.py`: shapes only),
run as its plaintext fixed-point *twin* (`twin.py`), or run for real by two parties (`party.py`).

All communication goes through `communicate`: one call is one round, and its requests (`ops`) say what happens.
Everything else is local. In particular any polynomial in opened tensors is (`evaluate`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops import (
    OPERATIONS,
    Evaluate,
    Give,
    MatMul,
    Open,
    Request,
    Reveal,
    SquareSum,
    Step,
    Truncate,
    TruncateOpen,
    Weigh,
)
from comet_mpc.engine.ops.conversion import LEAST_SHIFT, LEAST_WIDTH, free_shift, whole
from comet_mpc.engine.ops.deferred import Deferred
from comet_mpc.engine.ops.operation import FUSED, Abilities, Drawn
from comet_mpc.engine.parts import Block, in_all_blocks, path
from comet_mpc.engine.polynomial import Polynomial
from comet_mpc.engine.ring import LARGEST_ODD, Ring, odd_ring
from comet_mpc.engine.share import CLIENT, WORD, Share, Words, as_ring, encode, ring_width
from comet_mpc.engine.tensors import Given, Masked, Opened, Weight
from comet_mpc.errors import RangeError, ScaleError, ShapeError

Made = TypeVar("Made")
Tensor = TypeVar("Tensor", bound=Masked)

Ways = frozenset[str]
"""Where a program goes another way than usual, by name (`Session.goes`): the same values for other bytes and rounds."""

USUAL_WAYS: Ways = frozenset()

IN_ONE_ROUND = "truncate and open in one round"
"""A way of `Session.reopen`."""

_ROUNDED = 1.0 + 2.0**-7
"""Room for what roundings add to a bound."""


class Session(ABC):
    """One run of a program: a plan, a twin, or a party's side of the real thing."""

    def __init__(self, *, abilities: Abilities = FUSED, ways: Ways = USUAL_WAYS) -> None:
        self._abilities, self._ways = abilities, ways
        self._parts: list[str] = []
        self._parts_of_round: Sequence[str] = ()
        self._deferred: list[Deferred[Any]] = []
        self._kept: dict[str, Masked] = {}
        self.forks: dict[str, None] = {}
        """Where this run could have gone another way, in the order in which it came by."""

    @property
    def fused(self) -> bool:
        """Whether truncation and opening share a round, which the randomness must support."""
        return self._abilities.fused

    @property
    def odd(self) -> bool:
        """Whether element-wise work is done modulo odd numbers, which the randomness must support."""
        return self._abilities.odd

    @property
    def points(self) -> bool:
        """Whether tables are read at secret places in one round, which the randomness must support."""
        return self._abilities.points

    def ring(self, fraction: float, bound: float) -> Ring:
        """The ring in which a tensor is opened for element-wise work whose results have these bits and this bound.

        An odd one where that pays and there is one that is large enough.
        """
        largest = bound * 2.0**fraction * _ROUNDED
        return odd_ring(largest) if self.odd and largest < LARGEST_ODD else Ring(ring_width(fraction, bound))

    # What a program is made of --------------------------------------------------------------------

    @contextmanager
    def part(self, name: str | Block) -> Iterator[None]:
        """Names what is being computed, for cost tables and messages: `with session.part("attention"):`."""
        self._parts.append(str(name))
        try:
            yield
        finally:
            self._parts.pop()

    def goes(self, way: str, *, usually: bool) -> bool:
        """Which of two ways to take that give the same values: what is usual, unless this run's `Ways` say otherwise.

        The same in all blocks of a kind. A plan finds out what pays (`offline.cheapest`), and all who run it follow.
        """
        fork = f"{path(in_all_blocks(self._parts))}: {way}"
        self.forks[fork] = None
        return usually != (fork in self._ways)

    @property
    def here(self) -> str:
        return path(self._parts)

    @abstractmethod
    def holds(self, party: int) -> bool:
        """Whether this run has that party's private values: itself in a real run, both in a twin, none in a plan."""

    @abstractmethod
    def _trivial(self, owner: int, shape: tuple[int, ...], words: Words | None) -> Words | None:
        """The owner's words, zeros at the other party."""

    def private(
        self,
        owner: int,
        shape: tuple[int, ...],
        fraction: float,
        bound: float,
        values: npt.ArrayLike | None = None,
        width: int | Ring = WORD,
    ) -> Share:
        """A party's own value as a share: the owner holds it, the other holds zero. Nothing is sent or revealed."""
        words, ring = None, as_ring(width)
        if self.holds(owner):
            if values is None:
                raise ShapeError(f"{self.here}: the owner of a private value must supply it")
            real = np.asarray(values, dtype=np.float64)
            if real.shape != shape:
                raise ShapeError(f"{self.here}: a private value has shape {real.shape}, expected {shape}")
            if real.size and float(np.max(np.abs(real))) > bound:
                raise RangeError(f"{self.here}: a private value exceeds its bound {bound:g}")
            words = encode(real, fraction, ring)
        rounded = max(bound, round(bound * 2.0**fraction) * 2.0**-fraction)
        return Share(shape, fraction, rounded, ring.width, self._trivial(owner, shape, words), ring.modulus)

    def constant(self, values: npt.ArrayLike, fraction: float, width: int | Ring = WORD) -> Share:
        """A public value as a share."""
        real, ring = np.asarray(values, dtype=np.float64), as_ring(width)
        bound = float(np.max(np.abs(real), initial=0.0)) + 2.0 ** -(fraction + 1)
        words = self._trivial(CLIENT, real.shape, encode(real, fraction, ring))
        return Share(real.shape, fraction, bound, ring.width, words, ring.modulus)

    def add_constant(self, share: Share, values: npt.ArrayLike) -> Share:
        """x + c for public c, in x's own scale."""
        return share + self.constant(values, share.fraction, share.ring if share.modulus else WORD)

    def dither(self, share: Share, bits: int) -> Share:
        """x plus noise that the server alone knows: uniform, fresh, at most 2^(bits-1) units either way. Local.

        Before x is truncated by so many bits and revealed: the client knows its own coin of that rounding, and now not
        the whole coin. A plan and a twin add none.
        """
        values = self._dithered(share, bits)
        return share.with_values(values).bounded(share.bound + 2.0 ** (bits - 1 - share.fraction))

    def _dithered(self, share: Share, bits: int) -> Words | None:
        return share.values

    # What outlives a program --------------------------------------------------------------------------

    def keep(self, name: str, tensor: Masked) -> None:
        """Keeps a masked tensor for a later program of this session (`plan_series`), in place of one of that name."""
        self._kept[name] = tensor

    def kept(self, name: str, kind: type[Tensor]) -> Tensor:
        """What an earlier program has kept: opened once, under a mask of its own, and used again without opening it."""
        found = self._kept.get(name)
        if not isinstance(found, kind):
            raise ShapeError(f"{self.here}: no earlier program of this session has kept {name!r} as {kind.__name__}")
        return found

    def everything_kept(self) -> dict[str, Masked]:
        """By name."""
        return dict(self._kept)

    def end_program(self) -> None:
        """Between two programs of a session, nothing is put off: the next one may come much later, or never."""
        if self._deferred:
            raise ShapeError("a program ended with a deferred request: take its result first")

    # Communication ---------------------------------------------------------------------------------

    def communicate(self, *requests: Request[Made]) -> tuple[Made, ...]:
        """One round for all the requests together (two where the source cannot do one of them in one)."""
        free = requests and not any(any(request.wire_bytes()) for request in requests)
        riders = [] if free else list(self._deferred)  # what sends nothing is not a round to ride along with
        extra = [deferred.request for deferred in riders if deferred.request is not None]
        results = self._communicate([*requests, *extra], [self.here] * len(requests) + [each.part for each in riders])
        for deferred, value in zip(riders, results[len(requests) :], strict=True):
            deferred.advance(value)
        self._deferred = [deferred for deferred in self._deferred if deferred.request is not None]
        return tuple(results[: len(requests)])

    def request(self, request: Request[Made]) -> Made:
        """One request in a round of its own."""
        (result,) = self.communicate(request)
        return result

    @overload
    def defer(self, request: Open | TruncateOpen, /) -> Deferred[Opened]: ...
    @overload
    def defer(self, request: Truncate, /) -> Deferred[Share]: ...
    @overload
    def defer(self, request: Truncate, then: type[Open], /) -> Deferred[Opened]: ...
    def defer(self, request: Request[Any], *then: Callable[..., Request[Any]]) -> Deferred[Any]:
        """Puts a request off until the next round that happens anyway: independent work then costs no rounds.

        `then` makes the next request from the result, for the round after: `defer(Truncate(x, 12), Open)`.
        """
        deferred: Deferred[Any] = Deferred(self.communicate, request, then, self.here)
        self._deferred.append(deferred)
        return deferred

    def _communicate(self, requests: Sequence[Request[Any]], parts: Sequence[str]) -> list[Any]:
        """parts: of the program, that the requests are for"""
        for request in requests:
            OPERATIONS.check(request, self.here)
        splits = {i: split for i, request in enumerate(requests) if (split := request.split(self._abilities))}
        first = [splits[i][0] if i in splits else request for i, request in enumerate(requests)]
        self._parts_of_round = parts
        results = self._round(first)
        if splits:
            self._parts_of_round = [parts[i] for i in splits]
            second = self._round([then(results[i]) for i, (_, then) in splits.items()])
            for i, result in zip(splits, second, strict=True):
                results[i] = result
        return results

    @abstractmethod
    def _round(self, requests: Sequence[Request[Any]]) -> list[Any]:
        """Carries out one round."""

    @overload
    def open(self, share: Share, /) -> Opened: ...
    @overload
    def open(self, share: Share, other: Share, /, *more: Share) -> tuple[Opened, ...]: ...
    def open(self, *shares: Share) -> Opened | tuple[Opened, ...]:
        """Opens shares under fresh masks. One round."""
        opened = self.communicate(*(Open(share) for share in shares))
        return opened if len(shares) > 1 else opened[0]

    def truncate(self, share: Share, shift: float, width: int | Ring = WORD) -> Share:
        """x / 2^shift. One round, one bit each way and element; nothing at all into a ring narrow enough."""
        ring = as_ring(width)
        return self.request(Truncate(share, shift, ring.width, ring.modulus))

    def truncate_to(self, share: Share, fraction: float, width: int | Ring = WORD) -> Share:
        """The same value with fewer fraction bits, in a ring; a round, or nothing if it has them already."""
        ring = as_ring(width)
        if share.fraction == fraction and share.ring == ring:
            return share
        if share.fraction == fraction and not share.modulus and not ring.modulus and share.width >= ring.width:
            return share.narrow(ring.width)
        return self.truncate(share, share.fraction - fraction, ring)

    def cut_to(self, share: Share, least: float, ring: Ring, most: float) -> Share:
        """The same value with `least` fraction bits or, where that sends nothing, with up to `most`.

        Into an odd ring it is then scaled by a multiple of T/2^w, which is no power of two: the result's `fraction` is
        no whole number, and whatever comes next takes it as it is (`evaluate` in its coefficients, `truncate_to` back
        to whole bits). A product that is only near its value keeps no bit that would be off by more than a unit.
        """
        if share.error:
            most = min(most, -math.log2(share.error))
        if ring.modulus and not share.modulus and share.fraction > least:
            shift = free_shift(share.ring, share.fraction, least, ring)
            request = Truncate(share, shift, ring.width, ring.modulus)
            fits = share.width >= LEAST_WIDTH and ring.holds(1.02 * share.bound * 2.0**request.fraction)
            if shift >= LEAST_SHIFT and share.fraction - shift <= most and fits:
                return self.request(request)
        return self.truncate_to(share, least, ring)

    def truncate_open(self, share: Share, shift: float, width: int = WORD) -> Opened:
        """x / 2^shift, opened. One round."""
        if shift == 0 and width <= share.width:
            return self.open(share.narrow(width))
        if shift == 0:  # to come into a wider ring takes a truncation, by a bit that is zero
            share, shift = share.lift(share.fraction + 1), 1
        return self.request(TruncateOpen(share, shift, width))

    def reopen(self, share: Share, fraction: float, width: int | Ring = WORD) -> Opened:
        """The value with `fraction` bits, opened: in one round, or in two with less correlated randomness.

        One takes about twice the randomness in Z_2^w, where it is usual, and four times in an odd ring.
        """
        share, ring = _lifted(share, fraction), as_ring(width)
        shift, even = share.fraction - fraction, not share.modulus and not ring.modulus
        needed = shift or (share.width < ring.width if even else share.ring != ring)
        possible = self.fused if even else self.odd and bool(ring.modulus)
        if needed and possible and self.goes(IN_ONE_ROUND, usually=self.fused):
            if even:
                return self.truncate_open(share, shift, ring.width)
            return self.request(TruncateOpen(share, shift, ring.width, ring.modulus))
        return self.open(self.truncate_to(share, fraction, ring))

    def reopen_later(self, share: Share, fraction: float, width: int | Ring = WORD) -> Deferred[Opened]:
        """The same in two rounds that happen anyway."""
        share, ring = _lifted(share, fraction), as_ring(width)
        return self.defer(Truncate(share, share.fraction - fraction, ring.width, ring.modulus), Open)

    def give(self, share: Share) -> Given:
        """Opens a share to the server only. One round."""
        return self.request(Give(share))

    def reveal(self, share: Share, to: int = CLIENT) -> Words | None:
        """The value itself, to one party or both. One round."""
        return self.request(Reveal(share, to))

    # Local work on masked tensors --------------------------------------------------------------------

    @abstractmethod
    def _locally(self, step: Step) -> Words | None:
        """Carries out one step."""

    def compute(self, step: Step) -> Share:
        """The result of a step. Local."""
        OPERATIONS.check(step, self.here)
        return step.result(self._locally(step))

    def evaluate(
        self,
        polynomial: Polynomial,
        opened: Mapping[str, Opened],
        *,
        fraction: float | None = None,
        bound: float,
    ) -> Share:
        """A share of a polynomial in opened tensors, broadcast to a common shape. Local.

        fraction  fraction bits of the result: coefficients are rounded to fit (`Polynomial.quantised`)
        bound     |result|, proved by the caller: the polynomial's intermediate terms wrap freely, only the
                  result must fit
        """
        names = polynomial.names
        if not names:
            raise ShapeError(f"{self.here}: the polynomial has no variable: use `constant` instead")
        missing = [name for name in names if name not in opened]
        if missing:
            raise ShapeError(f"{self.here}: the polynomial needs {', '.join(missing)}, which was not opened")
        operands = [opened[name] for name in names]
        fractions = {name: operand.fraction for name, operand in zip(names, operands, strict=True)}
        if fraction is None:
            fraction = max(sum(power * fractions[name] for name, power in key) for key in polynomial.terms)
        terms = polynomial.quantised(fractions, fraction)
        return self.compute(Evaluate(terms, operands, fraction, bound))

    def product(self, left: Opened, right: Opened, bound: float | None = None) -> Share:
        """left ⊙ right with broadcasting. Local."""
        if bound is None:
            bound = left.bound * right.bound
        (a, b) = (Polynomial({((name, 1),): 1.0}) for name in ("left", "right"))
        return self.evaluate(a * b, {"left": left, "right": right}, bound=bound)

    def square_sum(self, x: Opened, bound: float | None = None) -> Share:
        """Σ x² along the last axis, that axis kept with length 1. Local.

        Of masks, only such sums are needed; or every square, where x was truncated as it was opened.
        """
        if x.step or x.wrap:
            largest = x.bound**2
            squares = self.evaluate(Polynomial({(("x", 2),): 1.0}), {"x": x}, bound=largest if bound is None else bound)
            return squares.sum(keep=True).bounded(x.shape[-1] * largest if bound is None else bound)
        return self.compute(SquareSum(x, bound))

    def matmul(
        self,
        x: Opened,
        y: Opened,
        *,
        transposed: bool = False,
        bound: float | None = None,
        precision: int | None = None,
        causal: int | None = None,
    ) -> Share:
        """x·y, or x·yᵀ if transposed, over the last two axes; equal batch axes. Local.

        causal     row i of x has its first causal + i + 1 elements, and zeros in place of all others
        precision  fraction bits that matter of the result, which will be truncated to as many, or to as many of a
                   multiple. Where the source makes products that are near (`Abilities.near`), it is then off by at most
                   2^-(precision + 1), and whatever would not cut that away is refused. Without it, it is exact.
        """
        cut = self._cut(x.fraction + y.fraction, precision)
        return self.compute(MatMul(x, y, transposed, bound, cut, causal))

    def linear(self, x: Given, weight: Weight, bound: float | None = None, *, precision: int | None = None) -> Share:
        """x·Wᵀ with the server's matrix. Local. precision: as in `matmul`"""
        return self._weighed(x, weight, 2, bound, precision)

    def scale(self, x: Given, weight: Weight, bound: float | None = None, *, precision: int | None = None) -> Share:
        """x ⊙ w with a vector of the server's along the last axis. Local. precision: as in `matmul`"""
        return self._weighed(x, weight, 1, bound, precision)

    def _weighed(self, x: Given, weight: Weight, axes: int, bound: float | None, precision: int | None) -> Share:
        if len(weight.shape) != axes:
            raise ShapeError(f"{self.here}: weight {weight.name} has shape {weight.shape}: it must have {axes} axes")
        return self.compute(Weigh(x, weight, bound, self._cut(x.fraction + weight.fraction, precision)))

    def _cut(self, fraction: float, precision: int | None) -> int:
        """Bits that do not matter of a product with so many fraction bits."""
        return max(0, math.floor(fraction) - precision) if self._abilities.near and precision is not None else 0

    def mean(self, x: Share, axis: int = -1) -> Share:
        """The mean along an axis, with one truncation that also absorbs the division. One round."""
        size = x.shape[axis]
        total = x.sum(axis, keep=True)
        spare = min(WORD - 3 - math.ceil(math.log2(max(total.bound * 2.0**x.fraction, 1.0) + 1)), 24)
        factor = round(2.0**spare / size) if spare > 0 else 0
        error = abs(factor * size / 2.0**spare - 1.0)
        if error > 2.0**-12:
            raise ScaleError(
                f"{self.here}: no room in the ring for a mean over {size} values: give them fewer fraction bits"
            )
        mean = self.truncate(total.times(factor).times_power(-spare), spare)
        return mean.bounded(x.bound * (1.0 + error) + 2.0**-x.fraction)


def _lifted(share: Share, fraction: float) -> Share:
    """With at least so many fraction bits; if that is not by whole bits, with enough of them to be cut off again."""
    missing = fraction - share.fraction
    if whole(missing):
        return share.lift(max(fraction, share.fraction))
    return share.lift(share.fraction + max(0, math.ceil(missing + LEAST_SHIFT)))


class DrawingSession(Session):
    """A session that draws correlated randomness: an operation says what is drawn, for the plan and for a party alike.

    A plan only writes the descriptions down, a party uses the words that it gets for them. So the two cannot disagree.
    """

    @abstractmethod
    def _draw(self, correlation: Correlation) -> Drawn:
        """The next correlation of the program."""

    @abstractmethod
    def _carry_out(self, requests: Sequence[Request[Any]], drawn: Sequence[Drawn | None]) -> list[Any]:
        """One round, with what was drawn for each request."""

    @abstractmethod
    def _compute(self, step: Step, drawn: Drawn | None) -> Words | None:
        """One step, with what was drawn for it."""

    _extent: tuple[int, ...] = ()
    """The shape of what is being drawn for."""

    def _round(self, requests: Sequence[Request[Any]]) -> list[Any]:
        return self._carry_out(requests, [self._drawn_for(request) for request in requests])

    def _locally(self, step: Step) -> Words | None:
        return self._compute(step, self._drawn_for(step))

    def _drawn_for(self, operation: Request[Any] | Step) -> Drawn | None:
        self._extent = operation.extent
        return operation.draw(self._draw)
