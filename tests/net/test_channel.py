"""Channels: what goes in comes out, costs what it should, and a bad peer ends in a typed error."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.errors import (
    PeerClosed,
    PeerError,
    PeerTimeout,
    ProtocolMismatch,
    WrongSize,
    WrongVersion,
)
from comet_mpc.net import sockets
from comet_mpc.net.channel import (
    FRAME_HEADER,
    GREETING_LIMIT,
    WIRE_VERSION,
    Channel,
    Traffic,
    agree,
    greet,
    memory_pair,
)
from comet_mpc.net.sockets import TcpChannel, TlsChannel, connect, listen
from comet_mpc.net.tls import secure
from support.certificates import Identities
from support.two_parties import both
from support.waiting import PATIENCE, Clock, eventually, once_blocked_in

SHORT = 0.1
LARGE = 32 << 20


def header(length: int) -> bytes:
    return length.to_bytes(FRAME_HEADER, "little")


def open_pair(kind: str, identities: Identities, timeout: float = PATIENCE) -> tuple[Channel, Channel]:
    if kind == "memory":
        return memory_pair(timeout)
    inward = identities["server"].server_context(require_client=True) if kind == "tls" else None
    outward = identities["client"].client_context() if kind == "tls" else None
    with listen("127.0.0.1", 0, inward) as listener:
        return both(
            lambda: listener.accept(PATIENCE, channel_timeout=timeout),
            lambda: connect(*listener.address, outward, timeout),
        )


@pytest.fixture(params=["memory", "tcp", "tls"])
def pair(request: pytest.FixtureRequest, identities: Identities) -> Iterator[tuple[Channel, Channel]]:
    here, there = open_pair(request.param, identities)
    with here, there:
        yield here, there


@pytest.fixture(params=["tcp", "tls"])
def channel_and_socket(
    request: pytest.FixtureRequest, identities: Identities
) -> Iterator[tuple[Channel, socket.socket]]:
    """A channel whose peer is a bare socket, which can send anything."""
    mine, theirs = socket.socketpair()
    if request.param == "tcp":
        channel: Channel = TcpChannel(mine, 20.0)
    else:
        inward = identities["server"].server_context(require_client=True)
        outward = identities["client"].client_context()
        secured, theirs = both(
            lambda: secure(mine, inward, None, 20.0),
            lambda: outward.wrap_socket(theirs, server_hostname="localhost"),
        )
        channel = TlsChannel(mine, secured, 20.0)
    with channel, theirs:
        yield channel, theirs


# What goes in comes out.


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
def test_exchange_carries_any_sizes_both_ways(kind: str, identities: Identities) -> None:
    here, there = open_pair(kind, identities)
    edges = st.sampled_from([0, 1, 7, 8, 9, 16375, 16376, 16377, 16384, 65536, 300_000])
    sizes = st.lists(edges | st.integers(0, 40_000), max_size=4)

    @settings(max_examples=25)
    @given(sizes, sizes, st.integers(0, 2**32))
    def check(mine: list[int], theirs: list[int], seed: int) -> None:
        draw = np.random.default_rng(seed)
        out, back = [draw.bytes(n) for n in mine], [draw.bytes(n) for n in theirs]
        got_back, got_out = both(lambda: here.exchange(out, sum(theirs)), lambda: there.exchange(back, sum(mine)))
        assert got_back == b"".join(back)
        assert got_out == b"".join(out)

    with here, there:
        check()


def test_large_frames_cross_without_deadlock(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    out, back = (np.random.default_rng(seed).bytes(LARGE) for seed in (1, 2))
    got_back, got_out = both(lambda: here.exchange([out], LARGE), lambda: there.exchange([back], LARGE))
    assert got_back == back
    assert got_out == out


def test_arrays_are_sent_as_their_bytes_and_results_are_writable(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    matrix = np.arange(12, dtype=np.uint64).reshape(3, 4)
    outgoing: list[bytes | np.ndarray[Any, Any]] = [
        matrix,
        np.zeros((0, 4), np.uint64),
        np.array(5, np.int32),
        b"",
    ]
    got, _ = both(lambda: here.exchange([], 100), lambda: there.exchange(outgoing, 0))
    assert got == matrix.tobytes() + np.int32(5).tobytes()
    np.frombuffer(got, np.uint8)[:] = 0


def test_many_small_buffers_make_one_frame(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    pieces = [bytes([i % 251]) * (i % 5) for i in range(5000)]
    size = sum(map(len, pieces))
    got, _ = both(lambda: here.exchange([], size), lambda: there.exchange(pieces, 0))
    assert got == b"".join(pieces)
    assert here.traffic == Traffic(sent=0, received=FRAME_HEADER + size, rounds=1)


def test_a_buffer_with_gaps_is_refused_before_anything_is_sent(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    with pytest.raises((TypeError, ValueError)):
        here.exchange([np.arange(10)[::2]], 0)
    here.send(b"still in step")
    assert there.receive(100) == b"still in step"


def test_control_frames_of_unknown_size(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    here.send(b"one ", b"frame")
    here.send()
    assert there.receive(limit=9) == b"one frame"
    assert there.receive(limit=0) == b""


# It costs what it should.


def test_counts_are_exact(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    both(lambda: here.exchange([bytes(10), bytes(5)], 7), lambda: there.exchange([bytes(7)], 15))
    assert here.traffic == Traffic(sent=23, received=15, rounds=1)
    assert there.traffic == Traffic(sent=15, received=23, rounds=1)
    before = here.traffic
    here.exchange([], 0)
    here.exchange([b"", b""], 0)
    assert here.traffic == before
    here.send(bytes(3))
    there.receive(10)
    assert here.traffic - before == Traffic(sent=11, received=0, rounds=0)
    assert there.traffic == Traffic(sent=15, received=34, rounds=2)
    both(lambda: here.exchange([bytes(4)], 0), lambda: there.exchange([], 4))
    assert here.traffic - before == Traffic(sent=23, received=0, rounds=1)
    assert there.traffic == Traffic(sent=15, received=46, rounds=3)


# A bad peer ends in a typed error, and the channel is closed afterwards.


@pytest.mark.parametrize("got", [9, 11])
def test_a_frame_of_another_size_is_refused(pair: tuple[Channel, Channel], got: int) -> None:
    here, there = pair
    there.send(bytes(got))
    with pytest.raises(WrongSize, match=f"got {got}, expected 10") as caught:
        here.exchange([], 10)
    assert (caught.value.got, caught.value.expected) == (got, 10)
    for call in (lambda: here.exchange([], 1), lambda: here.send(b"x"), lambda: here.receive(1)):
        with pytest.raises(PeerClosed):
            call()
    with pytest.raises(PeerClosed):
        there.receive(1)


def test_a_control_frame_over_the_limit_is_refused(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    there.send(bytes(101))
    with pytest.raises(WrongSize, match="got 101, expected at most 100"):
        here.receive(100)
    assert here.closed


def test_an_absurd_length_is_refused_without_waiting_for_it(
    channel_and_socket: tuple[Channel, socket.socket],
) -> None:
    channel, peer = channel_and_socket
    peer.sendall(header(2**64 - 1))
    with pytest.raises(WrongSize):
        channel.exchange([], 10)


def test_peer_closes_between_frames(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    there.send(b"last words")
    there.close()
    assert here.receive(100) == b"last words"
    with pytest.raises(PeerClosed, match="0 of 8 header bytes"):
        here.receive(100)
    assert here.closed


@pytest.mark.parametrize(
    ("sent", "state"), [(header(10)[:3], "3 of 8 header bytes"), (header(10) + b"four", "4 of 10 bytes")]
)
def test_peer_closes_midway(channel_and_socket: tuple[Channel, socket.socket], sent: bytes, state: str) -> None:
    channel, peer = channel_and_socket
    peer.sendall(sent)
    peer.close()
    with pytest.raises(PeerClosed, match=state):
        channel.exchange([], 10)


def test_peer_closes_while_a_large_frame_is_sent(
    channel_and_socket: tuple[Channel, socket.socket],
) -> None:
    channel, peer = channel_and_socket
    leaving = once_blocked_in("_flush", peer.close)
    with pytest.raises(PeerClosed):
        channel.exchange([bytes(LARGE)], 0)
    leaving.join()


def test_a_silent_peer_times_out(pair: tuple[Channel, Channel]) -> None:
    here, _ = pair
    here.timeout = SHORT
    with pytest.raises(PeerTimeout, match="0 of 8 header bytes") as caught:
        here.exchange([b"x"], 10)
    waited = re.search(r"no progress for ([0-9.]+) s", str(caught.value))
    assert waited is not None
    assert float(waited[1]) >= 0.9 * SHORT
    with pytest.raises(PeerClosed):
        here.exchange([b"x"], 10)


def test_a_peer_that_stops_midway_times_out(channel_and_socket: tuple[Channel, socket.socket]) -> None:
    channel, peer = channel_and_socket
    channel.timeout = SHORT
    peer.sendall(header(10) + b"secret")
    with pytest.raises(PeerTimeout, match="received 6 of 10 bytes") as caught:
        channel.exchange([bytes(LARGE)], 10)
    assert "secret" not in str(caught.value)


def test_slow_progress_is_no_stall(
    channel_and_socket: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte whenever the patience is almost over."""
    channel, peer = channel_and_socket
    clock = Clock()
    monkeypatch.setattr(sockets, "time", clock)

    def trickle() -> None:
        for byte in header(6) + b"slow":
            read = clock.readings + 2  # when it moved, and how long to wait now
            peer.sendall(bytes([byte]))
            eventually(partial(clock.was_read, read))
            clock.now += 0.9 * channel.timeout
        peer.sendall(b"ly")

    got, _ = both(lambda: channel.exchange([], 6), trickle)
    assert got.tobytes() == b"slowly"
    assert clock.now > 10 * channel.timeout


