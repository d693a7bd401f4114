"""What people are told of a certificate that is refused: what is wrong with it, and what to do; by either side."""

from __future__ import annotations

import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from comet_mpc.errors import CometError, NotAuthenticated
from comet_mpc.net.authority import issue, make_authority, revoke
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect, listen
from support.two_parties import both
from support.waiting import PATIENCE


def unchecked(identity: TlsIdentity) -> ssl.SSLContext:
    """As `client_context`, also with a certificate that this side would not use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(identity.authority)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


def outcome(server: TlsIdentity, client: ssl.SSLContext, host: str = "127.0.0.1") -> tuple[str, str]:
    """What the server's operator and the client's user are told."""

    def accepted() -> str:
        with pytest.raises(NotAuthenticated) as told:
            listener.accept(PATIENCE)
        return str(told.value)

    def asked() -> str:
        with pytest.raises(NotAuthenticated) as told, connect(host, listener.address[1], client, PATIENCE) as channel:
            channel.receive(10)
        return str(told.value)

    with listen("127.0.0.1", 0, server.server_context(require_client=True)) as listener:
        return both(accepted, asked)


@pytest.fixture
def server(tmp_path: Path) -> TlsIdentity:
    make_authority(tmp_path, "authority")
    return issue(tmp_path, "server", "server", ["127.0.0.1", "server.example"])


def test_a_client_is_told_why_its_certificate_was_refused(server: TlsIdentity, tmp_path: Path) -> None:
    client, own = issue(tmp_path, "alice", "client"), server.authority
    old = issue(tmp_path, "old", "client", days=0)
    make_authority(tmp_path / "other", "authority")  # of the same name, as `comet keys make` gives
    make_authority(tmp_path / "third", "another")
    foreign = [replace(issue(tmp_path / one, "alice", "client"), authority=own) for one in ("other", "third")]
    assert outcome(server, unchecked(old)) == (
        "the peer's certificate has expired: have it renewed (`comet keys renew`)",
        "the server refused your certificate: it has expired; have it renewed (`comet keys renew`), or check the "
        "clocks of both machines",
    )
    for one in foreign:
        at_server, at_client = outcome(server, unchecked(one))
        assert at_server.startswith("the peer's certificate was issued by another authority")
        assert at_client.startswith("the server refused your certificate: it was issued by another authority")
    context = client.client_context()  # of a client that does not have the list
    revoke(tmp_path, "alice")
    assert outcome(server, context) == (
        "the peer's certificate is revoked",
        "the server refused your certificate: it is revoked; ask whoever issued it for a new one",
    )


def test_a_client_is_told_what_is_wrong_with_the_servers_certificate(server: TlsIdentity, tmp_path: Path) -> None:
    client = issue(tmp_path, "alice", "client")
    make_authority(tmp_path / "other", "authority")
    stranger = issue(tmp_path / "other", "alice", "client")
    impostor = issue(tmp_path, "impostor", "client", ["127.0.0.1"])
    assert outcome(server, stranger.client_context())[1] == (
        "the server's certificate was issued by another authority: give both sides the same authority.pem"
    )
    assert "is not one for this role" in outcome(impostor, client.client_context())[1]
    assert outcome(server, client.client_context(), "localhost")[1] == (
        "the server's certificate is not valid for localhost: call it by a name that it was issued for, or have it "
        "issued again with `--host localhost`"
    )
    context = server.server_context(require_client=True)
    revoke(tmp_path, "server")
    with listen("127.0.0.1", 0, context) as listener:

        def asked() -> str:
            with pytest.raises(NotAuthenticated) as told:
                connect("127.0.0.1", listener.address[1], client.client_context(), PATIENCE, whom="dealer")
            return str(told.value)

        def accepted() -> CometError:
            with pytest.raises(CometError) as told:
                listener.accept(PATIENCE)
            return told.value

        at_server, at_client = both(accepted, asked)
    assert at_client == "the dealer's certificate is revoked"
    assert "the peer refused your certificate: it is revoked" in str(at_server)


def test_the_reason_is_heard_although_the_line_broke_while_sending(server: TlsIdentity, tmp_path: Path) -> None:
    """The alert has come before: whoever sends a lot must not be told only that the line is broken."""
    context = issue(tmp_path, "alice", "client").client_context()
    revoke(tmp_path, "alice")

    def accepted() -> None:
        with pytest.raises(NotAuthenticated):
            listener.accept(PATIENCE)
        gone.set()

    gone = threading.Event()
    with listen("127.0.0.1", 0, server.server_context(require_client=True)) as listener:

        def asked() -> None:
            with connect("127.0.0.1", listener.address[1], context, PATIENCE) as channel:
                gone.wait(PATIENCE)
                with pytest.raises(NotAuthenticated, match="it is revoked"):
                    channel.send(bytes(100 << 20))

        both(accepted, asked)
