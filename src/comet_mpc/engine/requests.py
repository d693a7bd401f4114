"""What a program asks of its session: requests, which communicate, and steps, which are local; and what both work on.

A request is carried out by `Session.communicate`, several at a time in one round:

    Open(x)              both parties learn x - a, for a fresh uniform mask a
    Truncate(x, d)       a share of x / 2^d, off by less than one unit, unbiased; one masked bit each way (or nothing)
    TruncateOpen(x, d)   both in one round and without the bits, at the price of more correlated randomness
    Give(x)              the server learns x - a, for a mask a that the client alone knows
    Reveal(x, to)        the result: a party learns x itself
    Choose(x, table)     the server asks for a table's entries at x, x being shared: x_s under a uniform mask
    Fetch(chosen)        the client gives all entries under pads, of which the server knows the one that it asked for

A program writes requests itself. Steps are made by the methods of `Session`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import kernels
from comet_mpc.engine.polynomial import Exponents
from comet_mpc.engine.ring import Conversion, Ring
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, WORD, Share, Words
from comet_mpc.engine.tables import Table
from comet_mpc.errors import RangeError, ShapeError

Last = TypeVar("Last")


@dataclass(frozen=True, eq=False)
class Masked:
    """A secret tensor v = public + m, m being a mask."""

    shape: tuple[int, ...]
    fraction: int
    bound: float
    width: int
    mask: int
    public: Words | None = field(default=None, repr=False)
    modulus: int = 0

    @property
    def ring(self) -> Ring:
        return Ring(self.width, self.modulus)

    def words(self) -> Words:
        """The public part, where it is known."""
        if self.public is None:
            raise ShapeError("this run does not hold the public part of a masked tensor")
        return self.public


@dataclass(frozen=True, eq=False)
class Opened(Masked):
    """Both parties know `public`; nobody knows the mask m.

    factors  public numbers by element, for a mask that truncates (`demand._mask_expansion`)
    step     of such a mask in Z_2^w: what its top bit is worth is 2^step
    wrap     of such a mask in an odd ring: what the product of the parties' bits is worth
    known    shares of monomials of m and of others' that were drawn already, by (masks, powers, carries)
    """

    factors: tuple[Words, ...] = field(default=(), repr=False)
    step: int = 0
    wrap: int = 0
    known: dict[tuple[object, ...], Words] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Given(Masked):
    """The server knows `public`, the client knows the mask."""


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix (outputs, inputs) or a vector of the server's, in fixed point.

    gain    public bound of the largest row sum of |w|: |W·x| <= gain · bound(x). The server checks it on loading.
    values  int32, at the server and in a twin
    masked  W - B in Z_2^64, at the client, downloaded once per model (`offline.dealer.bundles.mask_weight`)
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

    def fixed(self) -> npt.NDArray[np.int32]:
        """The numbers themselves, where they are known."""
        if self.values is None:
            raise ShapeError(f"weight {self.name} has no values in this run")
        return self.values

    def public(self) -> Weight:
        """What the other party may know: name, shape, scale and gain."""
        return Weight(self.name, self.shape, self.fraction, self.gain)


@dataclass(frozen=True, eq=False)
class Open:
    """Opens a share under a fresh uniform mask. 8 bytes an element and party in a 64-bit ring, fewer in a narrower."""

    share: Share


@dataclass(frozen=True, eq=False)
class _Shifted:
    """A share divided by 2^shift, into the ring of `width` bits, or `modulus`."""

    share: Share
    shift: int
    width: int = WORD
    modulus: int = 0

    @property
    def conversion(self) -> Conversion:
        return Conversion(self.share.ring, self.shift, Ring(self.width, self.modulus))


class Truncate(_Shifted):
    """z -> z / 2^shift in the ring of `width` bits, or `modulus`. Needs |z| below a quarter of its own ring, which the
    share's bound proves.

    From Z_2^w into Z_2^(w - shift) or less it is free: the wrap-around that has to be taken back is a multiple of
    2^(w-shift), which is zero there, so each party shifts its own share and nothing is sent.
    """

    @property
    def free(self) -> bool:
        return not self.share.modulus and not self.modulus and self.width <= self.share.width - self.shift


class TruncateOpen(_Shifted):
    """z -> z / 2^shift, opened. One round; where the source of randomness cannot do it, two.

    Into an odd ring: each party sends its part of the truncated value under a mask, and the bit of a truncation with
    it; that the bits' product is still missing is a matter of the mask (`demand._mask_expansion`).
    """

    @property
    def ring(self) -> Ring:
        """That of what is sent."""
        return Ring(self.width, self.modulus) if self.modulus else self.share.ring


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

    def __init__(
        self, communicate: Callable[[], object], request: Request, then: Sequence[Callable[..., Request]]
    ) -> None:
        self._communicate = communicate
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
            self._communicate()
        return cast(Last, self._value)


@dataclass(frozen=True, eq=False)
class Evaluate:
    """A polynomial in opened tensors, with ring coefficients, broadcast to a shape."""

    terms: list[tuple[int, Exponents]]
    operands: list[Opened]
    shape: tuple[int, ...]

    @property
    def ring(self) -> Ring:
        """The narrowest of the operands'; if one is odd, all are in it."""
        return min((operand.ring for operand in self.operands), key=lambda ring: ring.width)


