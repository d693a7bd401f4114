"""A protocol of your own: how far is the client's point from each of the server's points?

    python examples/your_own_protocol.py

The client learns the squared distances, nothing else about the points. The server learns nothing.
One function is the whole protocol. It is run three ways: planned, in the clear (its twin), and by two parties.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from comet_mpc import CLIENT, SERVER, Session, Weight, decode, plan_program, run_twin

# To run a program between two parties you need a channel and prepared randomness. These names are not part of the
# public face: they may change with any release, and this example with them.
from comet_mpc.engine.party import PartySession
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.pair.prepare import prepare_bundle

Reals = npt.NDArray[np.float64]

BITS = 12  # fraction bits of a value
POINTS = np.array([[0.5, -0.3, 0.2], [1.0, 1.0, -1.0], [0.0, 0.1, 0.7], [-0.6, 0.4, 0.5]])  # the server's
POINT = np.array([0.3, 0.2, 0.6])  # the client's


def distances(session: Session, points: Weight, squares: Reals | None, point: Reals | None) -> Reals | None:
    """|x - p|² = |x|² - 2·x·p + |p|² for every row p of the server's points, told to the client.

    Domain: coordinates within ±1. Rounds: 3. Reveals the distances to the client, and nothing else.
    The server supplies `squares` (|p|²) and the values of `points`, the client supplies `point`.
    """
    count, size = points.shape
    # Every private value has a public bound. The plan proves from the bounds that nothing leaves the ring.
    x = session.private(CLIENT, (1, size), BITS, 1.0, None if point is None else point[None, :])
    xx = session.private(CLIENT, (1, 1), 2 * BITS, float(size), None if point is None else [[float(point @ point)]])
    pp = session.private(SERVER, (1, count), 2 * BITS, float(size), None if squares is None else squares[None, :])

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
    squares = (POINTS**2).sum(axis=1)

    # 1. Plan: shapes only. `fused=False` because two parties without a dealer truncate and open in two rounds.
    plan = plan_program(lambda session: distances(session, points.public(), None, None), fused=False)
    for entry in plan.schedule:
        print(f"{entry.part}: the client sends {entry.from_client} bytes, the server {entry.from_server}")

    # 2. Twin: the same integers, in the clear. It would raise if a value were above its bound.
    twin = run_twin(lambda session: distances(session, points, squares, POINT))
    print("in the clear:", twin)

    # 3. Two parties. Each runs the same function, with its own inputs only.
    def party(number: int, channel: Channel) -> Reals | None:
        weights = {"points": points} if number == SERVER else None
        randomness = prepare_bundle(channel, number, plan.correlations, weights)  # offline, before there is a point
        before = channel.traffic
        session = PartySession(number, channel, randomness)
        if number == SERVER:
            result = distances(session, points, squares, None)
        else:
            result = distances(session, points.public(), None, POINT)
        assert (channel.traffic - before).sent == plan.sent(number), "the plan is exact"
        return result

    with ThreadPoolExecutor(2) as pool:
        client, server = pool.map(party, (CLIENT, SERVER), memory_pair())
    print("by two parties:", client)

    exact = ((POINTS - POINT) ** 2).sum(axis=1)
    assert server is None, "the server learns nothing"
    assert client is not None
    error = float(np.abs(client - exact).max())
    assert error < 8 * 2.0**-BITS, "inputs are rounded to 12 fraction bits, and a truncation adds less than a unit"
    print(f"largest error: {error:.1e}")


if __name__ == "__main__":
    main()
