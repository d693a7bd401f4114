"""`comet unify`, `calibrate`, `finetune` and `eval`. Need the extra `[train]`; serving does not."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from comet_mpc.engine.party import SourceName
from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.lab.evaluation import evaluate_securely
from comet_mpc.lab.paper import Parties, evaluate_uncertified
from comet_mpc.lab.twin_evaluation import evaluate_twin
from comet_mpc.models.certify import calibrated, certify, check_ranges, in_form
from comet_mpc.models.checkpoint import (
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
    save_config,
)
from comet_mpc.models.hugging_face import fetch, load_hugging_face, need, tokenizer_json
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Example, Task, find_task, own_task, read_split, with_labels
from comet_mpc.progress import bar
from comet_mpc.units import human_bytes, human_seconds

__all__ = ["register"]

_CALIBRATION_ROWS = 256
_MANY_ROWS = 2048
"""Where tops are no more than what was seen, times:"""
_MARGIN = 2.0

Form = Literal["certified", "paper", "unmodified"]
Rule = Literal["minimax", "newton", "paper"]
Mode = Literal["exact", "steps", "served"]
TaskName = Annotated[str | None, typer.Option("--task", help="RTE, MRPC, STS-B, CoLA or SST-2; else your own data.")]
Data = Annotated[Path, typer.Option("--data", help="Directory of train.tsv and dev.tsv, or of GLUE's tasks.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only so many rows.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result to this file ('-': standard output).")]


def _choices(form: Form, options: dict[str, Any]) -> tuple[ActivationChoice, AttentionChoice, str]:
    """What a form stands for; options that are not None replace parts of it."""
    activation, attention, pooler = {
        "certified": (ActivationChoice(), AttentionChoice(), "algebraic"),
        "paper": (
            ActivationChoice(mu=1 / math.sqrt(2), normalised=False),
            AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1.0),
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
    if form == "paper" and attention.kind == "smu":
        kept = {"mu": given.get("attention_mu", 0.5), "floor": given.get("floor", 0.0)}
        attention = msgspec.structs.replace(attention, **kept)
    if attention.trainable and attention.kind != "smu":
        attention = msgspec.structs.replace(attention, trainable=False)
    return activation, attention, pooler


def unify(
    source: Annotated[str, typer.Argument(help="Directory or hub name of a BERT, RoBERTa or MPNet.")],
    out: Annotated[Path, typer.Argument(help="Directory for the Comet checkpoint.")],
    form: Annotated[Form, typer.Option(help="certified (served), paper, or unmodified.")] = "certified",
    task: Annotated[str | None, typer.Option(help="Makes a new head for this GLUE task's labels.")] = None,
    labels: Annotated[str | None, typer.Option(help="Makes a new head for these labels, separated by commas.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of activations and scores.")] = 4,
    activation: Annotated[Literal["gelu", "smu"] | None, typer.Option(help="gelu or smu.")] = None,
    attention: Annotated[Literal["softmax", "relu", "smu"] | None, typer.Option(help="softmax, relu or smu.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Slope of smu on the negative side.")] = None,
    mu: Annotated[float | None, typer.Option(help="Smoothness of the activation.")] = None,
    attention_mu: Annotated[float | None, typer.Option(help="Smoothness of attention (s-Softmax*: 0.5).")] = None,
    floor: Annotated[float | None, typer.Option(help="Added to attention's denominators (Softmax*: 1).")] = None,
    power: Annotated[int | None, typer.Option(help="1 or 2.")] = None,
    trainable: Annotated[bool | None, typer.Option(help="Learn α and μ.")] = None,
    pooler: Annotated[
        Literal["tanh", "algebraic"] | None,
        typer.Option(help="tanh, or x/sqrt(1 + x²), which has a protocol."),
    ] = None,
    seed: Annotated[int, typer.Option(help="For a new head.")] = 0,
) -> None:
    """Makes a Comet checkpoint of a Hugging Face (or Comet) one, with other non-linear steps."""
    directory = fetch(source)
    config, tensors = _load_any(directory)
    if task and labels:
        raise ConfigurationError("give --task or --labels, not both")
    names = find_task(task).labels if task else tuple(labels.split(",")) if labels else config.encoder.labels
    options = {
        "activation": activation, "attention": attention, "alpha": alpha, "mu": mu, "attention_mu": attention_mu,
        "floor": floor, "power": power, "trainable": trainable,
    }  # fmt: skip
    if form == "certified" and trainable:
        raise ConfigurationError(
            "α and μ that are learnt layer by layer cannot be certified, since one public rule serves all layers: "
            "use --form paper, or fix them with --alpha, --mu and --attention-mu"
        )
    chosen, attends, usual = _choices(form, options)
    head = pooler or usual
    if form == "certified" and pooler == "tanh":
        raise ConfigurationError("tanh has no protocol: the certified form has the algebraic pooler")
    config, made = in_form(
        config, tensors, activation=chosen, attention=attends, pooler=head, labels=names, steps=steps, seed=seed  # type: ignore[arg-type]
    )  # fmt: skip
    config = msgspec.structs.replace(config, task=find_task(task).name if task else config.task)
    new = [part for part in ("pooler", "classifier") if not _same(tensors, made, f"{part}.weight")]
    if form == "certified":
        config = certify(config, made)
    save_checkpoint(out, config, made)
    if directory.resolve() != out.resolve():
        (out / "tokenizer.json").write_bytes(tokenizer_json(directory))
    e = config.encoder
    typer.echo(
        f"wrote {out}: {e.architecture}, {e.layers} layers, hidden {e.hidden}, {form} form, "
        f"labels {', '.join(e.labels)}; fingerprint {fingerprint(config, made)[:16]}"
    )
    if new:
        typer.echo(f"made anew, to be trained: {' and '.join(new)}")
    typer.echo(f"next: comet finetune {out} OUT --data DIR" + (f" --task {config.task}" if config.task else ""))


def _same(tensors: Any, made: Any, name: str) -> bool:
    return name in tensors and np.array_equal(tensors[name], made[name])


def _load_any(directory: Path) -> tuple[CometConfig, dict[str, Any]]:
    """A Comet checkpoint, or a Hugging Face one, unmodified, perhaps without a head."""
    content = directory / "config.json"
    if content.exists() and b'"comet"' in content.read_bytes():
        return load_checkpoint(directory)
    config, tensors, _ = load_hugging_face(directory, lambda path: need("comet_mpc.train").read_pickled(path))
    return config, tensors


def _task(name: str | None, data: Path, config: CometConfig) -> Task:
    return find_task(name) if name else own_task(data, config.encoder.labels)


def _examples(config: CometConfig, data: Path, task: Task, split: str, limit: int | None) -> list[Example]:
    return with_labels(read_split(data, task, split, limit), task, config.encoder.labels)


def _rows(model: Path, config: CometConfig, data: Path, task: Task, split: str, limit: int | None, length: int) -> Any:
    examples = _examples(config, data, task, split, limit)
    training = need("comet_mpc.train")
    longest = min(length or config.length or task.length, config.encoder.longest)
    rows = training.encode(training.make_tokenizer(tokenizer_json(model)), examples, longest)
    if rows.truncated:
        typer.echo(f"{split}: {rows.truncated} of {len(rows)} texts are longer than {longest} tokens: cut", err=True)
    return rows


def calibrate(
    model: Annotated[Path, typer.Argument(help="Comet checkpoint; its configuration is rewritten.")],
    data: Data,
    task: TaskName = None,
    limit: Limit = _CALIBRATION_ROWS,
    margin: Annotated[
        float, typer.Option(min=1.0, help="Forms without certificate: top over the largest value seen.")
    ] = _MARGIN,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the distributions beside their intervals (.png, .svg or .pdf).")
    ] = None,
) -> None:
    """Sets intervals: tops proved from the weights, low ends (and what was seen) from data."""
    drawing = None
    if picture is not None:
        drawing = need("comet_mpc.train")
        if picture.suffix not in (".png", ".svg", ".pdf"):
            raise ConfigurationError(f"{picture}: a picture is a .png, .svg or .pdf")
    config, tensors = load_checkpoint(model)
    chosen = _task(task, data, config)
    rows = _rows(model, config, data, chosen, "train", limit, 0)
    config, values = _calibrated(config, tensors, rows, margin)
    save_config(model, config)
    _show_sites(config, values)
    if drawing is not None and picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        drawing.draw(values, config, picture, f"{model.name}: {len(rows)} texts of {chosen.name}")
        typer.echo(f"drew {picture}")


def _calibrated(config: CometConfig, tensors: Any, rows: Any, margin: float = _MARGIN) -> tuple[CometConfig, Any]:
    """The configuration with calibrated intervals, and what was seen. Certificates are proved before it is returned."""
    if "smu" not in (config.activation.kind, config.attention.kind):
        raise ConfigurationError("nothing to calibrate: the model is unmodified (see `comet unify`)")
    training = unified = need("comet_mpc.train")
    with bar("calibrating") as tick:
        net = unified.UnifiedModel.from_tensors(config, tensors).use("exact")
        values = training.observe(net, rows, tick=tick)
    config = calibrated(config, tensors, training.quantiles(values), margin=margin)
    if config.certified:
        check_ranges(config, tensors)
    return config, values


def _show_sites(config: CometConfig, values: dict[str, Any]) -> None:
    """Every interval beside what was seen. A value below its interval only costs accuracy."""
    table = Table("site", "low", "top", "top is", "seen least", "median", "most", "below low", "rule's error", box=None)
    for name, entry in config.sites.items():
        rule, q = entry.rule, entry.seen or (math.nan,) * 5
        found = np.concatenate([v for site, v in values.items() if name in (site, site.rsplit(".", 1)[-1])])
        table.add_row(
            name, f"{rule.low:.3g}", f"{rule.high:.3g}", "certified" if entry.certified_high else "calibrated",
            f"{q[0]:.3g}", f"{q[2]:.3g}", f"{q[4]:.3g}", f"{np.mean(found < rule.low):.2%}", f"{rule.error:.2g}",
        )  # fmt: skip
    Console(width=140).print(table)


def _versions() -> dict[str, str]:
    """Of what a result depends on; torch may be absent."""
    found = {"python": platform.python_version()}
    for name in ("comet-mpc", "torch", "numpy", "tokenizers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _write(result: dict[str, Any], path: Path | None) -> None:
    text = json.dumps(msgspec.to_builtins(result), indent=1, allow_nan=False)
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
    model: Annotated[Path, typer.Argument(help="Comet checkpoint to start from (see `comet unify`).")],
    out: Annotated[Path, typer.Argument(help="Directory for the best checkpoint; a broken-off run is resumed.")],
    data: Data,
    task: TaskName = None,
    teacher: Annotated[Path | None, typer.Option(help="Comet or Hugging Face classifier to distil from.")] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the training rows.")] = 3.0,
    batch: Annotated[int, typer.Option(min=1, help="Rows per step.")] = 32,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of the order of rows and of dropout.")] = 1,
    limit: Limit = None,
    length: Annotated[int, typer.Option(min=0, help="Cut texts after so many tokens (0: the task's default).")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of activations and scores, if not the model's.")
    ] = None,
    dropout: Annotated[float, typer.Option(help="0 is best with a teacher.")] = 0.1,
    hidden_weight: Annotated[float, typer.Option(help="Weight of the teacher's hidden states.")] = 1.0,
    logit_weight: Annotated[float, typer.Option(help="Weight of the teacher's logits.")] = 1.0,
    temperature: Annotated[float, typer.Option(help="Softens the teacher's logits.")] = 1.0,
    embedding_rate: Annotated[float, typer.Option(help="Factor of the rate for embeddings; 0 keeps them.")] = 1.0,
    evaluations: Annotated[int, typer.Option(min=1, help="Per epoch; a crash loses what came after the last.")] = 1,
    fit: Annotated[
        bool, typer.Option(help="Begin with every layer fitted to the teacher, if that is the same encoder.")
    ] = True,
    exact: Annotated[bool, typer.Option(help="Train with exact functions instead of the protocol's steps.")] = False,
    result: Json = None,
) -> None:
    """Fine-tunes through the very steps that are served; keeps the best checkpoint, calibrated, and says its cost."""
    training = need("comet_mpc.train")
    config, tensors = load_checkpoint(model)
    chosen = _task(task, data, config)
    train, dev = (
        _rows(model, config, data, chosen, split, rows, length) for split, rows in (("train", limit), ("dev", None))
    )
    config = msgspec.structs.replace(config, task=chosen.name, length=length or config.length or chosen.length)
    if steps is not None:
        config = msgspec.structs.replace(config, steps=steps, sites={})
    recipe = training.Recipe(
        epochs=epochs, batch=batch, rate=rate, seed=seed, dropout=dropout, hidden_weight=hidden_weight,
        logit_weight=logit_weight, temperature=temperature, embedding_rate=embedding_rate, evaluations=evaluations,
        mode="exact" if exact else "steps", fit=fit,
    )  # fmt: skip
    tutor = None if teacher is None else _tutor(teacher, config)

    def say(line: str) -> None:
        typer.echo(line, err=str(result) == "-")

    try:
        with bar("fine-tuning") as tick:
            found = training.finetune(
                config, tensors, chosen, train, dev, out, recipe,
                teacher=tutor, tokenizer=tokenizer_json(model), say=say, tick=tick,
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on from {out}'s last evaluation", err=True)
        raise typer.Exit(130) from None
    scores = _finish(out, train, dev, chosen)
    summary = {
        "task": chosen.name, "metric": chosen.metric, "best": found["best"], "scores": scores,
        "history": found["history"], "seconds": found["seconds"], "updates": found["steps"], "seed": seed,
        "rows": len(train), "activation": msgspec.to_builtins(config.activation),
        "attention": msgspec.to_builtins(config.attention), "steps": config.steps, "distilled": teacher is not None,
        "command": _command(), "versions": _versions(),
    }  # fmt: skip
    say(f"best {found['best']:.2f} in {found['seconds']:.0f} s; as it stands in {out}: {_shown(scores)}")
    if tutor is not None:
        with bar("evaluating the teacher") as tick:
            outputs = training.predict(tutor.use("exact"), dev, tick=tick)
        summary["teacher_scores"] = chosen.score(outputs, dev.labels)
        cost = summary["teacher_scores"][chosen.metric] - scores[chosen.metric]
        say(f"the teacher: {_shown(summary['teacher_scores'])}; the cost of the new form: {cost:.2f} points")
    say(_next(load_checkpoint(out)[0], out, data, task))
    _write(summary, result)


def _next(config: CometConfig, out: Path, data: Path, task: str | None) -> str:
    if config.certified:
        return f"next: comet serve {out}"
    if "smu" in (config.activation.kind, config.attention.kind):
        return f"{out} is not in the certified form: for experiments, not for serving"
    words = f"--data {data}" + (f" --task {task}" if task else "")
    return f"next: comet unify {out} UNIFIED, then comet finetune UNIFIED OUT {words} --teacher {out} --dropout 0"


def _tutor(teacher: Path, config: CometConfig) -> Any:
    """A classifier with the student's labels, in its own form."""
    theirs, tensors = _load_any(teacher)
    if theirs.encoder.labels != config.encoder.labels or "classifier.weight" not in tensors:
        raise ConfigurationError(
            f"{teacher} has the labels {', '.join(theirs.encoder.labels)}, "
            f"a teacher of this model needs {', '.join(config.encoder.labels)}"
        )
    if theirs.encoder.vocabulary != config.encoder.vocabulary:
        raise ConfigurationError(f"{teacher} has another vocabulary: teacher and student read the same tokens")
    return need("comet_mpc.train").UnifiedModel.from_tensors(theirs, tensors)


