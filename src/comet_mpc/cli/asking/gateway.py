"""`comet gateway`: HTTP on this machine, for the programs of whoever owns the texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    option,
    wanted_model,
)
from comet_mpc.errors import needs_extra
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.service.client import ClientOptions
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.clients.seen import Seen
from comet_mpc.service.model_cache import default_cache

_WHY = (
    "The texts are in the clear here. So a gateway runs beside the client: on the server's machine it would give the "
    "server every text."
)


Listen = Annotated[
    str,
    option(
        "Address to listen on for HTTP. Port 0: any free port. Only its owner can use a Unix socket.",
        flag="HOST:PORT|unix:PATH",
    ),
]
TokenFile = Annotated[
    Path | None,
    option(
        "File of the token that programs must show, as a header for `curl -H @FILE`. Created if missing. "
        "Default: gateway.token in the cache; none at a Unix socket.",
        flag="FILE",
    ),
]
RequestSeconds = Annotated[float, option("Seconds for a request's header to arrive, and again for its body.", min=0.1)]
AllowedHosts = Annotated[
    list[str] | None,
    option(
        "Also answer requests for this name. Needed to listen on an address other than this machine's own. "
        "May be given again.",
        flag="NAME[:PORT]",
    ),
]
Ready = Annotated[
    int,
    option(
        "Keep this many queries of each size in use prepared in advance, so that answers come faster.",
        "Randomness",
        min=0,
    ),
]


def gateway(
    server: ServerAddress,
    listen: Listen = "127.0.0.1:7080",
    token_file: TokenFile = None,
    request_seconds: RequestSeconds = 10.0,
    allow_host: AllowedHosts = None,
    keys: Keys = Path("keys"),
    name: ClientName = "client",
    cache: Cache = None,
    source: AnySource = None,
    dealer: DealerAddress = None,
    ready: Ready = 2,
    model: WantedModel = "",
    accept_model: AcceptedModel = "",
    bucket: Bucket = None,
    tokenizer: OwnTokenizer = None,
    batch: MostTexts = 8,
    timeout: Timeout = 120.0,
) -> None:
    """Answer HTTP requests of programs on this machine privately, with a web page, until SIGINT or SIGTERM.

    The address of the page is printed; /openapi.json describes the requests. A gateway handles texts in the clear, so
    run it on the client's machine, never on the server's. By default, only programs on this machine that can read its
    token may use it. It has no TLS.
    """
    with needs_extra("gateway"):  # said before anything is read
        import comet_mpc.gateway.app  # noqa: F401
    called, fingerprint = wanted_model(model)
    options: ClientOptions = {
        "identity": TlsIdentity.find(keys, name), "cache": cache, "timeout": timeout, "ready": ready, "batch": batch,
        "source": source, "dealer": dealer, "model": called, "fingerprint": fingerprint,
        "accept_model": accept_model, "bucket": bucket, "tokenizer": tokenizer,
    }  # fmt: skip
    _run(server, options, listen, allow_host or (), token_file, cache or default_cache(), request_seconds)


def _run(
    server: str, options: ClientOptions, listen: str, hosts: Sequence[str], token_file: Path | None, cache: Path,
    request_seconds: float,
) -> None:  # fmt: skip
    with needs_extra("gateway"):
        import uvicorn

        from comet_mpc.gateway.app import make_app
        from comet_mpc.gateway.connections import Connection
        from comet_mpc.gateway.listening import is_this_machine, listening
        from comet_mpc.gateway.token import find_token

    def connect(seen: Seen) -> AsyncClient:
        watched: ClientOptions = {**options, "watch": seen.run}
        return AsyncClient(server, **watched)

    with listening(listen, hosts) as listener:
        if token_file is None and not listener.has_owner:
            token_file = cache / "gateway.token"
        token = find_token(token_file) if token_file is not None else None
        app = make_app(server, listener.names, connect, token, request_seconds)
        typer.echo(_WHY, err=True)
        if is_this_machine(parse_address(server)[0]):
            typer.echo("The server is on this machine too: good for a trial, but nothing is private from it.", err=True)
        typer.echo(f"gateway at {listener.shown} for the server {server}")
        if token_file is not None:
            typer.echo(f"its token is in {token_file}: curl -H @{token_file} …")
        if token is not None and not listener.has_owner and sys.stdout.isatty():  # a log is for others to read, too
            typer.echo(f"its page: {listener.shown}#token={token}")
        config = uvicorn.Config(
            app, http=Connection.within(request_seconds), ws="none", log_level="warning", access_log=False,
            server_header=False,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listener.socket])
