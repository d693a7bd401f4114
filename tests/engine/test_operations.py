"""An operation is one class: another package registers its own in one line, and what is not registered never runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from comet_mpc.engine import Opened, Session, Share, Words
from comet_mpc.engine.correlations import Correlation, Mask
from comet_mpc.engine.ops import OPERATIONS, Open
from comet_mpc.engine.ops.operation import Drawn, Registry, Request, Step, expect
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import ConfigurationError, ShapeError
from support.recording import recording_pair
from support.two_parties import Weights, as_parties, deal, opened, run_two_parties


@dataclass(frozen=True, eq=False)
class Announce(Open):
    """A request of another package."""


@dataclass(frozen=True, eq=False)
class NegateAndBlind(Step):
    """-x + r - r for a fresh mask r: a step of another package that draws randomness."""

    x: Opened

    def demand(self) -> tuple[Correlation, ...]:
        return (Mask(self.x.shape, self.x.width, 0, self.x.width),)

    def result(self, words: Words | None) -> Share:
        return Share(self.x.shape, self.x.fraction, self.x.bound, self.x.width, words)

    def in_the_clear(self) -> Words:
        return np.uint64(0) - self.x.words()

    def compute(self, party: int, drawn: Drawn | None) -> Words:
        (mask,) = expect(drawn, 1)
        whole = self.x.own_mask() + (self.x.words() if party == CLIENT else np.uint64(0))
        return np.uint64(0) - whole + mask.reshape(self.x.shape) - mask.reshape(self.x.shape)


@pytest.fixture
def registered() -> Iterator[None]:
    OPERATIONS.register(Announce, NegateAndBlind)
    yield
    for operation in (Announce, NegateAndBlind):
        del OPERATIONS._operations[operation.__name__]


def program(session: Session, _: Weights) -> Share:
    x = session.private(CLIENT, (3,), 12, 2.0, [0.5, -1.25, 2.0])
    return session.compute(NegateAndBlind(session.request(Announce(x))))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_registered_operation_is_planned_run_in_the_clear_and_run_by_two_parties(source: str) -> None:
    run = run_two_parties(program, source=source, tolerance=0.0)  # type: ignore[arg-type]
    assert np.array_equal(run.value, [-0.5, 1.25, -2.0])
    assert [type(correlation) for correlation in run.plan.correlations] == [Mask, Mask]


def test_what_is_not_registered_is_refused_before_anything_is_sent() -> None:
    ends = recording_pair()
    bundles = deal([Mask((3,), 64, 0, 64)] * 2)

    def work(party: int) -> None:
        with pytest.raises(ShapeError, match="Announce is not a registered operation"):
            program(PartySession(party, ends[party], opened(bundles[party])), {})

    as_parties(lambda _, party: work(party), ends)
    assert not ends[CLIENT].received
    assert ends[CLIENT].traffic.sent == 0


def test_a_class_that_borrows_a_registered_name_is_refused() -> None:
    fake = type("Open", (Open,), {})
    with pytest.raises(ConfigurationError, match="another operation Open"):
        OPERATIONS.register(fake)
    with pytest.raises(ShapeError, match="Open is not a registered operation"):
        OPERATIONS.check(fake(Share((1,), 0, 1.0)), "program")


def test_the_registry_lists_what_may_travel() -> None:
    requests = {each.__name__ for each in OPERATIONS if issubclass(each, Request)}
    assert requests >= {"Open", "Truncate", "TruncateOpen", "Give", "Reveal"}
    assert list(Registry(Open)) == [Open]