@dataclass(frozen=True, eq=False)
class SquareSum:
    """Σ x² along the last axis."""

    x: Opened


@dataclass(frozen=True, eq=False)
class MatMul:
    """x·y, or x·yᵀ if transposed, over the last two axes."""

    x: Opened
    y: Opened
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:-1], self.y.shape[-2 if self.transposed else -1])

    @property
    def width(self) -> int:
        return min(self.x.width, self.y.width)


@dataclass(frozen=True, eq=False)
class Weigh:
    """x·Wᵀ for a matrix of the server's, x ⊙ w along the last axis for a vector."""

    x: Given
    weight: Weight

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:-1], self.weight.shape[0])

    def public_product(self) -> Words:
        """The weight with what the server knows of x."""
        public, fixed = self.x.words(), self.weight.fixed()
        if fixed.ndim == 1:
            return public * fixed.astype(np.int64).view(np.uint64)
        return kernels.matmul_int32(public.reshape(-1, fixed.shape[1]), fixed).reshape(self.shape)


Step = Evaluate | SquareSum | MatMul | Weigh

BIT = Ring(1)
Message = tuple[tuple[Ring, int], ...]
"""So many elements of a ring, packed bit by bit; then so many of the next. Each part begins with a whole byte."""

Result = Share | Opened | Given | Chosen | tuple[Share, ...] | Words | None
"""What a request gives."""


def messages(request: Request) -> tuple[Message, Message]:
    """What a request sends: (the client's message, the server's)."""
    share = request.share
    full: Message = ((share.ring, share.count),)
    match request:
        case TruncateOpen(modulus=modulus, ring=ring) if modulus:
            both: Message = ((ring, share.count), (BIT, share.count))
            return both, both
        case Open() | TruncateOpen():
            return full, full
        case Truncate(free=free):
            bits: Message = () if free else ((BIT, share.count),)
            return bits, bits
        case Give():
            return full, ()
        case Reveal(to=to):
            return (full if to in (SERVER, BOTH) else ()), (full if to in (CLIENT, BOTH) else ())
        case Choose():
            return (), full
        case Fetch(chosen=chosen):
            entries = share.count * chosen.table.entries
            return tuple((Ring(8 * size), entries) for size in chosen.table.sizes), ()


def wire_bytes(request: Request) -> tuple[int, int]:
    """Payload bytes of a request: (from the client, from the server)."""
    client, server = (sum(ring.wire_bytes(count) for ring, count in message) for message in messages(request))
    return client, server


def check_truncation(request: Truncate | TruncateOpen, part: str) -> None:
    share = request.share
    if isinstance(request, TruncateOpen) and request.shift == 0 and not request.modulus:
        raise RangeError(f"{part}: a TruncateOpen by no bits is an Open: ask for that")
    if not 0 <= request.shift <= share.width - 2:
        raise RangeError(f"{part}: cannot truncate by {request.shift} bits in a ring of {share.width}")
    target = Ring(request.width, request.modulus)
    if not target.holds(share.bound * 2.0 ** (share.fraction - request.shift)):
        raise RangeError(f"{part}: the truncated value does not fit into a ring of {request.width} bits")
    if not share.ring.holds(share.bound * 2.0**share.fraction + (2.0**request.shift if share.modulus else 0.0)):
        raise RangeError(
            f"{part}: a value up to {share.bound:g} with {share.fraction} fraction bits may reach 2^{share.width - 2}, "
            f"where a truncation in a ring of {share.width} bits is no longer exact"
        )


def truncated(request: Truncate, values: Words | None) -> Share:
    """The result of a truncation; the bound grows by the unit in the last place by which it may be off."""
    share, shift = request.share, request.shift
    unit = 2.0 ** (shift - share.fraction) * (1.125 if share.modulus else 1.0) if shift else 0.0
    return Share(share.shape, share.fraction - shift, share.bound + unit, request.width, values, request.modulus)


def opened(request: Open | TruncateOpen, mask: int, public: Words | None) -> Opened:
    """The result of an opening, before its mask's shares are filled in."""
    share = request.share
    if isinstance(request, Open):
        return Opened(share.shape, share.fraction, share.bound, share.width, mask, public, share.modulus)
    after = truncated(Truncate(share, request.shift, request.width, request.modulus), None)
    found = Opened(share.shape, after.fraction, after.bound, request.width, mask, public, request.modulus)
    if request.modulus:
        return replace(found, wrap=request.conversion.wrap)
    return replace(found, step=share.width - 1 - request.shift)


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
