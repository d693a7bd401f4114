"""`comet adopt`: `comet_mpc.train.adopt` by options. It needs the extra `[train]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from comet_mpc.cli import training_options as of
from comet_mpc.cli.options import JsonFile, Limit, Spread, TaskName
from comet_mpc.cli.stopping import RESUME, if_stopped
from comet_mpc.cli.tables import record, table
from comet_mpc.errors import ConfigurationError
from comet_mpc.progress import Shown, Watcher, doing
from comet_mpc.units import human_bytes, human_seconds

if TYPE_CHECKING:  # torch is an extra
    from comet_mpc.train import Adoption, WriterAdoption

REPORT = "adoption.json"


@if_stopped(RESUME)
def adopt(
    source: of.Adopted,
    out: of.ToServe,
    data: of.AnyData = None,
    text: of.TextColumns = None,
    label: of.LabelColumn = None,
    plain: of.Plain = False,
    labels: of.LabelNames = None,
    head: of.AdoptedHead = None,
    task: TaskName = None,
    epochs: of.Passes = 0.0,
    rate: of.Rate = 1e-5,
    batch: of.UpdateRows = 16,
    rule: of.AdoptedRule = None,
    steps: of.AdoptedSteps = None,
    length: of.AdoptedLength = 0,
    limit: Limit = None,
    spread: Spread = False,
    seed: of.RowSeed = 1,
    trained: of.Trained = None,
    tokens: of.FittedTokens = None,
    context: of.Context = 0,
    image_size: of.ImageSize = None,
    estimate: of.Estimate = False,
    json: JsonFile = None,
) -> None:
    """Convert your model for private serving.

    Its non-linear functions become those that the protocol computes. Layer by layer, they are fitted to what the model
    computes on your texts, by least squares: this needs no labels, and takes minutes. The ranges are certified, and the
    result is compared with the original. If it is not near enough, it is trained to answer as before.

    A model that writes (Llama, GPT-2) is fitted to texts that it writes itself, or to --data, and then learns from the
    original's next tokens. Only --fit-tokens, --length, --context, --seed and --text are for it.
    """
    with doing("loading PyTorch"):
        from comet_mpc import train
    watcher = Shown()
    directory = train.find_model(source, watcher)
    if train.writes(directory):
        _refuse(f"{directory} writes", {
            "--label": label, "--plain": plain, "--labels": labels, "--task": task, "--epochs": epochs, "--head": head,
            "--rule": rule, "--steps": steps, "--limit": limit, "--spread": spread, "--train": trained,
            "--image-size": image_size,
        })  # fmt: skip
        wanted = {} if tokens is None else {"fit_tokens": tokens}
        recipe = train.WriterRecipe(context=context, length=length, seed=seed, **wanted)
        written = train.prepare_writer(directory, recipe, data=data, texts=tuple(text or ()), watcher=watcher)
        _adopt(written, out, json, _show_writer, watcher, estimate=estimate)
        return
    if data is None or context:
        raise ConfigurationError("name your rows with --data, and leave out --context: this model answers texts")
    rows = train.Data(data, task, limit, spread, length, texts=tuple(text or ()), answer=label, plain=plain)
    usual = train.USUAL_RECIPE
    lessons = replace(usual, epochs=epochs, batch=batch, rate=rate, seed=seed, fit_tokens=tokens or usual.fit_tokens)
    prepared = train.prepare_adoption(
        directory, rows, lessons, labels=tuple(labels.split(",")) if labels is not None else (), head=head, rule=rule,
        steps=steps, trained=True if trained is None and epochs else trained, image_size=image_size, watcher=watcher,
    )  # fmt: skip
    _adopt(prepared, out, json, _show, watcher, estimate=estimate)


def _refuse(reason: str, options: Mapping[str, object]) -> None:
    """Options that are given, but are not for this model."""
    if given := [name for name, value in options.items() if value not in (None, False, 0.0)]:
        raise ConfigurationError(f"{reason}: leave out {', '.join(given)}")


def _adopt(
    prepared: Any, out: Path, json: Path | None, show: Callable[[Any, Path], None], watcher: Watcher, *, estimate: bool
) -> None:
    """Says what there is to do, does it, unless only an estimate is wanted, and records it."""
    typer.echo(prepared.summary, err=str(json) == "-")
    if estimate:
        return
    made = prepared.run(out, watcher)
    record(out / REPORT, made)
    if str(json) != "-":
        show(made, out)
    record(json, made)


def _show_writer(made: WriterAdoption, out: Path) -> None:
    more = 100.0 * (made.perplexity / made.original_perplexity - 1.0)
    rows = [("perplexity", f"{made.original_perplexity:.2f}", f"{made.perplexity:.2f}", f"{more:+.1f} %")]
    console, costs = Console(), made.costs
    console.print(table(f"{made.held_out} texts that it was not fitted to", ("", "original", "adopted", ""), rows))
    console.print(
        f"next tokens that are the original's: {made.agreement:.1f} %\n"
        f"a private token: {human_bytes(costs.token_bytes)} in {costs.token_rounds} rounds, prepared with "
        f"{human_bytes(costs.offline_bytes_a_token)}; prompts and texts of {made.context} tokens together\n"
        f"fitted to {made.fitted_tokens} tokens, in {human_seconds(made.seconds)} with everything; all of this is in "
        f"{out / REPORT}\n"
        f'next: comet demo --model {out} "Once upon a time", or comet serve {out}',
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _show(made: Adoption, out: Path) -> None:
    before, after, costs = made.original, made.adopted, made.costs
    rows = [(name, f"{before[name]:.2f}", f"{after[name]:.2f}", f"{after[name] - before[name]:+.2f}") for name in after]
    agreement = ", ".join(f"{name} {value:.2f}" for name, value in made.agreement.items())
    trial = f'comet demo --model {out} "a text", or ' if made.kind == "label" and not made.images else ""
    what = "images" if made.images else "rows"
    console = Console()
    console.print(table(f"{made.dev_rows} {what} that it has not learnt from", ("", "original", "adopted", ""), rows))
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
