"""A protocol of your own: how far is the client's point from each of the server's points?

    python examples/your_own_protocol.py

The client learns the squared distances, and nothing else about the points. The server learns nothing.
One function is the whole protocol. It is planned, run in the clear (its twin), and run by two processes, which prepare
their randomness between themselves; then value, bytes and rounds are compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from comet_mpc import CLIENT, SERVER, Session, Weight, decode
from comet_mpc.testing import run_two_parties

Reals = npt.NDArray[np.float64]

BITS = 12  # fraction bits of a value
POINTS = np.array([[0.5, -0.3, 0.2], [1.0, 1.0, -1.0], [0.0, 0.1, 0.7], [-0.6, 0.4, 0.5]])  # the server's
POINT = np.array([0.3, 0.2, 0.6])  # the client's


def distances(session: Session, weights: Mapping[str, Weight]) -> Reals | None:
    """|x - p|² = |x|² - 2·x·p + |p|² for every row p of the server's points, revealed to the client.

    Domain: coordinates within ±1. Rounds: 3. Reveals the distances to the client, and nothing else.
    """
    points = weights["points"]
    count, size = points.shape
    # A private value is taken from its owner; the other party runs the same line and holds a share of zero.
    # Every private value has a public bound. The plan proves from the bounds that nothing leaves the ring.
    x = session.private(CLIENT, (1, size), BITS, 1.0, POINT[None, :])
    xx = session.private(CLIENT, (1, 1), 2 * BITS, float(size), [[float(POINT @ POINT)]])
    pp = session.private(SERVER, (1, count), 2 * BITS, float(size), (POINTS**2).sum(axis=1)[None, :])

    with session.part("products"):  # names the rounds in the plan
        given = session.give(x)  # round 1: the server learns x under a mask that the client alone knows
        xp = session.linear(given, points)  # local: shares of x·p for all rows
    with session.part("distances"):
        total = xx + pp - xp.times(2)  # local: adding shares costs nothing
        result = session.truncate_to(total, BITS)  # round 2: back to 12 fraction bits
        words = session.reveal(result, CLIENT)  # round 3
    return None if words is None else decode(words, BITS)[0]


def main() -> None:
    points = Weight.encode("points", POINTS, BITS, gain=float(POINTS.shape[1]))  # gain: a public bound of row sums
    # A truncation rounds at random, the twin to the nearest: the two may be one unit of the last place apart.
    run = run_two_parties(distances, {"points": points}, source="pair", processes=True, tolerance=2.0**-BITS)
    for entry in run.plan.schedule:
        print(f"{entry.part}: the client sends {entry.from_client} bytes, the server {entry.from_server}")
    print("in the clear:", run.twin)
    print("by two parties:", run.value)
    online = run.traffic[CLIENT]
    print(f"online: planned {run.plan.online_bytes} bytes in {run.plan.rounds} rounds")
    print(f"online: measured {online.sent + online.received} bytes in {online.rounds} rounds")
    print(f"offline: {run.offline.sent + run.offline.received} bytes in {run.offline.rounds} rounds, as planned")

    exact = ((POINTS - POINT) ** 2).sum(axis=1)
    print(f"largest error: {np.abs(run.value - exact).max():.1e}")
    assert run.server is None, "the server learns nothing"


if __name__ == "__main__":
    main()
