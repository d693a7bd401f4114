"""What a client says first, before anything is encrypted: the machine that it wants to reach, if it names one.

A TLS connection begins with a ClientHello in the clear (RFC 8446, section 4.1.2). Comet's clients name the server's
state there, as the name of an application protocol (ALPN, RFC 7301). Nothing else of it is looked at here, and nothing
is changed: whoever gets the connection judges it. What is not such a message names nobody.
"""

from __future__ import annotations

from comet_mpc.service.connection import ROUTE, STATE_DIGITS

RECORD_HEADER = 5
HELLO_LIMIT = RECORD_HEADER + (1 << 14)
"""The most bytes that are looked at: one record of TLS."""

_HANDSHAKE, _CLIENT_HELLO, _ALPN = 22, 1, 16
_BEFORE_SESSION = 2 + 32
"""Bytes of the version and the random number."""


class _Fields:
    """Reads fields one after the other. Beyond the end it raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._data):
            raise IndexError
        taken, self._place = self._data[self._place : end], end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> bytes:
        """A field with its length before it, in `size` bytes."""
        return self.take(self.number(size))

    def __bool__(self) -> bool:
        return self._place < len(self._data)


def hello_bytes(header: bytes) -> int:
    """How many bytes come after the first five of a connection, to be looked at; 0 if this is no TLS."""
    if len(header) < RECORD_HEADER or header[0] != _HANDSHAKE:
        return 0
    length = int.from_bytes(header[3:RECORD_HEADER], "big")
    return length if RECORD_HEADER + length <= HELLO_LIMIT else 0


def wanted_state(record: bytes) -> str:
    """The state, shortened, that the first record of a connection names; empty if it names none."""
    try:
        return _wanted_state(record)
    except IndexError:
        return ""


def _wanted_state(record: bytes) -> str:
    outer = _Fields(record[RECORD_HEADER:])
    if outer.number(1) != _CLIENT_HELLO:
        return ""
    hello = _Fields(outer.block(3))
    hello.take(_BEFORE_SESSION)
    hello.block(1)  # the session
    hello.block(2)  # the ciphers
    hello.block(1)  # the compression
    extensions = _Fields(hello.block(2))
    while extensions:
        kind, body = extensions.number(2), extensions.block(2)
        if kind != _ALPN:
            continue
        names = _Fields(_Fields(body).block(2))
        while names:
            name = names.block(1).decode("ascii", "replace")
            state = name.removeprefix(ROUTE)
            if state != name and len(state) == STATE_DIGITS:
                return state
    return ""
