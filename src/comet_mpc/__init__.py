"""Two-party private Transformer inference on additive shares in Z_2^64.

The names in `__all__` are the public face: docs/how-to/python.md describes each of them, and they change only with a
note in the changelog. Everything else in this package may change at any time.

    from comet_mpc import Client

    with Client("server.example:7001", keys="keys") as client:
        print(client.classify(["a warm and funny film"])[0].label)

A name is loaded when it is first used, so `import comet_mpc` itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from comet_mpc import errors
from comet_mpc.errors import *  # noqa: F403  every error is public

if TYPE_CHECKING:
    from comet_mpc.engine.costs import Network
    from comet_mpc.engine.plan import Plan, plan_program
    from comet_mpc.engine.polynomial import Polynomial, variables
    from comet_mpc.engine.session import Session
    from comet_mpc.engine.share import BOTH, CLIENT, SERVER, Share, decode
    from comet_mpc.engine.tensors import Given, Opened, Weight
    from comet_mpc.engine.twin import run_twin
    from comet_mpc.models.public import PublicModel
    from comet_mpc.models.served import ServedModel
    from comet_mpc.models.writing.sampling import Sampling
    from comet_mpc.net.identity import TlsIdentity
    from comet_mpc.offline.sources import DealerSource, PairSource
    from comet_mpc.service.client import Client
    from comet_mpc.service.clients.asynchronous import AsyncClient
    from comet_mpc.service.clients.encoder import PrivateEncoder
    from comet_mpc.service.clients.frames import classify_frame
    from comet_mpc.service.deployment import ServiceLimits
    from comet_mpc.service.hosting.server import Server
    from comet_mpc.service.prediction import Answer, Cost, Embedding, Prediction, Tag, Tagging
    from comet_mpc.service.writing.client import Token

    __version__: str

__all__ = [
    "BOTH",
    "CLIENT",
    "SERVER",
    "Answer",
    "AsyncClient",
    "Client",
    "Cost",
    "DealerSource",
    "Embedding",
    "Given",
    "Network",
    "Opened",
    "PairSource",
    "Plan",
    "Polynomial",
    "Prediction",
    "PrivateEncoder",
    "PublicModel",
    "Sampling",
    "ServedModel",
    "Server",
    "ServiceLimits",
    "Session",
    "Share",
    "Tag",
    "Tagging",
    "TlsIdentity",
    "Token",
    "Weight",
    "__version__",
    "classify_frame",
    "decode",
    "plan_program",
    "run_twin",
    "variables",
]
__all__ += errors.__all__

_HOMES = {
    "service.clients.asynchronous": ("AsyncClient",),
    "service.clients.encoder": ("PrivateEncoder",),
    "service.clients.frames": ("classify_frame",),
    "service.client": ("Client",),
    "service.prediction": ("Answer", "Cost", "Embedding", "Prediction", "Tag", "Tagging"),
    "service.hosting.server": ("Server",),
    "service.deployment": ("ServiceLimits",),
    "offline.sources": ("DealerSource", "PairSource"),
    "models.served": ("PublicModel", "ServedModel"),
    "models.writing.sampling": ("Sampling",),
    "service.writing.client": ("Token",),
    "net.identity": ("TlsIdentity",),
    "engine.costs": ("Network",),
    "engine.plan": ("Plan", "plan_program"),
    "engine.polynomial": ("Polynomial", "variables"),
    "engine.tensors": ("Given", "Opened", "Weight"),
    "engine.session": ("Session",),
    "engine.share": ("BOTH", "CLIENT", "SERVER", "Share", "decode"),
    "engine.twin": ("run_twin",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above, and must report a name that is not there

    def __getattr__(name: str) -> object:
        if name == "__version__":  # importlib.metadata takes longer than all the rest of this module
            globals()[name] = import_module("importlib.metadata").version("comet-mpc")
            return globals()[name]
        try:
            home = _HOME[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
