"""Whether the machine has a core to spare, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE, _WAITING = 4, 5
"""Columns of the line of all cores: clock ticks in which they had nothing to do, or waited for a disk."""
_WINDOW = 0.1
"""Seconds between two looks, at least."""
_LONG_AGO = 1.0
"""What was before a look of so many seconds ago says nothing of now."""
_MOST_OF_IT = 0.9


class Cores:
    """now: seconds of any clock."""

    def __init__(self, now: float) -> None:
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._at, self._idle = now, self._idle_ticks()

    def spare(self, now: float) -> bool:
        """Whether a whole core was idle since the last look; False if that was just now. True if nobody can tell."""
        if now - self._at < _WINDOW:
            return False
        before, self._idle = self._idle, self._idle_ticks()
        seconds, self._at = now - self._at, now
        if before is None or self._idle is None:
            return True
        if seconds > _LONG_AGO:
            return False
        return self._idle - before >= _MOST_OF_IT * seconds * self._ticks

    def _idle_ticks(self) -> int | None:
        try:
            columns = _STAT.read_text().split("\n", 1)[0].split()
            return int(columns[_IDLE]) + int(columns[_WAITING])
        except (OSError, ValueError, IndexError):
            return None
