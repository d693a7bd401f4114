"""Many messages in flight: in one order, within a window, in as many rounds as planned, and never in a deadlock."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import PeerClosed, PeerError, PeerTimeout, WrongSize
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.transformer import SHAPES
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.net.sockets import TcpChannel
from comet_mpc.offline.pair.costs import preparation_parts, preparation_traffic
from comet_mpc.offline.sources import PAIR
from comet_mpc.offline.streaming import (
    Planned,
    Request,
    Sizes,
    Turn,
    Work,
    converse,
    events,
    planned_rounds,
)
from support.latency import stamped_pair
from support.two_parties import as_parties, outcome
from support.waiting import PATIENCE


class Echo(Request):
    """The question is a number, over and over; the answer is one more. Sizes are multiples of 8."""

    def __init__(self, number: int, sizes: Sizes) -> None:
        self.number, self._sizes = number, sizes
        self.finished = False

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def ask(self) -> list[bytes]:
        return [struct.pack("<Q", self.number) * (self._sizes.question // 8)]

    def answer(self, question: memoryview) -> list[bytes]:
        assert bytes(question) == struct.pack("<Q", self.number) * (self._sizes.question // 8)
        return [struct.pack("<Q", self.number + 1) * (self._sizes.answer // 8)]

    def finish(self, answer: memoryview) -> None:
        assert bytes(answer) == struct.pack("<Q", self.number + 1) * (self._sizes.answer // 8)
        self.finished = True


Shape = list[list[Sizes]]
"""The steps of a work."""

MULTIPLES = st.integers(0, 40).map(lambda count: 8 * count)
SIZES = st.builds(Sizes, st.sampled_from([CLIENT, SERVER]), MULTIPLES.map(lambda size: size + 8), MULTIPLES)
WORKS: st.SearchStrategy[list[Shape]] = st.lists(st.lists(st.lists(SIZES, max_size=5), max_size=3), max_size=6)


def echoes(shapes: Sequence[Shape], party: int) -> Iterator[Work[Request]]:
    number = count()

    def steps(shape: Shape) -> Iterator[list[Echo]]:
        for sizes in shape:
            step = [Echo(next(number), size) for size in sizes]
            yield step
            assert all(one.finished == (one.sizes.asker == party) for one in step)

    return (Work(steps(shape)) for shape in shapes)


def planned(shapes: Sequence[Shape]) -> Iterator[Work[Planned]]:
    return (Work(iter([[Planned(size) for size in step] for step in shape])) for shape in shapes)


@settings(max_examples=100, deadline=None)
@given(WORKS, st.sampled_from([1, 200, 1000, 1 << 20]))
def test_bytes_and_rounds_are_the_planned_ones(shapes: list[Shape], window: int) -> None:
    """Rounds are those of channels that stamp their frames and know nothing of a plan."""
    ends = stamped_pair(PATIENCE)
    as_parties(lambda channel, party: converse(channel, party, echoes(shapes, party), window), ends)
    rounds = planned_rounds(planned(shapes), window).total()
    assert max(end.now for end in ends) == rounds
    sizes = [size for shape in shapes for step in shape for size in step]
    for party, end in enumerate(ends):
        assert end.traffic == sum((size.traffic(party) for size in sizes), Traffic(rounds=rounds))


@settings(max_examples=100, deadline=None)
@given(WORKS, st.sampled_from([1, 200, 1000]))
def test_no_more_is_in_flight_than_the_window_allows_and_nothing_is_left_out(shapes: list[Shape], window: int) -> None:
    turns: dict[Turn, list[Planned]] = {turn: [] for turn in Turn}
    for event in events(planned(shapes), window):
        turns[event.turn].append(event.item)
        flying = [max(one.sizes[1:]) for one in turns[Turn.ASK][len(turns[Turn.FINISH]) :]]
        assert sum(flying) <= window or len(flying) == 1
    asked, answered, finished = ([id(one) for one in turns[turn]] for turn in Turn)
    assert asked == answered == finished
    expected = Counter(size for shape in shapes for step in shape for size in step)
    assert Counter(one.sizes for one in turns[Turn.ASK]) == expected


def test_a_hundred_questions_of_both_parties_take_two_rounds_or_a_few_windows() -> None:
    shape = [[Sizes(number % 2, 80, 80) for number in range(100)]]
    assert planned_rounds(planned([shape]), 8000).total() == 2
    assert planned_rounds(planned([shape] * 2), 8000).total() == 5
    assert planned_rounds(planned([shape]), 1600).total() < 12
    assert planned_rounds(planned([shape]), 1).total() > 100  # one after the other: the control


def test_work_waits_for_the_masks_that_it_uses_and_for_no_others() -> None:
    def work(defines: set[int], uses: set[int], name: str) -> Work[Planned]:
        return Work(iter([[Planned(Sizes(CLIENT, 8, 8))]]), frozenset(defines), frozenset(uses), name)

    works = [work({1}, set(), "a"), work({2}, set(), "b"), work(set(), {1}, "uses a"), work(set(), {7}, "c")]
    happened = [(event.turn, event.part) for event in events(works)]
    assert happened.index((Turn.ASK, "b")) < happened.index((Turn.FINISH, "a"))
    assert happened.index((Turn.FINISH, "a")) < happened.index((Turn.ASK, "uses a"))
    assert happened.index((Turn.ASK, "c")) < happened.index((Turn.FINISH, "uses a"))


def test_both_parties_may_have_more_in_flight_than_sockets_hold() -> None:
    """Sockets of a few kilobytes: a party that sends all before it receives would wait for ever."""
    pair = socket.socketpair()
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    shapes = [[[Sizes(number % 2, 160_000, 240_000) for number in range(12)]] for _ in range(3)]
    ends = TcpChannel(pair[0], PATIENCE), TcpChannel(pair[1], PATIENCE)
    as_parties(lambda channel, party: converse(channel, party, echoes(shapes, party), 2_000_000), ends)
    assert ends[0].traffic.sent == ends[1].traffic.received == 18 * (160_000 + 240_000 + 16)


# Peers that misbehave ------------------------------------------------------------------------------------------

ASKED = [[[Sizes(CLIENT, 800, 1600)] * 5]]


@pytest.mark.parametrize("party", [CLIENT, SERVER])
@pytest.mark.parametrize("size", [8, 799, 801, 1599, 1601, 1 << 24])
def test_a_frame_of_another_size_is_refused_before_it_is_read(party: int, size: int) -> None:
    near, far = memory_pair(PATIENCE)
    far.post([bytes(size)])
    assert isinstance(outcome(lambda: converse(near, party, echoes(ASKED, party))), WrongSize)
    assert near.closed


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_a_peer_that_dies_in_the_middle_is_noticed(party: int) -> None:
    near, far = memory_pair(PATIENCE)
    far.post([b"".join([struct.pack("<Q", 1 - party)] * (100 << (1 - party)))])  # as the first message should be
    far.close()
    assert isinstance(outcome(lambda: converse(near, party, echoes(ASKED, party))), PeerClosed)
    assert near.closed


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_a_peer_that_stalls_is_given_up(party: int) -> None:
    near, _ = memory_pair(0.05)
    assert isinstance(outcome(lambda: converse(near, party, echoes(ASKED, party))), PeerTimeout)
    assert near.closed


def test_a_peer_that_reads_nothing_is_given_up() -> None:
    """The client posts more than the socket takes, and nothing comes back."""
    pair = socket.socketpair()
    near = TcpChannel(pair[0], 0.05)
    shapes = [[[Sizes(CLIENT, 8_000_000, 8)]]]
    error = outcome(lambda: converse(near, CLIENT, echoes(shapes, CLIENT)))
    assert isinstance(error, PeerTimeout)
    assert "of 8000008 bytes" in str(error)
    assert near.closed
    pair[1].close()


def test_a_peer_that_asks_for_everything_and_reads_nothing_is_given_no_more_than_a_window() -> None:
    """Its questions are short and their answers are long: these would all be kept for it."""
    window, size, number = 1 << 20, 1 << 18, 200
    shapes = [[[Sizes(CLIENT, 8, size)]] * number]
    pair = socket.socketpair()
    near, far = TcpChannel(pair[0], 0.5), TcpChannel(pair[1], PATIENCE)
    for question in range(number):
        far.send(struct.pack("<Q", question))
    most = 0

    class Counting(Echo):
        def answer(self, question: memoryview) -> list[bytes]:
            nonlocal most
            most = max(most, near.unsent)
            return super().answer(question)

    steps = (([Counting(at, sizes)] for at, (sizes,) in enumerate(shape)) for shape in shapes)
    works: Iterator[Work[Request]] = (Work(iter(step)) for step in steps)
    assert isinstance(outcome(lambda: converse(near, SERVER, works, window)), PeerTimeout)
    assert near.closed
    assert window < most + size <= window + 2 * size
    far.close()


def test_what_a_request_does_not_accept_ends_the_connection() -> None:
    class Refusing(Echo):
        def answer(self, question: memoryview) -> list[bytes]:
            raise PeerError("this is no question")

    def work(channel: Channel, party: int) -> object:
        works: list[Work[Request]] = [Work(iter([[Refusing(0, Sizes(CLIENT, 8, 8))]]))]
        return outcome(lambda: converse(channel, party, works))

    client, server = as_parties(work, memory_pair(PATIENCE))
    assert "no question" in str(server)
    assert isinstance(client, PeerClosed)


# Preparations --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bert_base_is_prepared_in_sixty_rounds_at_most() -> None:
    plan = plan_shape(SHAPES["bert-base"], 128, 3, 1, "quadratic", PAIR)
    parts = preparation_parts(plan.correlations)
    assert sum(part.rounds for part in parts.values()) == preparation_traffic(plan.correlations).rounds <= 60
