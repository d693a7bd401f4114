"""`comet query`: what the owner of the texts runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from comet_mpc.cli.asking.answers import AnswerFile, CsvFile, entry
from comet_mpc.cli.asking.texts import Texts, read_texts
from comet_mpc.cli.options import (
    AnySource,
    Cache,
    ClientName,
    Clients,
    DealerAddress,
    JsonFile,
    Keys,
    MostTexts,
    ServerAddress,
    Timeout,
    WantedModel,
    wanted_model,
)
from comet_mpc.cli.tables import table, write_json
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import ConfigurationError, ImpossibleAnswer
from comet_mpc.models.hugging_face import need
from comet_mpc.models.runs import Text
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import Pace, Tick, bar
from comet_mpc.service.client import Asks, Client, ClientOptions
from comet_mpc.service.prediction import Answer, Cost, Embedding, Prediction, Tagging
from comet_mpc.units import counted, human_bytes

_LONGEST = 60
"""Characters of a text that a table shows."""

Sizes = Mapping[tuple[int, int], int]
"""How many runs of each size: batch and bucket."""


def _count(value: str) -> int | None:
    """The value of --ready. None: all that the texts need."""
    if value == "all":
        return None
    if not value.isdecimal():
        raise typer.BadParameter(f"expected a number or all, got {value!r}", param_hint="--ready")
    return int(value)


def _size(value: str) -> tuple[int, int]:
    """8x16: eight texts of sixteen tokens."""
    batch, _, bucket = value.partition("x")
    if not (batch.isdecimal() and bucket.isdecimal() and int(batch) and int(bucket)):
        raise typer.BadParameter(f"expected TEXTSxTOKENS, such as 8x16, got {value!r}", param_hint="--size")
    return int(batch), int(bucket)


def query(
    context: typer.Context,
    server: ServerAddress,
    text: Annotated[list[str] | None, typer.Argument(help="Texts, or - to read them from standard input.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the texts from a file, one per line (-: standard input).")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the texts from a column of a CSV file with a header (.tsv: tabs)."),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --csv: the column. Give two for pairs of texts.")
    ] = None,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="Texts go in pairs: two by two, or two on a line of a file, with a tab between."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the answers to a file, and keep each as it comes: the same command goes on with what is there. "
            "With --csv the rows with further columns, else one JSON object per line.",
        ),
    ] = None,
    keys: Keys = Path("keys"),
    name: ClientName = "client",
    cache: Cache = None,
    source: AnySource = None,
    dealer: DealerAddress = None,
    ready: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            help="Prepare randomness, which needs no text. all: for the texts that are given, and ask nothing yet. "
            "N: for N more queries of each size, after the answers.",
        ),
    ] = "0",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXTSxTOKENS", help="With --ready N: of this size, such as 8x16. May be given again."),
    ] = None,
    model: WantedModel = "",
    batch: MostTexts = 8,
    timeout: Timeout = 120.0,
    json: JsonFile = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            help="Ask by clients on the nodes of this Ray cluster, which must be yours: they have the texts in the "
            "clear. Keys and cache are paths on every node.",
        ),
    ] = None,
    clients: Clients = 0,
) -> None:
    """Ask about texts privately: the server learns neither the texts nor the answers.

    The model decides what a text is given: a label or a score, a label for each of its words, or a vector (embedding).

    If the server uses a dealer, that is true only if the dealer is run by somebody who operates neither the server nor
    the client. --source pair refuses a server that uses one.
    """
    server, text = _server_and_texts(context, server, text)
    wanted, fingerprint = wanted_model(model)
    spare, told = _count(ready), [_size(value) for value in size or ()]
    if out is not None and json is not None:
        raise ConfigurationError("give --out or --json, not both")
    if column and csv is None:
        raise ConfigurationError("--column goes with --csv")
    if told and not spare:
        raise ConfigurationError("--size goes with --ready N")
    if cluster is not None and spare != 0:
        raise ConfigurationError("--cluster prepares randomness on its nodes when it is needed: leave out --ready")
    asking: Any = need("comet_mpc.cluster.asking", "cluster") if cluster is not None else None
    nothing = bool(spare) and not text and file is None and csv is None
    texts = Texts({}) if nothing else read_texts(text, file, csv, column or (), pairs=pairs)
    options: ClientOptions = {
        "identity": TlsIdentity.find(keys.absolute(), name),
        "cache": cache.absolute() if cache is not None else None,
        "timeout": timeout,
        "ready": 0,
        "batch": batch,
        "source": source,
        "dealer": dealer,
        "model": wanted,
        "fingerprint": fingerprint,
    }
    with contextlib.ExitStack() as stack:
        answers = stack.enter_context(_answer_file(out, texts)) if out is not None else None
        show = _Shown()
        with bar("set-up: download", shown=human_bytes) as downloading:
            here: ClientOptions = {**options, "progress": show.bytes, "downloading": downloading}
            client = stack.enter_context(Client(server, **here))
        asks: Asks = client
        if cluster is not None:
            spread = asking.spread_clients(cluster, clients, client.connect(), asking.Asker, server, options)
            asks = stack.enter_context(spread)
        show.tick = stack.enter_context(bar("texts"))
        left = texts.by_number if answers is None else answers.left
        if spare is None:
            _prepare(client, client.sizes(list(left.values())) if left else {}, show, str(json) == "-")
            return
        used = client.sizes(list(left.values())) if left and spare else {}
        impossible: ImpossibleAnswer | None = None
        try:
            if texts.by_number:
                _answer(asks, texts, answers, json, show)
        except ImpossibleAnswer as error:  # the server sees what is prepared: it must not depend on this
            impossible = error
        if spare:  # after the answers are printed
            sizes = dict.fromkeys(told or used or {(1, client.connect().buckets()[0])}, spare)
            _prepare(client, sizes, show, str(json) == "-")
        if impossible is not None:
            raise impossible


def _server_and_texts(context: typer.Context, server: str, text: list[str] | None) -> tuple[str, list[str] | None]:
    """With a server in the settings, or in the environment, the first word may be a text already."""
    parameter = next(one for one in context.command.params if one.name == "server")
    usual = parameter.value_from_envvar(context) or context.lookup_default("server")
    try:
        parse_address(server)
    except ConfigurationError:
        if not usual:
            raise
        return str(usual), [server, *(text or ())]
    return server, text


def _answer_file(path: Path, texts: Texts) -> AnswerFile:
    return CsvFile(path, texts) if texts.header else AnswerFile(path, texts.by_number)


class _Shown:
    """One bar for all: how many of how many are done, and beside it how far the bundle is that is being prepared."""

    def __init__(self) -> None:
        self.tick: Tick | None = None
        """Nothing is shown before there is one."""
        self._done = self._total = 0
        self._pace = Pace()

    def begin(self, total: int, done: int = 0) -> None:
        self._total = total
        self.done(done)

    def done(self, count: int) -> None:
        self._done = count
        self._show("")

    def bytes(self, done: int, total: int) -> None:
        """From whichever thread prepares."""
        if not total:
            self._show("waiting for the dealer")
            return
        left = f", {self._pace.left(done, total)}" if self._pace.spent(done) >= 1.0 else ""
        self._show(f"preparing randomness {human_bytes(done)}/{human_bytes(total)}{left}")

    def _show(self, note: str) -> None:
        if self.tick is not None:
            self.tick(self._done, self._total, note)


def _prepare(client: Client, sizes: Sizes, show: _Shown, quiet: bool) -> None:
    """Says what is to be prepared and how much that is, and does it."""
    source, public = find_source(client.source), client.connect()
    client.check_room(sizes)
    wanted = {size: max(0, count - client.prepared(*size)) for size, count in sorted(sizes.items())}
    rows, exchanged, kept = [], 0, 0
    for (batch, bucket), count in wanted.items():
        plan = public.plan(batch, bucket, source)
        sent, stored = source.offline_bytes(plan, count), count * source.stored_bytes(CLIENT, plan.correlations)
        exchanged, kept = exchanged + sent, kept + stored
        what = f"{counted(batch, 'text')} of {bucket} tokens"
        ready = str(sizes[batch, bucket] - count)
        rows.append((what, ready, str(count), human_bytes(sent), human_bytes(stored)))
    say = Console(stderr=True)
    columns = ("queries of", "ready", "to prepare", "at most sent", "on this disk")
    say.print(table(f"Randomness from the source {source}", columns, rows), highlight=False)
    total = 0
    for (batch, bucket), count in sizes.items():
        show.begin(count, min(count, client.prepared(batch, bucket)))
        total += client.prepare(count, batch=batch, bucket=bucket, timeout=math.inf, warm=False, told=show.done)
    typer.echo(f"randomness is ready for {counted(total, 'query', 'queries')} (source: {source})", err=quiet)


def _answer(client: Asks, texts: Texts, file: AnswerFile | None, json: Path | None, show: _Shown) -> None:
    """Asks, and prints each answer as it comes; after an error, too, those before it are kept."""
    left = texts.by_number if file is None else file.left
    numbers, answered = list(left), dict[int, Answer]()
    before = len(texts.by_number) - len(left)
    printed = _Printed(left.values()) if left and file is None and str(json) != "-" else None
    show.begin(len(texts.by_number), before)

    def told(place: int, found: Answer) -> None:
        number = numbers[place]
        answered[number] = found
        if file is not None:
            file.add(number, found)
        if printed is not None:
            printed.add(left[number], found)
        show.done(before + len(answered))

    try:
        if left:
            client.ask(list(left.values()), told=told)
        if file is not None:
            file.finish()
    finally:
        found = {number: answered[number] for number in sorted(answered)}
        if file is not None:
            typer.echo(f"{file.path}: {counted(len(found), 'new answer')}, {before} from before", err=True)
        else:
            write_json(json, [entry(texts.by_number[number], one) for number, one in found.items()])
        if printed is not None:
            printed.finish()
        if len(found) < len(left):
            again = "; the same command goes on from there" if file is not None else ""
            typer.echo(f"{len(found)} of {len(left)} texts were answered{again}", err=True)


def _shown(text: Text) -> str:
    """On one line, not too long."""
    whole = " ".join((text if isinstance(text, str) else " / ".join(text)).split())
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 1] + "…"


def _columns(found: Answer) -> dict[str, str]:
    """An answer in the columns of a table."""
    if isinstance(found, Prediction):
        name, value = ("probability", found.probability) if found.score is None else ("score", found.score)
        return {name: f"{value:.3f}", "label": found.label}
    if isinstance(found, Tagging):
        return {"entities": ", ".join(f"{part.text} ({part.label})" for part in found.entities) or "none"}
    assert isinstance(found, Embedding)
    return {"embedding (--json has all of it)": " ".join(f"{value:.3f}" for value in found.vector[:4]) + " …"}


class _Printed:
    """A table that grows: a line for every answer as it comes, and in the end what they cost."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._width = max(len(_shown(text)) for text in texts)
        self._costs: dict[int, Cost] = {}  # texts of one run share their cost

    def add(self, text: Text, found: Answer) -> None:
        columns = _columns(found)
        if not self._costs:
            self._line("text", *columns)
        self._costs[id(found.cost)] = found.cost
        cut = f" (cut: {found.tokens_used} of {found.tokens} tokens)" if found.truncated else ""
        self._line(_shown(text) + cut, *columns.values())

    def _line(self, text: str, value: str, *more: str) -> None:
        typer.echo("  ".join((text.ljust(self._width), value.ljust(11) if more else value, *more)))

    def finish(self) -> None:
        if not (runs := list(self._costs.values())):
            return
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
