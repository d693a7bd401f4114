"""`comet unify`, `calibrate` and `finetune`. They need the extra `[train]`; serving does not.

Above 400 lines, because the options of all three are declared here, and take a third of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import typer
from rich.console import Console

from comet_mpc.cli.inputs import fetched, in_words, load_any, read_rows, read_task, record, with_torch
from comet_mpc.cli.options import Data, JsonFile, Limit, Spread, TaskName
from comet_mpc.cli.stopping import RESUMABLE, RESUME, if_stopped
from comet_mpc.cli.tables import table
from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.root_rule import DEGREES, FINE_PRECISION
from comet_mpc.functions.rule import PRECISION
from comet_mpc.models.certify import calibrated, certify, check_ranges
from comet_mpc.models.checkpoint import (
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    RuleName,
    checkpoint_digest,
    chosen_rule,
    load_checkpoint,
    save_checkpoint,
    save_config,
)
from comet_mpc.models.fold import in_form
from comet_mpc.models.heads import Kind, Pooler, usual_head
from comet_mpc.models.hugging_face import need, servable_tokenizer, tokenizer_json
from comet_mpc.models.tasks import Task, find_task
from comet_mpc.progress import bar, doing, foretold
from comet_mpc.units import about

_CALIBRATION_ROWS = 256
_MANY_ROWS = 2048
"""Where the top of a range is no more than what was seen, times:"""
_MARGIN = 2.0
_MOST_MOVED = 0.01
"""By how much the rounding of neurons may move all answers but 1 % of them: other rounding is added."""
_MOST_HELD_OUT = 1000
HELD_OUT_SEED = 0
"""The same rows for every run of a task, so that no teacher has seen what judges its student."""

Form = Literal["certified", "paper", "unmodified"]


_PRIVATE_POOLERS: dict[Pooler, Pooler] = {"tanh": "algebraic", "relu": "smu"}
"""What the protocol computes in the place of a pooler's function."""


def _pooler(form: Form, found: Pooler) -> Pooler:
    """A form's pooler for a model that has this one."""
    if form == "certified":
        return _PRIVATE_POOLERS.get(found, found)
    return {private: usual for usual, private in _PRIVATE_POOLERS.items()}.get(found, found)


def _choices(form: Form, options: dict[str, Any]) -> tuple[ActivationChoice, AttentionChoice]:
    """What a form stands for; options that are not None replace parts of it."""
    activation, attention = {
        "certified": (ActivationChoice(), AttentionChoice()),
        "paper": (
            ActivationChoice(mu=1 / math.sqrt(2), normalised=False),
            AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1.0),
        ),
        "unmodified": (
            ActivationChoice(kind="gelu", normalised=False),
            AttentionChoice(kind="softmax", power=1, cosine=False),
        ),
    }[form]
    given = {name: value for name, value in options.items() if value is not None}
    renamed = {"activation": "kind", "alpha": "alpha", "mu": "mu", "trainable": "trainable"}
    activation = msgspec.structs.replace(activation, **{renamed[k]: v for k, v in given.items() if k in renamed})
    renamed = {"attention": "kind", "attention_mu": "mu", "floor": "floor", "power": "power", "trainable": "trainable"}
    attention = msgspec.structs.replace(attention, **{renamed[k]: v for k, v in given.items() if k in renamed})
    if form == "paper" and attention.kind == "smu":
        kept = {"mu": given.get("attention_mu", 0.5), "floor": given.get("floor", 0.0)}
        attention = msgspec.structs.replace(attention, **kept)
    if activation.kind != "smu":  # there is nothing to train then
        activation = msgspec.structs.replace(activation, trainable=False)
    if attention.kind != "smu":
        attention = msgspec.structs.replace(attention, trainable=False)
    return activation, attention


def unified(
    config: CometConfig, tensors: Any, *, rule: RuleName | None = None, steps: int | None = None
) -> tuple[CometConfig, Any]:
    """A model in the certified form, with its head: not trained yet."""
    activation, attention = _choices("certified", {})
    by, count = chosen_rule(rule, steps)
    made, weights = in_form(
        config, tensors, activation=activation, attention=attention, pooler=_pooler("certified", config.pooler),
        labels=config.encoder.labels, rule=by, steps=count,
    )  # fmt: skip
    return _certify(made, weights), weights


