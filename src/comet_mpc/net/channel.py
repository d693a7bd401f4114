"""Channels: how two parties exchange frames, and what that costs.

A frame is its length (8 bytes, little-endian) and its payload. A channel has one important method,
`exchange`: one round, both directions at once, of sizes both sides know beforehand. `post` and `take` are its
two halves, for many frames in flight (`offline.streaming`). `send` and `receive` carry control messages.
Counting lives in `Channel`; the siblings (`memory_pair` here, TCP and TLS in `comet_mpc.net.sockets`) only move
bytes.

A channel belongs to one thread. Another may call `close`, which wakes the first, and `lost` while that is idle.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

import msgspec

from comet_mpc.errors import PeerClosed, PeerError, PeerGaveUp, PeerTimeout, ProtocolMismatch, WrongSize, WrongVersion

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer

    # Arrays are buffers, but before Python 3.12 a type checker cannot know.
    Sendable: TypeAlias = Buffer | np.ndarray[Any, Any]

Done = TypeVar("Done")

FRAME_HEADER = 8
WIRE_VERSION = 9
GREETING_LIMIT = 4096
DEFAULT_TIMEOUT = 60.0
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON from a peer may raise; nested too deeply, it is a RecursionError."""

_MAGIC = b"COMET\x00"
_PREAMBLE = len(_MAGIC) + 2
_LARGEST_UNREAD = 1 << 28


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of completed frames, headers included, and rounds. Subtract two readings to measure a phase."""

    sent: int = 0
    received: int = 0
    rounds: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent + other.sent, self.received + other.received, self.rounds + other.rounds)

    def __sub__(self, earlier: Traffic) -> Traffic:
        return self + Traffic(-earlier.sent, -earlier.received, -earlier.rounds)


class Channel(ABC):
    """An ordered, counted connection to one peer.

    timeout: seconds without progress in either direction after which `PeerTimeout` is raised.
    After any error the channel is closed, and every further call raises `PeerClosed`.
    """

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        self.timeout = timeout
        self.watcher: Callable[[Traffic], None] | None = None
        """Is told the traffic so far after every frame, in the thread that the channel belongs to."""
        self.peer_name: str | None = None
        """Common name in the verified certificate of the peer; None if it has not shown one."""
        self.peer_role: str | None = None
        """Role (client, server, dealer) in the verified certificate of the peer; None if it has none."""
        self.peer_serial: int | None = None
        """Serial number of the peer's certificate; None if it has shown none."""
        self._traffic = Traffic()
        self._closed = False

    def exchange(self, outgoing: Sequence[Sendable], expected: int) -> memoryview:
        """One round: sends the concatenation of `outgoing` as one frame and, at the same time, receives one
        frame of exactly `expected` bytes.

        The result is a writable view of memory that nobody else holds.
        Nothing to send: no frame is sent. Nothing expected: none is received. Neither: no round.
        An empty frame in place of the expected one says that the peer gives up (`PeerGaveUp`).
        Cost: 8 + n bytes each way; 1 round.
        """
        if expected < 0:
            raise ValueError(f"expected must not be negative, got {expected}")
        views = _byte_views(outgoing)
        sizes = range(expected, expected + 1) if expected else None
        return self._run(views or None, sizes, rounds=1 if views or expected else 0)

    def post(self, outgoing: Sequence[Sendable]) -> None:
        """Sends one frame and never waits: what the line does not take now leaves in order during later calls.

        Nobody may change the buffers until `flush`. Nothing to send: no frame. No round: see `count_rounds`.
        """
        if views := _byte_views(outgoing):
            self._run(views, None, rounds=0, flush=False)

    def take(self, expected: int) -> memoryview:
        """Receives one frame of exactly `expected` bytes, as `exchange` does, and sends what was posted meanwhile.

        Nothing expected: no frame. No round: see `count_rounds`.
        """
        return self._run(None, range(expected, expected + 1), rounds=0) if expected else memoryview(b"")

    def flush(self) -> None:
        """Waits until all that was posted has left."""
        self._guarded(lambda: self._flush(float("inf")))

    @property
    def unsent(self) -> int:
        """Bytes that were posted and have not left yet."""
        return 0

    def count_rounds(self, rounds: int) -> None:
        """Counts rounds of frames that were posted and taken: only who orders them knows which wait for which."""
        self._traffic += Traffic(rounds=rounds)

    def send(self, *buffers: Sendable) -> None:
        """Sends one frame, possibly empty, whose size the receiver does not know beforehand. No round."""
        self._run(_byte_views(buffers), None, rounds=0)

    def receive(self, limit: int) -> bytearray:
        """Receives one frame of at most `limit` bytes. 1 round."""
        if limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        return bytearray(self._run(None, range(limit + 1), rounds=1))

    def give_up(self, seconds: float) -> None:
        """Ends a run, in place of this side's next round: the peer, which is in that round, raises `PeerGaveUp`."""
        self.timeout = seconds
        with contextlib.suppress(PeerError):
            self.send()
            self.receive(_LARGEST_UNREAD)  # the peer's round: to close before it has come could discard what was sent
        self.close()

    @property
    def traffic(self) -> Traffic:
        """What has gone over this channel so far."""
        return self._traffic

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def lost(self) -> bool:
        """Whether it is closed, or the peer has ended it, as far as one knows without waiting.

        For a moment in which the peer has nothing to say. False may be out of date the next moment.
        """
        return self._closed

    def close(self) -> None:
        """Closes both directions; closing twice is harmless."""
        self._closed = True
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        outgoing: list[memoryview] | None,
        sizes: range | None,
        *,
        rounds: int,
        deadline: float = float("inf"),
        flush: bool = True,
    ) -> memoryview:
        """Sends a frame unless `outgoing` is None, receives one unless `sizes` is None, and counts both.

        flush: a frame that is sent has left afterwards
        """

        def work() -> memoryview:
            found = self._transfer(outgoing, sizes, deadline)
            if outgoing is not None and flush:
                self._flush(deadline)
            return found

        incoming = self._guarded(work)
        self._traffic += Traffic(
            sent=0 if outgoing is None else FRAME_HEADER + sum(map(len, outgoing)),
            received=0 if sizes is None else FRAME_HEADER + len(incoming),
            rounds=rounds,
        )
        if self.watcher is not None:
            self.watcher(self._traffic)
        return incoming

    def _guarded(self, work: Callable[[], Done]) -> Done:
        """What work gives; any error in it ends the connection."""
        if self._closed:
            raise PeerClosed("the channel is closed")
        try:
            done = work()
        except PeerError:
            self.close()
            raise
        except BaseException as error:  # also an interrupt: half a frame is on its way, nothing can follow it
            closed_by_other_thread = self._closed
            self.close()
            if closed_by_other_thread and isinstance(error, Exception):
                raise PeerClosed("the channel was closed while in use") from error
            raise
        if self._closed:  # by another thread: what was read in the meantime is not to be trusted
            raise PeerClosed("the channel was closed while in use")
        return done

    @abstractmethod
    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        """Begins to send a frame, or none; receives one, or none; `deadline` (monotonic) bounds it beside `timeout`.

        Returns as soon as the frame of `sizes` is here; if there is none, as soon as the line takes no more. What is
        left to send leaves during later calls (`_flush`). A length outside `sizes` is refused before anything is
        allocated for it.
        """

    def _flush(self, deadline: float) -> None:
        """Returns once nothing is left to send. Only lines that take part of a frame have something to do."""

    @abstractmethod
    def _release(self) -> None:
        """Lets go of the resources and wakes both sides. May be called more than once."""


