"""A program with every kind of message, for two inputs and two models, and fixed seeds to run it with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, TruncateOpen, Weight
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.seeds import derive_seed
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.rule import inverse_sqrt
from comet_research.look_up import Column, Table, look_up
from support.two_parties import Program

__all__ = ["LARGE", "SMALL", "TABLE", "X", "Y", "everything", "model", "seeds"]

Reals = npt.NDArray[np.float64]

X, Y = variables("x y")
RULE = minimax_rule(2.0**-6, 2.0, 3)
TABLE = Table((Column(tuple(range(256)), 8), Column(tuple(range(0, -512, -2)), 24)))
ROWS, COLUMNS = 8, 16  # counts are multiples of eight, so that packed bits have no padding


def seeds(run: int) -> tuple[bytes, bytes]:
    client, server = (derive_seed(b"privacy tests", name, str(run)) for name in ("client", "server"))
    return client, server


def everything(x: Reals, y: Reals) -> Program[object]:
    """A program with every kind of message but the result's: x is the client's, y the server's."""

    def program(session: Session, weights: Mapping[str, Weight]) -> object:
        first = session.private(CLIENT, x.shape, 12, 1.0, x)
        second = session.private(SERVER, y.shape, 12, 1.0, y)
        a, b = session.open(first, second)
        product = session.evaluate(X**2 * Y + X, {"x": a, "y": b}, bound=2.0)
        truncated = session.truncate(product, 24)
        scores = session.matmul(*session.open(truncated, second), transposed=True)
        narrow = session.open(session.truncate(scores, 12, 24))
        fused = session.truncate_open(product, 20)
        session.open(session.evaluate(X**2, {"x": fused}, bound=4.1))
        t = session.add_constant(session.evaluate(X**2, {"x": a}, bound=1.0), 0.25)
        if session.odd:
            ring = session.ring(24, 2.0)
            session.communicate(TruncateOpen(t, t.fraction - 12, ring.width, ring.modulus))
        session.open(session.truncate_to(inverse_sqrt(session, t, RULE), 12))
        session.open(session.square_sum(a), session.mean(second))
        session.open(*look_up(session, second.digit_sum(1, 7), TABLE))
        linear = session.linear(session.give(first), weights["matrix"])
        session.open(session.scale(session.give(linear), weights["vector"]))
        return narrow

    return program


def model(scale: float) -> dict[str, Weight]:
    rng = np.random.default_rng(3)
    return {
        "matrix": Weight.encode("matrix", scale * rng.uniform(-1, 1, (COLUMNS, COLUMNS)), 10, gain=20.0),
        "vector": Weight.encode("vector", scale * rng.uniform(-1, 1, COLUMNS), 10, gain=20.0),
    }


SHAPE = (ROWS, COLUMNS)
SMALL = everything(np.zeros(SHAPE), np.zeros(SHAPE)), model(0.0)
LARGE = everything(np.full(SHAPE, 0.99), np.linspace(-1.0, 1.0, ROWS * COLUMNS).reshape(SHAPE)), model(1.0)