def _certify(config: CometConfig, tensors: Any) -> CometConfig:
    """Says how long it takes, after the first layer, and how far it is."""

    def say(line: str) -> None:
        typer.echo(f"proving the ranges: {line}", err=True)

    with bar("proving the ranges: layers") as tick:
        tick(0, 0)
        return certify(config, tensors, told=foretold(tick, say))


@if_stopped("Nothing was written. Run the same command again.")
def unify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Directory, or name on the hub, of a (Distil)BERT, RoBERTa or MPNet model."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Directory for the Comet checkpoint.")],
    form: Annotated[
        Form, typer.Option(help="certified (the one that can be served), paper (research only) or unmodified.")
    ] = "certified",
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a new head for the labels of this GLUE task.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Make a new head for these labels, separated by commas.")
    ] = None,
    head: Annotated[
        Kind | None,
        typer.Option(help="What to make of a text: a label, a label for every token, or an embedding."),
    ] = None,
    rule: Annotated[
        RuleName | None,
        typer.Option(
            help="Approximation rule for activations and attention scores: a polynomial root, or minimax (steps of "
            "1/sqrt). Default: quadratic in the certified form."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=16, help="Minimax steps of 1/sqrt; 4 in the paper's form.")
    ] = None,
    activation: Annotated[Literal["gelu", "smu"] | None, typer.Option(help="Other activation than the form's.")] = None,
    attention: Annotated[
        Literal["softmax", "relu", "smu"] | None, typer.Option(help="Other attention than the form's.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="α of smu: its slope on the negative side.")] = None,
    mu: Annotated[float | None, typer.Option(help="μ of smu: how smooth the activation is.")] = None,
    attention_mu: Annotated[float | None, typer.Option(help="μ of attention (s-Softmax*: 0.5).")] = None,
    floor: Annotated[float | None, typer.Option(help="Added to the denominators of attention (Softmax*: 1).")] = None,
    power: Annotated[int | None, typer.Option(help="Power of the scores in attention: 1 or 2.")] = None,
    trainable: Annotated[bool | None, typer.Option(help="Train α and μ, layer by layer.")] = None,
    pooler: Annotated[
        Literal["tanh", "algebraic"] | None,
        typer.Option(help="tanh, or algebraic: x/sqrt(1 + x²), which can be computed privately."),
    ] = None,
    seed: Annotated[int, typer.Option(help="For the random weights of a new head.")] = 0,
) -> None:
    """Turn a Hugging Face model (or a Comet model) into a Comet model.

    Its weights stay; its non-linear functions become those that the protocol computes. Train it afterwards.
    """
    if task and labels:
        raise ConfigurationError("give --task or --labels, not both")
    if head == "embedding" and (task or labels):
        raise ConfigurationError("an embedding has no labels: leave out --task and --labels")
    directory = fetched(source)
    given = find_task(task).labels if task else tuple(labels.split(",")) if labels else ()
    with doing(f"reading {directory}"):
        config, tensors = load_any(directory, head or ("label" if task else None))
    if given and config.head.kind == "embedding":  # made for something else than what is wanted of it
        config, tensors = load_any(directory, head or "label")
        config = msgspec.structs.replace(config, head=usual_head(head or "label"))
    made_for = config.head if head in (None, config.head.kind) else usual_head(head or "label")
    names = () if made_for.kind == "embedding" else given or config.encoder.labels
    if not names and made_for.kind != "embedding":
        raise ConfigurationError("a head for labels needs their names: give --labels A,B,…")
    options = {
        "activation": activation, "attention": attention, "alpha": alpha, "mu": mu, "attention_mu": attention_mu,
        "floor": floor, "power": power, "trainable": trainable,
    }  # fmt: skip
    if form == "certified" and trainable:
        raise ConfigurationError(
            "α and μ that are trained layer by layer cannot be certified, because all layers share one public rule: "
            "use --form paper, or set them with --alpha, --mu and --attention-mu"
        )
    if form == "certified" and pooler == "tanh":
        raise ConfigurationError("tanh has no protocol: the certified form has the algebraic pooler")
    known = config.encoder.vocabulary
    tokenizer = servable_tokenizer(directory, known) if form == "certified" else tokenizer_json(directory)
    chosen, attends = _choices(form, options)
    by, count = chosen_rule(rule, steps) if form == "certified" else (rule or "minimax", steps or 4)
    config, made = in_form(
        config, tensors, activation=chosen, attention=attends, labels=names, head=made_for, rule=by,
        steps=count, seed=seed,
        pooler=(pooler or _pooler(form, config.pooler)) if made_for.kind == "label" else "none",
    )  # fmt: skip
    config = msgspec.structs.replace(config, task=find_task(task).name if task else config.task)
    heads = [part for part in ("pooler", "classifier") if f"{part}.weight" in made]
    new = [part for part in heads if not _same(tensors, made, f"{part}.weight")]
    if form == "certified":
        config = _certify(config, made)
    save_checkpoint(out, config, made, tokenizer=tokenizer)
    e = config.encoder
    answers = f"labels {', '.join(e.labels)}" if e.labels else "embeddings"
    typer.echo(
        f"wrote {out}: {e.architecture}, {e.layers} layers, hidden size {e.hidden}, {form} form, "
        f"{answers}; checkpoint {checkpoint_digest(config, made, tokenizer)[:16]}"
    )
    if new:
        typer.echo(f"new, with random weights, so it must be trained: {' and '.join(new)}")
    typer.echo(f"next: comet finetune {out} OUT --data DIR" + (f" --task {config.task}" if config.task else ""))


def _same(tensors: Any, made: Any, name: str) -> bool:
    return name in tensors and np.array_equal(tensors[name], made[name])


@if_stopped("The checkpoint is as it was. Run the same command again.")
def calibrate(
    model: Annotated[Path, typer.Argument(help="A Comet checkpoint. Its configuration is rewritten.")],
    data: Data,
    task: TaskName = None,
    limit: Limit = _CALIBRATION_ROWS,
    margin: Annotated[
        float,
        typer.Option(min=1.0, help="Without a certificate, a range ends at so many times the largest value seen."),
    ] = _MARGIN,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what was seen and the ranges (.png, .svg or .pdf).")
    ] = None,
) -> None:
    """Set the ranges of a model's values from the rows of train.tsv.

    In the certified form, the upper ends are proved from the weights, for every text; data only sets the lower ends,
    and how finely neurons are rounded.
    """
    drawing = None
    if picture is not None:
        drawing = with_torch()
        if picture.suffix not in (".png", ".svg", ".pdf"):
            raise ConfigurationError(f"{picture}: the name of a picture ends in .png, .svg or .pdf")
    with doing(f"reading {model}"):
        config, tensors = load_checkpoint(model)
    chosen = read_task(task, data, config)
    with_torch()
    rows = read_rows(model, config, data, chosen, "train", limit)
    config, values = _calibrated(config, tensors, rows, margin)
    save_config(model, config)
    _show_sites(config, values)
    if drawing is not None and picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        drawing.draw(values, config, picture, f"{model.name}: {len(rows)} texts of {chosen.name}")
        typer.echo(f"drew {picture}")


