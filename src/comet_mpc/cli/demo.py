"""`comet demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import DEFAULT_SOURCE, JsonFile, LinkName, SourceName, option
from comet_mpc.cli.tables import demo_tables, report
from comet_mpc.engine.costs import Network
from comet_mpc.local.demo import SENTENCES, demo_model, run_demo
from comet_mpc.local.service import ON_THIS_MACHINE
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import bar
from comet_mpc.units import human_bytes


def demo(
    text: Annotated[list[str] | None, typer.Argument(help="Sentences to classify. Default: three about films.")] = None,
    model: Annotated[
        Path | None, option("A Comet checkpoint. Default: the model that comes with Comet (film reviews).", flag="DIR")
    ] = None,
    source: SourceName = DEFAULT_SOURCE,
    network: LinkName = str(ON_THIS_MACHINE),
    json: JsonFile = None,
) -> None:
    """Try it: private predictions between a client and a server on this machine.

    Shows the answers, what the server saw, and what it cost. With --source dealer, a third process prepares the
    randomness.
    """
    with bar("preparing randomness", shown=human_bytes) as tick:
        result = run_demo(demo_model(model, Network.parse(network)), text or SENTENCES, find_source(source), tick)
    report(result, json, *demo_tables(result))
