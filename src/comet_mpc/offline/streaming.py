"""Questions and answers in flight: how two parties prepare randomness without waiting for each message.

A `Request` is a question of one party's and the other's answer. Both know its sizes beforehand. Few requests need the
answer to another one, so a party asks ahead, as far as a window of bytes allows.

**One order.** `events` puts all requests into one order of events, which follows from public sizes alone: each request
is asked, answered and finished. Both parties go through the same events and carry out those that are theirs. So frames
have the same order in every run, whatever the timing.

**No deadlock.** An event waits only for frames of earlier events. `Channel.post` never waits, and `Channel.take`
sends what was posted while it receives. So the first event that is not done yet can always be done, even if both
parties have more on their way than the sockets hold.

**Bounded memory.** At most `WINDOW` bytes are in flight: each request counts as the larger of its two messages until
it is finished. When the window is full, the older half of it is answered and finished; meanwhile the other half is on
its way, so that neither party runs out of work. A stage makes its requests when there is room for them. A peer that
sends more than it should is not read: a party receives frames of known sizes, one by one. For a peer that sends and
does not read, a party posts no more than a window: then it waits until all of that has left (`_posted`).

**Rounds.** `Clock` counts the latencies on the longest chain of messages in which each was sent after the one before
had arrived. That is what `Traffic.rounds` means for single exchanges, too. The same events are counted in a plan and
in a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from comet_mpc.errors import PeerError
from comet_mpc.net.channel import FRAME_HEADER, Channel, Traffic

if TYPE_CHECKING:
    from comet_mpc.net.channel import Sendable

WINDOW = 64 << 20
"""Bytes in flight: far more than any line holds, so that it is always busy."""

Result = TypeVar("Result")


class Sizes(NamedTuple):
    """A request in numbers. Without an answer its size is 0, and no frame is sent for it."""

    asker: int
    question: int
    answer: int

    def traffic(self, party: int) -> Traffic:
        """Bytes, as a party counts them."""
        frames = [size + FRAME_HEADER if size else 0 for size in (self.question, self.answer)]
        mine, theirs = frames if party == self.asker else reversed(frames)
        return Traffic(mine, theirs)


class Sized(Protocol):
    """What can be ordered: a request, or its sizes alone."""

    @property
    def sizes(self) -> Sizes: ...


class Request(ABC):
    """A question and its answer. Each party has an object of its own for it, and does its part."""

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """Public."""

    @abstractmethod
    def ask(self) -> Sequence[Sendable]:
        """Asker: the question."""

    @abstractmethod
    def answer(self, question: memoryview) -> Sequence[Sendable]:
        """The other party: its answer."""

    def finish(self, answer: memoryview) -> None:
        """Asker: takes the answer."""


@dataclass(frozen=True)
class Planned:
    """Stands for a request in a plan."""

    sizes: Sizes


Steps = Generator[Sequence[Request], None, Result]
"""Work in steps: yields requests, and goes on when they are finished. Requests of one step may be in flight at once."""

Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True)
class Work(Generic[Item]):
    """Steps, and what they have to do with those of others."""

    steps: Iterator[Sequence[Item]]
    defines: frozenset[int] = frozenset()
    """Indices of the masks that are known when it is finished."""
    uses: frozenset[int] = frozenset()
    """Indices of the masks that must be known when it begins."""
    part: str = ""
    """What it is for, in words."""


class Turn(Enum):
    """What happens to a request, in this order."""

    ASK = auto()
    ANSWER = auto()
    FINISH = auto()


class Event(NamedTuple, Generic[Item]):
    turn: Turn
    item: Item
    part: str


@dataclass
class _Step(Generic[Item]):
    """The requests of one step: so many are not finished."""

    work: Work[Item]
    left: int


def events(works: Iterable[Work[Item]], window: int = WINDOW) -> Iterator[Event[Item]]:
    """What both parties do, in order. Whoever takes an event carries it out before asking for the next.

    Requests are answered and finished in the order in which they were asked. Work begins when all before it has asked,
    there is room in the window, and no mask that it uses is still being defined.
    """
    ahead = iter(works)
    coming = next(ahead, None)
    waiting: deque[tuple[Item, _Step[Item]]] = deque()
    flying: deque[tuple[Item, _Step[Item]]] = deque()
    due: Counter[int] = Counter()
    room = window

    def advance(work: Work[Item]) -> None:
        """To its next requests, which come before those of others; or to its end."""
        for items in work.steps:
            if items:
                step = _Step(work, len(items))
                waiting.extendleft((item, step) for item in reversed(items))
                return
        due.subtract(work.defines)

    while True:
        if coming is not None and not waiting and room > 0 and not any(due[mask] for mask in coming.uses):
            due.update(coming.defines)
            advance(coming)
            coming = next(ahead, None)
        elif waiting and (not flying or _weight(waiting[0][0]) <= room):
            item, step = waiting.popleft()
            flying.append((item, step))
            room -= _weight(item)
            yield Event(Turn.ASK, item, step.work.part)
        elif flying:
            full, older = bool(waiting) or (coming is not None and room <= 0), [flying.popleft()]
            room += _weight(older[0][0])
            while flying and (not full or room < window // 2):  # if nothing can be asked: all of them
                older.append(flying.popleft())
                room += _weight(older[-1][0])
            for item, step in older:
                yield Event(Turn.ANSWER, item, step.work.part)
            for item, step in older:
                yield Event(Turn.FINISH, item, step.work.part)
                step.left -= 1
                if not step.left:
                    advance(step.work)
        else:
            return


def _weight(item: Sized) -> int:
    """What it takes of the window: the question waits to be answered, then the answer waits to be taken."""
    return max(item.sizes.question, item.sizes.answer)


class Clock:
    """How many latencies have passed at the two parties, if nothing else takes time."""

    def __init__(self) -> None:
        self._now = [0, 0]
        self._sent: dict[Turn, deque[int]] = {Turn.ASK: deque(), Turn.ANSWER: deque()}

    def pass_over(self, event: Event[Any]) -> int:
        """Rounds that an event adds."""
        turn, (asker, _, answer) = event.turn, event.item.sizes
        before, now, sent = max(self._now), self._now, self._sent
        if turn is Turn.ASK:
            sent[Turn.ASK].append(now[asker])
        elif turn is Turn.ANSWER:
            now[1 - asker] = max(now[1 - asker], sent[Turn.ASK].popleft() + 1)
            sent[Turn.ANSWER].append(now[1 - asker])
        else:
            arrived = sent[Turn.ANSWER].popleft() + 1
            now[asker] = max(now[asker], arrived if answer else 0)
        return max(now) - before


def planned_rounds(works: Iterable[Work[Planned]], window: int = WINDOW) -> Counter[str]:
    """Rounds of a conversation, by the parts of its work."""
    clock, rounds = Clock(), Counter[str]()
    for event in events(works, window):
        rounds[event.part] += clock.pass_over(event)
    return rounds


def planned_traffic(party: int, sizes: Iterable[Sequence[Sizes]]) -> Traffic:
    """What one party sends and receives in a conversation of one work, given the sizes of each of its steps."""
    steps = [[Planned(one) for one in step] for step in sizes]
    rounds = planned_rounds([Work(iter(steps))]).total()
    return sum((item.sizes.traffic(party) for step in steps for item in step), Traffic(rounds=rounds))


def converse(channel: Channel, party: int, works: Iterable[Work[Request]], window: int = WINDOW) -> None:
    """One party's side of all work. If what the peer has sent is wrong, the channel is closed: nothing can follow."""
    clock, inbox = Clock(), _Inbox(channel)
    try:
        for event in events(works, window):
            request, (asker, question, answer) = event.item, event.item.sizes
            match event.turn, asker == party:
                case Turn.ASK, True:
                    _posted(channel, request.ask(), window)
                case Turn.ASK, False:
                    inbox.expect(request, question)
                case Turn.ANSWER, True:
                    inbox.expect(request, answer)
                case Turn.ANSWER, False:
                    _posted(channel, request.answer(inbox.take(request)), window)
                case Turn.FINISH, True:
                    request.finish(inbox.take(request))
            channel.count_rounds(clock.pass_over(event))
        channel.flush()
    except PeerError:
        channel.close()
        raise


def _posted(channel: Channel, outgoing: Sequence[Sendable], window: int) -> None:
    """Posts a frame, and waits first if more than a window has not left.

    Of two parties that follow the order the one behind never waits here: what the other has not read of it is in
    flight. So it reads, and the one ahead goes on.
    """
    if channel.unsent > window:
        channel.flush()
    channel.post(outgoing)


class _Inbox:
    """Frames in the order in which they come, for whoever needs one of them: an answer may follow several questions."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._coming: deque[tuple[Request, int]] = deque()
        self._here: dict[Request, memoryview] = {}

    def expect(self, request: Request, size: int) -> None:
        self._coming.append((request, size))

    def take(self, request: Request) -> memoryview:
        while request not in self._here:
            coming, size = self._coming.popleft()
            self._here[coming] = self._channel.take(size)
        return self._here.pop(request)


def carry_out(channel: Channel, party: int, steps: Steps[Result]) -> Result:
    """One work alone, and its result."""
    results: list[Result] = []

    def kept() -> Iterator[Sequence[Request]]:
        results.append((yield from steps))

    converse(channel, party, [Work(kept())])
    return results[0]