def _calibrated(config: CometConfig, tensors: Any, rows: Any, margin: float = _MARGIN) -> tuple[CometConfig, Any]:
    """The configuration with calibrated ranges, and what was seen. Certificates are proved before it is returned."""
    if "smu" not in (config.activation.kind, config.attention.kind):
        raise ConfigurationError("nothing to calibrate: the model is unmodified (see `comet unify`)")
    training = need("comet_mpc.train")
    with bar("calibrating") as tick:
        net = training.UnifiedModel.from_tensors(config, tensors).use("exact")
        values = training.observe(net, rows, tick=tick)
    config = calibrated(config, tensors, training.quantiles(values), margin=margin)
    if config.certified:
        config = _fine_enough(config, tensors, rows)
        check_ranges(config, tensors)
    return config, values


def _fine_enough(config: CometConfig, tensors: Any, rows: Any) -> CometConfig:
    """A certified configuration, with finer neurons if rounding them moves the answers to these rows too far."""
    if DEGREES.get(config.rule, 0) < 2:  # no argument of a root is opened
        return config
    training = need("comet_mpc.train")

    def moved(config: CometConfig) -> float:
        net = training.UnifiedModel.from_tensors(config, tensors).use("served")
        return float(np.quantile(training.moved_by_rounding(net, rows), 0.99))

    far = moved(config)
    if far <= _MOST_MOVED:
        return config
    seen = {name: site.seen for name, site in config.sites.items() if site.seen}
    finer = calibrated(config, tensors, seen, precision=FINE_PRECISION)
    typer.echo(
        f"neurons get {FINE_PRECISION} fraction bits: rounded to {PRECISION}, they move 1 % of the answers by "
        f"more than {far:.3f}, now by more than {moved(finer):.3f}",
        err=True,
    )
    return finer


