"""`comet serve` and `deal`: what the operators of server and dealer run."""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import CONNECTION, DEALER_WARNING, AnySource, Keys, LinkName, option
from comet_mpc.cli.stopping import STOPPED
from comet_mpc.engine.costs import Network
from comet_mpc.errors import ConfigurationError, needs_extra
from comet_mpc.models.public import MOST_ANSWER_BITS
from comet_mpc.models.streams.decoder import HIDDEN_BITS
from comet_mpc.models.transformer import ANSWER_BITS
from comet_mpc.net.identity import REVOKED, TlsIdentity
from comet_mpc.net.sockets import Address, parse_address
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.dealer.process import run_dealer
from comet_mpc.offline.sources import DEALER, PAIR, find_source
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.hosting.blueprint import Blueprint

_log = logging.getLogger(__name__)

_RANDOMNESS, _LIMITS, _PRIVACY, _CLUSTER = "Randomness", "Limits", "Privacy", "Cluster"

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]DIR...",
        envvar="COMET_SERVE_MODEL",
        help="A Comet checkpoint in the certified form, or several with names: models that answer, and models that "
        "write. Clients that name none get the first.",
    ),
]
Listen = Annotated[str, option("Address to listen on. Port 0: any free port.", flag="HOST:PORT")]
Certificate = Annotated[str, option("Name of this party's certificate in the directory of keys.", CONNECTION, "--name")]
State = Annotated[Path, option("Directory for the secret key and prepared randomness. Never copy it.", flag="DIR")]
Metrics = Annotated[str | None, option("Publish metrics and health here, over plain HTTP.", flag="HOST:PORT")]
Dealer = Annotated[
    str | None,
    option(
        "Use this dealer, which somebody else must run. Without one there is no third party.", _RANDOMNESS, "HOST:PORT"
    ),
]
Ready = Annotated[
    int,
    option(
        "Queries of each size that a client should keep prepared in advance, so that its answers come faster.",
        _RANDOMNESS,
        min=0,
    ),
]
Preparations = Annotated[
    int, option("Concurrent preparations of randomness with clients. 0: one less than the workers.", _RANDOMNESS, min=0)
]
StoreGb = Annotated[
    float,
    option(
        "Disk for each model's prepared randomness, in GB. When full, the largest client's oldest bundle is evicted.",
        _RANDOMNESS,
        min=0.001,
    ),
]
ClientGb = Annotated[float, option("Per-client limit within --store-gb.", _RANDOMNESS, min=0.001)]
ClientQueries = Annotated[
    int, option("Per-client limit in prepared queries, of all sizes together.", _RANDOMNESS, min=1)
]
Workers = Annotated[
    int, option("Concurrent requests; one slot is reserved for queries. 0: one per core, at least two.", _LIMITS, min=0)
]
Connections = Annotated[int, option("Connected clients; each takes a few megabytes.", _LIMITS, min=2)]
ClientConnections = Annotated[int, option("Connections per client certificate. 0: a quarter of all.", _LIMITS, min=0)]
MostPerQuery = Annotated[int, option("Texts per query.", _LIMITS, "--batch", min=1)]
QueriesPerDay = Annotated[int, option("Texts per client certificate and day (UTC). 0: unlimited.", _LIMITS, min=0)]
QueriesIn = Annotated[
    Path | None,
    option(
        "Directory for these counts. Servers that share it, such as the nodes of a cluster, count together. "
        "Default: in --state.",
        _LIMITS,
        "DIR",
    ),
]
TokensPerDay = Annotated[
    int, option("Tokens that a model writes per client certificate and day (UTC). 0: unlimited.", _LIMITS, min=0)
]
AnswerBits = Annotated[
    int | None,
    option(
        "Round the numbers of an answer to this many binary digits after the point: fewer reveal less about the "
        f"weights. Default: {ANSWER_BITS}, and {HIDDEN_BITS} for the hidden states of a model that writes.",
        _PRIVACY,
        min=1,
        max=MOST_ANSWER_BITS,
    ),
]
PrivateEmbeddings = Annotated[
    bool, option("Keep the embedding table on the server. Queries then cost more.", _PRIVACY, "--private-embeddings")
]
RequireCertificate = Annotated[
    bool,
    option(
        "Whether clients need a certificate. With a dealer, every client can download the masked weights, which "
        "the dealer's operator must not have.",
        _PRIVACY,
        "--require-client-certificate/--allow-anonymous-clients",
    ),
]
Untrained = Annotated[
    bool, option("Serve a model that was not fine-tuned in this form: for trials only.", flag="--untrained")
]
Cluster = Annotated[
    str | None,
    option(
        "Serve on the nodes of this Ray cluster, behind one address. Models, keys and --state are paths on every "
        "node, and limits apply to each node.",
        _CLUSTER,
        "HOST:PORT|auto",
    ),
]
MinNodes = Annotated[int, option("Nodes that always serve.", _CLUSTER, min=1)]
MaxNodes = Annotated[int, option("Nodes that may serve. 0: all.", _CLUSTER, min=0)]
IdleMinutes = Annotated[
    float, option("Stop serving on a node after this many minutes without a client.", _CLUSTER, min=0.0)
]


