"""`comet serve` and `deal`: what the operators of server and dealer run."""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import DEALER_WARNING, AnySource, Keys, LinkName
from comet_mpc.cli.stopping import STOPPED
from comet_mpc.engine.costs import Network
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.hugging_face import need
from comet_mpc.models.served import MOST_ANSWER_BITS
from comet_mpc.models.transformer import ANSWER_BITS
from comet_mpc.net.identity import REVOKED, TlsIdentity
from comet_mpc.net.sockets import Address, parse_address
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.dealer.process import run_dealer
from comet_mpc.offline.sources import find_source
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.hosting.blueprint import Blueprint

_log = logging.getLogger(__name__)

Metrics = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where to publish metrics and health, by plain HTTP.")
]


def _places(models: list[str]) -> dict[str, Path]:
    """NAME=DIR, by name. A single one needs no name."""
    found: dict[str, Path] = {}
    for given in models:
        name, sign, directory = given.partition("=")
        if not sign and len(models) > 1:
            raise ConfigurationError(f"several models need names: write NAME={given}")
        if name in found:
            raise ConfigurationError(f"two models are called {name}")
        found[name if sign else "model"] = Path(directory if sign else given)
    return found


def serve(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]DIR...",
            envvar="COMET_SERVE_MODEL",
            help="A Comet checkpoint in the certified form; several, if they have names. The first is for clients that "
            "name none.",
        ),
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen for clients. Port 0: any free port.")
    ] = "127.0.0.1:7001",
    source: AnySource = None,
    dealer: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A dealer, run by somebody else. Without one there is no third party."),
    ] = None,
    keys: Keys = Path("keys"),
    name: Annotated[str, typer.Option(help="This server's certificate in the directory of keys.")] = "server",
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="For the server's secret key and prepared randomness. Never copy it.")
    ] = Path("state"),
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests that are worked on at the same time. One of them is never a preparation. 0: as many as "
            "there are cores, and two at least.",
        ),
    ] = 0,
    connections: Annotated[
        int, typer.Option(min=2, help="Clients connected at the same time; each costs a few megabytes.")
    ] = 96,
    ready: Annotated[
        int, typer.Option(min=0, help="For how many queries of each size a client may keep randomness ready.")
    ] = 4,
    batch: Annotated[int, typer.Option(min=1, help="The most texts that a client may send at once.")] = 8,
    answer_bits: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_ANSWER_BITS,
            help="Binary digits after the point in a client's logits. Fewer tell less about the weights.",
        ),
    ] = ANSWER_BITS,
    network: LinkName = str(USUAL_NETWORK),
    queries_per_day: Annotated[
        int, typer.Option(min=0, help="The most texts per day (UTC) and client certificate. 0: no limit.")
    ] = 0,
    queries_in: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to count them. Servers that share this directory, as the nodes of a cluster may, count "
            "together. Default: in --state.",
        ),
    ] = None,
    store_gb: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="Disk for each model's prepared randomness, in GB. When full, the largest client's oldest bundle is "
            "evicted.",
        ),
    ] = 16.0,
    client_gb: Annotated[
        float, typer.Option(min=0.001, help="Per-client limit within --store-gb; beyond it, its own oldest is evicted.")
    ] = 4.0,
    client_queries: Annotated[
        int, typer.Option(min=1, help="The same in prepared queries, of all sizes together.")
    ] = 128,
    preparations: Annotated[
        int, typer.Option(min=0, help="Places to prepare randomness with clients in. 0: one less than the workers.")
    ] = 0,
    client_connections: Annotated[
        int, typer.Option(min=0, help="Connections of one client's certificate. 0: a quarter of all.")
    ] = 0,
    metrics: Metrics = None,
    private_embeddings: Annotated[
        bool,
        typer.Option("--private-embeddings", help="Keep the embedding table at the server. Queries then cost more."),
    ] = False,
    require_client_certificate: Annotated[
        bool,
        typer.Option(
            "--require-client-certificate/--allow-anonymous-clients",
            help="With a dealer, anybody whom you allow can download the masked weights. Whoever runs the dealer must "
            "not have them.",
        ),
    ] = True,
    untrained: Annotated[
        bool,
        typer.Option("--untrained", help="Serve a model that was not fine-tuned in this form: for trials only."),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            help="Serve on the nodes of this Ray cluster, behind one address. Models, keys and --state are paths on "
            "every node; all numbers are of one node.",
        ),
    ] = None,
    min_nodes: Annotated[int, typer.Option(min=1, help="With --cluster: nodes that serve at least.")] = 1,
    max_nodes: Annotated[int, typer.Option(min=0, help="With --cluster: nodes that serve at most. 0: all.")] = 0,
    idle_minutes: Annotated[
        float, typer.Option(min=0.0, help="With --cluster: after so long without a client, a node serves no more.")
    ] = 10.0,
) -> None:
    """Serve a model, or several, to clients, until SIGINT or SIGTERM.

    Logs go to standard error, one JSON object per line. After SIGHUP, checkpoints that have changed are loaded again,
    without a stop: clients that are set up stay with the version that they have, until the next SIGHUP.

    Without --dealer, the server prepares the randomness together with each client, and nobody else takes part. A
    dealer is faster, but must be run by somebody who operates neither the server nor the client: a dealer run by the
    server's operator gives no privacy.
    """
    if source is not None and find_source(source).has_third_party and dealer is None:
        raise ConfigurationError(f"--source {source} needs --dealer HOST:PORT")
    if source is not None and not find_source(source).has_third_party and dealer is not None:
        raise ConfigurationError(f"--source {source} works without a dealer: remove --dealer, or use --source dealer")
    blueprint = Blueprint(
        models={called: str(directory) for called, directory in _places(model).items()},
        keys=str(keys),
        certificate=name,
        dealer=parse_address(dealer) if dealer is not None else None,
        private_embeddings=private_embeddings,
        answer_bits=answer_bits,
        network=str(Network.parse(network)),
        untrained=untrained,
        workers=workers,
        connections=connections,
        client_connections=client_connections,
        require_client=require_client_certificate,
        limits=ServiceLimits(
            batch=batch,
            ready=ready,
            queries_per_day=queries_per_day,
            queries_in=str(queries_in.absolute()) if queries_in is not None else "",
            store_bytes=round(store_gb * 1e9),
            client_bytes=round(client_gb * 1e9),
            client_bundles=client_queries,
            preparations=preparations,
        ),
    )
    if dealer is not None:
        _log.warning(DEALER_WARNING)
    where, publish = parse_address(listen), parse_address(metrics) if metrics is not None else None
    if cluster is not None:
        serving = need("comet_mpc.cluster.serving", "cluster")
        nodes = need("comet_mpc.cluster.scaling", "cluster").Scale(min_nodes, max_nodes, idle_seconds=60 * idle_minutes)
        serving.ClusterServer(cluster, blueprint.everywhere(), where, state, nodes, publish).serve_forever(
            lambda address, figures: _tell(address, figures, blueprint.source().name)
        )
        return
    try:
        server = blueprint.build(where, state, publish)
        ended_by = server.serve_forever(lambda: _tell(server.address, server.metrics_address, server.source))
    except KeyboardInterrupt:  # while it was loading
        ended_by = signal.SIGINT
    if ended_by == signal.SIGINT:
        kept = {"state": str(state), "kept": "prepared randomness and quotas"}
        _log.info("stopped by Ctrl-C: run the same command to serve again", extra={"fields": kept})
        raise typer.Exit(STOPPED)


def _tell(address: Address, metrics: Address | None, source: str) -> None:
    typer.echo("serving at {}:{}".format(*address) + f", source of randomness: {source}")
    _say_metrics(metrics)


def deal(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen. Port 0: any free port.")
    ] = "127.0.0.1:7000",
    keys: Keys = Path("keys"),
    name: Annotated[str, typer.Option(help="This dealer's certificate in the directory of keys.")] = "dealer",
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For the newest list of revoked certificates: a restart beside an older one does not forget it.",
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
