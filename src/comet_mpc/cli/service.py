"""`comet serve` and `comet query`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from comet_mpc.engine.party import SourceName
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.served import MOST_ANSWER_BITS, ServedModel
from comet_mpc.models.transformer import ANSWER_BITS
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.offline.source import Progress
from comet_mpc.offline.sources import DealerSource, PairSource
from comet_mpc.service.client import Client
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.metrics import log_as_json
from comet_mpc.service.prediction import Prediction
from comet_mpc.service.server import Server
from comet_mpc.units import human_bytes

__all__ = ["SourceOption", "register", "showing_preparation"]

_log = logging.getLogger(__name__)

DEALER_WARNING = (
    "The dealer must be run by somebody who is neither the server's nor the client's operator: "
    "a dealer run by the server's operator gives no privacy."
)

Keys = Annotated[Path, typer.Option("--keys", help="Directory with authority.pem and this party's .pem and .key.")]


SourceOption = Annotated[
    SourceName | None, typer.Option(help="Source of randomness: pair (the two parties alone) or dealer (a third one).")
]


@contextlib.contextmanager
def showing_preparation(wanted: bool = True) -> Iterator[Progress | None]:
    """A bar on stderr while randomness is prepared, if somebody is looking."""
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), _TimeLeft())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", visible=False)
        finished = 0

        def show(done: int, total: int) -> None:
            nonlocal finished
            what = "preparing randomness" + (f" ({finished + 1})" if finished else "")
            bar.update(task, description=what, completed=done, total=total, visible=done < total)
            finished += done == total

        yield show


class _TimeLeft(TimeRemainingColumn):
    """Nothing to begin with: the first messages are small and take long."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.percentage >= 10 else Text("-:--:--", style="progress.remaining")


def identity_in(keys: Path, name: str) -> TlsIdentity:
    return TlsIdentity(keys / f"{name}.pem", keys / f"{name}.key", keys / "authority.pem")


def serve(
    model: Annotated[Path, typer.Argument(help="A Comet checkpoint in the certified form.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT for clients; port 0 chooses one.")] = "127.0.0.1:7001",
    source: SourceOption = None,
    dealer: Annotated[
        str | None, typer.Option(help="HOST:PORT of a dealer; without it there is no third party. " + DEALER_WARNING)
    ] = None,
    keys: Keys = Path("keys"),
    name: Annotated[str, typer.Option(help="Name of this server's certificate in the directory of keys.")] = "server",
    state: Annotated[
        Path, typer.Option(help="Directory for the secret of the weight masks and prepared randomness. Never copy it.")
    ] = Path("state"),
    workers: Annotated[
        int,
        typer.Option(min=1, help="Connections served at a time; one of them never prepares randomness with a client."),
    ] = 4,
    ready: Annotated[int, typer.Option(min=0, help="Queries whose randomness a client may keep ready, per size.")] = 4,
    batch: Annotated[int, typer.Option(min=1, help="Most texts in one run.")] = 8,
    answer_bits: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_ANSWER_BITS,
            help="Binary digits after the point of the logits that clients get. Fewer tell less about the weights.",
        ),
    ] = ANSWER_BITS,
    queries_per_day: Annotated[
        int, typer.Option(min=0, help="Most texts a day (UTC) for one client's certificate; 0: no limit.")
    ] = 0,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT for Prometheus (plain HTTP).")] = None,
    private_embeddings: Annotated[
        bool,
        typer.Option("--private-embeddings", help="Keep the embedding table at the server; a query then costs more."),
    ] = False,
    require_client_certificate: Annotated[
        bool,
        typer.Option(
            "--require-client-certificate/--allow-anonymous-clients",
            help="Anonymous clients may download the masked weights, which nobody who deals may have.",
        ),
    ] = True,
) -> None:
    """Serve a model. Logs go to standard error, one JSON object a line.

    Without --dealer the server prepares the randomness with each client, and nobody else takes part. A dealer is
    faster, but must be run by somebody who is neither the server's nor the client's operator: a dealer run by the
    server's operator gives no privacy.
    """
    if source == "pair" and dealer is not None:
        raise ConfigurationError("--source pair is without a dealer: leave --dealer out, or use --source dealer")
    if source == "dealer" and dealer is None:
        raise ConfigurationError("--source dealer needs --dealer HOST:PORT")
    log_as_json()
    server = Server(
        ServedModel.load(model, private_embeddings=private_embeddings, answer_bits=answer_bits),
        parse_address(listen),
        DealerSource(parse_address(dealer)) if dealer is not None else PairSource(),
        identity_in(keys, name),
        state,
        workers=workers,
        require_client=require_client_certificate,
        metrics=parse_address(metrics) if metrics is not None else None,
        limits=ServiceLimits(batch=batch, ready=ready, queries_per_day=queries_per_day),
    )
    if dealer is not None:
        _log.warning(DEALER_WARNING)

    def started() -> None:
        typer.echo("serving at {}:{}".format(*server.address) + f", source of randomness: {server.source}")
        if server.metrics_address is not None:
            typer.echo("metrics at http://{}:{}/metrics".format(*server.metrics_address))
        sys.stdout.flush()

    server.serve_forever(started)


