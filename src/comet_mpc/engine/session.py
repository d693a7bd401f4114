"""What a program is written against: one interface, three ways to run it.

A program is an ordinary function of a `Session` and some shares. It can be *planned* (`plan.py`: shapes only),
run as its plaintext fixed-point *twin* (`twin.py`), or run for real by two parties (`party.py`).

All communication goes through `communicate`: one call is one round, and its requests (`requests.py`) say what happens.
Everything else is local. In particular any polynomial in opened tensors is (`evaluate`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import requests as ask
from comet_mpc.engine.polynomial import Polynomial
from comet_mpc.engine.requests import Deferred, Given, Open, Opened, Request, Result, Truncate, TruncateOpen, Weight
from comet_mpc.engine.ring import LARGEST_ODD, Ring, odd_ring
from comet_mpc.engine.share import CLIENT, WORD, Share, Words, as_ring, encode, ring_width
from comet_mpc.engine.tables import Table
from comet_mpc.errors import RangeError, ScaleError, ShapeError

Ways = frozenset[str]
"""Where a program goes another way than usual, by name (`Session.goes`): the same values for other bytes and rounds."""

USUAL_WAYS: Ways = frozenset()

IN_ONE_ROUND = "truncate and open in one round"
"""A way of `Session.reopen`."""

_ROUNDED = 1.0 + 2.0**-7
"""Room for what roundings add to a bound."""


@dataclass(frozen=True)
class Abilities:
    """What a source of randomness can prepare, which decides by which protocols a program runs.

    fused  masks of openings that truncate on the way in Z_2^w, so that both share a round
    odd    masks and their monomials modulo odd numbers, in which element-wise work is cheaper for two parties alone
    """

    fused: bool = True
    odd: bool = False


FUSED = Abilities()


class Session(ABC):
    """One run of a program: a plan, a twin, or a party's side of the real thing."""

    def __init__(self, *, abilities: Abilities = FUSED, permits_leaks: bool = False, ways: Ways = USUAL_WAYS) -> None:
        self._abilities, self._permits_leaks, self._ways = abilities, permits_leaks, ways
        self._parts: list[str] = []
        self._deferred: list[Deferred[Any]] = []
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

    def ring(self, fraction: int, bound: float) -> Ring:
        """The ring in which a tensor is opened for element-wise work whose results have these bits and this bound.

        An odd one where that pays and there is one that is large enough.
        """
        largest = bound * 2.0**fraction * _ROUNDED
        return odd_ring(largest) if self.odd and largest < LARGEST_ODD else Ring(ring_width(fraction, bound))

    @property
    def permits_leaks(self) -> bool:
        """Whether protocols that are known to leak may run: for research only, never to serve a client.

        Whoever starts the program decides. The program cannot change it.
        """
        return self._permits_leaks

    # What a program is made of --------------------------------------------------------------------

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Names what is being computed, for cost tables and messages: `with session.part("attention"):`."""
        self._parts.append(name)
        try:
            yield
        finally:
            self._parts.pop()

    def goes(self, way: str, *, usually: bool) -> bool:
        """Which of two ways to take that give the same values: what is usual, unless this run's `Ways` say otherwise.

        The same in all layers. A plan finds out what pays (`offline.cheapest`); all who run the program follow it.
        """
        fork = "/".join([name for name in self._parts if not name.startswith("layer ")] or ["program"]) + ": " + way
        self.forks[fork] = None
        return usually != (fork in self._ways)

    @property
    def here(self) -> str:
        return "/".join(self._parts) or "program"

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
        fraction: int,
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

    def constant(self, values: npt.ArrayLike, fraction: int, width: int | Ring = WORD) -> Share:
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

    # Communication ---------------------------------------------------------------------------------

    def communicate(self, *requests: Request) -> tuple[Result, ...]:
        """One round for all the requests together (two where `fused` is off and one of them truncates and opens)."""
        free = requests and not any(any(ask.wire_bytes(request)) for request in requests)
        riders = [] if free else list(self._deferred)  # what sends nothing is not a round to ride along with
        extra = [deferred.request for deferred in riders if deferred.request is not None]
        results = self._communicate([*requests, *extra])
        for deferred, value in zip(riders, results[len(requests) :], strict=True):
            deferred.advance(value)
        self._deferred = [deferred for deferred in self._deferred if deferred.request is not None]
        return results[: len(requests)]

    @overload
    def defer(self, request: Open | TruncateOpen, /) -> Deferred[Opened]: ...
    @overload
    def defer(self, request: Truncate, /) -> Deferred[Share]: ...
    @overload
    def defer(self, request: Truncate, then: type[Open], /) -> Deferred[Opened]: ...
    def defer(self, request: Request, *then: Callable[..., Request]) -> Deferred[Any]:
        """Puts a request off until the next round that happens anyway: independent work then costs no rounds.

        `then` makes the next request from the result, for the round after: `defer(Truncate(x, 12), Open)`.
        """
        deferred: Deferred[Any] = Deferred(self.communicate, request, then)
        self._deferred.append(deferred)
        return deferred

    def _communicate(self, requests: Sequence[Request]) -> tuple[Result, ...]:
        for request in requests:
            if isinstance(request, Truncate | TruncateOpen):
                ask.check_truncation(request, self.here)
            even = not (isinstance(request, TruncateOpen) and request.modulus)
            if isinstance(request, ask.Give | TruncateOpen | ask.Choose) and request.share.modulus and even:
                raise ShapeError(f"{self.here}: this is not done in an odd ring: truncate into Z_2^w first")
        late = [i for i, r in enumerate(requests) if not self.fused and isinstance(r, TruncateOpen) and not r.modulus]
        if not late:
            return tuple(self._round(requests))
        first = self._round(
            [
                Truncate(r.share, r.shift, r.width) if i in late and isinstance(r, TruncateOpen) else r
                for i, r in enumerate(requests)
            ]
        )
        results = list(first)
        shares = [result for i in late if isinstance(result := first[i], Share)]
        for i, opened in zip(late, self._round([Open(share) for share in shares]), strict=True):
            results[i] = opened
        return tuple(results)

    @abstractmethod
    def _round(self, requests: Sequence[Request]) -> list[Result]:
        """Carries out one round."""

    @overload
    def open(self, share: Share, /) -> Opened: ...
    @overload
    def open(self, share: Share, other: Share, /, *more: Share) -> tuple[Opened, ...]: ...
    def open(self, *shares: Share) -> Opened | tuple[Opened, ...]:
        """Opens shares under fresh masks. One round."""
        results = self.communicate(*(Open(share) for share in shares))
        opened = tuple(result for result in results if isinstance(result, Opened))
        return opened if len(shares) > 1 else opened[0]

    def truncate(self, share: Share, shift: int, width: int | Ring = WORD) -> Share:
        """x / 2^shift. One round, one bit each way and element; nothing at all into a ring narrow enough."""
        ring = as_ring(width)
        (result,) = self.communicate(Truncate(share, shift, ring.width, ring.modulus))
        assert isinstance(result, Share)
        return result

    def truncate_to(self, share: Share, fraction: int, width: int | Ring = WORD) -> Share:
        """The same value with fewer fraction bits, in a ring; a round, or nothing if it has them already."""
        ring = as_ring(width)
        if share.fraction == fraction and share.ring == ring:
            return share
        if share.fraction == fraction and not share.modulus and not ring.modulus and share.width >= ring.width:
            return share.narrow(ring.width)
        return self.truncate(share, share.fraction - fraction, ring)

    def truncate_open(self, share: Share, shift: int, width: int = WORD) -> Opened:
        """x / 2^shift, opened. One round."""
        if shift == 0 and width <= share.width:
            return self.open(share.narrow(width))
        if shift == 0:  # to come into a wider ring takes a truncation, by a bit that is zero
            share, shift = share.lift(share.fraction + 1), 1
        (result,) = self.communicate(TruncateOpen(share, shift, width))
        assert isinstance(result, Opened)
        return result

    def reopen(self, share: Share, fraction: int, width: int | Ring = WORD) -> Opened:
        """The value with `fraction` bits, opened: in one round, or in two with less correlated randomness.

        One takes about twice the randomness in Z_2^w, where it is usual, and four times in an odd ring.
        """
        share, ring = share.lift(max(fraction, share.fraction)), as_ring(width)
        shift, even = share.fraction - fraction, not share.modulus and not ring.modulus
        needed = shift or (share.width < ring.width if even else share.ring != ring)
        possible = self.fused if even else self.odd and bool(ring.modulus)
        if needed and possible and self.goes(IN_ONE_ROUND, usually=self.fused):
            if even:
                return self.truncate_open(share, shift, ring.width)
            (result,) = self.communicate(TruncateOpen(share, shift, ring.width, ring.modulus))
            assert isinstance(result, Opened)
            return result
        return self.open(self.truncate_to(share, fraction, ring))

    def reopen_later(self, share: Share, fraction: int, width: int | Ring = WORD) -> Deferred[Opened]:
        """The same in two rounds that happen anyway."""
        share, ring = share.lift(max(fraction, share.fraction)), as_ring(width)
        return self.defer(Truncate(share, share.fraction - fraction, ring.width, ring.modulus), Open)

    def give(self, share: Share) -> Given:
        """Opens a share to the server only. One round."""
        (result,) = self.communicate(ask.Give(share))
        assert isinstance(result, Given)
        return result

    def reveal(self, share: Share, to: int = CLIENT) -> Words | None:
        """The value itself, to one party or both. One round."""
        (result,) = self.communicate(ask.Reveal(share, to))
        assert result is None or isinstance(result, np.ndarray)
        return result

    def look_up(self, index: Share, *tables: Table) -> tuple[Share, ...]:
        """A share of every column of public tables at a secret place. Two rounds."""
        if index.fraction or any(2**index.width != table.entries for table in tables):
            raise ShapeError(
                f"{self.here}: an index of {index.width} bits, {index.fraction} of them fraction bits, does not fit "
                f"a table of {tables[0].entries} entries"
            )
        chosen = self.communicate(*(ask.Choose(index, table) for table in tables))
        fetched = self.communicate(*(ask.Fetch(each) for each in chosen if isinstance(each, ask.Chosen)))
        return tuple(share for columns in fetched if isinstance(columns, tuple) for share in columns)

    # Local work on masked tensors --------------------------------------------------------------------

    @abstractmethod
    def _locally(self, step: ask.Step) -> Words | None:
        """Carries out one step."""

    def evaluate(
        self,
        polynomial: Polynomial,
        opened: Mapping[str, Opened],
        *,
        fraction: int | None = None,
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
        if len({operand.modulus for operand in operands}) > 1:
            raise ShapeError(f"{self.here}: a polynomial's variables were opened in different rings")
        ring = min((operand.ring for operand in operands), key=lambda each: each.width)
        if not ring.holds(bound * 2.0**fraction):
            raise RangeError(
                f"{self.here}: a polynomial's value up to {bound:g} with {fraction} fraction bits does not fit into "
                f"a ring of {ring.width} bits"
            )
        try:
            shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        except ValueError as error:
            raise ShapeError(f"{self.here}: shapes do not fit: {[operand.shape for operand in operands]}") from error
        words = self._locally(ask.Evaluate(terms, operands, shape))
        return Share(shape, fraction, bound, ring.width, words, ring.modulus)

    def product(self, left: Opened, right: Opened, bound: float | None = None) -> Share:
        """left ⊙ right with broadcasting. Local."""
        if bound is None:
            bound = left.bound * right.bound
        (a, b) = (Polynomial({((name, 1),): 1.0}) for name in ("left", "right"))
        return self.evaluate(a * b, {"left": left, "right": right}, bound=bound)

    def square_sum(self, x: Opened, bound: float | None = None) -> Share:
        """Σ x² along the last axis, that axis kept with length 1. Local."""
        if x.step:
            raise ShapeError(f"{self.here}: a sum of squares needs a tensor that was opened without a truncation")
        shape = (*x.shape[:-1], 1)
        if bound is None:
            bound = x.shape[-1] * x.bound**2
        return Share(shape, 2 * x.fraction, bound, x.width, self._locally(ask.SquareSum(x)), x.modulus)

    def matmul(self, x: Opened, y: Opened, *, transposed: bool = False, bound: float | None = None) -> Share:
        """x·y, or x·yᵀ if transposed, over the last two axes; equal batch axes. Local."""
        inner = y.shape[-1] if transposed else y.shape[-2]
        if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != inner or len(x.shape) < 2:
            raise ShapeError(f"{self.here}: cannot multiply matrices {x.shape} and {y.shape}, transposed={transposed}")
        if x.step or y.step or x.modulus or y.modulus:
            raise ShapeError(f"{self.here}: a matrix product needs tensors opened in Z_2^w without a truncation")
        if bound is None:
            bound = inner * x.bound * y.bound
        step = ask.MatMul(x, y, transposed)
        return Share(step.shape, x.fraction + y.fraction, bound, step.width, self._locally(step))

    def linear(self, x: Given, weight: Weight, bound: float | None = None) -> Share:
        """x·Wᵀ with the server's matrix. Local."""
        if len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
            raise ShapeError(f"{self.here}: weight {weight.name} has shape {weight.shape}, its input {x.shape}")
        return self._weighed(ask.Weigh(x, weight), bound)

    def scale(self, x: Given, weight: Weight, bound: float | None = None) -> Share:
        """x ⊙ w with a vector of the server's along the last axis. Local."""
        if weight.shape != (x.shape[-1],):
            raise ShapeError(f"{self.here}: weight {weight.name} has shape {weight.shape}, its input {x.shape}")
        return self._weighed(ask.Weigh(x, weight), bound)

    def _weighed(self, step: ask.Weigh, bound: float | None) -> Share:
        x, weight = step.x, step.weight
        if bound is None:
            bound = weight.gain * x.bound
        return Share(step.shape, x.fraction + weight.fraction, bound, x.width, self._locally(step))

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
