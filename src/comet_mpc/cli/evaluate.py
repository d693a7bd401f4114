"""`comet eval`: in the clear with torch, in fixed point with the twin, or inside the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from comet_mpc.cli.inputs import in_words, load_any, read_examples, read_rows, read_task, record, with_torch
from comet_mpc.cli.options import DEFAULT_SOURCE, Clients, Data, JsonFile, Limit, LinkName, SourceName, TaskName
from comet_mpc.engine.costs import Network
from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.local.evaluation import evaluate_securely, evaluate_twin
from comet_mpc.local.service import ON_THIS_MACHINE
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.checkpoint import RuleName, checkpoint_digest
from comet_mpc.models.hugging_face import need, tokenizer_json
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Example, Task
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import bar, doing
from comet_mpc.service.client import Asks
from comet_mpc.service.hosting.blueprint import Blueprint
from comet_mpc.units import human_bytes, human_seconds

Rule = Literal[RuleName, "newton"]
Mode = Literal["exact", "steps", "served"]

_BATCH, _GROUP = 4, 16


def evaluate(
    model: Annotated[Path, typer.Argument(help="A Comet checkpoint, or a Hugging Face classifier.")],
    data: Data,
    task: TaskName = None,
    limit: Limit = None,
    mode: Annotated[
        Mode,
        typer.Option(help="exact functions, the protocol's steps, or served (steps within the model's ranges)."),
    ] = "served",
    rule: Annotated[
        Rule | None,
        typer.Option(
            help="Another rule of activations and scores than the model's: minimax, a polynomial of that degree, or "
            "newton (Newton steps from one constant)."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, max=16, help="Other steps of activations and scores than the model's.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Inside the protocol, between processes on this machine. Needs no torch.")
    ] = False,
    source: SourceName = DEFAULT_SOURCE,
    network: LinkName = str(ON_THIS_MACHINE),
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            help="With --secure: on the nodes of this Ray cluster, a server and a client on each. The model is a path "
            "on every node.",
        ),
    ] = None,
    clients: Clients = 0,
    twin: Annotated[
        bool, typer.Option("--twin", help="In fixed point, as served, but in the clear. Needs no torch.")
    ] = False,
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
    asking = need("comet_mpc.cluster.asking", "cluster") if cluster is not None else None
    link = Network.parse(network)
    with doing(f"reading {model}"):
        config, tensors = load_any(model)
    chosen = read_task(task, data, config)
    if secure or twin:
        rows = read_examples(config, data, chosen, "dev", limit)
        with _clients(asking, cluster, clients, model, link) as spread:
            served = ServedModel.load(model, network=link)
            _served(served, chosen, rows, find_source(source) if secure else None, json, spread)
        return
    if config.encoder.labels and "classifier.weight" not in tensors:
        raise CheckpointError(f"{model} has no classifier: make one with `comet unify --task` and `comet finetune`")
    training = with_torch()
    if config.certified:
        with bar("proving the ranges: layers") as tick:
            check_ranges(config, tensors, tick)
    encoded = read_rows(model, config, data, chosen, "dev", limit)
    kind, count = rule or config.rule, config.steps if steps is None else steps
    other = kind != config.rule or (kind == "minimax" and count != config.steps)
    if other and mode == "exact":
        raise ConfigurationError("--mode exact takes no steps: leave out --rule and --steps")
    rules = training.other_rules(config, kind, count) if other else {}
    with bar("evaluating") as tick:
        net = training.UnifiedModel.from_tensors(config, tensors).use(mode, rules)
        scores = chosen.score(training.predict(net, encoded, tick=tick), encoded.labels)
    typer.echo(f"{chosen.name} ({len(encoded)} rows, {mode}): {in_words(scores)}", err=str(json) == "-")
    summary = {
        "task": chosen.name, "metric": chosen.metric, "rows": len(encoded), "mode": mode, "rule": kind, "steps": count,
        "scores": scores, "checkpoint": checkpoint_digest(config, tensors, tokenizer_json(model)),
    }  # fmt: skip
    record(json, summary)


@contextlib.contextmanager
def _clients(asking: Any, cluster: str | None, count: int, model: Path, network: Network) -> Iterator[Asks | None]:
    """On the nodes of a cluster, each with a server of its own; None without a cluster.

    asking: the module for it
    """
    if cluster is None:
        yield None
        return
    blueprint = Blueprint(models={"model": str(model)}, keys="", network=str(network), untrained=True, workers=2)
    order = msgspec.json.encode(blueprint.everywhere())
    with asking.spread_clients(
        cluster, count, ServedModel.load(model, network=network), asking.SelfServed, order, {"batch": _BATCH}
    ) as spread:
        yield spread


def _served(
    served: ServedModel,
    task: Task,
    examples: list[Example],
    source: Source | None,
    json: Path | None,
    clients: Asks | None,
) -> None:
    """The model as it is served: inside the protocol, or without a source of randomness by the twin."""
    hidden = str(json) == "-"
    with bar("evaluating") as tick:
        if source is None:
            report = evaluate_twin(served, examples, task=task, progress=tick)
        else:
            report = evaluate_securely(
                served,
                examples,
                task=task,
                client=clients,
                source=source,
                batch=_BATCH,
                group=_GROUP if clients is None else 2 * len(examples),  # all of them, also of pairs
                progress=tick,
            )
    show_comparison(task, report, f"inside the protocol ({source})" if source else "in fixed point", hidden)
    if source is not None:
        show_costs(
            report, report["examples"], f"{human_seconds(report['online_seconds'] / report['examples'])}", hidden
        )
    kind = {"record": served.config.head.kind} if served.config.head.kind != "label" else {}
    record(json, {"task": task.name, **kind, **report})


def show_comparison(task: Task, report: dict[str, Any], where: str, hidden: bool) -> None:
    scored = f": {in_words(report['scores'])}; in real arithmetic: {in_words(report['plain_scores'])}"
    typer.echo(f"{task.name}, {report['examples']} rows {where}{scored if 'scores' in report else ''}", err=hidden)
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
