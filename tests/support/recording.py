"""Channels that keep every frame that goes over them."""

from __future__ import annotations

from comet_mpc.net.channel import Around, Channel, memory_pair


class Recording(Around):
    """A channel that keeps every frame that goes over it."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.sent: list[bytes] = []
        self.received: list[bytes] = []

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        if outgoing is not None:
            self.sent.append(b"".join(outgoing))
        incoming = self._inner._transfer(outgoing, sizes, deadline)
        if sizes is not None:
            self.received.append(bytes(incoming))
        return incoming


def recording_pair(timeout: float = 20.0) -> tuple[Recording, Recording]:
    one, other = memory_pair(timeout)
    return Recording(one), Recording(other)
