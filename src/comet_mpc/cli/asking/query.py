"""`comet query`: what the owner of the texts runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.asking.answers import AnswerFile, CsvFile, entry
from comet_mpc.cli.asking.ready import fitting, prepare
from comet_mpc.cli.asking.texts import Asked, Texts, read_texts
from comet_mpc.cli.asking.work import FileWork, Shown, Sizes
from comet_mpc.cli.options import (
    AcceptedModel,
    AnySource,
    Bucket,
    Cache,
    ClientName,
    Clients,
    DealerAddress,
    JsonFile,
    Keys,
    MostTexts,
    OwnTokenizer,
    ServerAddress,
    Timeout,
    WantedModel,
    option,
    wanted_model,
)
from comet_mpc.cli.stopping import if_stopped
from comet_mpc.cli.tables import write_json
from comet_mpc.errors import CometError, ConfigurationError, ImpossibleAnswer, needs_extra
from comet_mpc.models.writing.packages import answering
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.progress import bar, doing
from comet_mpc.service.client import Asks, Client, ClientOptions
from comet_mpc.service.prediction import Answer, Cost, Embedding, Prediction, Tagging
from comet_mpc.units import counted, human_bytes

_MANY = 1000
"""Texts that take a moment to tokenize."""
_LONGEST = 60
"""Characters of a text that a table shows."""


_INPUT, _OUTPUT, _RANDOMNESS, _CLUSTER = "Texts", "Answers", "Randomness", "Cluster"

Given = Annotated[list[str] | None, typer.Argument(help="Texts, or - to read them from standard input.")]
TextFile = Annotated[
    Path | None, option("Read the texts from a file, one per line (-: standard input).", _INPUT, "--file FILE")
]
TableFile = Annotated[
    Path | None, option("Read the texts from a column of a CSV file with a header (.tsv: tabs).", _INPUT, "--csv FILE")
]
Images = Annotated[
    list[Path] | None,
    option(
        "Ask about an image (PNG, JPEG, WebP or BMP), for a model of images. May be given again.",
        _INPUT,
        "--image FILE",
    ),
]
Columns = Annotated[
    list[str] | None, option("With --csv: the column. Give two for pairs of texts.", _INPUT, "--column NAME")
]
Pairs = Annotated[bool, option("Treat inputs as text pairs (tab-separated in files).", _INPUT, "--pairs")]
Out = Annotated[
    Path | None,
    option(
        "Write each answer to a file as soon as it arrives; rerun the command to resume. With --csv the file has "
        "the rows with further columns, else one JSON object per line.",
        _OUTPUT,
        "--out FILE",
    ),
]
Ready = Annotated[
    str,
    option(
        "Prepare randomness in advance, so that answers come faster. all: for the given texts, as much as the "
        "server keeps, without sending a query. N: for N more queries of each size, after the answers.",
        _RANDOMNESS,
        "N|all",
    ),
]
QuerySizes = Annotated[
    list[str] | None,
    option(
        "With --ready N: prepare for this size, such as 8x16. May be given again.", _RANDOMNESS, "--size TEXTSxTOKENS"
    ),
]
Cluster = Annotated[
    str | None,
    option(
        "Run the clients on the nodes of this Ray cluster, which must be yours: they have the texts in the clear. "
        "Keys and cache are paths on every node.",
        _CLUSTER,
        "HOST:PORT|auto",
    ),
]


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
    text: Given = None,
    file: TextFile = None,
    csv: TableFile = None,
    image: Images = None,
    column: Columns = None,
    pairs: Pairs = False,
    out: Out = None,
    json: JsonFile = None,
    model: WantedModel = "",
    accept_model: AcceptedModel = "",
    bucket: Bucket = None,
    tokenizer: OwnTokenizer = None,
    batch: MostTexts = 8,
    keys: Keys = Path("keys"),
    name: ClientName = "client",
    cache: Cache = None,
    timeout: Timeout = 120.0,
    source: AnySource = None,
    dealer: DealerAddress = None,
    ready: Ready = "0",
    size: QuerySizes = None,
    cluster: Cluster = None,
    clients: Clients = 0,
) -> None:
    """Get private answers for texts or images: the server learns neither them nor the answers.

    The answer depends on the model: a label or a score, a label for each word, or a vector (embedding).

    With a dealer, this holds only if the dealer is run by somebody who operates neither the server nor
    the client. --source pair refuses a server that uses one.
    """
    server, text = _server_and_texts(context, server, text)
    called, fingerprint = wanted_model(model)
    from_file = file is not None or csv is not None
    wanted = _Wanted(out, json, _count(ready), [_size(one) for one in size or ()], cluster, clients, from_file)
    if column and csv is None:
        raise ConfigurationError("--column goes with --csv")
    nothing = bool(wanted.spare) and not (text or image or from_file)
    texts = Texts({}) if nothing else read_texts(text, file, csv, column or (), pairs=pairs, images=image or ())
    options: ClientOptions = {
        "identity": TlsIdentity.find(keys.absolute(), name), "timeout": timeout, "ready": 0, "batch": batch,
        "cache": cache.absolute() if cache is not None else None, "source": source, "dealer": dealer,
        "model": called, "fingerprint": fingerprint, "accept_model": accept_model, "bucket": bucket,
        "tokenizer": tokenizer,
    }  # fmt: skip
    _run(server, options, texts, wanted)


@dataclass(frozen=True)
class _Wanted:
    """What becomes of the answers, what is prepared, and where the clients run."""

    out: Path | None
    json: Path | None
    spare: int | None
    """Queries of each size to prepare for; None: all that the texts need, and no answers."""
    sizes: Sequence[tuple[int, int]]
    cluster: str | None
    clients: int
    from_file: bool

    def __post_init__(self) -> None:
        if self.out is not None and self.json is not None:
            raise ConfigurationError("give --out or --json, not both")
        if self.sizes and not self.spare:
            raise ConfigurationError("--size goes with --ready N")
        if self.cluster is not None and self.spare != 0:
            raise ConfigurationError("--cluster prepares randomness on its nodes when it is needed: leave out --ready")
        if self.cluster is not None:
            with needs_extra("cluster"):  # said before anything is read
                import comet_mpc.cluster.asking  # noqa: F401


def _run(server: str, options: ClientOptions, texts: Texts, wanted: _Wanted) -> None:
    quiet, show = str(wanted.json) == "-", Shown()
    with contextlib.ExitStack() as stack:
        answers = stack.enter_context(_answer_file(wanted.out, texts)) if wanted.out is not None else None
        left = texts.by_number if answers is None else answers.left
        if wanted.from_file:
            before = len(texts.by_number) - len(left)
            resumed = f", {before} answered before" if before else ""
            typer.echo(f"{counted(len(texts.by_number), 'text')}{resumed}; connecting to {server}", err=True)
        with bar(f"connecting to {server}", shown=human_bytes) as downloading:
            downloading(0, 0)
            here: ClientOptions = {**options, "progress": show.bytes, "downloading": downloading}
            client = stack.enter_context(Client(server, **here))
        asks = client if wanted.cluster is None else stack.enter_context(_on_nodes(client, server, options, wanted))
        used: Sizes = {}
        if left:
            with doing("tokenizing") if len(left) > _MANY else contextlib.nullcontext():
                used = client.sizes(list(left.values()))
        show.tick = stack.enter_context(bar("preparing" if wanted.spare is None else "answered", shown=None))
        if wanted.spare is None:
            prepare(client, fitting(client, used), show, quiet)
            return
        impossible: ImpossibleAnswer | None = None
        try:
            if texts.by_number:
                _answer(asks, texts, answers, wanted.json, show, used)
        except ImpossibleAnswer as error:  # the server sees what is prepared: it must not depend on this
            impossible = error
        if wanted.spare:  # after the answers are printed
            sizes = dict.fromkeys(wanted.sizes or used or {(1, client.usual_bucket)}, wanted.spare)
            client.check_room(sizes)
            prepare(client, sizes, show, quiet)
        if impossible is not None:
            raise impossible


def _on_nodes(
    client: Client, server: str, options: ClientOptions, wanted: _Wanted
) -> contextlib.AbstractContextManager[Asks]:
    """Clients on the nodes of a cluster."""
    from comet_mpc.cluster.asking import Asker, spread_clients

    public = answering(client.connect())
    return spread_clients(str(wanted.cluster), wanted.clients, public, Asker, server, options, client.runs)


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


def _answer(
    client: Asks, texts: Texts, file: AnswerFile | None, json: Path | None, show: Shown, sizes: Sizes | None = None
) -> None:
    """Asks, and prints each answer as it comes; after an error, too, those before it are kept.

    sizes: of the runs, for the time left
    """
    left = texts.by_number if file is None else file.left
    numbers, answered = list(left), dict[int, Answer]()
    count, before, work = len(texts.by_number), len(texts.by_number) - len(left), FileWork(sizes or {})
    printed = _Printed(left.values()) if left and file is None and str(json) != "-" else None
    show.begin(work.total, work.of_bundle)
    show.done(0, f"{before} of {counted(count, 'text')}")

    def told(index: int, found: Answer) -> None:
        number = numbers[index]
        answered[number] = found
        if file is not None:
            file.add(number, found)
        if printed is not None:
            printed.add(left[number], found)
        work.answered(found.cost)
        show.done(work.done, f"{before + len(answered)} of {counted(count, 'text')}")

    def advice() -> str:
        if file is None:
            return "Answers are kept only in a file: with --out FILE, a run that was stopped can be resumed."
        return f"Run the same command to resume: {before + len(answered)} of {count} answers are in {file.kept_in}."

    try:
        with if_stopped(advice):
            if left:
                client.ask(list(left.values()), told=told)
            if file is not None:
                file.finish()
    except CometError:
        if file is not None and len(answered) < len(left):
            typer.echo(advice(), err=True)
        raise
    finally:
        _conclude(texts, answered, file, json, before)
        if printed is not None:
            printed.finish()


def _conclude(
    texts: Texts, answered: Mapping[int, Answer], file: AnswerFile | None, json: Path | None, before: int
) -> None:
    """How many answers there are, and of how many texts the end was not read."""
    found = {number: answered[number] for number in sorted(answered)}
    count = len(texts.by_number)
    if file is None:
        write_json(json, [entry(texts.by_number[number], one) for number, one in found.items()])
    elif before + len(found) == count:
        typer.echo(f"{file.path}: {counted(len(found), 'new answer')}, {before} from before", err=True)
    if file is None and len(found) < count:
        typer.echo(f"{len(found)} of {counted(count, 'text')} were answered", err=True)
    cut = file.truncated if file is not None else sum(one.truncated for one in found.values())
    if cut:
        longest = max((one.tokens_used for one in found.values() if one.truncated), default=0)
        to = f" to {longest} tokens" if longest else ""
        typer.echo(f"{cut} of {counted(count, 'text')} were longer than the model takes: truncated{to}", err=True)


def _shown(text: Asked) -> str:
    """On one line, not too long."""
    whole = " ".join((" / ".join(text) if isinstance(text, tuple) else str(text)).split())
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


def _connected(cost: Cost) -> str:
    model = f"model downloaded, {human_bytes(cost.setup_bytes)}" if cost.setup_bytes else "model cached"
    return f"connected in {cost.setup_seconds:.2f} s ({model})"


class _Printed:
    """A table that grows: a line for every answer as it comes, and in the end what they cost."""

    def __init__(self, texts: Iterable[Asked]) -> None:
        self._width = max(len(_shown(text)) for text in texts)
        self._costs: dict[int, Cost] = {}  # texts of one run share their cost

    def add(self, text: Asked, found: Answer) -> None:
        columns = _columns(found)
        if not self._costs:
            self._line("image" if isinstance(text, Path) else "text", *columns)
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
            f"{_connected(runs[0])}\n"
            f"source of randomness: {runs[0].source}"
        )