def _by_name(models: list[str]) -> dict[str, str]:
    """The directories of NAME=DIR by name. A single one needs no name."""
    found: dict[str, str] = {}
    for given in models:
        name, sign, directory = given.partition("=")
        if not sign and len(models) > 1:
            raise ConfigurationError(f"several models need names: write NAME={given}")
        if name in found:
            raise ConfigurationError(f"two models are called {name}")
        found[name if sign else "model"] = directory if sign else given
    return found


def serve(
    model: Models,
    listen: Listen = "127.0.0.1:7001",
    state: State = Path("state"),
    metrics: Metrics = None,
    untrained: Untrained = False,
    keys: Keys = Path("keys"),
    name: Certificate = "server",
    network: LinkName = str(USUAL_NETWORK),
    source: AnySource = None,
    dealer: Dealer = None,
    ready: Ready = 4,
    preparations: Preparations = 0,
    store_gb: StoreGb = 16.0,
    client_gb: ClientGb = 4.0,
    client_queries: ClientQueries = 128,
    workers: Workers = 0,
    connections: Connections = 96,
    client_connections: ClientConnections = 0,
    batch: MostPerQuery = 8,
    queries_per_day: QueriesPerDay = 0,
    tokens_per_day: TokensPerDay = 0,
    queries_in: QueriesIn = None,
    answer_bits: AnswerBits = None,
    private_embeddings: PrivateEmbeddings = False,
    require_client_certificate: RequireCertificate = True,
    cluster: Cluster = None,
    min_nodes: MinNodes = 1,
    max_nodes: MaxNodes = 0,
    idle_minutes: IdleMinutes = 10.0,
) -> None:
    """Serve models to clients, until SIGINT or SIGTERM.

    Logs go to standard error, one JSON object per line. SIGHUP reloads the checkpoints that have changed without
    downtime: connected clients keep the version that they have, until the next SIGHUP.

    Without --dealer, the server prepares the randomness together with each client, and nobody else takes part. A
    dealer is faster, but must be run by somebody who operates neither the server nor the client: a dealer run by the
    server's operator gives no privacy.
    """
    limits = ServiceLimits(
        batch=batch, ready=ready, queries_per_day=queries_per_day,
        tokens_per_day=tokens_per_day, preparations=preparations,
        queries_in=str(queries_in.absolute()) if queries_in is not None else "", client_bundles=client_queries,
        store_bytes=round(store_gb * 1e9), client_bytes=round(client_gb * 1e9),
    )  # fmt: skip
    chosen = source or (PAIR if dealer is None else DEALER).name
    blueprint = Blueprint(
        models=_by_name(model), keys=str(keys), certificate=name, source=chosen,
        dealer=_dealer_address(chosen, dealer),
        private_embeddings=private_embeddings, answer_bits=answer_bits, network=str(Network.parse(network)),
        untrained=untrained, workers=workers, connections=connections, client_connections=client_connections,
        require_client=require_client_certificate, limits=limits,
    )  # fmt: skip
    where, publish = parse_address(listen), parse_address(metrics) if metrics is not None else None
    if cluster is None:
        _serve_here(blueprint, where, state, publish)
    else:
        _serve_on(cluster, blueprint, where, state, publish, (min_nodes, max_nodes, 60 * idle_minutes))


