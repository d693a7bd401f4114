"""`comet demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.asking.generate import show_text
from comet_mpc.cli.options import DEFAULT_SOURCE, JsonFile, LinkName, SourceName, option
from comet_mpc.cli.tables import demo_tables, report
from comet_mpc.engine.costs import Network
from comet_mpc.errors import ConfigurationError
from comet_mpc.local.demo import SENTENCES, demo_model, demo_writer, run_demo
from comet_mpc.local.service import ON_THIS_MACHINE
from comet_mpc.models.writing.stored import is_decoder, load_decoder
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import bar, doing
from comet_mpc.units import human_bytes

_BEGINNING = "Once upon a time"


def demo(
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Sentences to classify, by default three about films; or the beginning of one to write."),
    ] = None,
    model: Annotated[
        Path | None, option("A Comet checkpoint. Default: the model that comes with Comet (film reviews).", flag="DIR")
    ] = None,
    source: SourceName = DEFAULT_SOURCE,
    network: LinkName = str(ON_THIS_MACHINE),
    tokens: Annotated[int, option("For a model that writes: at most so many tokens.", min=1)] = 64,
    json: JsonFile = None,
) -> None:
    """Try it: private predictions between a client and a server on this machine.

    Shows the answers, what the server saw, and what it cost. With --source dealer, a third process prepares the
    randomness. With a model that writes (`comet adopt`), shows the text as it comes, and what it cost.
    """
    if model is not None and is_decoder(model):
        _write(model, text or [_BEGINNING], tokens, source, Network.parse(network), json)
        return
    with bar("preparing randomness", shown=human_bytes) as tick:
        result = run_demo(demo_model(model, Network.parse(network)), text or SENTENCES, find_source(source), tick)
    report(result, json, *demo_tables(result))


def _write(directory: Path, texts: list[str], tokens: int, source: str, network: Network, json: Path | None) -> None:
    if len(texts) > 1:
        raise ConfigurationError(f"{directory} writes: give it one text to begin with, in quotes")
    with doing(f"reading {directory}"):
        model = load_decoder(directory, network=network)
    show_text(
        "preparing randomness",
        lambda progress: demo_writer(model, find_source(source), progress),
        texts[0],
        {"tokens": tokens},
        json,
    )