def _texts(given: list[str] | None, file: Path | None) -> list[str]:
    """From the command line, or one text a line from a file or standard input."""
    if given and file is not None:
        raise ConfigurationError("give texts or --file, not both")
    if given and given != ["-"]:
        return given
    if not given and file is None:
        raise ConfigurationError("there is no text: give some, or --file FILE ('-' for standard input)")
    try:
        content = sys.stdin.read() if file is None or str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the texts: {error}") from error
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise ConfigurationError("there is no text to classify")
    return texts


def summed_cost(predictions: list[Prediction]) -> dict[str, float]:
    """The cost of all runs together. Texts of one run share their cost object."""
    runs = list({id(prediction.cost): prediction.cost for prediction in predictions}.values())
    total: dict[str, float] = {"setup_bytes": runs[0].setup_bytes, "setup_seconds": runs[0].setup_seconds}
    for name in ("offline_bytes", "offline_seconds", "online_bytes", "online_seconds", "rounds"):
        total[name] = sum(getattr(run, name) for run in runs)
    return total


def query(
    server: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts, or - for standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="One text a line; - for standard input.")] = None,
    keys: Keys = Path("keys"),
    name: Annotated[str, typer.Option(help="Name of this client's certificate in the directory of keys.")] = "client",
    cache: Annotated[Path | None, typer.Option(help="Directory for downloads and prepared randomness.")] = None,
    source: SourceOption = None,
    dealer: Annotated[str | None, typer.Option(help="HOST:PORT of the dealer, if not as the server says.")] = None,
    ready: Annotated[
        int,
        typer.Option(min=0, help="Leave randomness for so many more queries of these sizes; also without texts."),
    ] = 0,
    model: Annotated[str, typer.Option(help="Fingerprint: refuse any other model.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Most texts in one run.")] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds without progress.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array on standard output.")] = False,
) -> None:
    """Classify texts privately: the server does not learn them, nor the answers.

    If the server uses a dealer, that holds if the dealer is run by neither the server's nor the client's operator: a
    dealer run by the server's operator gives no privacy. --source pair insists on a server without one.
    """
    texts = [] if ready and not text and file is None else _texts(text, file)
    predictions: list[Prediction] = []
    with (
        showing_preparation(not as_json) as progress,
        Client(
            server,
            identity=identity_in(keys, name),
            cache=cache,
            timeout=timeout,
            ready=0,
            batch=batch,
            source=source,
            dealer=dealer,
            fingerprint=model,
            progress=progress,
        ) as client,
    ):
        if texts:
            predictions = client.classify(texts)
        sizes = {(found.cost.texts, found.cost.bucket) for found in predictions} or {(1, client.connect().buckets()[0])}
        prepared = sum(client.prepare(ready, batch=size, bucket=bucket, warm=False) for size, bucket in sizes if ready)
        kind = client.source
    if as_json:
        entries = [{"text": item, **dataclasses.asdict(found)} for item, found in zip(texts, predictions, strict=True)]
        typer.echo(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    if predictions:
        _show(texts, predictions)
    if ready:
        typer.echo(f"randomness for {prepared} queries is ready (source: {kind})")


def _show(texts: list[str], predictions: list[Prediction]) -> None:
    table = Table("text", "label", "probability")
    for item, found in zip(texts, predictions, strict=True):
        shown = item if len(item) <= 60 else item[:59] + "…"
        cells = (shown + (" (cut)" if found.truncated else ""), found.label, f"{found.probability:.3f}")
        table.add_row(*map(Text, cells))  # a text is not markup
    Console().print(table)
    cost = summed_cost(predictions)
    typer.echo(
        f"online {human_bytes(cost['online_bytes'])}, {cost['rounds']:.0f} rounds, {cost['online_seconds']:.2f} s; "
        f"offline {human_bytes(cost['offline_bytes'])}, {cost['offline_seconds']:.2f} s; "
        f"set-up {human_bytes(cost['setup_bytes'])}, {cost['setup_seconds']:.2f} s; "
        f"source of randomness: {predictions[0].cost.source}"
    )


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(serve)
    app.command()(query)