def _finish(out: Path, train: Any, dev: Any, task: Task) -> dict[str, float]:
    """Calibrates the best checkpoint if it is not yet; its scores as it stands now."""
    training = unified = need("comet_mpc.train")
    config, tensors = load_checkpoint(out)
    smu = "smu" in (config.activation.kind, config.attention.kind)
    if smu and not any(site.seen for site in config.sites.values()):
        count = _CALIBRATION_ROWS if config.certifiable else _MANY_ROWS
        config, _ = _calibrated(config, tensors, training.first_rows(train, count))
        save_config(out, config)
    with bar("evaluating") as tick:
        net = unified.UnifiedModel.from_tensors(config, tensors).use("served")
        scores: dict[str, float] = task.score(training.predict(net, dev, tick=tick), dev.labels)
    return scores


def _shown(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def evaluate(
    model: Annotated[Path, typer.Argument(help="Comet checkpoint, or a Hugging Face classifier.")],
    data: Data,
    task: TaskName = None,
    limit: Limit = None,
    mode: Annotated[Mode, typer.Option(help="exact, steps, or served (all rules in force).")] = "served",
    rule: Annotated[
        Rule | None,
        typer.Option(
            help="Instead of the model's: minimax, or newton from the paper's constant; with --research also paper, "
            "the flooded guess (NOT PRIVATE)."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, max=16, help="Steps of activations and scores, if not the model's.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Inside the protocol, between real processes; needs no torch.")
    ] = False,
    source: Annotated[SourceName, typer.Option(help="With --secure: dealer, or pair (no third party).")] = "dealer",
    twin: Annotated[
        bool, typer.Option("--twin", help="The served program in fixed point, in the clear; needs no torch.")
    ] = False,
    research: Annotated[
        bool,
        typer.Option("--research", help="With --secure: a form that is not certified and cannot be served."),
    ] = False,
    result: Json = None,
) -> None:
    """Metrics on the dev set; with --secure, inside the protocol, beside the plaintext model."""
    if secure and twin:
        raise ConfigurationError("give --secure or --twin, not both")
    config, tensors = _load_any(model)
    chosen = _task(task, data, config)
    if research or rule == "paper":
        if not (secure and research):
            raise ConfigurationError("--research goes with --secure, and the paper's rule (not private) with both")
        _evaluate_uncertified(model, chosen, _examples(config, data, chosen, "dev", limit), rule or "minimax", result)
        return
    if secure or twin:
        rows = _examples(config, data, chosen, "dev", limit)
        if secure:
            _evaluate_securely(model, chosen, rows, source, result)
        else:
            _evaluate_twin(model, chosen, rows, result)
        return
    if "classifier.weight" not in tensors:
        raise CheckpointError(f"{model} has no classifier: make one with `comet unify --task` and `comet finetune`")
    training = unified = need("comet_mpc.train")
    if config.certified:
        check_ranges(config, tensors)
    rows = _rows(model, config, data, chosen, "dev", limit, 0)
    kind, count = rule or "minimax", config.steps if steps is None else steps
    other = rule == "newton" or count != config.steps
    if other and mode == "exact":
        raise ConfigurationError("--mode exact takes no steps: leave out --rule and --steps")
    rules = unified.other_rules(config, kind, count) if other else {}
    with bar("evaluating") as tick:
        net = unified.UnifiedModel.from_tensors(config, tensors).use(mode, rules)
        scores = chosen.score(training.predict(net, rows, tick=tick), rows.labels)
    typer.echo(f"{chosen.name} ({len(rows)} rows, {mode}): {_shown(scores)}", err=str(result) == "-")
    summary = {
        "task": chosen.name, "metric": chosen.metric, "rows": len(rows), "mode": mode, "rule": kind, "steps": count,
        "scores": scores, "fingerprint": fingerprint(config, tensors), "command": _command(), "versions": _versions(),
    }  # fmt: skip
    _write(summary, result)


def _evaluate_securely(
    model: Path, task: Task, examples: list[Example], source: SourceName, result: Path | None
) -> None:
    report = evaluate_securely(
        ServedModel.load(model),
        examples,
        task=task,
        source=source,
        progress=lambda done, total: typer.echo(f"{done} of {total}", err=True),
    )
    hidden = str(result) == "-"
    _show_comparison(task, report, f"inside the protocol ({source})", hidden)
    typer.echo(
        f"{human_bytes(report['online_bytes'] / report['examples'])} online, "
        f"{human_bytes(report['offline_bytes'] / report['examples'])} offline, "
        f"{human_seconds(report['online_seconds'] / report['examples'])} online per row",
        err=hidden,
    )
    _write({"task": task.name, **report, "command": _command(), "versions": _versions()}, result)


def _evaluate_twin(model: Path, task: Task, examples: list[Example], result: Path | None) -> None:
    report = evaluate_twin(
        ServedModel.load(model),
        examples,
        task=task,
        progress=lambda done, total: typer.echo(f"{done} of {total}", err=True),
    )
    _show_comparison(task, report, "in fixed point", str(result) == "-")
    _write({"task": task.name, **report, "command": _command(), "versions": _versions()}, result)


def _show_comparison(task: Task, report: dict[str, Any], where: str, hidden: bool) -> None:
    scores, plain = _shown(report["scores"]), _shown(report["plain_scores"])
    typer.echo(f"{task.name}, {report['examples']} rows {where}: {scores}; in real arithmetic: {plain}", err=hidden)
    labels = f"labels agree on {report['agreement']:.1%}, " if "agreement" in report else ""
    differences = ", ".join(f"{name} {value:.4f}" for name, value in report["logit_difference"].items())
    typer.echo(f"{labels}logits differ by {differences}", err=hidden)


def _evaluate_uncertified(model: Path, task: Task, examples: list[Example], rule: Rule, result: Path | None) -> None:
    if rule == "newton":
        raise ConfigurationError("--research takes --rule minimax or paper")
    with Parties(model, rule) as parties:
        report = evaluate_uncertified(
            parties, examples, task, progress=lambda done, total: typer.echo(f"{done} of {total}", err=True)
        )
    hidden = str(result) == "-"
    privacy = "shares uniform" if report["private"] else "NOT PRIVATE: the flooded guess leaks"
    typer.echo(f"research only, NOT CERTIFIED, cannot be served; rule {rule}: {privacy}", err=hidden)
    if report["untrusted"]:
        typer.echo(
            f"{report['untrusted']} of {report['runs']} rows are untrusted: a value left its calibrated range (first: "
            f"{report['first_reason']}); scores with them: {_shown(report['all_scores'])}",
            err=hidden,
        )
    if "scores" in report:
        _show_comparison(task, report, "inside the protocol", hidden)
    typer.echo(
        f"{human_bytes(report['online_bytes'] / report['runs'])} online, "
        f"{human_bytes(report['offline_bytes'] / report['runs'])} offline, "
        f"{report['rounds'] / report['runs']:.0f} rounds per row",
        err=hidden,
    )
    _write({"task": task.name, "rule": rule, **report, "command": _command(), "versions": _versions()}, result)


def register(app: typer.Typer) -> None:
    """Adds the commands to the `comet` command."""
    for name, command in (("unify", unify), ("calibrate", calibrate), ("finetune", finetune), ("eval", evaluate)):
        app.command(name)(command)
