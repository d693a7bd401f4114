"""What a program is written against: one interface, three ways to run it.

A program is an ordinary function of a `Session` and some shares. It can be *planned* (`plan.py`: shapes only),
run as its plaintext fixed-point *twin* (`twin.py`), or run for real by two parties (`party.py`).

All communication goes through `communicate`: one call is one round, and its requests say what happens in it.

    Open(x)              both parties learn x - a, for a fresh uniform mask a
    Truncate(x, d)       a share of x / 2^d, off by less than one unit, unbiased; one masked bit each way (or nothing)
    TruncateOpen(x, d)   both in one round and without the bits, at the price of more correlated randomness
    Give(x)              the server learns x - a, for a mask a that the client alone knows
    Reveal(x, to)        the result: a party learns x itself
    Choose(x, table)     the server asks for a table's entries at x, x being shared: x_s under a uniform mask
    Fetch(chosen)        the client gives all entries under pads, of which the server knows the one that it asked for

Everything else is local. In particular any polynomial in opened tensors is (`evaluate`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.polynomial import Exponents, Polynomial
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, WORD, Share, Words, encode, word_bytes
from comet_mpc.engine.tables import Table
from comet_mpc.errors import RangeError, ScaleError, ShapeError

__all__ = [
    "FUSE_UP_TO",
    "Choose",
    "Chosen",
    "Deferred",
    "Fetch",
    "Give",
    "Given",
    "Open",
    "Opened",
    "Request",
    "Result",
    "Reveal",
    "Session",
    "Truncate",
    "TruncateOpen",
    "Weight",
    "wire_bytes",
]


Last = TypeVar("Last")

FUSE_UP_TO = 1 << 14
"""Elements of a tensor up to which `Session.reopen` truncates and opens in one round."""


@dataclass(frozen=True, eq=False)
class Open:
    """Opens a share under a fresh uniform mask. 8 bytes an element and party in a 64-bit ring, fewer in a narrower."""

    share: Share


@dataclass(frozen=True, eq=False)
class Truncate:
    """z -> z / 2^shift in a ring of `width` bits. Needs |z| < 2^(w-2), which the share's bound proves.

    Into a ring of at most w - shift bits it is free: the wrap-around that has to be taken back is a multiple of
    2^(w-shift), which is zero there, so each party shifts its own share and nothing is sent.
    """

    share: Share
    shift: int
    width: int = WORD

    @property
    def free(self) -> bool:
        return self.width <= self.share.width - self.shift


@dataclass(frozen=True, eq=False)
class TruncateOpen:
    """z -> z / 2^shift, opened. One round; where the source of randomness cannot do it, two."""

    share: Share
    shift: int
    width: int = WORD


@dataclass(frozen=True, eq=False)
class Give:
    """Opens a share to the server only, so that its weights can be applied. One message, client to server."""

    share: Share


@dataclass(frozen=True, eq=False)
class Reveal:
    """Gives a party (or both) the value itself: the result of the computation, or what a protocol says it leaks."""

    share: Share
    to: int = CLIENT


@dataclass(frozen=True, eq=False)
class Choose:
    """First half of a look-up: the server asks for the entries at x, a whole number in a ring of log2(entries) bits."""

    share: Share
    table: Table


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was asked for. drawn: this party's words of the transfers; start: where they begin in the client's view."""

    share: Share
    table: Table
    drawn: tuple[Words, ...] = field(default=(), repr=False)
    start: Words | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Fetch:
    """Second half: the client gives every entry of every table, hidden. Bytes: count · entries · size of an entry."""

    chosen: Chosen

    @property
    def share(self) -> Share:
        return self.chosen.share


Request = Open | Truncate | TruncateOpen | Give | Reveal | Choose | Fetch


class Deferred(Generic[Last]):
    """A request (and what follows from it) that rides along with rounds that happen anyway. See `Session.defer`."""

    def __init__(self, session: Session, request: Request, then: Sequence[Callable[..., Request]]) -> None:
        self._session = session
        self._request: Request | None = request
        self._then = list(then)
        self._value: object = None

    @property
    def request(self) -> Request | None:
        """What is still to be carried out."""
        return self._request

    def advance(self, value: object) -> None:
        self._value = value
        self._request = self._then.pop(0)(value) if self._then else None

    def result(self) -> Last:
        """The last request's result; whatever was not carried along by now takes rounds of its own."""
        while self._request is not None:
            self._session.communicate()
        return cast(Last, self._value)


