"""Is truncation exact? Many random values through the real two-party protocol, with dealt randomness.

For every shift d and random z with |z| <= 2^61 the result must be floor(z/2^d) or one more, never a wrap-around, and
z/2^d on average.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.engine.party import PartySession
from comet_mpc.engine.seeds import expand, new_seed
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import Share
from comet_mpc.errors import ConfigurationError
from comet_mpc.testing import Weights, run_two_parties

SHIFTS = (1, 4, 12, 16, 24, 40, 58)
CHUNK = 1 << 20

_LARGEST = 61
_BOUND = 2.0**_LARGEST


class TruncationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One shift. Errors are in units of the last place."""

    shift: int
    values: int
    largest_value: int
    wraps: int
    max_error: float
    mean_error: float
    standard_error: float
    """Of the mean, were the errors independent and as large as they are."""
    seconds: float

    @property
    def exact(self) -> bool:
        """With few values the mean is off by chance alone: it counts from five standard errors on."""
        allowed = max(0.01, 5.0 * self.standard_error)
        return self.wraps == 0 and self.max_error <= 1.0 and abs(self.mean_error) < allowed


def check_truncation(
    values: int, shifts: Sequence[int] = SHIFTS, *, progress: Callable[[int, int], object] = lambda done, total: None
) -> list[TruncationRecord]:
    """Divides so many values among the shifts, and tells `progress` how many are done, of all."""
    if values < len(shifts):
        raise ConfigurationError(f"{values} values are too few: there must be one for each of {len(shifts)} shifts")
    shares = [values // len(shifts) + (place < values % len(shifts)) for place in range(len(shifts))]
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, values)

    return [_check_shift(shift, count, advance) for shift, count in zip(shifts, shares, strict=True)]


def _check_shift(shift: int, values: int, advance: Callable[[int], None]) -> TruncationRecord:
    start = time.perf_counter()
    done = wraps = largest = 0
    worst = total = squares = 0.0
    while done < values:
        count = min(CHUNK, values - done)
        z = _draw(count)
        result = _truncate(z, shift)
        steps = result - (z >> np.int64(shift))  # 0 or 1, or something else
        wrapped = (steps < 0) | (steps > 1)
        rest = (z & np.int64(2**shift - 1)).astype(np.float64) * 2.0**-shift
        error = (steps.astype(np.float64) - rest)[~wrapped]
        done += count
        wraps += int(np.count_nonzero(wrapped))
        largest = max(largest, int(np.max(np.abs(z))))
        worst = max(worst, float(np.max(np.abs(error), initial=0.0)))
        total += float(error.sum())
        squares += float(np.square(error).sum())
        advance(count)
    right = max(1, done - wraps)
    return TruncationRecord(
        shift=shift,
        values=done,
        largest_value=largest,
        wraps=wraps,
        max_error=worst,
        mean_error=total / right,
        standard_error=(squares / right) ** 0.5 / right**0.5,
        seconds=time.perf_counter() - start,
    )


def _draw(count: int) -> npt.NDArray[np.int64]:
    """Signed values: half of them uniform in size up to 2^61, half uniform in their number of bits; the ends too."""
    words = expand(new_seed(), 0, count).view(np.int64)
    z = words >> np.int64(63 - _LARGEST)  # uniform in [-2^61, 2^61)
    bits = expand(new_seed(), 0, count) % np.uint64(_LARGEST + 1)
    z = np.where(words & np.int64(1), z >> bits.view(np.int64), z)
    ends = np.array([2**_LARGEST, -(2**_LARGEST), 0, -1, 1, 2**_LARGEST - 1], np.int64)[:count]
    z[: ends.size] = ends
    return z


def _truncate(z: npt.NDArray[np.int64], shift: int) -> npt.NDArray[np.int64]:
    """The protocol between two parties, on fresh shares of z."""
    first = expand(new_seed(), 0, z.size)
    words = (first, z.view(np.uint64) - first)

    def program(session: Session, _: Weights) -> Share:
        held = words[session.party] if isinstance(session, PartySession) else None
        return session.truncate(Share(z.shape, 0, _BOUND, values=held), shift)

    run = run_two_parties(program)
    return (run.client.flat() + run.server.flat()).view(np.int64)