def test_closing_wakes_the_own_thread(pair: tuple[Channel, Channel]) -> None:
    here, _ = pair
    closing = once_blocked_in("_transfer", here.close)
    with pytest.raises(PeerClosed):
        here.receive(10)
    closing.join()


# The greeting.


def test_greeting_tells_each_side_about_the_other(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    client: dict[str, str | int] = {"role": "client", "program": "abc", "width": 64}
    server: dict[str, str | int] = {"role": "server", "program": "abc", "width": 32}
    at_client, at_server = both(lambda: greet(here, client, PATIENCE), lambda: greet(there, server, PATIENCE))
    assert at_client == server
    assert at_server == client
    assert here.traffic.rounds == 1
    agree(client, at_client, ["program"])
    with pytest.raises(ProtocolMismatch, match="width: the peer has 32, this side has 64"):
        agree(client, at_client, ["program", "width", "role"])
    with pytest.raises(ProtocolMismatch, match="the peer has None"):
        agree({"model": "m"}, {}, ["model"])


def test_a_mismatch_cannot_forge_log_lines() -> None:
    with pytest.raises(ProtocolMismatch) as caught:
        agree({"model": "m"}, {"model": "x\nERROR " + "y" * 4000}, ["model"])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: comet\r\n\r\n", header(4) + b"oops", header(12) + b"COMET!\x01\x00{}.."],
)
def test_garbage_is_not_a_comet_peer(channel_and_socket: tuple[Channel, socket.socket], garbage: bytes) -> None:
    channel, peer = channel_and_socket
    peer.sendall(garbage)
    with pytest.raises(PeerError, match="not a Comet peer"):
        greet(channel, {}, PATIENCE)
    assert channel.closed


