"""Client and server: messages, one conversation, the processes around it, downloads, metrics."""

from comet_mpc.service.client import Client
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.deployment import Deployment, ServiceLimits
from comet_mpc.service.prediction import Cost, Prediction
from comet_mpc.service.server import Server

__all__ = ["AsyncClient", "Client", "Cost", "Deployment", "Prediction", "Server", "ServiceLimits"]
