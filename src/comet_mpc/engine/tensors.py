"""What operations work on: tensors under masks, and the server's weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.polynomial import Exponents
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import Words
from comet_mpc.errors import RangeError, ShapeError

MonomialKey = tuple[tuple[int, ...], Exponents, Exponents]
"""A monomial of masks: (the masks' indices in the program, their powers, their carries)."""


@dataclass(frozen=True, eq=False)
class Masked:
    """A secret tensor v = public + m, m being a mask. mask: its index among the program's correlations"""

    shape: tuple[int, ...]
    fraction: float
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

    factors  public numbers by element, for a mask that truncates (`ops.evaluate`)
    step     of such a mask in Z_2^w: what its top bit is worth is 2^step
    wrap     of such a mask in an odd ring: what the product of the parties' bits is worth
    bits     the indices of those bits, the client's and the server's, among the program's correlations
    known    shares of monomials of m and of others' that were drawn already
    """

    factors: tuple[Words, ...] = field(default=(), repr=False)
    step: int = 0
    wrap: int = 0
    bits: tuple[int, ...] = ()
    known: dict[MonomialKey, Words] = field(default_factory=dict, repr=False)

    @property
    def _own_key(self) -> MonomialKey:
        return (self.mask,), (1,), (0,)

    def own_mask(self) -> Words:
        """This party's share of the mask, if it does not truncate."""
        return self.known[self._own_key]

    def with_mask(self, words: Words | None) -> Opened:
        """The same, after this party's share of the mask was drawn; None in a plan."""
        self.known[self._own_key] = np.empty(0, np.uint64) if words is None else words.reshape(self.shape)
        return self


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
