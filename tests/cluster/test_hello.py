"""The first message of a TLS connection: which machine it names."""

from __future__ import annotations

import random

import pytest

from comet_mpc.cluster.hello import HELLO_LIMIT, RECORD_HEADER, hello_bytes, wanted_state
from comet_mpc.service.connection import ROUTE
from support.client_hello import client_hello

STATE = "0123456789abcdef" * 2


@pytest.mark.parametrize("host", ["server.example", "127.0.0.1", "x" * 60 + ".example"])
def test_the_state_that_a_client_names_is_found(host: str) -> None:
    hello = client_hello(ROUTE + STATE, host=host)
    assert hello_bytes(hello[:RECORD_HEADER]) == len(hello) - RECORD_HEADER
    assert wanted_state(hello) == STATE


@pytest.mark.parametrize(
    "protocols", [[], ["h2", "http/1.1"], [STATE], [ROUTE], [ROUTE + STATE[:-1]], [ROUTE + STATE + "0"]]
)
def test_other_protocols_name_nobody(protocols: list[str]) -> None:
    assert wanted_state(client_hello(*protocols)) == ""


def test_the_state_may_be_one_of_several_protocols() -> None:
    assert wanted_state(client_hello("h2", ROUTE + STATE)) == STATE


def test_what_is_no_tls_has_no_length() -> None:
    assert hello_bytes(b"GET /") == hello_bytes(b"") == hello_bytes(b"\x16\x03\x01\xff") == 0
    assert hello_bytes(b"\x16\x03\x01\xff\xff") == 0, "longer than a record may be"
    assert hello_bytes(b"\x16\x03\x01\x40\x00") == HELLO_LIMIT - RECORD_HEADER


def test_a_damaged_hello_raises_nothing() -> None:
    """And names nobody, or what it names; a relay passes it on as it is, and the server judges it."""
    dice, hello = random.Random(1), client_hello(ROUTE + STATE)
    for end in range(len(hello)):
        assert wanted_state(hello[:end]) in ("", STATE)
    for _ in range(5000):
        damaged = bytearray(hello)
        for _ in range(dice.randint(1, 8)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        assert len(wanted_state(bytes(damaged))) in (0, len(STATE))
