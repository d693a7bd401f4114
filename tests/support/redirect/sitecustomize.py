"""Loaded by every Python process that runs a block of a document: names and ports of the text become free ones here.

COMET_PORTS maps ports as the documents say them to ports of this machine. Whoever connects to such a port, under
whatever name, is connected to this machine; whoever listens at one listens on loopback.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_PORTS = {int(said): port for said, port in json.loads(os.environ.get("COMET_PORTS", "{}")).items()}
_resolve = socket.getaddrinfo


def _here(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
    if port in _PORTS:
        host, port = "127.0.0.1", _PORTS[port]
    return _resolve(host, port, *arguments, **options)


socket.getaddrinfo = _here
