"""Parties that lie to the dealer, send rubbish, stall or vanish. It refuses, says why, and serves the others."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator

import msgspec
import pytest

from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    MonomialTerm,
    SquareSums,
    WeightProduct,
    encode_correlations,
    program_digest,
)
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import (
    CometError,
    ForeignRandomness,
    NotAuthenticated,
    PeerClosed,
    PeerError,
    PeerTimeout,
    ProtocolMismatch,
    RandomnessSpent,
)
from comet_mpc.net.channel import Channel, greet
from comet_mpc.net.identity import Role
from comet_mpc.offline.dealer.admission import ProgramLimits, admit_program
from comet_mpc.offline.dealer.fetch import Ask, Proceed, Received, Seed, _FromDealer
from comet_mpc.offline.dealer.server import Dealer
from comet_mpc.offline.store import new_bundle_id
from comet_research.look_up import TableTransfers
from support.certificates import Identities
from support.dealer_service import (
    KEY,
    LIMITS,
    LONELY,
    SMALL,
    dial,
    fetch,
    fetch_both,
    given_up,
    hasty,
    running_dealer,
)
from support.faulty_channel import hung_up
from support.processes import send_raw
from support.two_parties import both, outcome
from support.waiting import PATIENCE, eventually, within

STALLED = 2.0
"""Seconds that a dealer waits for a party that stalls: long beside what an honest one takes for its next message."""
LARGE: tuple[Correlation, ...] = (BitProducts(4_000_000, 64),)


@pytest.fixture(scope="module")
def service(identities: Identities) -> Iterator[Dealer]:
    with running_dealer(identities) as running:
        yield running


@pytest.fixture
def dealer(service: Dealer, identities: Identities) -> Iterator[Dealer]:
    """The dealer under attack, which serves an honest pair afterwards."""
    yield service
    fetch_both(service.address, identities)


def greeted(dealer: Dealer, identities: Identities, role: Role, claim: str | None = None) -> Channel:
    channel = dial(dealer.address, identities[role])
    greet(channel, {"role": claim or role})
    return channel


def ask_for(program: tuple[Correlation, ...], party: int, name: str | None = None) -> Ask:
    size = len(encode_correlations(program)) if party == SERVER else 0
    return Ask(name or new_bundle_id(), program_digest(program), size, KEY if party == SERVER else b"")


def answer(channel: Channel) -> object:
    """What the dealer says next: a message, or the error it names."""
    try:
        return _FromDealer(channel, PATIENCE)._next()
    except CometError as error:
        return error


def ask(channel: Channel, message: object) -> object:
    channel.send(message if isinstance(message, bytes) else msgspec.json.encode(message))
    return answer(channel)


# Who may act as whom.


@pytest.mark.parametrize(
    ("certificate", "claim"),
    [("client", "server"), ("server", "client"), ("dealer", "client"), ("dealer", "dealer"), ("client", "x" * 999)],
)
def test_a_certificate_acts_in_its_own_role_only(
    dealer: Dealer, identities: Identities, certificate: Role, claim: str
) -> None:
    with greeted(dealer, identities, certificate, claim) as channel:
        party = SERVER if claim == "server" else CLIENT
        found = ask(channel, ask_for(SMALL, party))
    assert isinstance(found, NotAuthenticated)
    assert len(str(found)) < 300


def test_nobody_is_served_without_a_certificate(dealer: Dealer, identities: Identities) -> None:
    context = ssl.create_default_context(cafile=str(identities["client"].authority))
    with socket.create_connection(dealer.address) as raw, pytest.raises((ssl.SSLError, OSError)):  # noqa: PT012
        secured = context.wrap_socket(raw, server_hostname="127.0.0.1")
        assert secured.recv(100) == b""
        raise OSError("closed")


def test_a_client_cannot_be_both_parties_of_a_bundle(dealer: Dealer, identities: Identities) -> None:
    """With both parts in one hand, a mask hides nothing."""
    name = new_bundle_id()
    impostor: Identities = {**identities, "server": identities["client"]}
    with hasty(dealer, partner_seconds=LONELY):
        client, server = both(
            lambda: outcome(lambda: fetch(dealer.address, impostor, CLIENT, name)),
            lambda: outcome(lambda: fetch(dealer.address, impostor, SERVER, name)),
        )
    assert isinstance(server, NotAuthenticated)
    assert isinstance(client, PeerTimeout)


# What a request may be.


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\xff\xfe",
        b"{}",
        b"[" * 4000,
        b'{"nested":' + b"[" * 4000,
        b'{"type":"Ask"}',
        b'{"type":"Received"}',
        b'{"type":"Ask","bundle_id":7,"digest":"0"}',
        b'{"type":"Ask","bundle_id":"0","digest":"0","more":1}',
        Ask("../../../etc/passwd", program_digest(SMALL)),
        Ask("0" * 32, "no digest"),
        Ask("0" * 32, program_digest(SMALL), -1),
        Ask("0" * 32, program_digest(SMALL), 10, b""),
        Ask("0" * 32, program_digest(SMALL), 0, KEY),
    ],
)
@pytest.mark.parametrize("role", ["client"])
def test_a_request_that_is_none_is_refused(dealer: Dealer, identities: Identities, role: Role, message: object) -> None:
    with greeted(dealer, identities, role) as channel:
        found = ask(channel, message)
    assert isinstance(found, PeerError | ForeignRandomness)
    assert not isinstance(found, PeerClosed)


def test_a_frame_beyond_all_limits_closes_the_connection(dealer: Dealer, identities: Identities) -> None:
    with greeted(dealer, identities, "client") as channel:
        found = outcome(lambda: ask(channel, b"x" * 100_000))
    assert isinstance(found, PeerError)


def test_an_oversized_program_is_refused_before_it_is_sent(dealer: Dealer, identities: Identities) -> None:
    with greeted(dealer, identities, "server") as channel:
        found = ask(channel, replace_size(ask_for(SMALL, SERVER), 1 << 40))
    assert isinstance(found, ForeignRandomness)
    program = tuple(BitProducts(count, 64) for count in range(1, 4000))
    with pytest.raises(ForeignRandomness):
        fetch(dealer.address, identities, SERVER, new_bundle_id(), program)


def replace_size(message: Ask, size: int) -> Ask:
    return msgspec.structs.replace(message, program_bytes=size)


def test_a_replayed_request_is_refused(dealer: Dealer, identities: Identities) -> None:
    name = new_bundle_id()
    fetch_both(dealer.address, identities, bundle_id=name)
    for role, party in (("client", CLIENT), ("server", SERVER)):
        with greeted(dealer, identities, role) as channel:  # type: ignore[arg-type]
            assert isinstance(ask(channel, ask_for(SMALL, party, name)), RandomnessSpent)


# What a program may be.

_RUBBISH: list[bytes] = [
    b"",
    b"rubbish",
    b"{}",
    b"[1]",
    b"[" * 50_000,
    b'[{"type":"Entropy","count":1}]',
    b'[{"count":1}]',
    b'[{"type":"BitProducts","count":1,"width":64,"seed":"mine"}]',
    b'[{"type":"BitProducts","count":"1","width":64}]',
    b'[{"type":"BitProducts","count":1.5,"width":64}]',
    b'[{"type":"BitProducts","count":1e300,"width":64}]',
    b'[{"type":"BitProducts","count":' + b"9" * 400 + b',"width":64}]',
]
_a, _b = Mask((4, 6), 64), Mask((6, 5), 64)
_IMPOSSIBLE: list[list[Correlation]] = [
    [BitProducts(-1, 64)],
    [BitProducts(0, 64)],
    [BitProducts(8, 0)],
    [BitProducts(8, 65)],
    [Mask((-2, -3), 64)],
    [Mask((4, 0), 64)],
    [ClientMask((-1,), 64)],
    [Mask((4,), 64, 63)],
    [Mask((4,), 64, -1)],
    [SquareSums(1, 4, 6, 64), _a],  # forward
    [SquareSums(0, 4, 6, 64)],  # itself
    [_a, SquareSums(-1, 4, 6, 64)],
    [_a, SquareSums(0, -4, -6, 64)],
    [_a, SquareSums(0, 24, 0, 64)],
    [_a, SquareSums(0, 5, 6, 64)],
    [_a, _b, MatrixProduct(0, 1, -1, -4, 6, 5, False, 64)],
    [_a, _b, MatrixProduct(0, 2, 1, 4, 6, 5, False, 64)],
    [_a, _b, MatrixProduct(0, 1, 1, 4, 6, 6, False, 64)],
    [_a, Monomials((0, 5), (4, 6), (MonomialTerm((1, 1), (0, 0), 64),))],
    [_a, _b, Monomials((0, 1), (4, 6), (MonomialTerm((1, 1), (0, 0), 64),))],
    [_a, Monomials((0,), (4, 6), ())],
    [_a, Monomials((0,), (4, 6), (MonomialTerm((65,), (0,), 64),))],
    [_a, Monomials((0,), (4, 6), (MonomialTerm((-1,), (0,), 64),))],
    [_a, Monomials((0,), (4, 6), (MonomialTerm((1, 1), (0, 0), 64),))],
    [_a, WeightProduct(0, "w", 4, 6, 2, 64)],  # a mask that the client does not know
    [ClientMask((4, 6), 64), WeightProduct(0, "w", 4, 6, -2, 64)],
    [TableTransfers(4, 24, (2,))],
    [TableTransfers(4, 512, (2,))],
    [TableTransfers(4, 16, (4, 5))],
    [TableTransfers(4, 16, ())],
    [TableTransfers(4, 16, (0,))],
    [TableTransfers(0, 16, (1,))],
    # Its 65,536th monomial would share a stream with the next mask.
    [Mask((1,), 64), Monomials((0,), (1,), (MonomialTerm((0,), (0,), 8),) * 65_536), Mask((1,), 64)],
]
_EXCESSIVE: list[list[Correlation]] = [
    [BitProducts(1 << 36, 64)],
    [BitProducts(1 << 26, 64)] * 3,
    [TableTransfers(1 << 36, 16, (8,))],
    [Mask((1 << 14, 1 << 14), 64), MatrixProduct(0, 0, 1, 1 << 14, 1 << 14, 1 << 14, False, 64)],
    [Mask((1, 1 << 22), 64), Mask((2, 1), 64), Monomials((0, 1), (2, 1 << 22), (MonomialTerm((1, 1), (0, 0), 8),))],
    [ClientMask((1 << 22, 1), 64), WeightProduct(0, "w", 1 << 22, 1, 1, 64)],
    [Mask((1 << 22,), 64), SquareSums(0, 1, 1 << 22, 64)],
]


@pytest.mark.parametrize("data", _RUBBISH + [encode_correlations(each) for each in _IMPOSSIBLE + _EXCESSIVE])
def test_a_program_that_cannot_be_is_not_admitted(data: bytes) -> None:
    with pytest.raises(ForeignRandomness) as caught:
        admit_program(data, KEY, LIMITS.program)
    assert len(str(caught.value)) < 400


def test_a_good_program_is_admitted() -> None:
    good: list[Correlation] = [_a, _b, MatrixProduct(0, 1, 1, 4, 6, 5, False, 64), SquareSums(0, 4, 6, 64)]
    assert admit_program(encode_correlations(good), KEY, ProgramLimits()).correlations == tuple(good)


@pytest.mark.parametrize("data", [_RUBBISH[1], _RUBBISH[5], encode_correlations(_IMPOSSIBLE[9])])
def test_a_bad_program_is_refused_and_the_client_is_told(dealer: Dealer, identities: Identities, data: bytes) -> None:
    name = new_bundle_id()

    def lie() -> object:
        with greeted(dealer, identities, "server") as channel:
            proceed = ask(channel, replace_size(ask_for(SMALL, SERVER, name), len(data)))
            assert isinstance(proceed, Proceed)
            return ask(channel, data)

    server, client = both(lie, lambda: outcome(lambda: fetch(dealer.address, identities, CLIENT, name)))
    assert isinstance(server, ForeignRandomness)
    assert isinstance(client, PeerClosed | RandomnessSpent)


def test_a_program_other_than_its_digest_is_refused(dealer: Dealer, identities: Identities) -> None:
    """Otherwise the client would agree to one program and the dealer deal another."""
    other = encode_correlations([BitProducts(99, 64)])
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, replace_size(ask_for(SMALL, SERVER), len(other))), Proceed)
        assert isinstance(ask(channel, other), ProtocolMismatch)


# Parties that stall or vanish.


def vanish_before_asking(dealer: Dealer, identities: Identities, name: str) -> None:
    socket.create_connection(dealer.address).close()
    dial(dealer.address, identities["server"]).close()
    greeted(dealer, identities, "server").close()


def vanish_before_the_program(dealer: Dealer, identities: Identities, name: str) -> None:
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, ask_for(LARGE, SERVER, name)), Proceed)


def vanish_in_the_program(dealer: Dealer, identities: Identities, name: str) -> None:
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, ask_for(LARGE, SERVER, name)), Proceed)
        send_raw(channel, (100).to_bytes(8, "little") + b"[")


def vanish_before_the_corrections(dealer: Dealer, identities: Identities, name: str) -> None:
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, ask_for(LARGE, SERVER, name)), Proceed)
        assert isinstance(ask(channel, encode_correlations(LARGE)), Seed)


def vanish_in_the_corrections(dealer: Dealer, identities: Identities, name: str) -> None:
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, ask_for(LARGE, SERVER, name)), Proceed)
        assert isinstance(ask(channel, encode_correlations(LARGE)), Seed)
        assert isinstance(answer(channel), bytearray)


def vanish_before_confirming(dealer: Dealer, identities: Identities, name: str) -> None:
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, ask_for(LARGE, SERVER, name)), Proceed)
        seed = ask(channel, encode_correlations(LARGE))
        assert isinstance(seed, Seed)
        rest = seed.corrections
        while rest:
            piece = answer(channel)
            assert isinstance(piece, bytearray)
            rest -= len(piece)


def stall_in_the_corrections(dealer: Dealer, identities: Identities, name: str) -> None:
    with greeted(dealer, identities, "server") as channel:
        assert isinstance(ask(channel, ask_for(LARGE, SERVER, name)), Proceed)
        assert isinstance(ask(channel, encode_correlations(LARGE)), Seed)
        eventually(lambda: given_up(dealer, name))


Leaving = Callable[[Dealer, Identities, str], None]


@pytest.mark.parametrize(
    "leave",
    [
        vanish_before_asking,
        vanish_before_the_program,
        vanish_in_the_program,
        vanish_before_the_corrections,
        vanish_in_the_corrections,
        vanish_before_confirming,
        stall_in_the_corrections,
    ],
)
def test_a_server_that_leaves_leaves_no_seed_with_the_client(
    dealer: Dealer, identities: Identities, leave: Leaving
) -> None:
    name = new_bundle_id()
    patience: dict[Leaving, dict[str, float]] = {
        vanish_before_asking: {"partner_seconds": LONELY},
        stall_in_the_corrections: {"stall_seconds": STALLED},
    }
    with hasty(dealer, **patience.get(leave, {})):
        found, _ = both(
            lambda: outcome(lambda: fetch(dealer.address, identities, CLIENT, name, LARGE)),
            lambda: leave(dealer, identities, name),
        )
    assert isinstance(found, PeerClosed | PeerTimeout | RandomnessSpent)
    with pytest.raises(RandomnessSpent):
        fetch(dealer.address, identities, SERVER, name, LARGE)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("seeded", [False, True])
def test_a_client_that_leaves_voids_the_servers_part(
    dealer: Dealer, identities: Identities, seeded: bool, stalls: bool
) -> None:
    """It vanishes or stalls, while it waits or with its seed in hand."""
    name = new_bundle_id()

    def leave() -> None:
        with greeted(dealer, identities, "client") as channel:
            channel.send(msgspec.json.encode(ask_for(LARGE, CLIENT, name)))
            if seeded:
                assert isinstance(answer(channel), Seed)
            else:
                channel.receive(100)
            if stalls:
                eventually(lambda: given_up(dealer, name))

    with hasty(dealer, **({"stall_seconds": STALLED} if stalls else {})):
        found, _ = both(lambda: outcome(lambda: fetch(dealer.address, identities, SERVER, name, LARGE)), leave)
    assert isinstance(found, PeerClosed) or (stalls and isinstance(found, PeerTimeout))
    assert "another id" in str(found) or "nothing was dealt" in str(found)


def test_a_party_that_confirms_too_early_is_not_believed(dealer: Dealer, identities: Identities) -> None:
    """The client cannot talk the dealer into a seed before the server has its corrections."""
    with hasty(dealer, partner_seconds=LONELY), greeted(dealer, identities, "client") as channel:
        channel.send(msgspec.json.encode(ask_for(SMALL, CLIENT)))
        channel.send(msgspec.json.encode(Received()))
        assert isinstance(answer(channel), PeerTimeout)


def test_dripping_bytes_does_not_hold_the_line(dealer: Dealer, identities: Identities) -> None:
    """A frame of 4000 bytes, one at a time: the dealer hangs up long before it has them all."""
    sent = 0
    with (
        hasty(dealer, ask_seconds=2 * LONELY),
        greeted(dealer, identities, "client") as channel,
        contextlib.suppress(OSError),
    ):
        send_raw(channel, (4000).to_bytes(8, "little"))
        while sent < 4000 and not within(0.02, lambda: hung_up(channel)):
            send_raw(channel, b"x")
            sent += 1
    assert sent < 4000


def test_stalled_handshakes_do_not_stop_the_others(dealer: Dealer, identities: Identities) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(dealer.address)) for _ in range(10)]
        fetch_both(dealer.address, identities)
        assert not any(map(hung_up, idle))  # they were served meanwhile, and not because the dealer had lost patience


def test_a_role_cannot_crowd_out_its_partners(identities: Identities) -> None:
    """All places that a certificate gets are taken by a client that waits: its next is told, the servers come in."""
    names = [new_bundle_id() for _ in range(LIMITS.bundles * 3 // 4)]
    with running_dealer(identities) as dealer:
        waiting = [greeted(dealer, identities, "client") for _ in names]
        for channel, name in zip(waiting, names, strict=True):
            channel.send(msgspec.json.encode(ask_for(SMALL, CLIENT, name)))
            channel.receive(100)
        with pytest.raises(PeerError, match="busy"):
            fetch(dealer.address, identities, CLIENT, new_bundle_id())

        def confirm() -> None:
            assert isinstance(answer(waiting[0]), Seed)
            waiting[0].send(msgspec.json.encode(Received()))

        both(lambda: fetch(dealer.address, identities, SERVER, names[0]), confirm)
        for channel in waiting:
            channel.close()
