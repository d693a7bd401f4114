"""Channels that tell how many latencies have passed, whatever the code that uses them believes."""

from __future__ import annotations

from collections import deque

from comet_mpc.net.channel import Around, Channel, memory_pair


class Stamped(Around):
    """A frame that is sent at a time arrives one later; nothing else takes time (Lamport 1978)."""

    def __init__(self, inner: Channel, out: deque[int], back: deque[int]) -> None:
        super().__init__(inner)
        self._out, self._back = out, back
        self.now = 0

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        if outgoing is not None:
            self._out.append(self.now)
        incoming = super()._transfer(outgoing, sizes, deadline)
        if sizes is not None:
            self.now = max(self.now, self._back.popleft() + 1)
        return incoming


def stamped_pair(timeout: float = 60.0) -> tuple[Stamped, Stamped]:
    there: deque[int] = deque()
    back: deque[int] = deque()
    one, other = memory_pair(timeout)
    return Stamped(one, there, back), Stamped(other, back, there)
