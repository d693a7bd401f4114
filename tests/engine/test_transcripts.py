"""The bytes of every protocol under fixed seeds, by digest: a changed wire format shows up in review.

A change that is meant: `python tests/engine/test_transcripts.py` writes the digests anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.engine import Open, Session, Truncate, TruncateOpen, Weight
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.session import IN_ONE_ROUND, USUAL_WAYS
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, Share
from comet_mpc.functions.inverse_rule import MinimaxRule, RuleStep
from comet_mpc.functions.rule import inverse_sqrt
from comet_research.look_up import Column, Table, digit_sum, look_up
from support.recording import recording_pair
from support.two_parties import Program, run_two_parties

BASELINE = Path(__file__).with_name("transcripts.json")
SEEDS = (bytes(range(16)), bytes(range(16, 32)))
X, Y = variables("x y")


def _input(session: Session, width: int = 64, shape: tuple[int, ...] = (3, 4)) -> Share:
    grid = np.linspace(-1.5, 1.5, int(np.prod(shape))).reshape(shape)
    mine = session.private(CLIENT, shape, 12, 2.0, grid, width)
    return (mine + session.private(SERVER, shape, 12, 2.0, 0.25 * grid, width)).bounded(2.0)


def _open(session: Session, _: Mapping[str, Weight]) -> object:
    return session.open(_input(session))


def _open_narrow(session: Session, _: Mapping[str, Weight]) -> object:
    return session.open(_input(session, 24))


def _polynomial(session: Session, _: Mapping[str, Weight]) -> object:
    x, y = session.open(_input(session), _input(session, shape=(4,)))
    return session.open(session.evaluate(X**3 * Y - 0.5 * X, {"x": x, "y": y}, bound=32.0))


def _truncate(session: Session, _: Mapping[str, Weight]) -> object:
    return session.open(session.truncate(_input(session), 5))


def _truncate_free(session: Session, _: Mapping[str, Weight]) -> object:
    return session.open(session.truncate(_input(session), 5, 32))


def _truncate_into_odd(session: Session, _: Mapping[str, Weight]) -> object:
    """Into an odd ring, within it and out of it: small products of bits."""
    first, second = (Ring(modulus.bit_length(), modulus) for modulus in list(ODD_MODULI)[:2])
    x = session.truncate(session.truncate(_input(session).lift(24), 4, second), 5, first)
    return session.open(session.truncate(x, 3, 40))


def _cut_free(session: Session, _: Mapping[str, Weight]) -> object:
    (modulus, *_rest) = ODD_MODULI
    return session.open(session.cut_to(_input(session, 50).lift(30), 10, Ring(modulus.bit_length(), modulus), 16.0))


def _truncate_open(session: Session, _: Mapping[str, Weight]) -> object:
    x = session.truncate_open(_input(session), 5)
    return session.open(session.evaluate(X**3, {"x": x}, bound=9.0))


def _together(session: Session, _: Mapping[str, Weight]) -> object:
    x = _input(session)
    return session.communicate(Open(x), Truncate(x, 3), TruncateOpen(x, 4))


def _matmul(session: Session, _: Mapping[str, Weight]) -> object:
    x, y = session.open(_input(session), _input(session, shape=(5, 4)))
    return session.open(session.matmul(x, y, transposed=True))


def _square_sum(session: Session, _: Mapping[str, Weight]) -> object:
    return session.open(session.square_sum(session.open(_input(session))))


def _linear(session: Session, weights: Mapping[str, Weight]) -> object:
    return session.open(session.linear(session.give(_input(session)), weights["matrix"]))


def _scale(session: Session, weights: Mapping[str, Weight]) -> object:
    return session.open(session.scale(session.give(_input(session)), weights["vector"]))


def _mean(session: Session, _: Mapping[str, Weight]) -> object:
    return session.open(session.mean(_input(session)))


def _reveal(session: Session, _: Mapping[str, Weight]) -> object:
    x = session.evaluate(X**2, {"x": session.open(_input(session))}, bound=4.0)
    return [session.reveal(x, to) for to in (CLIENT, SERVER, BOTH)]


def _inverse_sqrt(session: Session, _: Mapping[str, Weight]) -> object:
    """With coefficients written out, so that the digest does not depend on how they are fitted."""
    step = RuleStep(a=1.5, shift=1, fraction=55, bound=8.0)
    rule = MinimaxRule(0.25, 1.0, 0.0, 0, 12, 14, (2.25, -1.5), 36, 4.0, (step,), 1.0, 4.0)
    shape = (6,)
    t = session.private(CLIENT, shape, 20, 1.0, np.linspace(0.25, 1.0, 6))
    return session.open(session.truncate_to(inverse_sqrt(session, t, rule), 12))


def _look_up(session: Session, _: Mapping[str, Weight]) -> object:
    table = Table((Column(tuple(range(16)), 8), Column(tuple(range(0, -32, -2)), 24, 4)))
    return session.open(*look_up(session, digit_sum(_input(session), 2, 3), table))


PROTOCOLS: dict[str, Program[object]] = {
    "open": _open,
    "open in a narrow ring": _open_narrow,
    "polynomial": _polynomial,
    "truncate": _truncate,
    "truncate into a narrow ring": _truncate_free,
    "truncate between odd rings": _truncate_into_odd,
    "cut into an odd ring": _cut_free,
    "truncate and open": _truncate_open,
    "three requests in a round": _together,
    "matrix product": _matmul,
    "sum of squares": _square_sum,
    "linear": _linear,
    "scale": _scale,
    "mean": _mean,
    "reveal": _reveal,
    "inverse square root": _inverse_sqrt,
    "look-up": _look_up,
}
CASES = [(name, fused) for name in PROTOCOLS for fused in (True, False)]


def transcript(name: str, *, fused: bool) -> str:
    """SHA-256 over the frames of both parties, each with its length."""
    weights = {
        "matrix": Weight.encode("matrix", np.linspace(-1.0, 1.0, 8).reshape(2, 4), 10),
        "vector": Weight.encode("vector", np.linspace(-1.0, 1.0, 4), 10),
    }
    ends = recording_pair()
    ways = USUAL_WAYS if fused else frozenset({f"inverse_sqrt: {IN_ONE_ROUND}"})
    run_two_parties(PROTOCOLS[name], weights, fused=fused, ways=ways, seeds=SEEDS, channels=ends)
    digest = hashlib.sha256()
    for end in ends:
        for frame in end.sent:
            digest.update(len(frame).to_bytes(8, "little") + frame)
        digest.update(b"end")
    return digest.hexdigest()


def _name(name: str, fused: bool) -> str:
    return f"{name}, {'fused' if fused else 'unfused'}"


@pytest.mark.parametrize(("name", "fused"), CASES)
def test_the_wire_is_as_it_was(name: str, fused: bool) -> None:
    baseline = json.loads(BASELINE.read_text())
    assert transcript(name, fused=fused) == baseline[_name(name, fused)], (
        "the bytes on the wire changed; if that is meant, raise the wire version and run this file to write them anew"
    )


def test_no_protocol_is_without_a_baseline_nor_the_other_way_round() -> None:
    assert set(json.loads(BASELINE.read_text())) == {_name(*case) for case in CASES}


if __name__ == "__main__":
    digests = {_name(name, fused): transcript(name, fused=fused) for name, fused in CASES}
    BASELINE.write_text(json.dumps(digests, indent=2) + "\n")