@dataclass(frozen=True, eq=False)
class Opened:
    """A secret tensor v = public + m whose `public` part both parties know; m is a mask nobody knows.

    sign    ±1 by element, for a mask that truncates (`drawing._mask_expansion`)
    known   shares of monomials of m and of others' that were drawn already, by (masks, powers, carries)
    """

    shape: tuple[int, ...]
    fraction: int
    bound: float
    width: int
    mask: int
    public: Words | None = field(default=None, repr=False)
    sign: Words | None = field(default=None, repr=False)
    step: int = 0
    known: dict[tuple[object, ...], Words] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Given:
    """A secret tensor v = public + a: the server knows `public`, the client knows `a`."""

    shape: tuple[int, ...]
    fraction: int
    bound: float
    width: int
    mask: int
    public: Words | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix (outputs, inputs) or a vector of the server's, in fixed point.

    gain    public bound of the largest row sum of |w|: |W·x| <= gain · bound(x). The server checks it on loading.
    values  int32, at the server and in a twin
    masked  W - B in Z_2^64, at the client, downloaded once per model (`dealing.mask_weight`)
    """

    name: str
    shape: tuple[int, ...]
    fraction: int
    gain: float
    values: npt.NDArray[np.int32] | None = field(default=None, repr=False)
    masked: Words | None = field(default=None, repr=False)

    @staticmethod
    def encode(name: str, values: npt.ArrayLike, fraction: int, gain: float | None = None) -> Weight:
        """The server's weight in fixed point; without a public gain, the true one is used."""
        real = np.asarray(values, dtype=np.float64)
        scaled = np.rint(real * 2.0**fraction)
        if not np.all(np.isfinite(scaled)) or (scaled.size and np.max(np.abs(scaled)) >= 2**31):
            raise RangeError(f"weight {name}: a value does not fit into 32 bits with {fraction} fraction bits")
        fixed = scaled.astype(np.int32)
        rows = np.abs(scaled).reshape(-1, scaled.shape[-1]).sum(axis=-1) if scaled.ndim == 2 else np.abs(scaled)
        true_gain = float(rows.max(initial=0.0)) * 2.0**-fraction
        if gain is not None and true_gain > gain:
            raise RangeError(f"weight {name}: its largest row sum is above the public gain {gain:g}")
        return Weight(name, real.shape, fraction, true_gain if gain is None else gain, fixed)

    def public(self) -> Weight:
        """What the other party may know: name, shape, scale and gain."""
        return Weight(self.name, self.shape, self.fraction, self.gain)


def wire_bytes(request: Request) -> tuple[int, int]:
    """Payload bytes of a request: (from the client, from the server)."""
    share = request.share
    full = share.count * word_bytes(share.width)
    match request:
        case Open() | TruncateOpen():
            return full, full
        case Truncate(free=free):
            packed = 0 if free else (share.count + 7) // 8
            return packed, packed
        case Give():
            return full, 0
        case Reveal(to=to):
            return (full if to in (SERVER, BOTH) else 0), (full if to in (CLIENT, BOTH) else 0)
        case Choose():
            return 0, full
        case Fetch(chosen=chosen):
            return share.count * chosen.table.entries * sum(chosen.table.sizes), 0


def _check_truncation(request: Truncate | TruncateOpen, part: str) -> None:
    share = request.share
    if isinstance(request, TruncateOpen) and request.shift == 0:
        raise RangeError(f"{part}: opening without a truncation is Open")
    if not 0 <= request.shift <= share.width - 2:
        raise RangeError(f"{part}: cannot truncate by {request.shift} bits in a ring of {share.width}")
    if share.bound * 2.0 ** (share.fraction - request.shift) >= 2.0 ** (request.width - 2):
        raise RangeError(f"{part}: the truncated value does not fit into a ring of {request.width} bits")
    if share.bound * 2.0**share.fraction >= 2.0 ** (share.width - 2):
        raise RangeError(
            f"{part}: a value up to {share.bound:g} with {share.fraction} fraction bits may reach 2^{share.width - 2}, "
            f"where a truncation in a ring of {share.width} bits is no longer exact"
        )


