"""`comet unify`, `calibrate` and `finetune`: what `comet_mpc.train` does, by options. They need the extra `[train]`."""

from __future__ import annotations

import math
from pathlib import Path

import typer
from rich.console import Console

from comet_mpc.cli import training_options as of
from comet_mpc.cli.options import Data, JsonFile, Limit, Spread, TaskName
from comet_mpc.cli.stopping import RESUME, if_stopped
from comet_mpc.cli.tables import in_words, record, table
from comet_mpc.models.checkpoint import CometConfig, Site
from comet_mpc.models.stored.checkpoints import read_config
from comet_mpc.progress import Shown, doing


@if_stopped("Nothing was written. Run the same command again.")
def unify(
    source: of.Source,
    out: of.Checkpoint,
    form: of.FormOption = "certified",
    task: of.HeadTask = None,
    labels: of.HeadLabels = None,
    head: of.HeadKind = None,
    rule: of.FormRule = None,
    steps: of.FormSteps = None,
    activation: of.Activation = None,
    attention: of.Attention = None,
    alpha: of.Alpha = None,
    mu: of.Mu = None,
    attention_mu: of.AttentionMu = None,
    floor: of.Floor = None,
    power: of.Power = None,
    trainable: of.Trainable = None,
    pooler: of.PoolerOption = None,
    seed: of.HeadSeed = 0,
    image_size: of.ImageSize = None,
) -> None:
    """Turn a Hugging Face model (or a Comet model) into a Comet model.

    Its weights stay; its non-linear functions become those that the protocol computes. Train it afterwards.
    """
    with doing("loading PyTorch"):
        from comet_mpc import train
    chosen = train.Form(
        form, rule=rule, steps=steps, activation=activation, attention=attention, alpha=alpha, mu=mu,
        attention_mu=attention_mu, floor=floor, power=power, trainable=trainable, pooler=pooler,
    )  # fmt: skip
    names = tuple(labels.split(",")) if labels else ()
    made = train.unify(
        source, out, chosen, task=task, labels=names, head=head, seed=seed, image_size=image_size, watcher=Shown()
    )
    e = made.config.encoder
    answers = f"labels {', '.join(e.labels)}" if e.labels else "embeddings"
    typer.echo(
        f"wrote {out}: {e.architecture}, {e.layers} layers, hidden size {e.hidden}, {form} form, "
        f"{answers}; checkpoint {made.digest[:16]}"
    )
    if made.untrained:
        typer.echo(f"new, with random weights, so it must be trained: {' and '.join(made.untrained)}")
    typer.echo(
        f"next: comet finetune {out} OUT --data DIR" + (f" --task {made.config.task}" if made.config.task else "")
    )


@if_stopped("The checkpoint is as it was. Run the same command again.")
def calibrate(
    model: of.Calibrated,
    data: Data,
    task: TaskName = None,
    limit: Limit = 256,
    margin: of.Margin = 2.0,
    picture: of.Picture = None,
) -> None:
    """Set the ranges of a model's values from the rows of train.tsv.

    In the certified form, the upper ends are proved from the weights, for every text; data only sets the lower ends,
    and how finely neurons are rounded.
    """
    with doing("loading PyTorch"):
        from comet_mpc import train
    rows = train.Data(data, task, limit)
    found = train.calibrate(model, rows, margin=margin, picture=picture, watcher=Shown())
    columns = ("site", "from", "to", "least", "median", "most", "below", "error")
    for certified, title in (
        (True, "Ranges whose upper end is certified: it holds for every text"),
        (False, "Ranges whose upper end comes from what was seen: some text may exceed it"),
    ):
        sites = {name: site for name, site in found.config.sites.items() if bool(site.certified_high) == certified}
        lines = [_range(name, site, found.below(name)) for name, site in sites.items()]
        if lines:
            Console().print(table(title, columns, lines), highlight=False)
    if picture is not None:
        typer.echo(f"drew {picture}")


def _range(name: str, site: Site, below: float) -> tuple[str, ...]:
    """A range beside what was seen. A value below its range only costs accuracy."""
    rule, seen = site.rule, site.seen or (math.nan,) * 5
    numbers = (f"{x:.2g}" if abs(x) < 10 else f"{x:.0f}" for x in (rule.low, rule.high, seen[0], seen[2], seen[4]))
    return name, *numbers, f"{below:.1%}", f"{rule.error:.1g}"


@if_stopped(RESUME)
def finetune(
    model: of.Start,
    out: of.Best,
    data: Data,
    task: TaskName = None,
    teacher: of.Teacher = None,
    epochs: of.Epochs = 3.0,
    batch: of.UpdateRows = 32,
    rate: of.Rate = 1e-4,
    seed: of.Seed = 1,
    limit: Limit = None,
    spread: Spread = False,
    held_out: of.HeldOut = None,
    length: of.Length = 0,
    rule: of.TrainedRule = None,
    steps: of.OtherSteps = None,
    dropout: of.Dropout = 0.1,
    label_weight: of.LabelWeight = 1.0,
    hidden_weight: of.HiddenWeight = 1.0,
    logit_weight: of.LogitWeight = 1.0,
    temperature: of.Temperature = 1.0,
    embedding_rate: of.EmbeddingRate = 1.0,
    evaluations: of.Evaluations = 1,
    fit: of.Fit = True,
    fit_tokens: of.FitTokens = 8192,
    exact: of.Exact = False,
    json: JsonFile = None,
) -> None:
    """Train a Comet model for a task, with the steps that the protocol computes.

    Keeps the checkpoint that is best on rows held out of train.tsv, calibrates it, scores it once on dev.tsv, and
    compares it with the teacher.
    """
    with doing("loading PyTorch"):
        from comet_mpc import train
    recipe = train.Recipe(
        epochs=epochs, batch=batch, rate=rate, seed=seed, dropout=dropout, task_weight=label_weight,
        hidden_weight=hidden_weight, logit_weight=logit_weight, temperature=temperature,
        embedding_rate=embedding_rate, evaluations=evaluations, mode="exact" if exact else "steps", fit=fit,
        fit_tokens=fit_tokens,
    )  # fmt: skip
    rows = train.Data(data, task, limit, spread, length)
    made = train.finetune(
        model, rows, out, recipe, teacher=teacher, held_out=held_out, rule=rule, steps=steps, watcher=Shown()
    )
    where = f"{made.held_out.rows} rows held out" if made.held_out.rows else "dev.tsv"
    lines = [f"best on {where}: {made.best:.2f}, after {made.seconds:.0f} s; saved in {out}"]
    lines.append(f"on dev.tsv: {in_words(made.scores)}")
    if made.teacher_scores is not None:
        cost = made.teacher_scores[made.metric] - made.scores[made.metric]
        lines.append(f"the teacher: {in_words(made.teacher_scores)}; the new form costs {cost:.2f} points")
    lines.append(_next(read_config(out), out, data, task))
    typer.echo("\n".join(lines), err=str(json) == "-")
    record(json, made)


def _next(config: CometConfig, out: Path, data: Path, task: str | None) -> str:
    if config.certified:
        return f"next: comet serve {out}"
    if "smu" in (config.activation.kind, config.attention.kind):
        return f"{out} is not in the certified form: it is for experiments and cannot be served"
    words = f"--data {data}" + (f" --task {task}" if task else "")
    return f"next: comet unify {out} UNIFIED, then comet finetune UNIFIED OUT {words} --teacher {out} --dropout 0"
