"""`comet serve`, `query`, `deal` and `keys`: what the operators of server, client and dealer run."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from comet_mpc.cli.answers import AnswerFile, entry, read_texts
from comet_mpc.cli.options import DEALER_WARNING, AnySource, JsonFlag, Keys, group
from comet_mpc.cli.tables import table, write_json
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import read_config
from comet_mpc.models.served import MOST_ANSWER_BITS, ServedModel
from comet_mpc.models.transformer import ANSWER_BITS
from comet_mpc.net.identity import TlsIdentity, issue, make_authority
from comet_mpc.net.sockets import parse_address
from comet_mpc.offline.dealer.server import run_dealer
from comet_mpc.offline.sources import DealerSource, PairSource, find_source
from comet_mpc.progress import bar
from comet_mpc.service.client import Client
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.metrics import log_as_json
from comet_mpc.service.prediction import Prediction
from comet_mpc.service.server import Server
from comet_mpc.units import counted, human_bytes

__all__ = ["deal", "keys", "query", "serve"]

_log = logging.getLogger(__name__)

_LONGEST = 60
"""Characters of a text that a table shows."""

keys = group("Make certificates, with which the parties know each other.")


def _check_fine_tuned(model: Path, untrained: bool) -> None:
    """A model that was given other non-linear steps, and was not trained with them, answers at random."""
    config = read_config(model)
    if untrained or config.fine_tuned or not config.certified:  # a form that is not certified is refused on loading
        return
    task = f" --task {config.task}" if config.task else ""
    raise ConfigurationError(
        f"{model} was not fine-tuned in this form, as far as it says, so its answers would be no better than chance: "
        f"run `comet finetune {model} OUT --data DIR{task}` and serve OUT, or try it as it is with --untrained"
    )


def serve(
    model: Annotated[Path, typer.Argument(help="A Comet checkpoint in the certified form.")],
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
        typer.Option(min=1, help="Connections served at the same time. One of them never prepares randomness."),
    ] = 4,
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
    queries_per_day: Annotated[
        int, typer.Option(min=0, help="The most texts per day (UTC) and client certificate. 0: no limit.")
    ] = 0,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to publish metrics for Prometheus, by plain HTTP.")
    ] = None,
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
) -> None:
    """Serve a model to clients, until SIGINT or SIGTERM.

    Logs go to standard error, one JSON object per line.

    Without --dealer, the server prepares the randomness together with each client, and nobody else takes part. A
    dealer is faster, but must be run by somebody who operates neither the server nor the client: a dealer run by the
    server's operator gives no privacy.
    """
    if source is not None and find_source(source).has_third_party and dealer is None:
        raise ConfigurationError(f"--source {source} needs --dealer HOST:PORT")
    if source is not None and not find_source(source).has_third_party and dealer is not None:
        raise ConfigurationError(f"--source {source} works without a dealer: remove --dealer, or use --source dealer")
    _check_fine_tuned(model, untrained)
    log_as_json()
    server = Server(
        ServedModel.load(model, private_embeddings=private_embeddings, answer_bits=answer_bits),
        parse_address(listen),
        DealerSource(parse_address(dealer)) if dealer is not None else PairSource(),
        TlsIdentity.find(keys, name),
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


def deal(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen. Port 0: any free port.")],
    directory: Annotated[
        Path, typer.Option("--keys", metavar="DIR", help="Directory with dealer.pem, dealer.key and authority.pem.")
    ],
) -> None:
    """Run a dealer, which prepares randomness for clients and servers, until SIGINT or SIGTERM.

    A dealer never sees an input or a weight, but it knows every mask. So it must be run by somebody who operates
    neither the server nor the client: a dealer run by the server's operator gives no privacy.
    """
    run_dealer(
        *parse_address(listen),
        TlsIdentity.find(directory, "dealer"),
        started=lambda address: typer.echo(f"dealing at {address[0]}:{address[1]}"),
    )


@keys.callback()
def _group() -> None:
    """Keeps `keys` a group of commands while it has only one."""


@keys.command("make")
def make_keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the files.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the machines of server and dealer. May be given again."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Make an authority, and certificates for a client, a server and a dealer.

    Give each party authority.pem and its own .pem and .key. Keep authority.key away from all of them.
    """
    hosts = host or ["localhost", "127.0.0.1", "::1"]
    make_authority(directory, "Comet authority", force=force)
    for role in ("client", "server", "dealer"):
        made = issue(directory, role, role, () if role == "client" else hosts, force=force)
        typer.echo(f"for the {role}: {made.certificate} and {made.key}")
    typer.echo(f"for all of them: {directory / 'authority.pem'} (keep authority.key to yourself)")


