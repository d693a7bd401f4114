"""Listening, connecting, and who the peer is."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comet_mpc.errors import ConfigurationError, NotAuthenticated, PeerClosed, PeerError, PeerTimeout
from comet_mpc.net.authority import make_test_set
from comet_mpc.net.channel import Channel, greet
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect, listen
from support.certificates import Identities
from support.two_parties import both, outcome
from support.waiting import PATIENCE, once_blocked_in

SHORT = 0.1


def open_pair(identities: Identities) -> tuple[Channel, Channel]:
    with listen("127.0.0.1", 0, identities["server"].server_context(require_client=True)) as listener:
        return both(
            lambda: listener.accept(PATIENCE),
            lambda: connect(*listener.address, identities["client"].client_context()),
        )


# Listening and connecting.


def test_listening_at_a_taken_port_is_a_configuration_error() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        pytest.raises(ConfigurationError, match=r"cannot listen at 127\.0\.0\.1:\d+"),
    ):
        listen(*listener.address)
    with pytest.raises(ConfigurationError, match="cannot listen"):
        listen("192.0.2.1", 0)


def test_connecting_to_nobody() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.address
    with pytest.raises(PeerClosed, match="nobody listens"):
        connect(*address)
    with pytest.raises(ConfigurationError, match="unknown host"):
        connect("no-such-host.invalid", 1)


def test_connecting_waits_for_a_late_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.address
    refused, dial = threading.Event(), socket.create_connection

    def refused_at_first(*arguments: Any, **options: Any) -> socket.socket:
        try:
            return dial(*arguments, **options)
        except ConnectionRefusedError:
            refused.set()
            raise

    monkeypatch.setattr(socket, "create_connection", refused_at_first)

    def late() -> Channel:
        assert refused.wait(PATIENCE)
        with listen(*address) as listener:
            return listener.accept(PATIENCE)

    here, there = both(late, lambda: connect(*address, retry_seconds=PATIENCE))
    with here, there:
        here.send(b"hello")
        assert there.receive(5) == b"hello"
        assert there.peer_name is None


def test_accept_times_out_and_goes_on() -> None:
    with listen("127.0.0.1", 0) as listener:
        with pytest.raises(PeerTimeout, match="nobody connected"):
            listener.accept(0.01)
        with connect(*listener.address), listener.accept(PATIENCE):
            pass


def test_closing_a_listener_wakes_accept() -> None:
    listener = listen("127.0.0.1", 0)
    closing = once_blocked_in("accept", listener.close)
    with pytest.raises(PeerClosed, match="listener is closed"):
        listener.accept(PATIENCE)
    closing.join()
    with pytest.raises(PeerClosed, match="listener is closed"):
        listener.accept(PATIENCE)


# Who the peer is.


def test_both_sides_read_name_and_role(identities: Identities) -> None:
    here, there = open_pair(identities)
    with here, there:
        assert (here.peer_name, here.peer_role) == ("client", "client")
        assert (there.peer_name, there.peer_role) == ("server", "server")


def anonymous(identities: Identities) -> ssl.SSLContext:
    """A client that has no certificate, but trusts the right authority."""
    context = ssl.create_default_context(cafile=identities["client"].authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def test_a_client_without_certificate_is_anonymous_if_allowed(identities: Identities) -> None:
    with listen("127.0.0.1", 0, identities["server"].server_context(require_client=False)) as listener:
        here, there = both(lambda: listener.accept(PATIENCE), lambda: connect(*listener.address, anonymous(identities)))
        with here, there:
            assert here.peer_name is None
            assert here.peer_role is None
            assert there.peer_role == "server"


def client_attempt(address: tuple[str, int], context: ssl.SSLContext) -> object:
    """Connects and greets. With TLS 1.3 a refused client learns of it only with its first frame."""

    def attempt() -> object:
        with connect(*address, context) as channel:
            return greet(channel, {}, PATIENCE)

    return outcome(attempt)


def test_bad_clients_are_refused_and_the_listener_goes_on(identities: Identities, tmp_path: Path) -> None:
    strangers = make_test_set(tmp_path)
    impostor = TlsIdentity(strangers["client"].certificate, strangers["client"].key, identities["client"].authority)
    old = ssl.create_default_context(cafile=identities["client"].authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    with listen("127.0.0.1", 0, identities["server"].server_context(require_client=True)) as listener:

        def refused(client: Callable[[], object], patience: float = PATIENCE) -> tuple[object, object]:
            return both(lambda: outcome(lambda: listener.accept(PATIENCE, handshake_timeout=patience)), client)

        at_server, at_client = refused(lambda: client_attempt(listener.address, anonymous(identities)))
        assert isinstance(at_server, NotAuthenticated)
        assert isinstance(at_client, NotAuthenticated)
        assert "the server requires a certificate" in str(at_client)

        at_server, at_client = refused(lambda: client_attempt(listener.address, impostor.client_context()))
        assert isinstance(at_server, NotAuthenticated)
        assert isinstance(at_client, NotAuthenticated)
        assert "the server refused your certificate: it was issued by another authority" in str(at_client)

        at_server, at_client = refused(lambda: client_attempt(listener.address, strangers["client"].client_context()))
        assert isinstance(at_server, NotAuthenticated)
        assert isinstance(at_client, NotAuthenticated)
        assert "the server's certificate was issued by another authority" in str(at_client)

        def speak_tls_12() -> object:
            with socket.create_connection(listener.address) as plain:
                try:
                    return old.wrap_socket(plain, server_hostname="127.0.0.1").version()
                except ssl.SSLError as error:
                    return error

        at_server, at_client = refused(speak_tls_12)
        assert isinstance(at_server, PeerError)
        assert "unsupported protocol" in str(at_server)
        assert isinstance(at_client, ssl.SSLError)

        def speak_plainly() -> object:
            with connect(*listener.address) as channel:
                return outcome(lambda: greet(channel, {}, PATIENCE))

        at_server, at_client = refused(speak_plainly)
        assert isinstance(at_server, PeerError)
        assert isinstance(at_client, PeerError)

        def say_nothing() -> object:
            with connect(*listener.address) as channel:
                return outcome(lambda: channel.receive(10))

        at_server, _ = refused(say_nothing, SHORT)
        assert isinstance(at_server, PeerTimeout)
        assert "handshake" in str(at_server)

        here, there = both(
            lambda: listener.accept(PATIENCE),
            lambda: connect(*listener.address, identities["client"].client_context()),
        )
        with here, there:
            assert here.peer_role == "client"


def test_a_certificate_for_another_host_is_refused(identities: Identities) -> None:
    context = identities["server"].server_context(require_client=True)
    with listen("127.0.0.2", 0, context) as listener:
        _, at_client = both(
            lambda: outcome(lambda: listener.accept(PATIENCE)),
            lambda: client_attempt(listener.address, identities["client"].client_context()),
        )
    assert isinstance(at_client, NotAuthenticated)
    assert "127.0.0.2" in str(at_client)


def test_a_client_certificate_cannot_pose_as_a_server(identities: Identities) -> None:
    context = identities["client"].server_context(require_client=True)
    with listen("127.0.0.1", 0, context) as listener:
        _, at_client = both(
            lambda: outcome(lambda: listener.accept(PATIENCE)),
            lambda: client_attempt(listener.address, identities["dealer"].client_context()),
        )
    assert isinstance(at_client, NotAuthenticated)


def test_a_context_that_allows_old_tls_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="TLSv1_3"):
        connect("127.0.0.1", 1, ssl.create_default_context())
