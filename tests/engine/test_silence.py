"""Nothing secret is in what is printed: representations and messages of errors."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from comet_mpc.engine import Open, Truncate, Weight
from comet_mpc.engine.ops.operation import Drawn
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.share import CLIENT, SERVER, encode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CometError
from comet_mpc.net.channel import memory_pair
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing, DealtRandomness, mask_weight
from support.every_message import X, Y
from support.two_parties import KEY

SECRET = 1.2345678
WORD_OF_IT = int(encode([SECRET], 16)[0])
TRACES = (str(SECRET), "1.23", str(WORD_OF_IT), hex(WORD_OF_IT), f"{WORD_OF_IT:x}", "array(")


def assert_silent(text: str, *more: str) -> None:
    for trace in (*TRACES, *more):
        assert trace not in text


def test_nothing_secret_is_in_a_representation() -> None:
    session = TwinSession()
    x = session.private(CLIENT, (2,), 16, 2.0, [SECRET, SECRET])
    weight = Weight.encode("w", [SECRET, -SECRET], 16, gain=2.0)
    masked = Weight("w", (2,), 16, 2.0, masked=mask_weight(KEY, weight))
    seed = bytes(range(65, 81))
    bundle = Bundle(SERVER, seed, (), io.BytesIO(b"correction"))
    source = DealtRandomness(bundle)
    channel, _ = memory_pair()
    drawn = Drawn(0, (x.flat(),))
    shown: list[object] = [
        x,
        Open(x),
        Truncate(x, 2),
        session.open(x),
        session.truncate_open(x, 2),
        session.give(x),
        weight,
        masked,
        bundle,
        source,
        Dealing((), seed, (seed, seed)),
        drawn,
        session,
        PartySession(SERVER, channel, source),
    ]
    for thing in shown:
        for text in (repr(thing), str(thing), repr([thing])):
            assert_silent(text, seed.hex(), seed.decode(), repr(seed), "correction'")


def mistakes() -> dict[str, Callable[[], object]]:
    session = TwinSession()
    values = np.array([SECRET, SECRET])
    x = session.private(CLIENT, (2,), 16, 2.0, values)
    weight = Weight.encode("w", [[SECRET, SECRET]], 16, gain=3.0)
    return {
        "bound of a private value": lambda: session.private(CLIENT, (2,), 16, 1.0, values),
        "shape of a private value": lambda: session.private(CLIENT, (3,), 16, 2.0, values),
        "encoding": lambda: encode(values, 62),
        "weight that does not fit": lambda: Weight.encode("w", values, 40),
        "weight above its gain": lambda: Weight.encode("w", [values], 16, gain=1.0),
        "shapes": lambda: x + session.private(CLIENT, (3,), 16, 2.0, np.full(3, SECRET)),
        "scales": lambda: x + x.lift(20),
        "values of another shape": lambda: x.with_values(np.full((3,), WORD_OF_IT, np.uint64)),
        "truncation": lambda: session.truncate(x.lift(61), 4),
        "weight of another shape": lambda: session.linear(session.give(x.reshape(1, 2)[:, :1]), weight),
        "polynomial": lambda: session.evaluate(X * Y, {"x": session.open(x)}, bound=2.0),
    }


@pytest.mark.parametrize("mistake", mistakes())
def test_nothing_secret_is_in_a_message(mistake: str) -> None:
    with pytest.raises(CometError) as caught:
        mistakes()[mistake]()
    assert_silent(str(caught.value))
    assert_silent(repr(caught.value))
