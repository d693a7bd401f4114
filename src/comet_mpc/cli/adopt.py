"""`comet adopt`: `comet_mpc.train.adopt` by options. It needs the extra `[train]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from comet_mpc.cli import training_options as of
from comet_mpc.cli.options import JsonFile, Limit, Spread, TaskName
from comet_mpc.cli.stopping import RESUME, if_stopped
from comet_mpc.cli.tables import record, table
from comet_mpc.progress import Shown, doing
from comet_mpc.units import human_bytes, human_seconds

if TYPE_CHECKING:  # torch is an extra
    from comet_mpc.train import Adoption

REPORT = "adoption.json"


@if_stopped(RESUME)
def adopt(
    source: of.Adopted,
    out: of.ToServe,
    data: of.AnyData,
    text: of.TextColumns = None,
    label: of.LabelColumn = None,
    plain: of.Plain = False,
    labels: of.LabelNames = None,
    task: TaskName = None,
    epochs: of.Passes = 0.0,
    rate: of.Rate = 2e-5,
    batch: of.UpdateRows = 16,
    rule: of.AdoptedRule = None,
    steps: of.AdoptedSteps = None,
    length: of.AdoptedLength = 0,
    limit: Limit = None,
    spread: Spread = False,
    seed: of.RowSeed = 1,
    trained: of.Trained = None,
    tokens: of.FittedTokens = 20_000,
    estimate: of.Estimate = False,
    json: JsonFile = None,
) -> None:
    """Convert your model for private serving.

    Its non-linear functions become those that the protocol computes. Layer by layer, they are fitted to what the model
    computes on your texts, by least squares: this needs no labels, and takes minutes. The ranges are certified, and the
    result is compared with the original. If it is not near enough, it is trained to answer as before.
    """
    with doing("loading PyTorch"):
        from comet_mpc import train
    rows = train.Data(data, task, limit, spread, length, texts=tuple(text or ()), answer=label, plain=plain)
    recipe = train.Recipe(epochs=epochs, batch=batch, rate=rate, seed=seed, dropout=0.0, fit_tokens=tokens)
    trained = True if trained is None and epochs else trained
    names = tuple(labels.split(",")) if labels is not None else ()
    watcher = Shown()
    prepared = train.prepare_adoption(
        source, rows, recipe, labels=names, rule=rule, steps=steps, trained=trained, watcher=watcher
    )
    typer.echo(prepared.summary, err=str(json) == "-")
    if estimate:
        return
    made = prepared.run(out, watcher)
    record(out / REPORT, made)
    if str(json) != "-":
        _show(made, out)
    record(json, made)


def _show(made: Adoption, out: Path) -> None:
    before, after, costs = made.original, made.adopted, made.costs
    rows = [(name, f"{before[name]:.2f}", f"{after[name]:.2f}", f"{after[name] - before[name]:+.2f}") for name in after]
    agreement = ", ".join(f"{name} {value:.2f}" for name, value in made.agreement.items())
    trial = f'comet demo --model {out} "a text", or ' if made.kind == "label" else ""
    console = Console()
    console.print(table(f"{made.dev_rows} rows that it has not learnt from", ("", "original", "adopted", ""), rows))
    console.print(
        f"measured against the original's own answers: {agreement}\n"
        f"a private answer to {costs.tokens} tokens: {human_bytes(costs.online_bytes)} in {costs.rounds} "
        f"rounds, prepared with {human_bytes(costs.offline_bytes)}\n"
        f"{_effort(made)}; all of this is in {out / REPORT}\n"
        f"next: {trial}comet serve {out}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _effort(made: Adoption) -> str:
    fitted = f"{made.rule} functions, fitted to {made.fitted_tokens} tokens in {human_seconds(made.fitting_seconds)}"
    return f"{fitted}, {f'trained for {human_seconds(made.training_seconds)}' if made.updates else 'not trained'}"
