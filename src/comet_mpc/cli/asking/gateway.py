"""`comet gateway`: HTTP on this machine, for the programs of whoever owns the texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import (
    AcceptedModel,
    AnySource,
    Bucket,
    Cache,
    ClientName,
    DealerAddress,
    Keys,
    MostTexts,
    OwnTokenizer,
    ServerAddress,
    Timeout,
    WantedModel,
    wanted_model,
)
from comet_mpc.models.hugging_face import need
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.clients.seen import Seen
from comet_mpc.service.model_cache import default_cache

_WHY = (
    "The texts are in the clear here. So a gateway runs beside the client: on the server's machine it would give the "
    "server every text."
)


def gateway(
    server: ServerAddress,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|unix:PATH",
            help="Where to listen for HTTP. Port 0: any free port. A Unix socket is for its owner alone.",
        ),
    ] = "127.0.0.1:7080",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The token that programs must show, as a header for `curl -H @FILE`. Made if there is none. "
            "Default: gateway.token in the cache; none at a Unix socket.",
        ),
    ] = None,
    request_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for a request's header to arrive, and again for its body.")
    ] = 10.0,
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
    accept_model: AcceptedModel = "",
    bucket: Bucket = None,
    tokenizer: OwnTokenizer = None,
    batch: MostTexts = 8,
    timeout: Timeout = 120.0,
) -> None:
    """Answer HTTP requests of programs on this machine, and show a page, until SIGINT or SIGTERM.

    The page is at the address that is printed; /openapi.json describes the requests. A gateway has the texts in the
    clear. So it runs beside the client, never beside the server. Only programs of this machine that can read its token
    may use it, unless you say otherwise. It has no TLS.
    """
    modules = ("app", "connections", "listening", "token")
    application, connections, places, tokens = (need(f"comet_mpc.gateway.{name}", "gateway") for name in modules)
    uvicorn = need("uvicorn", "gateway")
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
            accept_model=accept_model,
            bucket=bucket,
            tokenizer=tokenizer,
            watch=seen.run,
        )

    with places.listening(listen, allow_host or ()) as place:
        if token_file is None and not place.has_owner:
            token_file = (cache or default_cache()) / "gateway.token"
        token = tokens.find_token(token_file) if token_file is not None else None
        app = application.make_app(server, place.names, connect, token, request_seconds)
        typer.echo(_WHY, err=True)
        if places.is_this_machine(parse_address(server)[0]):
            typer.echo("The server is on this machine too: good for a trial, but nothing is private from it.", err=True)
        typer.echo(f"gateway at {place.shown} for the server {server}")
        if token_file is not None:
            typer.echo(f"its token is in {token_file}: curl -H @{token_file} …")
        if token is not None and not place.has_owner and sys.stdout.isatty():  # a log is for others to read, too
            typer.echo(f"its page: {place.shown}#token={token}")
        config = uvicorn.Config(
            app, http=connections.Connection.within(request_seconds), ws="none",
            log_level="warning", access_log=False, server_header=False,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[place.socket])
