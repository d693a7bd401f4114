"""The protocol must be below the limit, and what is broken on purpose above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comet_mpc.local.audit.report import Finding
from comet_mpc.local.audit.statistics import LIMIT

__all__ = ["assert_nothing_but_caught", "worst"]


def worst(found: Sequence[Finding], message: str, to: str) -> Mapping[str, float]:
    """The statistics of one kind of message to one party."""
    (one,) = (finding for finding in found if (finding.message, finding.to) == (message, to))
    return one.surprise


def assert_nothing_but_caught(
    protocol: Sequence[Finding], control: Sequence[Finding], message: str, to: str, statistic: str | None = None
) -> None:
    """Nothing in the protocol; in the control, something by any statistic, or by the one that is named."""
    real, broken = worst(protocol, message, to), worst(control, message, to)
    assert max(real.values()) < LIMIT, real
    assert (max(broken.values()) if statistic is None else broken[statistic]) > LIMIT, broken