def truncated(request: Truncate, values: Words | None) -> Share:
    """The result of a truncation; the bound grows by the unit in the last place by which it may be off."""
    share, shift = request.share, request.shift
    bound = share.bound + (2.0 ** (shift - share.fraction) if shift else 0.0)
    return Share(share.shape, share.fraction - shift, bound, request.width, values)


def opened(request: Open | TruncateOpen, mask: int, public: Words | None) -> Opened:
    """The result of an opening, before its mask's shares are filled in."""
    share = request.share
    if isinstance(request, Open):
        return Opened(share.shape, share.fraction, share.bound, share.width, mask, public)
    after = truncated(Truncate(share, request.shift, request.width), None)
    step = share.width - 1 - request.shift
    return Opened(share.shape, after.fraction, after.bound, request.width, mask, public, step=step)


def given(request: Give, mask: int, public: Words | None) -> Given:
    share = request.share
    return Given(share.shape, share.fraction, share.bound, share.width, mask, public)


def looked_up(chosen: Chosen, columns: Sequence[Words | None]) -> tuple[Share, ...]:
    """The result of a look-up: a share of every column."""
    shape = chosen.share.shape
    return tuple(
        Share(shape, column.fraction, column.bound, column.width, None if words is None else words.reshape(shape))
        for column, words in zip(chosen.table.columns, columns, strict=True)
    )


Result = Share | Opened | Given | Chosen | tuple[Share, ...] | Words | None
"""What a request gives."""


