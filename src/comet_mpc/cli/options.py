"""What several commands share: options, and what is made of their values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.models.checkpoint import FormRuleName
from comet_mpc.models.transformer import SHAPES, EncoderShape
from comet_mpc.offline.sources import PAIR, SOURCES

DEALER_WARNING = (
    "The dealer must be run by somebody who operates neither the server nor the client: "
    "a dealer run by the server's operator gives no privacy."
)


def option(text: str, group: str | None = None, flag: str = "", **more: Any) -> Any:
    """An option of a command. flag: its name and what stands for its value, "--keys DIR"; either may be missing."""
    name, _, value = flag.partition(" ") if flag.startswith("-") else ("", "", flag)
    names = (name,) if name else ()
    return typer.Option(*names, metavar=value or None, help=text, rich_help_panel=group, **more)


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
    option(
        "Directory with authority.pem and this party's .pem and .key.", CONNECTION, "--keys DIR", envvar="COMET_KEYS"
    ),
]
ClientName = Annotated[str, option("Name of this client's certificate in the directory of keys.", CONNECTION, "--name")]
Cache = Annotated[
    Path | None,
    option("Directory for downloads and prepared randomness.", CONNECTION, "--cache DIR", envvar="COMET_CACHE"),
]
Clients = Annotated[
    int, option("With --cluster: clients on its nodes. 0: one per core.", "Cluster", "--clients", min=0)
]
ServerAddress = Annotated[
    str, typer.Argument(metavar="HOST:PORT", envvar="COMET_SERVER", help="Address of the server.")
]
DealerAddress = Annotated[
    str | None,
    option("Address of the dealer, if it is not the one that the server names.", "Randomness", "--dealer HOST:PORT"),
]
WantedModel = Annotated[
    str,
    option(
        "Use the model of this name, or accept only the one with this fingerprint.", MODEL, "--model NAME|FINGERPRINT"
    ),
]
AcceptedModel = Annotated[
    str,
    option(
        "Accept this new model in place of the one that this address and name had before.",
        MODEL,
        "--accept-model FINGERPRINT",
    ),
]
Bucket = Annotated[
    int | None,
    option(
        "Pad or truncate every text to this many tokens, so that the server cannot tell their lengths apart.",
        MODEL,
        "--bucket TOKENS",
        min=1,
    ),
]
OwnTokenizer = Annotated[
    Path | None,
    option(
        "Use your own tokenizer instead of the server's: tokenizer.json, or a directory with one.",
        MODEL,
        "--tokenizer FILE|DIR",
    ),
]
MostTexts = Annotated[int, option("Texts per query, at most.", MODEL, "--batch", min=1)]
Timeout = Annotated[float, option("Give up after this many seconds without progress.", CONNECTION, "--timeout")]
JsonFile = Annotated[
    Path | None, option("Also write the results to a JSON file (-: only to standard output).", flag="--json FILE")
]
Batch = Annotated[int, option("Texts per query.", min=1, max=1024)]
ShapeName = Annotated[str | None, option(f"Use a model shape: {', '.join(SHAPES)}.", flag="NAME")]
Layers = Annotated[int | None, option("With --shape: use only this many layers.", min=1)]
Steps = Annotated[
    int | None,
    option("With --shape and --rule minimax: iterations per 1/sqrt; more are more exact and cost more.", min=1, max=16),
]
ShapeRule = Annotated[
    FormRuleName | None,
    option(
        "With --shape: how activations and attention scores are computed: fitted, near, or with square roots by a "
        "polynomial of that degree or by minimax iterations. Default: quadratic.",
        flag="--rule",
    ),
]
NetworkName = Annotated[str | None, option("Estimate for this network, for example 200mbit/10ms.", flag="RATE/RTT")]
LinkName = Annotated[
    str,
    option(
        "Network between clients and server: the protocol trades rounds for bytes to be fastest there.",
        CONNECTION,
        "--network RATE/RTT",
    ),
]
TaskName = Annotated[
    str | None, option("A GLUE task: RTE, MRPC, STS-B, CoLA or SST-2. Default: your own data.", DATA, "--task NAME")
]
Data = Annotated[Path, option("Directory with train.tsv and dev.tsv, or with GLUE's tasks.", DATA, "--data DIR")]
Limit = Annotated[int | None, option("Use only the first N rows.", DATA, min=1)]
Spread = Annotated[bool, option("Take the rows of --limit from all over the file.", DATA, "--spread")]


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
