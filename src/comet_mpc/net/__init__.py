"""Frames between two parties: counted channels over memory, TCP and TLS 1.3, certificates, errors that travel.

channel    frames, counting, greeting; channels in memory
sockets    the same over TCP and TLS: connect, listen
tls        TLS 1.3 between bytes in memory
reception  many connections shake hands, and none holds up another
identity   certificates of a server, a client, a dealer; `authority` issues and revokes them
messages   errors that are told to the other side
metrics    what an operator may see by HTTP; `logs`, in the log
"""

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
