"""Frames between two parties: counted channels over memory, TCP and TLS 1.3, certificates, errors that travel."""

from comet_mpc.net.authority import issue, make_authority, make_test_set
from comet_mpc.net.channel import DEFAULT_TIMEOUT, Channel, Traffic, agree, greet, memory_pair
from comet_mpc.net.identity import Role, TlsIdentity
from comet_mpc.net.messages import Message, raise_refusal, refusal
from comet_mpc.net.sockets import Address, Listener, connect, listen, parse_address

__all__ = [
    "DEFAULT_TIMEOUT",
    "Address",
    "Channel",
    "Listener",
    "Message",
    "Role",
    "TlsIdentity",
    "Traffic",
    "agree",
    "connect",
    "greet",
    "issue",
    "listen",
    "make_authority",
    "make_test_set",
    "memory_pair",
    "parse_address",
    "raise_refusal",
    "refusal",
]
