"""What a dealer takes on: programs that it can read, that make sense and do not cost too much; so many at a time."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from comet_mpc.engine.correlations import AnyMask, Correlation, decode_correlations
from comet_mpc.errors import ForeignRandomness, ServerBusy
from comet_mpc.offline.dealer.bundles import Dealing
from comet_mpc.offline.dealer.fetch import PartyRole
from comet_mpc.offline.dealer.preparer import dealer_preparer

_MOST_ARRAYS = (1 << 16) - 2  # each array of a correlation has its own stream of the seed: `preparer.stream_of`


@dataclass(frozen=True)
class ProgramLimits:
    """The most that a dealer spends on one program."""

    program_bytes: int = 1 << 24
    """Length of its description."""
    correction_bytes: int = 1 << 36
    """Corrections are streamed, so this limits time, not memory."""
    held_words: int = 1 << 25
    """Words of masks that must be in memory at once, a whole matrix for example."""


def _referred(index: int, program: Sequence[Correlation]) -> list[AnyMask]:
    """The masks that the correlation at an index builds on. They stand before it in the program."""
    masks = []
    for reference in program[index].facts.references:
        mask = program[reference.mask] if reference.mask < index else None
        if not isinstance(mask, AnyMask) or not isinstance(mask, reference.kind):
            raise ForeignRandomness(
                f"correlation {index} refers to {reference.mask}, which is not a {reference.kind.__name__} before it"
            )
        masks.append(mask)
    return masks


def _held_words(index: int, program: Sequence[Correlation]) -> int:
    """Checks one correlation. Gives the words that `Dealing` holds at once for it, beyond a few chunks."""
    entry, masks = program[index], _referred(index, program)
    try:
        entry.check(masks)
    except ValueError as error:
        raise ForeignRandomness(f"correlation {index}, {type(entry).__name__}: {error}") from error
    if len(entry.facts.corrections) > _MOST_ARRAYS:
        raise ForeignRandomness(f"correlation {index} has more than {_MOST_ARRAYS} arrays")
    return dealer_preparer(entry).held_words(entry, masks)


def admit_program(data: bytes | bytearray, key: bytes, limits: ProgramLimits) -> Dealing:
    """A program from outside, ready to be dealt; `ForeignRandomness` if it makes no sense or asks for too much."""
    try:
        program = decode_correlations(bytes(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ForeignRandomness(f"the program cannot be read: {error}") from error
    held = max((_held_words(index, program) for index in range(len(program))), default=0)
    dealing = Dealing(program, key)
    if dealing.correction_bytes > limits.correction_bytes:
        raise ForeignRandomness(
            f"the program needs {dealing.correction_bytes} bytes of corrections, "
            f"this dealer allows {limits.correction_bytes}"
        )
    if held > limits.held_words:
        raise ForeignRandomness(
            f"the program needs {held} words in memory at once, this dealer allows {limits.held_words}"
        )
    return dealing


class Slots:
    """Places for bundles, as many for clients as for servers. One certificate gets three quarters of them at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: Counter[tuple[PartyRole, str | None]] = Counter()

    @contextlib.contextmanager
    def taken(self, role: PartyRole, name: str | None) -> Iterator[None]:
        with self._lock:
            count = self._count(role)
            if count >= self._most or self._held[role, name] >= max(1, self._most * 3 // 4):
                raise ServerBusy(f"the dealer is busy with {count} bundles; try again with another id")
            self._held[role, name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[role, name] -= 1
                if not self._held[role, name]:
                    del self._held[role, name]

    @property
    def full(self) -> bool:
        """For one of the roles at least."""
        with self._lock:
            return max(self._count("client"), self._count("server")) >= self._most

    def _count(self, role: PartyRole) -> int:
        return sum(count for (other, _), count in self._held.items() if other == role)
