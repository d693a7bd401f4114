"""Bytes, seconds and counts as people read them."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """Decimal units, as networks count: 19.3 MB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000.0
        if count < 999.5:
            return f"{_three_digits(count)} {unit}"
    return f"{_three_digits(count / 1000.0)} GB"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def human_seconds(seconds: float) -> str:
    return f"{seconds * 1000.0:.0f} ms" if seconds < 0.9995 else f"{_three_digits(seconds)} s"


def about(seconds: float) -> str:
    """An estimate, no more exact than it can be: about 40 s, about 12 min, about 2.5 h."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


def counted(count: int, one: str, many: str | None = None) -> str:
    """1 layer, 12 layers."""
    return f"{count} {one if count == 1 else many or one + 's'}"
