"""`comet unify`, `calibrate`, `finetune` and `eval`. Need the extra `[train]`; serving does not."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import shutil
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import typer

from comet_mpc.activation import Smu, smu_rule
from comet_mpc.certificates import calibrated, certify, check_certificates, in_form
from comet_mpc.checkpoint import (
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    fingerprint,
    load_checkpoint,
    load_hugging_face,
    save_checkpoint,
    save_config,
)
from comet_mpc.deployment import ServedModel
from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.secure_eval import evaluate_securely
from comet_mpc.tasks import Task, find_task, read_split
from comet_mpc.units import human_bytes, human_seconds

__all__ = ["register"]

Form = Literal["certified", "paper", "unmodified"]
TaskName = Annotated[str, typer.Option("--task", help="RTE, MRPC, STS-B, CoLA or SST-2.")]
Data = Annotated[Path, typer.Option("--data", help="Directory with one folder of TSV files per task.")]
Limit = Annotated[int | None, typer.Option(help="Take only so many rows.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result to this file ('-': standard output).")]


def _layer(name: str) -> Any:
    """A module that needs torch. Imported late, since only these commands need it and it may be absent."""
    try:
        return import_module(f"comet_mpc.{name}")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("comet_mpc"):
            raise
        raise ConfigurationError(
            f"this command needs {error.name}, which is not installed: pip install 'comet-mpc[train]'"
        ) from error


def _choices(form: Form, options: dict[str, Any]) -> tuple[ActivationChoice, AttentionChoice, str]:
    """What a form stands for; options that are not None replace parts of it."""
    activation, attention, pooler = {
        "certified": (ActivationChoice(), AttentionChoice(), "algebraic"),
        "paper": (
            ActivationChoice(mu=1 / math.sqrt(2), normalised=False),
            AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1e-3),
            "tanh",
        ),
        "unmodified": (
            ActivationChoice(kind="gelu", normalised=False),
            AttentionChoice(kind="softmax", power=1, cosine=False),
            "tanh",
        ),
    }[form]
    given = {name: value for name, value in options.items() if value is not None}
    renamed = {"activation": "kind", "alpha": "alpha", "mu": "mu", "trainable": "trainable"}
    activation = msgspec.structs.replace(activation, **{renamed[k]: v for k, v in given.items() if k in renamed})
    renamed = {"attention": "kind", "attention_mu": "mu", "floor": "floor", "power": "power", "trainable": "trainable"}
    attention = msgspec.structs.replace(attention, **{renamed[k]: v for k, v in given.items() if k in renamed})
    if attention.trainable and attention.kind != "smu":
        attention = msgspec.structs.replace(attention, trainable=False)
    return activation, attention, pooler


def _source(name: str) -> Path:
    """A local directory, or a name on the Hugging Face hub."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or name.count("/") > 1:
        raise CheckpointError(f"{name} is not a directory with a checkpoint")
    try:
        hub = import_module("huggingface_hub")
        return Path(hub.snapshot_download(name, allow_patterns=["config.json", "model.safetensors", "tokenizer*"]))
    except Exception as error:
        raise CheckpointError(f"{name} is neither a directory nor to be had from the hub: {error}") from error


