"""Points of an interval, and a program that takes 1/sqrt of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.functions.rule import InverseRule, Reals, inverse_sqrt
from support.two_parties import Program

__all__ = ["of_secret", "points"]


def points(low: float, high: float, count: int = 96) -> Reals:
    return np.rint(np.geomspace(1.001 * low, 0.999 * high, count) * 2.0**20) * 2.0**-20


def of_secret(t: Reals, high: float, rule: InverseRule) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        half = session.private(CLIENT, t.shape, 20, high, t / 2.0)
        return inverse_sqrt(session, (half + session.private(SERVER, t.shape, 20, high, t / 2.0)).bounded(high), rule)

    return program
