"""`comet-lab paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.evaluate import show_comparison, show_costs
from comet_mpc.cli.options import Data, JsonFile, Limit, TaskName
from comet_mpc.cli.tables import in_words, record
from comet_mpc.models.own_data import read_examples, task_of
from comet_mpc.models.stored.checkpoints import read_config
from comet_mpc.progress import bar, doing
from comet_research.paper import Parties, ResearchRule, evaluate_uncertified


def paper_command(
    model: Annotated[Path, typer.Argument(help="A Comet checkpoint made with --form paper.")],
    data: Data,
    task: TaskName = None,
    limit: Limit = None,
    rule: Annotated[
        ResearchRule,
        typer.Option(help="Rules of 1/sqrt: the model's own, or paper (the paper's flooded guess, NOT PRIVATE)."),
    ] = "own",
    json: JsonFile = None,
) -> None:
    """Run a model in the paper's own form on the rows of dev.tsv, inside the protocol and in the clear.

    Such a model is not certified and cannot be served. Dealer and server are processes on this machine.
    """
    with doing(f"reading {model}"):
        config = read_config(model)
    chosen = task_of(data, config, task)
    examples = read_examples(config, data, chosen, "dev", limit)
    with bar("evaluating") as tick, Parties(model, rule) as parties:
        report = evaluate_uncertified(parties, examples, chosen, progress=tick)
    hidden = str(json) == "-"
    privacy = "shares uniform" if report["private"] else "NOT PRIVATE: the flooded guess leaks"
    typer.echo(f"for research only, NOT CERTIFIED, cannot be served; rule {rule}: {privacy}", err=hidden)
    if report["untrusted"]:
        typer.echo(
            f"{report['untrusted']} of {report['runs']} rows cannot be trusted, because a value left its calibrated "
            f"range (first: {report['first_reason']}); scores with them: {in_words(report['all_scores'])}",
            err=hidden,
        )
    if "scores" in report:
        show_comparison(chosen, report, "inside the protocol", hidden)
    show_costs(report, report["runs"], f"{report['rounds'] / report['runs']:.0f} rounds", hidden)
    record(json, {"task": chosen.name, "rule": rule if rule == "paper" else None, **report}, "comet-lab")