def unify(
    source: Annotated[str, typer.Argument(help="Directory or hub name of a BERT, RoBERTa or MPNet.")],
    out: Annotated[Path, typer.Argument(help="Directory for the Comet checkpoint.")],
    form: Annotated[Form, typer.Option(help="certified (served), paper, or unmodified.")] = "certified",
    task: Annotated[str | None, typer.Option(help="Makes a new head for this GLUE task's labels.")] = None,
    labels: Annotated[str | None, typer.Option(help="Makes a new head for these labels, separated by commas.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of activations and scores.")] = 4,
    activation: Annotated[str | None, typer.Option(help="gelu or smu.")] = None,
    attention: Annotated[str | None, typer.Option(help="softmax, relu or smu.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Slope of smu on the negative side.")] = None,
    mu: Annotated[float | None, typer.Option(help="Smoothness of the activation.")] = None,
    attention_mu: Annotated[float | None, typer.Option(help="Smoothness of attention.")] = None,
    floor: Annotated[float | None, typer.Option(help="Added to attention's denominators.")] = None,
    power: Annotated[int | None, typer.Option(help="1 or 2.")] = None,
    trainable: Annotated[bool | None, typer.Option(help="Learn α and μ.")] = None,
    seed: Annotated[int, typer.Option(help="For a new head.")] = 0,
) -> None:
    """Makes a Comet checkpoint of a Hugging Face (or Comet) one, with other non-linear steps."""
    directory = _source(source)
    config, tensors = _load_any(directory)
    if task and labels:
        raise ConfigurationError("give --task or --labels, not both")
    names = find_task(task).labels if task else tuple(labels.split(",")) if labels else config.encoder.labels
    options = {
        "activation": activation, "attention": attention, "alpha": alpha, "mu": mu, "attention_mu": attention_mu,
        "floor": floor, "power": power, "trainable": trainable,
    }  # fmt: skip
    chosen, attends, pooler = _choices(form, options)
    config, made = in_form(
        config, tensors, activation=chosen, attention=attends, pooler=pooler, labels=names, steps=steps, seed=seed  # type: ignore[arg-type]
    )  # fmt: skip
    config = msgspec.structs.replace(config, task=find_task(task).name if task else config.task)
    head = ("pooler.weight", "classifier.weight")
    new = [name for name in head if name not in tensors or not np.array_equal(tensors[name], made[name])]
    if form == "certified":
        config = certify(config, made)
    save_checkpoint(out, config, made)
    _copy_tokenizer(directory, out)
    typer.echo(f"wrote {out}, fingerprint {fingerprint(config, made)[:16]}")
    if new:
        typer.echo(f"made anew, to be trained: {', '.join(new)}")


def _load_any(directory: Path) -> tuple[CometConfig, dict[str, Any]]:
    content = directory / "config.json"
    if content.exists() and b'"comet"' in content.read_bytes():
        return load_checkpoint(directory)
    config, tensors, _ = load_hugging_face(directory)
    return config, tensors


def _copy_tokenizer(source: Path, out: Path) -> None:
    tokenizer = source / "tokenizer.json"
    if tokenizer.exists() and source.resolve() != out.resolve():
        shutil.copyfile(tokenizer, out / "tokenizer.json")


def _rows(model: Path, config: CometConfig, data: Path, task: Task, split: str, limit: int | None, length: int) -> Any:
    if config.encoder.labels not in (task.labels, task.words):
        raise ConfigurationError(
            f"the model's labels are {', '.join(config.encoder.labels)}, {task.name}'s are {', '.join(task.labels)}"
        )
    training = _layer("training")
    longest = min(length or config.length or task.length, config.encoder.longest)
    rows = training.encode(training.load_tokenizer(model), read_split(data, task, split, limit), longest)
    if rows.truncated:
        typer.echo(f"{split}: {rows.truncated} of {len(rows)} texts are longer than {longest} tokens: cut", err=True)
    return rows


def calibrate(
    model: Annotated[Path, typer.Argument(help="Comet checkpoint; its configuration is rewritten.")],
    task: TaskName,
    data: Data,
    limit: Limit = 256,
    margin: Annotated[float, typer.Option(help="Forms without certificate: top over the largest value seen.")] = 1.2,
    picture: Annotated[Path | None, typer.Option(help="Write the distributions as a picture.")] = None,
) -> None:
    """Sets intervals: certified tops from the weights, low ends (and what was seen) from data."""
    config, tensors = load_checkpoint(model)
    chosen = find_task(task)
    rows = _rows(model, config, data, chosen, "train", limit, 0)
    training, unified = _layer("training"), _layer("unified")
    values = training.observe(unified.UnifiedModel.from_tensors(config, tensors).use("exact"), rows)
    config = calibrated(config, tensors, training.quantiles(values), margin=margin)
    save_config(model, config)
    for site, entry in config.sites.items():
        rule, q = entry.rule, entry.seen or (math.nan,) * 5
        typer.echo(
            f"{site:26} [{rule.low:9.3g}, {rule.high:9.3g}]{' certified' if entry.certified_high else '          '} "
            f"seen {q[0]:9.3g} … {q[2]:9.3g} … {q[4]:9.3g}  error {rule.error:.2g}"
        )
    if picture is not None:
        _draw(values, picture)