def _dealer_address(source: str, dealer: str | None) -> Address | None:
    """The dealer's address, if --source and --dealer agree."""
    if find_source(source).has_third_party != (dealer is not None):
        if dealer is None:
            raise ConfigurationError(f"--source {source} needs --dealer HOST:PORT")
        raise ConfigurationError(f"--source {source} works without a dealer: remove --dealer, or use --source dealer")
    if dealer is None:
        return None
    _log.warning(DEALER_WARNING)
    return parse_address(dealer)


def _serve_here(blueprint: Blueprint, where: Address, state: Path, metrics: Address | None) -> None:
    try:
        server = blueprint.build(where, state, metrics)
        ended_by = server.serve_forever(lambda: _tell(server.address, server.metrics_address, server.source))
    except KeyboardInterrupt:  # while it was loading
        ended_by = signal.SIGINT
    _end(ended_by, state)


def _end(ended_by: int, state: Path) -> None:
    """Ctrl-C ends with the exit code of every command that it stops."""
    if ended_by == signal.SIGINT:
        kept = {"state": str(state), "kept": "prepared randomness and quotas"}
        _log.info("stopped by Ctrl-C: run the same command to serve again", extra={"fields": kept})
        raise typer.Exit(STOPPED)


def _serve_on(
    cluster: str, blueprint: Blueprint, where: Address, state: Path, metrics: Address | None,
    nodes: tuple[int, int, float],
) -> None:  # fmt: skip
    """nodes: at least, at most, and the seconds without a client after which one serves no more"""
    with needs_extra("cluster"):
        from comet_mpc.cluster.scaling import Scale
        from comet_mpc.cluster.serving import ClusterServer
    scale = Scale(nodes[0], nodes[1], idle_seconds=nodes[2])
    ended_by = ClusterServer(cluster, blueprint.everywhere(), where, state, scale, metrics).serve_forever(
        lambda address, pages: _tell(address, pages, blueprint.source)
    )
    _end(ended_by, state)


def _tell(address: Address, metrics: Address | None, source: str) -> None:
    typer.echo("serving at {}:{}".format(*address) + f", source of randomness: {source}")
    _say_metrics(metrics)


def deal(
    listen: Listen = "127.0.0.1:7000",
    keys: Keys = Path("keys"),
    name: Certificate = "dealer",
    state: Annotated[
        Path | None,
        option(
            "Directory for the newest list of revoked certificates, so that a restart cannot bring back an older one.",
            flag="DIR",
        ),
    ] = None,
    metrics: Metrics = None,
) -> None:
    """Run a dealer, which prepares randomness for clients and servers, until SIGINT or SIGTERM.

    Logs go to standard error, one JSON object per line.

    A dealer never sees an input or a weight, but it knows every mask. So it must be run by somebody who operates
    neither the server nor the client: a dealer run by the server's operator gives no privacy.
    """

    def started(address: Address, pages: Address | None) -> None:
        typer.echo("dealing at {}:{}".format(*address))
        _say_metrics(pages)

    identity = TlsIdentity.find(keys, name)
    ended_by = run_dealer(
        *parse_address(listen),
        identity if state is None else replace(identity, kept_list=state / REVOKED),
        metrics=parse_address(metrics) if metrics is not None else None,
        started=started,
    )
    if ended_by == signal.SIGINT:
        _log.info("stopped by Ctrl-C: run the same command to deal again")
        raise typer.Exit(STOPPED)


def _say_metrics(address: Address | None) -> None:
    if address is not None:
        typer.echo("metrics at http://{}:{}/metrics".format(*address))
    sys.stdout.flush()
