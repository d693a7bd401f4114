"""A server as its operator orders it: everything but the machine. It can be written down, and built on any machine."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from comet_mpc.engine.costs import Network
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.stored.checkpoints import read_config
from comet_mpc.models.writing.any_model import load_model
from comet_mpc.models.writing.stored import is_decoder
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.reception import ReceptionLimits
from comet_mpc.net.sockets import Address
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import PAIR, find_source
from comet_mpc.progress import bar
from comet_mpc.service.deployment import Served, ServiceLimits
from comet_mpc.service.hosting.server import Server
from comet_mpc.service.hosting.state import claim

_log = logging.getLogger(__name__)


class Blueprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments are those of `Server`. Files are named by their paths, which are read where it is built."""

    models: dict[str, str]
    """Directories of checkpoints, by name."""
    keys: str
    certificate: str = "server"
    """Its name in the directory of keys."""
    source: str = PAIR.name
    """Its name: who prepares the randomness."""
    dealer: Address | None = None
    private_embeddings: bool = False
    answer_bits: int | None = None
    """None: as is usual for a model of its kind."""
    network: str = str(USUAL_NETWORK)
    """Between clients and this server, as `Network.parse` reads it."""
    untrained: bool = False
    """Also a model that was not fine-tuned in this form."""
    workers: int = 0
    connections: int = 96
    client_connections: int = 0
    require_client: bool = True
    limits: ServiceLimits = ServiceLimits()

    def identity(self) -> TlsIdentity:
        return TlsIdentity.find(self.keys, self.certificate)

    def found_source(self) -> Source:
        return find_source(self.source).at(self.dealer)

    def everywhere(self) -> Blueprint:
        """With paths that mean the same in every directory."""
        models = {name: os.path.abspath(directory) for name, directory in self.models.items()}
        return msgspec.structs.replace(self, models=models, keys=os.path.abspath(self.keys))

    def load(self) -> dict[str, Served]:
        """The models, whose ranges are proved again."""
        for directory in self.models.values():
            self._check_fine_tuned(Path(directory))
        found: dict[str, Served] = {}
        for name, directory in self.models.items():
            _log.info("loading a model and proving its ranges", extra={"fields": {"name": name, "from": directory}})
            with bar(f"loading {directory}: layers", say=_log.info) as tick:
                found[name] = load_model(
                    Path(directory),
                    private_embeddings=self.private_embeddings,
                    answer_bits=self.answer_bits,
                    network=Network.parse(self.network),
                    told=tick,
                )
        return found

    def build(
        self, listen_at: Address, state: Path, metrics: Address | None, handshakes: ReceptionLimits | None = None
    ) -> Server:
        claim(state).close()  # a state that is in use is found before the models are loaded, which takes a while
        return Server(
            self.load(),
            listen_at,
            self.found_source(),
            self.identity(),
            state,
            workers=self.workers,
            connections=self.connections,
            per_client=self.client_connections,
            require_client=self.require_client,
            metrics=metrics,
            limits=self.limits,
            handshakes=handshakes,
            reload=self.load,
        )

    def _check_fine_tuned(self, model: Path) -> None:
        """A model that was given other non-linear steps, and was not trained with them, answers at random."""
        if is_decoder(model):  # its functions were fitted before it was written
            return
        config = read_config(model)
        if self.untrained or config.fine_tuned or not config.certified:  # what is not certified is refused on loading
            return
        task = f" --task {config.task}" if config.task else ""
        raise ConfigurationError(
            f"{model} was not fine-tuned in this form, as far as it says, so its answers would be no better than "
            f"chance: run `comet finetune {model} OUT --data DIR{task}` and serve OUT, or try it as it is with "
            "--untrained"
        )