def _show_sites(config: CometConfig, values: dict[str, Any]) -> None:
    """Every range beside what was seen. A value below its range only costs accuracy."""
    columns = ("site", "from", "to", "least", "median", "most", "below", "error")
    for certified, title in (
        (True, "Ranges whose upper end is certified: it holds for every text"),
        (False, "Ranges whose upper end comes from what was seen: some text may exceed it"),
    ):
        rows = []
        for name, entry in config.sites.items():
            if bool(entry.certified_high) == certified:
                rule, q = entry.rule, entry.seen or (math.nan,) * 5
                found = np.concatenate([v for site, v in values.items() if name in (site, site.rsplit(".", 1)[-1])])
                numbers = (f"{x:.2g}" if abs(x) < 10 else f"{x:.0f}" for x in (rule.low, rule.high, q[0], q[2], q[4]))
                rows.append((name, *numbers, f"{np.mean(found < rule.low):.1%}", f"{rule.error:.1g}"))
        if rows:
            Console().print(table(title, columns, rows), highlight=False)


@if_stopped(RESUME)
def finetune(
    model: Annotated[Path, typer.Argument(help="The Comet checkpoint to start from (see `comet unify`).")],
    out: Annotated[Path, typer.Argument(help="Directory for the best checkpoint. Rerun the command to resume.")],
    data: Data,
    task: TaskName = None,
    teacher: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A Comet or Hugging Face classifier to learn from.")
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the training rows.")] = 3.0,
    batch: Annotated[int, typer.Option(min=1, help="Rows per update.")] = 32,
    rate: Annotated[float, typer.Option(help="The largest learning rate.")] = 1e-4,
    seed: Annotated[int, typer.Option(help="For the order of the rows and for dropout.")] = 1,
    limit: Limit = None,
    spread: Spread = False,
    held_out: Annotated[
        int | None,
        typer.Option(
            min=0, help="Training rows that only choose the best checkpoint (a tenth, 1000 at most). 0: dev.tsv does."
        ),
    ] = None,
    length: Annotated[
        int, typer.Option(min=0, help="Cut texts after so many tokens (0: as is usual for the task).")
    ] = 0,
    rule: Annotated[
        Literal[RuleName, "newton"] | None,
        typer.Option(
            help="Another rule of activations and scores than the model's. newton (from the paper's constant) is for "
            "experiments, like fewer than two steps: what comes out cannot be served."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Other steps of activations and scores than the model's.")
    ] = None,
    dropout: Annotated[float, typer.Option(help="With a teacher, 0 is best.")] = 0.1,
    label_weight: Annotated[
        float, typer.Option(min=0.0, help="How much labels count. 0: learn from the teacher alone.")
    ] = 1.0,
    hidden_weight: Annotated[float, typer.Option(help="How much the teacher's hidden states count.")] = 1.0,
    logit_weight: Annotated[float, typer.Option(help="How much the teacher's logits count.")] = 1.0,
    temperature: Annotated[float, typer.Option(help="Of the teacher's logits: more makes them softer.")] = 1.0,
    embedding_rate: Annotated[
        float, typer.Option(help="Learning rate of embeddings, relative to --rate. 0 leaves them as they are.")
    ] = 1.0,
    evaluations: Annotated[
        int, typer.Option(min=1, help="Evaluations per epoch. A run that stopped continues from the last one.")
    ] = 1,
    fit: Annotated[
        bool, typer.Option(help="Fit every layer to the teacher's first, if both are the same encoder.")
    ] = True,
    fit_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the training texts that layers are fitted to. More start closer.")
    ] = 8192,
    exact: Annotated[bool, typer.Option(help="Train with exact functions, not with the protocol's steps.")] = False,
    json: JsonFile = None,
) -> None:
    """Train a Comet model for a task, with the steps that the protocol computes.

    Keeps the checkpoint that is best on rows held out of train.tsv, calibrates it, scores it once on dev.tsv, and
    compares it with the teacher.
    """
    if not label_weight and (teacher is None or not (hidden_weight or logit_weight)):
        raise ConfigurationError("there is nothing to learn from: with --label-weight 0, give a model with --teacher")
    training = with_torch()
    with doing(f"reading {model} and {data}"):
        config, tensors = load_checkpoint(model)
    chosen = read_task(task, data, config)
    train = read_rows(model, config, data, chosen, "train", limit, length, spread=spread)
    dev = read_rows(model, config, data, chosen, "dev", None, length)
    held = rows_held_out(train) if held_out is None else held_out
    train, judge = training.hold_out(train, held, HELD_OUT_SEED) if held else (train, dev)
    config = msgspec.structs.replace(config, task=chosen.name, length=length or config.length or chosen.length)
    kind, count = rule or config.rule, config.steps if steps is None else steps
    few = kind == "minimax" and count <= (1 if config.certifiable else 0)
    through = f"{kind}-{count}" if few or kind == "newton" else None
    if through is None and (rule is not None or steps is not None):
        config = msgspec.structs.replace(config, rule=kind, steps=count or config.steps, sites={})
    recipe = training.Recipe(
        epochs=epochs, batch=batch, rate=rate, seed=seed, dropout=dropout, task_weight=label_weight,
        hidden_weight=hidden_weight, logit_weight=logit_weight, temperature=temperature,
        embedding_rate=embedding_rate, evaluations=evaluations, mode="exact" if exact else "steps", fit=fit,
        fit_tokens=fit_tokens, through=through,
    )  # fmt: skip
    tutor = None if teacher is None else _tutor(teacher, config)

    def say(line: str) -> None:
        typer.echo(line, err=str(json) == "-")

    if chosen.plain or chosen.kind == "embedding":
        if tutor is None:
            raise ConfigurationError("there is nothing to learn from: give rows with labels, or a model with --teacher")
        judge, told = (training.answered(rows, training.predict(tutor, rows), chosen) for rows in (judge, dev))
        dev = told if chosen.plain else dev
    if not (out / "training.json").exists():
        with doing("measuring how fast this machine trains"):
            net = training.UnifiedModel.from_tensors(config, tensors)
            began = time.monotonic()
            if config.certified:
                check_ranges(config, tensors)
            proving = time.monotonic() - began
            seconds = training.estimated_seconds(net, chosen, train, judge, recipe, tutor, scored=dev, certify=proving)
        say(f"{len(train)} rows, {epochs:g} epochs: {about(seconds)} on this machine. {RESUMABLE}")
    found, scores = train_model(
        config, tensors, chosen, train, judge, dev, out, recipe, tutor, tokenizer_json(model), say
    )
    summary = {
        "task": chosen.name, "metric": chosen.metric, "best": found["best"], "scores": scores,
        "history": found["history"], "seconds": found["seconds"], "updates": found["steps"], "seed": seed,
        "rows": len(train), "spread": spread, "held_out": {"rows": held, "seed": HELD_OUT_SEED}, "rate": rate,
        "batch": batch, "rule": kind, "steps": count, "mode": recipe.mode, "distilled": teacher is not None,
        "activation": msgspec.to_builtins(config.activation), "attention": msgspec.to_builtins(config.attention),
        "fit_tokens": fit_tokens if fit and teacher is not None else 0, "label_weight": label_weight,
        "logit_weight": logit_weight, "hidden_weight": hidden_weight,
    }  # fmt: skip
    where = f"{held} rows held out" if held else "dev.tsv"
    say(f"best on {where}: {found['best']:.2f}, after {found['seconds']:.0f} s; saved in {out}")
    say(f"on dev.tsv: {in_words(scores)}")
    if tutor is not None:
        with bar("evaluating the teacher") as tick:
            outputs = training.predict(tutor.use("exact"), dev, tick=tick)
        summary["teacher_scores"] = chosen.score(outputs, dev.labels)
        cost = summary["teacher_scores"][chosen.metric] - scores[chosen.metric]
        say(f"the teacher: {in_words(summary['teacher_scores'])}; the new form costs {cost:.2f} points")
    made, weights = load_checkpoint(out)
    if learnt := _learnt(made, weights):
        summary["learnt"] = learnt
    say(_next(made, out, data, task))
    record(json, summary)


