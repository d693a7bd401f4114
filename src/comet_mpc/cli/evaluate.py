"""`comet eval`: in the clear with torch, in fixed point with the twin, or inside the protocol."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import typer

from comet_mpc.cli import training_options as of
from comet_mpc.cli.options import DEFAULT_SOURCE, Clients, Data, JsonFile, Limit, LinkName, SourceName, TaskName
from comet_mpc.cli.tables import in_words, record
from comet_mpc.engine.costs import Network
from comet_mpc.errors import ConfigurationError, needs_extra
from comet_mpc.local.evaluation import evaluate_securely, evaluate_twin
from comet_mpc.local.service import ON_THIS_MACHINE
from comet_mpc.models.own_data import read_examples, task_of
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Task
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import Shown, bar, doing
from comet_mpc.service.client import Asks
from comet_mpc.units import human_bytes, human_seconds

_BATCH, _GROUP = 4, 16


def evaluate(
    model: of.Evaluated,
    data: Data,
    task: TaskName = None,
    limit: Limit = None,
    mode: of.ModeOption = "served",
    rule: of.EvaluatedRule = None,
    steps: of.OtherSteps = None,
    secure: of.Secure = False,
    source: SourceName = DEFAULT_SOURCE,
    network: LinkName = str(ON_THIS_MACHINE),
    cluster: of.Cluster = None,
    clients: Clients = 0,
    twin: of.Twin = False,
    json: JsonFile = None,
) -> None:
    """Measure a model's accuracy on the rows of dev.tsv.

    In the clear with torch; with --twin in fixed point; with --secure inside the protocol, compared with the model in
    the clear.
    """
    if secure and twin:
        raise ConfigurationError("give --secure or --twin, not both")
    if cluster is not None and (not secure or find_source(source).has_third_party):
        raise ConfigurationError("--cluster goes with --secure and --source pair")
    link = Network.parse(network)
    if twin:
        _by_twin(model, data, task, limit, link, json)
    elif secure:
        _inside(model, data, task, limit, link, json, source, cluster, clients)
    else:
        with doing("loading PyTorch"):
            from comet_mpc import train
        found = train.evaluate(model, train.Data(data, task, limit), mode=mode, rule=rule, steps=steps, watcher=Shown())
        typer.echo(f"{found.task} ({found.rows} rows, {mode}): {in_words(found.scores)}", err=str(json) == "-")
        record(json, found)


def _by_twin(model: Path, data: Path, name: str | None, limit: int | None, network: Network, json: Path | None) -> None:
    """As it is served, in fixed point, in the clear."""
    served = _served(model, network)
    task = task_of(data, served.config, name)
    examples = read_examples(served.config, data, task, "dev", limit)
    with bar("evaluating") as tick:
        report = evaluate_twin(served, examples, task=task, progress=tick)
    show_comparison(task, report, "in fixed point", str(json) == "-")
    _record(json, served, task, report)


def _inside(
    model: Path, data: Path, name: str | None, limit: int | None, network: Network, json: Path | None, source: str,
    cluster: str | None, count: int,
) -> None:  # fmt: skip
    """Inside the protocol: by a server and a client on this machine, or by many on a cluster."""
    with contextlib.ExitStack() as stack:
        if cluster is not None:
            with needs_extra("cluster"):  # said before anything is read
                from comet_mpc.cluster.asking import self_served_clients
        served = _served(model, network)
        task = task_of(data, served.config, name)
        examples = read_examples(served.config, data, task, "dev", limit)
        clients: Asks | None = None
        if cluster is not None:
            clients = stack.enter_context(self_served_clients(cluster, count, model, served, network, _BATCH))
        report = evaluate_securely(
            served,
            examples,
            task=task,
            client=clients,
            source=find_source(source),
            batch=_BATCH,
            group=_GROUP if clients is None else 2 * len(examples),  # all of them, also of pairs
            progress=stack.enter_context(bar("evaluating")),
        )
    hidden = str(json) == "-"
    show_comparison(task, report, f"inside the protocol ({find_source(source)})", hidden)
    show_costs(report, report["examples"], human_seconds(report["online_seconds"] / report["examples"]), hidden)
    _record(json, served, task, report)


def _served(model: Path, network: Network) -> ServedModel:
    with bar(f"loading {model}: layers", begun=True) as tick:
        return ServedModel.load(model, network=network, told=tick)


def _record(json: Path | None, served: ServedModel, task: Task, report: dict[str, Any]) -> None:
    kind = {"record": served.config.head.kind} if served.config.head.kind != "label" else {}
    record(json, {"task": task.name, **kind, **report})


def show_comparison(task: Task, report: dict[str, Any], where: str, hidden: bool) -> None:
    scored = ""
    if "scores" in report:  # rows without labels have none
        scored = f": {in_words(report['scores'])}; in real arithmetic: {in_words(report['plain_scores'])}"
    typer.echo(f"{task.name}, {report['examples']} rows {where}{scored}", err=hidden)
    parts = []
    if "agreement" in report:
        whose = f"of {report['tokens']} tokens " if "tokens" in report else ""
        parts.append(f"labels {whose}agree on {report['agreement']:.1%}")
    if "cosine" in report:
        parts.append(f"cosines of {report['texts']} texts from {report['cosine']['smallest']:.6f}")
    if "logit_difference" in report:
        differences = (f"{name} {value:.4f}" for name, value in report["logit_difference"].items())
        parts.append(f"logits differ by {', '.join(differences)}")
    typer.echo(", ".join(parts), err=hidden)


def show_costs(report: dict[str, Any], rows: int, online: str, hidden: bool) -> None:
    sent, prepared = (human_bytes(report[f"{phase}_bytes"] / rows) for phase in ("online", "offline"))
    typer.echo(f"per row: {sent} online, {prepared} offline, {online} online", err=hidden)