def test_another_wire_version_is_refused_whatever_follows(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    there.send(b"COMET\x00", (WIRE_VERSION + 1).to_bytes(2, "little"), b"\xff not JSON")
    with pytest.raises(WrongVersion, match=f"got {WIRE_VERSION + 1}, expected {WIRE_VERSION}"):
        greet(here, {}, PATIENCE)
    assert here.closed


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b'{"a": 1.5}', b'{"a": {"b": 1}}', b'{"a": "\xff"}', b'{"a":' * 600]
)
def test_a_malformed_mapping_is_the_peers_fault(pair: tuple[Channel, Channel], text: bytes) -> None:
    here, there = pair
    there.send(b"COMET\x00", WIRE_VERSION.to_bytes(2, "little"), text)
    with pytest.raises(PeerError, match="not a mapping"):
        greet(here, {}, PATIENCE)
    assert here.closed


def test_a_greeting_has_a_deadline_even_if_bytes_keep_coming(
    channel_and_socket: tuple[Channel, socket.socket],
) -> None:
    channel, peer = channel_and_socket
    done = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            for byte in header(1000) + bytes(1000):
                if done.wait(0.02):
                    return
                peer.sendall(bytes([byte]))

    def greeting() -> None:
        with pytest.raises(PeerTimeout):
            greet(channel, {}, 0.2)
        done.set()

    both(greeting, trickle)


def test_a_greeting_of_ones_own_must_be_short(pair: tuple[Channel, Channel]) -> None:
    with pytest.raises(ValueError, match="at most 4096"):
        greet(pair[0], {"a": "x" * GREETING_LIMIT}, 1)
