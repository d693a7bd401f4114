"""`comet gateway`: HTTP on this machine, for the programs of whoever owns the texts."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import (
    AnySource,
    Cache,
    ClientName,
    DealerAddress,
    Keys,
    MostTexts,
    ServerAddress,
    Timeout,
    WantedModel,
    wanted_model,
)
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.hugging_face import need
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.clients.seen import Seen

_WHY = (
    "The texts are in the clear here. So a gateway runs beside the client: on the server's machine it would give the "
    "server every text."
)


def gateway(
    server: ServerAddress,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen for HTTP. Port 0: any free port.")
    ] = "127.0.0.1:7080",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]",
            help="Also answer requests for this name. Needed to listen at another address than this machine's own. "
            "May be given again.",
        ),
    ] = None,
    keys: Keys = Path("keys"),
    name: ClientName = "client",
    cache: Cache = None,
    source: AnySource = None,
    dealer: DealerAddress = None,
    ready: Annotated[
        int, typer.Option(min=0, help="For how many queries of each size in use to keep randomness ready.")
    ] = 2,
    model: WantedModel = "",
    batch: MostTexts = 8,
    timeout: Timeout = 120.0,
) -> None:
    """Answer HTTP requests of programs on this machine, and show a page, until SIGINT or SIGTERM.

    The page is at the address that is printed; /openapi.json describes the requests. A gateway has the texts in the
    clear. So it runs beside the client, never beside the server, and only programs of this machine can reach it unless
    you say otherwise. It has no password and no TLS.
    """
    application, guard, uvicorn = (
        need(module, "gateway") for module in ("comet_mpc.gateway.app", "comet_mpc.gateway.guard", "uvicorn")
    )
    host, port = parse_address(listen)
    server_host, _ = parse_address(server)
    if not _is_this_machine(host) and not allow_host:
        raise ConfigurationError(
            f"{host} can be reached from other machines, and this gateway has no password and no TLS: listen at "
            "127.0.0.1, or name with --allow-host what others may call it"
        )
    identity = TlsIdentity.find(keys, name)
    wanted, fingerprint = wanted_model(model)

    def connect(seen: Seen) -> AsyncClient:
        return AsyncClient(
            server,
            identity=identity,
            cache=cache,
            timeout=timeout,
            ready=ready,
            batch=batch,
            source=source,
            dealer=dealer,
            model=wanted,
            fingerprint=fingerprint,
            watch=seen.run,
        )

    listening = _listening(host, port)
    at = listening.getsockname()[1]
    names = guard.own_names(host, at, allow_host or ())
    app = application.make_app(server, names, connect)
    typer.echo(_WHY, err=True)
    if _is_this_machine(server_host):
        typer.echo("The server is on this machine too: good for a trial, but nothing is private from it.", err=True)
    shown = f"[{host}]" if ":" in host else host
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    typer.echo(f"gateway at http://{shown}:{at}/ for the server {server}")
    running.run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error


def _is_this_machine(host: str) -> bool:
    """Whether an address is one that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
