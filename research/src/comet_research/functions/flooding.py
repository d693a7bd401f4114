"""The paper's initial guess: double approximation on flooded shares (its sections 3.2 and 3.3). NOT PRIVATE.

It reproduces what was published, and measures what it gives away. The product never imports this package, and a rule
that is not certified, such as `paper`, is neither stored nor served.

What it does. The server floods its share of x with F + r, r from a small range; the client holds x - F - r. Each takes
the bits of its share as a float, M + L·E, and a quarter of their sum, corrected by a constant, is taken for the bits
of 1/sqrt(x):

    M_y + L·E_y = -(M_c + L·E_c)/4 - (M_s + L·E_s)/4 + (3B - 3b - 1)·L/2 + (E_f - E_m)·L/2

What is wrong with it. The shares have opposite signs, so the mantissas add up to 2r - x and not to x: the guess is
a constant (0.483 for F = 8192 and E_m = 128) whatever x is. And both messages leak: x - F - r tells two values Δ
apart with advantage Δ/range(r) per element, and the guess opened in the clear gives 2r - x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.seeds import expand, new_seed
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, Share, decode

_MANTISSA = 2.0**23  # L
_BIAS = 127  # B


@dataclass(frozen=True)
class Flooding:
    """The paper's constants."""

    flood: float = 8192.0
    spread: float = 4.0
    """r is uniform in [0, spread)."""
    typical_exponent: int = 128
    """E_m, the exponent field of the most frequent value."""
    correction: float = 0.045
    """b in log2(1 + m) ≈ m + b."""

    @property
    def flood_exponent(self) -> int:
        return int(np.float32(self.flood).view(np.int32) >> 23)

    @property
    def server_constant(self) -> int:
        """The last two terms of the sum, which the server adds."""
        first = (3 * _BIAS - 3 * self.correction - 1) * _MANTISSA / 2
        return round(first + (self.flood_exponent - self.typical_exponent) * _MANTISSA / 2)


def float_bits(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """M + L·E of |v| as an IEEE 754 single: the fixed-to-float conversion of a share."""
    return np.abs(np.asarray(values, dtype=np.float32)).view(np.int32).astype(np.int64)


def flooded_shares(
    x: npt.ArrayLike, flooding: Flooding, uniform: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(client's, server's) flooded shares of x, given uniform numbers in [0, 1)."""
    mask = flooding.flood + uniform * flooding.spread
    return np.asarray(x, dtype=np.float64) - mask, mask


def constant_guess(flooding: Flooding) -> float:
    """The number that the double approximation gives for every x, up to the mantissas' 2r - x over the flood."""
    bits = -(2 * (flooding.flood_exponent << 23)) // 4 + flooding.server_constant
    return float(np.int32(bits).view(np.float32))


def flooded_guess_not_private(session: Session, x: Share, flooding: Flooding) -> Share:
    """y0 by double approximation. Rounds 2. LEAKS x - F - r to the client and 2r - x to both."""
    uniform = None
    if session.holds(SERVER):
        uniform = (expand(new_seed(), 0, x.count) >> np.uint64(11)).astype(np.float64).reshape(x.shape) * 2.0**-53
        uniform = flooding.flood + flooding.spread * uniform
    mask = session.private(SERVER, x.shape, x.fraction, flooding.flood + flooding.spread, uniform)
    flooded = session.reveal(x - mask, to=CLIENT)
    client = server = None
    if session.holds(CLIENT) and flooded is not None:
        client = -(float_bits(decode(flooded, x.fraction, x.width)) // 4)
    if session.holds(SERVER) and uniform is not None:
        server = flooding.server_constant - float_bits(uniform) // 4
    limit = 2.0**40
    bits = session.private(CLIENT, x.shape, 0, limit, client) + session.private(SERVER, x.shape, 0, limit, server)
    opened = session.reveal(bits, to=BOTH)
    guess = np.zeros(x.shape) if opened is None else opened.astype(np.uint32).view(np.float32).astype(np.float64)
    return session.constant(guess, x.fraction).bounded(1.0)


def fast_inverse_sqrt(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The one-party bit trick: as_float(0x5f3759df - as_int(x)/2), relative error at most 3.4 % for normal x > 0.

    It is the paper's equation for one party: M_y + L·E_y = (3/2)·L·(B - b) - (M_x + L·E_x)/2 with b = 0.045.
    """
    bits = np.asarray(x, dtype=np.float32).view(np.int32)
    return (np.int32(0x5F3759DF) - (bits >> 1)).view(np.float32)