def query(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts, or - to read them from standard input.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the texts from a file, one per line (-: standard input).")
    ] = None,
    keys: Keys = Path("keys"),
    name: Annotated[str, typer.Option(help="This client's certificate in the directory of keys.")] = "client",
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to keep downloads and prepared randomness.")
    ] = None,
    source: AnySource = None,
    dealer: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The dealer, if not at the address that the server names.")
    ] = None,
    ready: Annotated[
        int,
        typer.Option(
            min=0, help="Afterwards, prepare randomness for this many more queries of the same size. Needs no text."
        ),
    ] = 0,
    model: Annotated[
        str, typer.Option(metavar="FINGERPRINT", help="Accept only the model with this fingerprint.")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, help="The most texts to send at once.")] = 8,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds without progress.")] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write each answer to a file as it comes, one JSON object per line. The same command "
            "goes on with a file that is there.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Classify texts privately: the server learns neither the texts nor the answers.

    If the server uses a dealer, that is true only if the dealer is run by somebody who operates neither the server nor
    the client. --source pair refuses a server that uses one.
    """
    if out is not None and json:
        raise ConfigurationError("give --out or --json, not both")
    texts = {} if ready and not text and file is None else read_texts(text, file)
    answered: list[Prediction] = []
    with (
        bar("preparing randomness", shown=human_bytes) as tick,
        Client(
            server,
            identity=TlsIdentity.find(keys, name),
            cache=cache,
            timeout=timeout,
            ready=0,
            batch=batch,
            source=source,
            dealer=dealer,
            fingerprint=model,
            progress=tick,
        ) as client,
    ):
        if texts:
            answered = _answer(client, texts, out, json)  # printed before any spare randomness is prepared
        sizes = {(found.cost.texts, found.cost.bucket) for found in answered} or {(1, client.connect().buckets()[0])}
        prepared = sum(client.prepare(ready, batch=size, bucket=bucket, warm=False) for size, bucket in sizes if ready)
        kind = client.source
    if ready and not json:
        typer.echo(f"randomness is ready for {counted(prepared, 'more query', 'more queries')} (source: {kind})")


def _answer(client: Client, texts: dict[int, str], out: Path | None, json: bool) -> list[Prediction]:
    """Asks, and prints what was answered; after an error, what was answered before it."""
    answered: dict[int, Prediction] = {}
    with AnswerFile(out, texts) if out is not None else contextlib.nullcontext() as file:
        left = texts if file is None else file.left
        numbers = list(left)

        def told(place: int, found: Prediction) -> None:
            answered[numbers[place]] = found
            if file is not None:
                file.add(numbers[place], found)

        try:
            if left:
                client.classify(list(left.values()), told=told)
        finally:
            found = {number: answered[number] for number in sorted(answered)}
            if file is not None:
                before = len(texts) - len(left)
                typer.echo(f"{out}: {counted(len(found), 'new answer')}, {before} from before", err=True)
            elif json:
                write_json(Path("-"), [entry(texts[number], one) for number, one in found.items()])
            elif found:
                _show([texts[number] for number in found], list(found.values()))
            if 0 < len(found) < len(left):
                again = "; the same command goes on from there" if file is not None else ""
                typer.echo(f"{len(found)} of {len(left)} texts were answered{again}", err=True)
    return list(found.values())


def _show(texts: list[str], predictions: list[Prediction]) -> None:
    rows = []
    for text, found in zip(texts, predictions, strict=True):
        shown = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
        cut = f" (cut: {found.tokens_used} of {found.tokens} tokens)" if found.truncated else ""
        rows.append((shown + cut, found.label, f"{found.probability if found.score is None else found.score:.3f}"))
    header = "probability" if predictions[0].score is None else "score"
    Console().print(table("The answers", ("text", "label", header), rows, left=2))
    runs = list({id(found.cost): found.cost for found in predictions}.values())  # texts of one run share their cost
    online, offline = (
        f"{human_bytes(sum(getattr(run, f'{phase}_bytes') for run in runs))}, "
        f"{sum(getattr(run, f'{phase}_seconds') for run in runs):.2f} s"
        for phase in ("online", "offline")
    )
    typer.echo(
        f"online: {online}, {sum(run.rounds for run in runs)} rounds\noffline: {offline}\n"
        f"set-up: {human_bytes(runs[0].setup_bytes)}, {runs[0].setup_seconds:.2f} s\n"
        f"source of randomness: {runs[0].source}"
    )