def _learnt(config: CometConfig, tensors: Any) -> dict[str, list[float]]:
    """α and μ of every layer, where they were trained."""
    parts = ["activation.alpha", "activation.mu"] if config.activation.trainable else []
    parts += ["attention.mu"] if config.attention.trainable else []
    return {part: [float(tensors[f"layers.{i}.{part}"]) for i in range(config.encoder.layers)] for part in parts}


def rows_held_out(train: Any) -> int:
    """So many rows are not learnt from, but choose the best checkpoint."""
    return min(_MOST_HELD_OUT, len(train) // 10)


def train_model(
    config: CometConfig, tensors: Any, task: Task, train: Any, judge: Any, dev: Any, out: Path, recipe: Any,
    teacher: Any, tokenizer: bytes, say: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, float]]:  # fmt: skip
    """Trains in `out`, or goes on there; calibrates the best checkpoint. How it went, and its scores as served."""
    with (
        if_stopped(f"Run the same command to resume from the last evaluation in {out}."),
        bar("fine-tuning: updates") as tick,
    ):
        found = need("comet_mpc.train").finetune(
            config, tensors, task, train, judge, out, recipe, teacher=teacher, tokenizer=tokenizer, say=say, tick=tick
        )
    return found, _finish(out, train, dev, task, recipe)