class Session(ABC):
    """One run of a program: a plan, a twin, or a party's side of the real thing."""

    fused: bool = True
    """Whether truncation and opening may share a round (the source of randomness must support it)."""

    permits_leaks: bool = False
    """Whether protocols that are known to leak may run: for research only, never to serve a client."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._deferred: list[Deferred[Any]] = []

    # What a program is made of --------------------------------------------------------------------

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Names what is being computed, for cost tables and messages: `with session.part("attention"):`."""
        self._parts.append(name)
        try:
            yield
        finally:
            self._parts.pop()

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
        width: int = WORD,
    ) -> Share:
        """A party's own value as a share: the owner holds it, the other holds zero. Nothing is sent or revealed."""
        words = None
        if self.holds(owner):
            if values is None:
                raise ShapeError(f"{self.here}: the owner of a private value must supply it")
            real = np.asarray(values, dtype=np.float64)
            if real.shape != shape:
                raise ShapeError(f"{self.here}: a private value has shape {real.shape}, expected {shape}")
            if real.size and float(np.max(np.abs(real))) > bound:
                raise RangeError(f"{self.here}: a private value exceeds its bound {bound:g}")
            words = encode(real, fraction, width)
        rounded = max(bound, round(bound * 2.0**fraction) * 2.0**-fraction)
        return Share(shape, fraction, rounded, width, self._trivial(owner, shape, words))

    def constant(self, values: npt.ArrayLike, fraction: int, width: int = WORD) -> Share:
        """A public value as a share."""
        real = np.asarray(values, dtype=np.float64)
        bound = float(np.max(np.abs(real), initial=0.0)) + 2.0 ** -(fraction + 1)
        words = self._trivial(CLIENT, real.shape, encode(real, fraction, width))
        return Share(real.shape, fraction, bound, width, words)

    def add_constant(self, share: Share, values: npt.ArrayLike) -> Share:
        """x + c for public c, in x's own scale."""
        return share + self.constant(values, share.fraction)

    # Communication ---------------------------------------------------------------------------------

    def communicate(self, *requests: Request) -> tuple[Result, ...]:
        """One round for all the requests together (two where `fused` is off and one of them truncates and opens)."""
        free = requests and not any(any(wire_bytes(request)) for request in requests)
        riders = [] if free else list(self._deferred)  # what sends nothing is not a round to ride along with
        extra = [deferred.request for deferred in riders if deferred.request is not None]
        results = self._communicate([*requests, *extra])
        for deferred, value in zip(riders, results[len(requests) :], strict=True):
            deferred.advance(value)
        self._deferred = [deferred for deferred in self._deferred if deferred.request is not None]
        return results[: len(requests)]

    @overload
    def defer(self, request: Open, /) -> Deferred[Opened]: ...
    @overload
    def defer(self, request: Truncate, /) -> Deferred[Share]: ...
    @overload
    def defer(self, request: Truncate, then: type[Open], /) -> Deferred[Opened]: ...
    def defer(self, request: Request, *then: Callable[..., Request]) -> Deferred[Any]:
        """Puts a request off until the next round that happens anyway: independent work then costs no rounds.

        `then` makes the next request from the result, for the round after: `defer(Truncate(x, 12), Open)`.
        """
        deferred: Deferred[Any] = Deferred(self, request, then)
        self._deferred.append(deferred)
        return deferred

    def _communicate(self, requests: Sequence[Request]) -> tuple[Result, ...]:
        for request in requests:
            if isinstance(request, Truncate | TruncateOpen):
                _check_truncation(request, self.here)
        if self.fused or not any(isinstance(request, TruncateOpen) for request in requests):
            return tuple(self._round(requests))
        first = self._round(
            [Truncate(r.share, r.shift, r.width) if isinstance(r, TruncateOpen) else r for r in requests]
        )
        late = [i for i, request in enumerate(requests) if isinstance(request, TruncateOpen)]
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

    def truncate(self, share: Share, shift: int, width: int = WORD) -> Share:
        """x / 2^shift. One round, one bit each way and element; nothing at all into a ring narrow enough."""
        (result,) = self.communicate(Truncate(share, shift, width))
        assert isinstance(result, Share)
        return result

    def truncate_to(self, share: Share, fraction: int, width: int = WORD) -> Share:
        """The same value with fewer fraction bits; a round, or nothing if it has them already."""
        if share.fraction == fraction and share.width >= width:
            return share.narrow(width)
        return self.truncate(share, share.fraction - fraction, width)

    def truncate_open(self, share: Share, shift: int, width: int = WORD) -> Opened:
        """x / 2^shift, opened. One round."""
        if shift == 0 and width <= share.width:
            return self.open(share.narrow(width))
        if shift == 0:  # to come into a wider ring takes a truncation, by a bit that is zero
            share, shift = share.lift(share.fraction + 1), 1
        (result,) = self.communicate(TruncateOpen(share, shift, width))
        assert isinstance(result, Opened)
        return result

    def reopen(self, share: Share, fraction: int, width: int = WORD) -> Opened:
        """The value with `fraction` bits, opened: one round for a small tensor, two for a large one.

        Doing both in one round takes about twice the correlated randomness, so it is kept for where rounds count
        and bytes do not: the quantities that there is one of per row.
        """
        share = share.lift(max(fraction, share.fraction))
        shift = share.fraction - fraction
        if shift == 0 and share.width >= width:
            return self.open(share.narrow(width))
        if share.count <= FUSE_UP_TO:
            return self.truncate_open(share, shift, width)
        return self.open(self.truncate(share, shift, width))

    def give(self, share: Share) -> Given:
        """Opens a share to the server only. One round."""
        (result,) = self.communicate(Give(share))
        assert isinstance(result, Given)
        return result

    def reveal(self, share: Share, to: int = CLIENT) -> Words | None:
        """The value itself, to one party or both. One round."""
        (result,) = self.communicate(Reveal(share, to))
        assert result is None or isinstance(result, np.ndarray)
        return result

    def look_up(self, index: Share, *tables: Table) -> tuple[Share, ...]:
        """A share of every column of public tables at a secret place. Two rounds."""
        if index.fraction or any(2**index.width != table.entries for table in tables):
            raise ShapeError(
                f"{self.here}: a table of {tables[0].entries} entries has no place for a ring of {index.width} bits"
                f" with {index.fraction} fraction bits"
            )
        chosen = self.communicate(*(Choose(index, table) for table in tables))
        fetched = self.communicate(*(Fetch(each) for each in chosen if isinstance(each, Chosen)))
        return tuple(share for columns in fetched if isinstance(columns, tuple) for share in columns)

    # Local work on opened tensors --------------------------------------------------------------------

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
            raise ShapeError(f"{self.here}: the polynomial has no variable: use constant")
        missing = [name for name in names if name not in opened]
        if missing:
            raise ShapeError(f"{self.here}: the polynomial needs {', '.join(missing)}, which was not opened")
        operands = [opened[name] for name in names]
        fractions = {name: operand.fraction for name, operand in zip(names, operands, strict=True)}
        if fraction is None:
            fraction = max(sum(power * fractions[name] for name, power in key) for key in polynomial.terms)
        terms = polynomial.quantised(fractions, fraction)
        width = min(operand.width for operand in operands)
        if bound * 2.0**fraction >= 2.0 ** (width - 2):
            raise RangeError(
                f"{self.here}: a polynomial's value up to {bound:g} with {fraction} fraction bits does not fit into "
                f"a ring of {width} bits"
            )
        try:
            shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        except ValueError as error:
            raise ShapeError(f"{self.here}: shapes do not fit: {[operand.shape for operand in operands]}") from error
        return Share(shape, fraction, bound, width, self._evaluate(terms, operands, shape))

    @abstractmethod
    def _evaluate(
        self, terms: list[tuple[int, Exponents]], operands: list[Opened], shape: tuple[int, ...]
    ) -> Words | None: ...

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
        return Share(shape, 2 * x.fraction, bound, x.width, self._square_sum(x))

    @abstractmethod
    def _square_sum(self, x: Opened) -> Words | None: ...

    def matmul(self, x: Opened, y: Opened, *, transposed: bool = False, bound: float | None = None) -> Share:
        """x·y, or x·yᵀ if transposed, over the last two axes; equal batch axes. Local."""
        inner = y.shape[-1] if transposed else y.shape[-2]
        if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != inner or len(x.shape) < 2:
            raise ShapeError(f"{self.here}: cannot multiply matrices {x.shape} and {y.shape}, transposed={transposed}")
        if x.step or y.step:
            raise ShapeError(f"{self.here}: a matrix product needs tensors that were opened without a truncation")
        shape = (*x.shape[:-1], y.shape[-2] if transposed else y.shape[-1])
        if bound is None:
            bound = inner * x.bound * y.bound
        width = min(x.width, y.width)
        return Share(shape, x.fraction + y.fraction, bound, width, self._matmul(x, y, transposed, shape, width))

    @abstractmethod
    def _matmul(self, x: Opened, y: Opened, transposed: bool, shape: tuple[int, ...], width: int) -> Words | None: ...

    def linear(self, x: Given, weight: Weight, bound: float | None = None) -> Share:
        """x·Wᵀ with the server's matrix. Local."""
        if len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
            raise ShapeError(f"{self.here}: weight {weight.name} has shape {weight.shape}, its input {x.shape}")
        if bound is None:
            bound = weight.gain * x.bound
        shape = (*x.shape[:-1], weight.shape[0])
        return Share(shape, x.fraction + weight.fraction, bound, x.width, self._linear(x, weight, shape))

    @abstractmethod
    def _linear(self, x: Given, weight: Weight, shape: tuple[int, ...]) -> Words | None: ...

    def scale(self, x: Given, weight: Weight, bound: float | None = None) -> Share:
        """x ⊙ w with a vector of the server's along the last axis. Local."""
        if weight.shape != (x.shape[-1],):
            raise ShapeError(f"{self.here}: weight {weight.name} has shape {weight.shape}, its input {x.shape}")
        if bound is None:
            bound = weight.gain * x.bound
        return Share(x.shape, x.fraction + weight.fraction, bound, x.width, self._scale(x, weight))

    @abstractmethod
    def _scale(self, x: Given, weight: Weight) -> Words | None: ...

    def mean(self, x: Share, axis: int = -1) -> Share:
        """The mean along an axis, with one truncation that also absorbs the division. One round."""
        size = x.shape[axis]
        total = x.sum(axis, keep=True)
        spare = min(WORD - 3 - math.ceil(math.log2(max(total.bound * 2.0**x.fraction, 1.0) + 1)), 24)
        factor = round(2.0**spare / size) if spare > 0 else 0
        error = abs(factor * size / 2.0**spare - 1.0)
        if error > 2.0**-12:
            raise ScaleError(f"{self.here}: no room in the ring for a mean over {size} values: give them fewer bits")
        mean = self.truncate(total.times(factor).times_power(-spare), spare)
        return mean.bounded(x.bound * (1.0 + error) + 2.0**-x.fraction)
