"""Client and server: messages, one conversation, the processes around it, downloads, metrics.

client        private predictions; `connection` to the server, `bundle_pool` of randomness, `model_cache` of downloads
clients       what is built on it: for asyncio, and what the server sees
prediction    what a client gets for a text, and what it cost
catalogue     the models of a server, by name
server        processes that serve; `deployment` is what they share, `conversation` one client, `quota` its queries
messages      what client and server say to each other; `programs` are what they plan alike
metrics       counters and logs for operators
"""

from comet_mpc.service.client import Client
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.deployment import Deployment, ServiceLimits
from comet_mpc.service.prediction import Cost, Prediction
from comet_mpc.service.server import Server

__all__ = ["AsyncClient", "Client", "Cost", "Deployment", "Prediction", "Server", "ServiceLimits"]
