"""What several commands share: options, and what is made of their values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.models.checkpoint import FormRuleName
from comet_mpc.models.transformer import SHAPES, EncoderShape
from comet_mpc.offline.sources import PAIR, SOURCES

DEALER_WARNING = (
    "The dealer must be run by somebody who operates neither the server nor the client: "
    "a dealer run by the server's operator gives no privacy."
)

CONNECTION, MODEL, DATA = "Connection", "Model", "Data"
"""Groups of options that several commands have."""

_SOURCE = typer.Option(
    "--source",
    metavar="|".join(SOURCES),
    help="Who prepares the randomness: pair (client and server between themselves) or dealer (a third party).",
    rich_help_panel="Randomness",
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
        rich_help_panel=CONNECTION,
    ),
]
ClientName = Annotated[
    str,
    typer.Option(
        "--name", help="Name of this client's certificate in the directory of keys.", rich_help_panel=CONNECTION
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        envvar="COMET_CACHE",
        help="Directory for downloads and prepared randomness.",
        rich_help_panel=CONNECTION,
    ),
]
Clients = Annotated[
    int,
    typer.Option(
        "--clients", min=0, help="With --cluster: clients on its nodes. 0: one per core.", rich_help_panel="Cluster"
    ),
]
ServerAddress = Annotated[
    str, typer.Argument(metavar="HOST:PORT", envvar="COMET_SERVER", help="Address of the server.")
]
DealerAddress = Annotated[
    str | None,
    typer.Option(
        "--dealer",
        metavar="HOST:PORT",
        help="Address of the dealer, if it is not the one that the server names.",
        rich_help_panel="Randomness",
    ),
]
WantedModel = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME|FINGERPRINT",
        help="Use the model of this name, or accept only the one with this fingerprint.",
        rich_help_panel=MODEL,
    ),
]
AcceptedModel = Annotated[
    str,
    typer.Option(
        "--accept-model",
        metavar="FINGERPRINT",
        help="Accept this new model in place of the one that this address and name had before.",
        rich_help_panel=MODEL,
    ),
]
Bucket = Annotated[
    int | None,
    typer.Option(
        "--bucket",
        metavar="TOKENS",
        min=1,
        help="Pad or truncate every text to this many tokens, so that the server cannot tell their lengths apart.",
        rich_help_panel=MODEL,
    ),
]
OwnTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE|DIR",
        help="Use your own tokenizer instead of the server's: tokenizer.json, or a directory with one.",
        rich_help_panel=MODEL,
    ),
]
MostTexts = Annotated[int, typer.Option("--batch", min=1, help="Texts per query, at most.", rich_help_panel=MODEL)]
Timeout = Annotated[
    float,
    typer.Option("--timeout", help="Give up after this many seconds without progress.", rich_help_panel=CONNECTION),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the results to a JSON file (-: only to standard output)."),
]
Batch = Annotated[int, typer.Option(min=1, max=1024, help="Texts per query.")]
ShapeName = Annotated[str | None, typer.Option(metavar="NAME", help=f"Use a model shape: {', '.join(SHAPES)}.")]
Layers = Annotated[int | None, typer.Option(min=1, help="With --shape: use only this many layers.")]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1, max=16, help="With --shape and --rule minimax: iterations per 1/sqrt; more are more exact and cost more."
    ),
]
ShapeRule = Annotated[
    FormRuleName | None,
    typer.Option(
        "--rule",
        help="With --shape: how activations and attention scores are computed: fitted, or with square roots by a "
        "polynomial of that degree or by minimax iterations. Default: quadratic.",
    ),
]
NetworkName = Annotated[
    str | None, typer.Option(metavar="RATE/RTT", help="Estimate for this network, for example 200mbit/10ms.")
]
LinkName = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="RATE/RTT",
        help="Network between clients and server: the protocol trades rounds for bytes to be fastest there.",
        rich_help_panel=CONNECTION,
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="A GLUE task: RTE, MRPC, STS-B, CoLA or SST-2. Default: your own data.",
        rich_help_panel=DATA,
    ),
]
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Directory with train.tsv and dev.tsv, or with GLUE's tasks.",
        rich_help_panel=DATA,
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N rows.", rich_help_panel=DATA)]
Spread = Annotated[
    bool,
    typer.Option("--spread", help="Take the rows of --limit from all over the file.", rich_help_panel=DATA),
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