class Around(Channel):
    """Another channel, whose frames go through here: to be counted, kept or changed on their way."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner.timeout)
        self._inner = inner
        self.peer_name, self.peer_role, self.peer_serial = inner.peer_name, inner.peer_role, inner.peer_serial

    @property
    def lost(self) -> bool:
        return self._closed or self._inner.lost

    @property
    def unsent(self) -> int:
        return self._inner.unsent

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        return self._inner._transfer(outgoing, sizes, deadline)

    def _flush(self, deadline: float) -> None:
        self._inner._flush(deadline)

    def _release(self) -> None:
        self._inner.close()


def _byte_views(buffers: Iterable[Sendable]) -> list[memoryview]:
    """The non-empty buffers as flat byte views, without copying. They must be C-contiguous."""
    views = [memoryview(cast("Buffer", buffer)) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes]


def check_size(length: int, sizes: range) -> None:
    """Raises `WrongSize` for a frame length outside `sizes`, which is an exact size or range(limit + 1)."""
    if length == 0 and 0 not in sizes:
        raise PeerGaveUp("the peer gave up: its randomness is damaged, and there is no result")
    if length not in sizes:
        raise WrongSize(got=length, expected=sizes[-1] if len(sizes) == 1 else f"at most {sizes[-1]}")


class _Pipe:
    """One direction of a memory channel: a queue of frames."""

    def __init__(self) -> None:
        self._frames: deque[bytearray] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, frame: bytearray) -> None:
        with self._changed:
            if self._closed:
                raise PeerClosed(f"the peer closed the channel: sent 0 of {FRAME_HEADER + len(frame)} bytes")
            self._frames.append(frame)
            self._changed.notify_all()

    def get(self, seconds: float) -> bytearray:
        with self._changed:
            if not self._changed.wait_for(lambda: self._frames or self._closed, seconds):
                raise PeerTimeout(f"no progress for {seconds:g} s: received 0 of {FRAME_HEADER} header bytes")
            if not self._frames:
                raise PeerClosed(f"the peer closed the channel: received 0 of {FRAME_HEADER} header bytes")
            return self._frames.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _MemoryChannel(Channel):
    def __init__(self, outbox: _Pipe, inbox: _Pipe, timeout: float) -> None:
        super().__init__(timeout)
        self._outbox = outbox
        self._inbox = inbox

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        if outgoing is not None:
            self._outbox.put(bytearray().join(outgoing))
        if sizes is None:
            return memoryview(b"")
        frame = self._inbox.get(max(0.0, min(self.timeout, deadline - time.monotonic())))
        check_size(len(frame), sizes)
        return memoryview(frame)

    def _release(self) -> None:
        self._outbox.close()
        self._inbox.close()


def memory_pair(timeout: float = DEFAULT_TIMEOUT) -> tuple[Channel, Channel]:
    """The two ends of a channel inside one process, for two threads. It counts as a socket would."""
    there, back = _Pipe(), _Pipe()
    return _MemoryChannel(there, back, timeout), _MemoryChannel(back, there, timeout)


def greeting_frame(hello: Mapping[str, str | int]) -> bytes:
    """One side's greeting, as it is sent."""
    mapping = msgspec.json.encode(dict(hello))
    if len(mapping) > GREETING_LIMIT:
        raise ValueError(f"a greeting has at most {GREETING_LIMIT} bytes, got {len(mapping)}")
    return _MAGIC + WIRE_VERSION.to_bytes(2, "little") + mapping


