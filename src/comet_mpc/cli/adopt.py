"""`comet adopt`: a Hugging Face model in the certified form, trained, calibrated, evaluated: all in one command."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console

from comet_mpc.cli.inputs import fetched, load_any, read_rows, read_task, record, with_torch
from comet_mpc.cli.options import JsonFile, Limit, Spread, TaskName
from comet_mpc.cli.stopping import RESUMABLE, RESUME, if_stopped
from comet_mpc.cli.tables import table
from comet_mpc.cli.train import HELD_OUT_SEED, rows_held_out, train_model, unified
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import USUAL_RULE, CometConfig, RuleName
from comet_mpc.models.hugging_face import need, servable_tokenizer
from comet_mpc.models.own_data import own_task
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Task
from comet_mpc.offline.sources import PAIR
from comet_mpc.progress import bar, doing
from comet_mpc.units import about, human_bytes, human_seconds

REPORT = "adoption.json"
_UPDATES = 300
"""Small data sets are gone through more often, until there were so many updates."""
_EMBEDDING_STEPS = 4
"""Embeddings are the hidden states themselves, which the usual rule moves more than labels (docs/how-to/convert.md)."""
_CHEAPER: RuleName = "quartic"
"""Nearly as good for them, for less than half the bytes."""


@if_stopped(RESUME)
def adopt(
    source: Annotated[
        str, typer.Argument(metavar="MODEL", help="Directory, or name on the hub, of a trained Hugging Face model.")
    ],
    out: Annotated[Path, typer.Argument(help="Directory for the model to serve. Rerun the command to resume.")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="Your rows: a .csv or .tsv file with a header, a .txt file of plain texts, or a directory with "
            "train.tsv and dev.tsv. Without labels, the model itself says what is right.",
        ),
    ],
    text: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The column with the texts. Give two for pairs.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="NAME", help="The column with the labels or scores.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Use no labels, also where there are some.")] = False,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Names for the model's labels, in its own order.")
    ] = None,
    task: TaskName = None,
    epochs: Annotated[
        float, typer.Option(min=0.0, help="Passes over the rows. 0: as many as a set of this size needs.")
    ] = 0.0,
    rate: Annotated[float, typer.Option(help="The largest learning rate.")] = 1e-4,
    batch: Annotated[int, typer.Option(min=1, help="Rows per update.")] = 16,
    rule: Annotated[
        RuleName | None,
        typer.Option(
            help="Approximation rule for activations and attention scores. "
            f"Default: {USUAL_RULE}; for embeddings, --steps."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=16, help=f"Steps of 1/sqrt in its place. Default for embeddings: {_EMBEDDING_STEPS}."),
    ] = None,
    length: Annotated[int, typer.Option(min=0, help="Cut texts after so many tokens (0: as the model does).")] = 0,
    limit: Limit = None,
    spread: Spread = False,
    seed: Annotated[int, typer.Option(help="For the order of the rows.")] = 1,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it will take.")] = False,
    json: JsonFile = None,
) -> None:
    """Convert your model for private serving.

    Its non-linear functions become those that the protocol computes, its ranges are certified, and it is trained to
    answer as before: with your labels and its own answers, or with its own answers alone. Says first how long that
    takes, and in the end what it cost.
    """
    training = with_torch()
    directory = fetched(source)
    with doing(f"reading {directory}"):
        config, tensors = _original(directory, labels)
    tokenizer = servable_tokenizer(directory, config.encoder.vocabulary)
    chosen = read_task(task, data, config) if task else own_task(
        data, config.encoder.labels, config.head.kind, texts=text or (), answer="" if plain else label
    )  # fmt: skip
    if plain:
        chosen = replace(chosen, plain=True, metric="cosine" if chosen.kind == "embedding" else chosen.metric)
    train = read_rows(directory, config, data, chosen, "train", limit, length, spread=spread)
    dev = read_rows(directory, config, data, chosen, "dev", length=length)
    longest = min(length or config.length or chosen.length, config.encoder.longest)
    config = msgspec.structs.replace(config, task=chosen.name, length=longest)
    teacher = training.UnifiedModel.from_tensors(config, tensors)
    lesson = _lesson(chosen, train, dev, teacher)
    near = chosen.kind == "embedding" and rule is None and steps is None
    began = time.monotonic()
    form, weights = unified(config, tensors, rule=rule, steps=_EMBEDDING_STEPS if near else steps)
    proving = time.monotonic() - began
    passes = epochs or max(3.0, float(np.ceil(_UPDATES * batch / len(lesson.train))))
    recipe = training.Recipe(epochs=passes, batch=batch, rate=rate, seed=seed, dropout=0.0)

    def say(line: str) -> None:
        typer.echo(line, err=str(json) == "-")

    if near:
        say(
            f"embeddings get {_EMBEDDING_STEPS} steps of 1/sqrt, which keep them nearer to the original than the usual "
            f"rule; --rule {_CHEAPER} is between the two, and takes less than half the bytes"
        )
    net = training.UnifiedModel.from_tensors(form, weights)
    with doing("measuring how fast this machine trains"):
        seconds = training.estimated_seconds(
            net, chosen, lesson.train, lesson.judge, recipe, teacher, scored=lesson.dev, certify=proving
        )
    how = "the model itself says what is right" if chosen.plain else "with labels"
    say(
        f"{len(lesson.train)} rows to learn from ({how}), {len(lesson.judge)} to choose by, {len(lesson.dev)} to "
        f"evaluate: {passes:g} passes take {about(seconds)} on this machine. {RESUMABLE}"
    )
    if estimate:
        return
    found, scores = train_model(
        form, weights, chosen, lesson.train, lesson.judge, lesson.dev, out, recipe, teacher,
        tokenizer, say,
    )  # fmt: skip
    report = {
        "record": "adoption",
        "model": Path(source).name,
        "rule": form.rule,
        "steps": form.steps,
        "estimated_seconds": seconds,
    }
    report |= {"training_seconds": found["seconds"], "updates": found["steps"], "adopted": scores}
    report |= _report(chosen, lesson, out)
    record(out / REPORT, report)
    if str(json) != "-":
        _show(report, out)
    record(json, report)


@dataclass(frozen=True)
class _Lesson:
    """Rows to learn from, to choose the best checkpoint by, and to evaluate; and what the original model says to the
    last of them."""

    train: Any
    judge: Any
    dev: Any
    original: Any


def _lesson(task: Task, train: Any, dev: Any, teacher: Any) -> _Lesson:
    training = need("comet_mpc.train")
    with bar("asking the original model") as tick:
        original = training.predict(teacher.eval().use("exact"), dev, tick=tick)
    train, judge = training.hold_out(train, max(1, rows_held_out(train)), HELD_OUT_SEED)
    if task.plain or task.kind == "embedding":
        judge = training.answered(judge, training.predict(teacher, judge), task)
    return _Lesson(train, judge, training.answered(dev, original, task) if task.plain else dev, original)


def _report(task: Task, lesson: _Lesson, out: Path) -> dict[str, Any]:
    """The adopted model beside the original, on rows that neither training nor choosing has seen."""
    training = need("comet_mpc.train")
    served = ServedModel.load(out)
    answers = training.predict(training.load_model(out).use("served"), lesson.dev)
    theirs = training.answered(lesson.dev, lesson.original, task).labels
    return {
        "kind": task.kind, "task": task.name, "metric": task.metric, "labelled": not task.plain,
        "rows": len(lesson.train), "held_out": len(lesson.judge), "dev_rows": len(lesson.dev),
        "original": task.score(lesson.original, lesson.dev.labels),
        "agreement": replace(task, plain=True).score(answers, theirs),
        "fingerprint": served.fingerprint, "costs": _costs(served, lesson.dev),
    }  # fmt: skip


def _original(directory: Path, labels: str | None) -> tuple[CometConfig, Any]:
    """A model that was trained already, in its own form, perhaps with better names for its labels."""
    config, tensors = load_any(directory)
    if config.activation.kind != "gelu" or config.attention.kind != "softmax":
        raise ConfigurationError(f"{directory} does not have GeLU and softmax any more: serve it, or fine-tune it")
    if config.encoder.labels and "classifier.weight" not in tensors:
        raise ConfigurationError(
            f"{directory} is an encoder without a head, so it has learnt no task yet: train one in the clear first "
            "(`comet unify --form unmodified --labels A,B` and `comet finetune`), or take it for embeddings "
            "(`comet unify --form unmodified --head embedding`)"
        )
    if labels is not None:
        names = tuple(labels.split(","))
        if len(names) != len(config.encoder.labels):
            raise ConfigurationError(f"{len(names)} names for a model with {len(config.encoder.labels)} labels")
        config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, labels=names))
    return config, tensors


def _costs(model: ServedModel, dev: Any) -> dict[str, Any]:
    """Of one text of the usual size, planned: bytes and rounds are exact."""
    usual = float(np.median([len(ids) for ids in dev.ids]))
    bucket = next(size for size in model.buckets() if size >= usual)
    plan = model.plan(1, bucket, PAIR)
    return {
        "tokens": bucket, "online_bytes": plan.online_bytes, "rounds": plan.rounds,
        "offline_bytes": PAIR.offline_bytes(plan), "source": PAIR.name,
    }  # fmt: skip


def _show(report: dict[str, Any], out: Path) -> None:
    before, after, costs = report["original"], report["adopted"], report["costs"]
    rows = [(name, f"{before[name]:.2f}", f"{after[name]:.2f}", f"{after[name] - before[name]:+.2f}") for name in after]
    agreement = ", ".join(f"{name} {value:.2f}" for name, value in report["agreement"].items())
    trial = f'comet demo --model {out} "a text", or ' if report["kind"] == "label" else ""
    console = Console()
    console.print(
        table(f"{report['dev_rows']} rows that it has not learnt from", ("", "original", "adopted", ""), rows)
    )
    console.print(
        f"measured against the original's own answers: {agreement}\n"
        f"a private answer to {costs['tokens']} tokens: {human_bytes(costs['online_bytes'])} in {costs['rounds']} "
        f"rounds, prepared with {human_bytes(costs['offline_bytes'])}\n"
        f"trained for {human_seconds(report['training_seconds'])}; all of this is in {out / REPORT}\n"
        f"next: {trial}comet serve {out}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