def _draw(values: dict[str, Any], path: Path) -> None:
    plot = import_module("matplotlib.pyplot")
    figure, axes = plot.subplots(-(-len(values) // 4), 4, figsize=(14, 2.2 * -(-len(values) // 4)))
    for axis, (site, found) in zip(axes.flat, values.items(), strict=False):
        axis.hist(np.log2(np.maximum(found, 1e-9)), bins=60)
        axis.set_title(f"log2 t, {site}", fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def _versions() -> dict[str, str]:
    """Of what a result depends on; torch may be absent."""
    found = {"python": platform.python_version()}
    for name in ("comet-mpc", "torch", "numpy", "tokenizers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _write(result: dict[str, Any], path: Path | None) -> None:
    text = json.dumps(result, indent=1)
    if path is None:
        return
    if str(path) == "-":
        typer.echo(text)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _command() -> str:
    """The command as typed, with paths shortened to their last parts."""
    return " ".join(["comet", *(Path(part).name if part.startswith("/") else part for part in sys.argv[1:])])


def finetune(
    model: Annotated[Path, typer.Argument(help="Comet checkpoint to start from.")],
    out: Annotated[Path, typer.Argument(help="Directory for the best checkpoint; a broken-off run is resumed.")],
    task: TaskName,
    data: Data,
    teacher: Annotated[Path | None, typer.Option(help="Comet checkpoint to distil from.")] = None,
    epochs: float = 3.0,
    batch: int = 32,
    rate: float = 1e-4,
    seed: int = 1,
    limit: Limit = None,
    length: Annotated[int, typer.Option(help="Cut texts after so many tokens (0: the task's default).")] = 0,
    steps: Annotated[int | None, typer.Option(help="Steps of activations and scores, if not the model's.")] = None,
    dropout: float = 0.1,
    hidden_weight: Annotated[float, typer.Option(help="Weight of the teacher's hidden states.")] = 1.0,
    logit_weight: Annotated[float, typer.Option(help="Weight of the teacher's logits.")] = 1.0,
    evaluations: Annotated[int, typer.Option(help="Per epoch.")] = 1,
    exact: Annotated[bool, typer.Option(help="Train with exact functions instead of the protocol's steps.")] = False,
    result: Json = None,
) -> None:
    """Fine-tunes through the very steps that are served; keeps the best checkpoint."""
    training = _layer("training")
    config, tensors = load_checkpoint(model)
    chosen = find_task(task)
    train, dev = (
        _rows(model, config, data, chosen, split, rows, length) for split, rows in (("train", limit), ("dev", None))
    )
    config = msgspec.structs.replace(config, task=chosen.name, length=length or config.length or chosen.length)
    if steps is not None:
        config = msgspec.structs.replace(config, steps=steps, sites={})
    recipe = training.Recipe(
        epochs=epochs, batch=batch, rate=rate, seed=seed, dropout=dropout, hidden_weight=hidden_weight,
        logit_weight=logit_weight, evaluations=evaluations, mode="exact" if exact else "steps",
    )  # fmt: skip
    tutor = None if teacher is None else training.load_model(teacher)
    tokenizer = (model / "tokenizer.json").read_bytes()
    found = training.finetune(
        config, tensors, chosen, train, dev, out, recipe, teacher=tutor, tokenizer=tokenizer, say=typer.echo
    )
    typer.echo(f"best {found['best']:.2f} after {found['seconds']:.0f} s")
    summary = {
        "task": chosen.name, "metric": chosen.metric, "best": found["best"], "history": found["history"],
        "seconds": found["seconds"], "updates": found["steps"], "seed": seed, "rows": len(train),
        "activation": msgspec.to_builtins(config.activation), "attention": msgspec.to_builtins(config.attention),
        "steps": config.steps, "distilled": teacher is not None, "command": _command(), "versions": _versions(),
    }  # fmt: skip
    _write(summary, result)


def evaluate(
    model: Annotated[Path, typer.Argument(help="Comet checkpoint.")],
    task: TaskName,
    data: Data,
    limit: Limit = None,
    mode: Annotated[str, typer.Option(help="exact, steps, or served (all rules in force).")] = "served",
    rule: Annotated[str, typer.Option(help="minimax, or newton: plain steps from the paper's constant.")] = "minimax",
    steps: Annotated[int | None, typer.Option(help="Steps of activations and scores, if not the model's.")] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Inside the protocol, between real processes; needs no torch.")
    ] = False,
    result: Json = None,
) -> None:
    """GLUE metrics on the dev set; with --secure, inside the protocol, beside the plaintext model."""
    if secure:
        _evaluate_securely(model, find_task(task), data, limit, result)
        return
    training, unified = _layer("training"), _layer("unified")
    config, tensors = load_checkpoint(model)
    chosen = find_task(task)
    if config.certified:
        check_certificates(config, tensors)
    rows = _rows(model, config, data, chosen, "dev", limit, 0)
    count = config.steps if steps is None else steps
    rules: dict[str, Any] = {}
    if rule == "newton" or count == 0:
        form = {"activation": config.activation.mu, "scores": config.attention.mu / 2}
        constants = {
            name: 2 / (mu + math.sqrt(1 + mu**2)) if rule == "minimax" else 0.4833 for name, mu in form.items()
        }
        rules = {name: unified.newton_rule(constant, count, 0.0, 1.0) for name, constant in constants.items()}
    elif count != config.steps:  # an experiment, not a certificate: row quantities keep their rules
        forms = {
            "activation": Smu(config.activation.mu, config.activation.alpha),
            "scores": Smu(config.attention.mu / 2),
        }
        rules = {name: smu_rule(form, 1.0 + 2.0**-8, count, emphasis=config.emphasis) for name, form in forms.items()}
    net = unified.UnifiedModel.from_tensors(config, tensors).use(mode, rules)
    scores = chosen.score(training.predict(net, rows), rows.labels)
    typer.echo(f"{chosen.name} ({len(rows)} rows, {mode}): " + ", ".join(f"{k} {v:.2f}" for k, v in scores.items()))
    summary = {
        "task": chosen.name, "rows": len(rows), "mode": mode, "rule": rule, "steps": count,
        "scores": scores, "fingerprint": fingerprint(config, tensors), "command": _command(), "versions": _versions(),
    }  # fmt: skip
    _write(summary, result)


def _evaluate_securely(model: Path, task: Task, data: Path, limit: int | None, result: Path | None) -> None:
    examples = read_split(data, task, "dev")
    report = evaluate_securely(
        ServedModel.load(model),
        examples,
        limit=limit,
        task=task,
        progress=lambda done, total: typer.echo(f"{done} of {total}", err=True),
    )
    scores, plain = (", ".join(f"{k} {v:.2f}" for k, v in report[name].items()) for name in ("scores", "plain_scores"))
    typer.echo(f"{task.name}, {report['examples']} rows inside the protocol: {scores}; in the clear: {plain}")
    typer.echo(
        f"labels agree on {report['agreement']:.1%}, "
        f"logits differ by at most {report['largest_logit_difference']:.4f}; "
        f"{human_bytes(report['online_bytes'] / report['examples'])} online, "
        f"{human_bytes(report['offline_bytes'] / report['examples'])} offline, "
        f"{human_seconds(report['online_seconds'] / report['examples'])} online per row"
    )
    _write({"task": task.name, **report, "command": _command(), "versions": _versions()}, result)


def register(app: typer.Typer) -> None:
    """Adds the commands to the `comet` command."""
    for name, command in (("unify", unify), ("calibrate", calibrate), ("finetune", finetune), ("eval", evaluate)):
        app.command(name)(command)