def _next(config: CometConfig, out: Path, data: Path, task: str | None) -> str:
    if config.certified:
        return f"next: comet serve {out}"
    if "smu" in (config.activation.kind, config.attention.kind):
        return f"{out} is not in the certified form: it is for experiments and cannot be served"
    words = f"--data {data}" + (f" --task {task}" if task else "")
    return f"next: comet unify {out} UNIFIED, then comet finetune UNIFIED OUT {words} --teacher {out} --dropout 0"


def _tutor(teacher: Path, config: CometConfig) -> Any:
    """A classifier with the student's labels, in its own form."""
    theirs, tensors = load_any(teacher)
    complete = theirs.head.kind == "embedding" or "classifier.weight" in tensors
    if (theirs.encoder.labels, theirs.head) != (config.encoder.labels, config.head) or not complete:
        raise ConfigurationError(
            f"{teacher} has the labels {', '.join(theirs.encoder.labels) or 'none'} ({theirs.head.kind}), "
            f"but a teacher of this model needs {', '.join(config.encoder.labels) or 'none'} ({config.head.kind})"
        )
    if theirs.encoder.vocabulary != config.encoder.vocabulary:
        raise ConfigurationError(f"{teacher} has another vocabulary, but teacher and model must read the same tokens")
    return need("comet_mpc.train").UnifiedModel.from_tensors(theirs, tensors)


def _finish(out: Path, train: Any, dev: Any, task: Task, recipe: Any) -> dict[str, float]:
    """Calibrates the best checkpoint if it is not yet; its scores as it stands now. A form that is not certified and
    was trained with exact functions is scored with them; an experiment, by its own rules, and it stays without ranges.
    """
    training = need("comet_mpc.train")
    config, tensors = load_checkpoint(out)
    rules = training.through_rules(config, recipe.through)
    smu = "smu" in (config.activation.kind, config.attention.kind)
    if smu and not rules and not any(site.seen for site in config.sites.values()):
        count = _CALIBRATION_ROWS if config.certifiable else _MANY_ROWS
        config, _ = _calibrated(config, tensors, training.first_rows(train, count))
    elif config.certified:
        config = _fine_enough(config, tensors, training.first_rows(train, _CALIBRATION_ROWS))
    with bar("evaluating") as tick:
        exact = recipe.mode == "exact" and not config.certifiable
        net = training.UnifiedModel.from_tensors(config, tensors).use("exact" if exact else "served", rules)
        scores: dict[str, float] = task.score(training.predict(net, dev, tick=tick), dev.labels)
    save_config(out, msgspec.structs.replace(config, scores=scores))
    return scores