def greet(channel: Channel, hello: Mapping[str, str | int], timeout: float = 10.0) -> dict[str, str | int]:
    """The first thing both sides do: each says that it is Comet, which wire version, and `hello`.

    Returns the peer's mapping, which is its claim and nothing more. The whole greeting must be over within
    `timeout` seconds, so that a peer cannot hold the line byte by byte. Cost: 1 round, at most 4096 + 16
    bytes each way. Raises `PeerError` if the peer is not Comet, `WrongVersion` if it is another one.
    """
    mine = greeting_frame(hello)
    deadline = time.monotonic() + timeout
    sizes = range(_PREAMBLE + GREETING_LIMIT + 1)
    try:
        theirs = channel._run([memoryview(mine)], sizes, rounds=1, deadline=deadline)
    except WrongSize as error:
        raise PeerError("not a Comet peer: its first bytes are no greeting") from error
    try:
        return _read_greeting(theirs.tobytes())
    except PeerError:
        channel.close()
        raise


def _read_greeting(frame: bytes) -> dict[str, str | int]:
    if len(frame) < _PREAMBLE or not frame.startswith(_MAGIC):
        raise PeerError("not a Comet peer: its first bytes are no greeting")
    version = int.from_bytes(frame[len(_MAGIC) : _PREAMBLE], "little")
    if version != WIRE_VERSION:
        raise WrongVersion(got=version, expected=WIRE_VERSION)
    try:
        return msgspec.json.decode(frame[_PREAMBLE:], type=dict[str, str | int])
    except UNREADABLE as error:
        raise PeerError("the peer's greeting is not a mapping of names to texts and integers") from error


def agree(mine: Mapping[str, object], theirs: Mapping[str, object], fields: Iterable[str]) -> None:
    """Raises `ProtocolMismatch` for the first of `fields` in which the two greetings differ."""
    for field in fields:
        expected, got = mine.get(field), theirs.get(field)
        if got != expected:
            raise ProtocolMismatch(field, got=_shown(got), expected=_shown(expected))


def _shown(value: object) -> object:
    """A value fit for a message: a peer's text is quoted and cut, so that it cannot forge log lines."""
    if not isinstance(value, str):
        return value
    return repr(value) if len(value) <= 80 else repr(value[:80]) + "…"
