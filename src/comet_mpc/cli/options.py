"""What several commands share: options, and what is made of their values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.models.checkpoint import RuleName
from comet_mpc.models.transformer import SHAPES, EncoderShape
from comet_mpc.offline.sources import PAIR, SOURCES

DEALER_WARNING = (
    "The dealer must be run by somebody who operates neither the server nor the client: "
    "a dealer run by the server's operator gives no privacy."
)

_SOURCE = typer.Option(
    "--source",
    metavar="|".join(SOURCES),
    help="Who prepares the randomness: pair (client and server between themselves) or dealer (a third party).",
)

DEFAULT_SOURCE = PAIR.name
"""Of every command that has a choice: what `comet serve` does without a dealer."""

SourceName = Annotated[str, _SOURCE]
AnySource = Annotated[str | None, _SOURCE]
Keys = Annotated[
    Path,
    typer.Option(
        "--keys",
        metavar="DIR",
        envvar="COMET_KEYS",
        help="Directory with authority.pem and this party's .pem and .key.",
    ),
]
ClientName = Annotated[str, typer.Option("--name", help="This client's certificate in the directory of keys.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache", metavar="DIR", envvar="COMET_CACHE", help="Where to keep downloads and prepared randomness."
    ),
]
Clients = Annotated[
    int, typer.Option("--clients", min=0, help="With --cluster: clients on its nodes. 0: as many as it has cores.")
]
ServerAddress = Annotated[str, typer.Argument(metavar="HOST:PORT", envvar="COMET_SERVER", help="The server.")]
DealerAddress = Annotated[
    str | None,
    typer.Option("--dealer", metavar="HOST:PORT", help="The dealer, if not at the address that the server names."),
]
WantedModel = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME|FINGERPRINT", help="The model of this name, or only the one with this fingerprint."
    ),
]
AcceptedModel = Annotated[
    str,
    typer.Option(
        "--accept-model",
        metavar="FINGERPRINT",
        help="Accept this new model in place of the one that was met under this address and name before.",
    ),
]
Bucket = Annotated[
    int | None,
    typer.Option(
        "--bucket",
        metavar="TOKENS",
        min=1,
        help="Pad every text to so many tokens, and cut longer ones: then the server sees the same of every text.",
    ),
]
OwnTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE|DIR",
        help="A tokenizer of your own, in place of the server's: tokenizer.json, or a directory with one.",
    ),
]
MostTexts = Annotated[int, typer.Option("--batch", min=1, help="The most texts to send at once.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Give up after so many seconds without progress.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the results to a JSON file (-: standard output, alone)."),
]
Batch = Annotated[int, typer.Option(min=1, max=1024, help="Texts that are classified at once.")]
ShapeName = Annotated[str | None, typer.Option(metavar="NAME", help=f"A model of this shape: {', '.join(SHAPES)}.")]
Layers = Annotated[int | None, typer.Option(min=1, help="With --shape: only this many layers.")]
Steps = Annotated[
    int | None,
    typer.Option(min=1, max=16, help="With --shape: minimax steps of each 1/sqrt. More are more exact and cost more."),
]
ShapeRule = Annotated[
    RuleName | None,
    typer.Option(
        "--rule",
        help="With --shape: the root by a polynomial of that degree, or minimax steps of 1/sqrt. Default: quadratic.",
    ),
]
NetworkName = Annotated[
    str | None, typer.Option(metavar="RATE/RTT", help="Over such a network, for example 200mbit/10ms.")
]
LinkName = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="RATE/RTT",
        help="Between clients and the server: programs take the rounds and bytes that cost the least there.",
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="NAME", help="A GLUE task: RTE, MRPC, STS-B, CoLA or SST-2. Default: your own data."
    ),
]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Directory of train.tsv and dev.tsv, or of GLUE's tasks.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only this many rows, the first.")]
Spread = Annotated[
    bool, typer.Option("--spread", help="Take the rows of --limit from all over the file, not its first.")
]


def group(summary: str) -> typer.Typer:
    """A command that has commands of its own."""
    return typer.Typer(help=summary, no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


def wanted_model(value: str) -> tuple[str, str]:
    """The value of --model as a name and a fingerprint, which has 64 digits of base 16."""
    return ("", value) if re.fullmatch("[0-9a-f]{64}", value) else (value, "")


def find_shape(name: str, layers: int | None) -> EncoderShape:
    """A named shape, perhaps with fewer layers."""
    if name not in SHAPES:
        near = did_you_mean(name, SHAPES) or f". The shapes: {', '.join(SHAPES)}"
        raise ConfigurationError(f"unknown shape {name!r}{near}")
    return replace(SHAPES[name], layers=layers or SHAPES[name].layers)
