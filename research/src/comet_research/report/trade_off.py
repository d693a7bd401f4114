"""Accuracy against bytes, a point for every rule that a model was trained through; other systems on the same axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import mean

from comet_mpc.models.transformer import SHAPES
from comet_research.bench.published_models import short_stage
from comet_research.report.accuracy import TrainedModel, runs
from comet_research.report.charts import Axis, Point, Scatter, Series
from comet_research.report.drawings import readable_size
from comet_research.report.records import Record, Results, sources_of

_LOWEST = -6.0
_LAYER = "bert-base"

Amount = Callable[[Record], int]
_AMOUNTS: Mapping[str, Amount] = {
    "online bytes": lambda record: int(record["online_bytes"]),
    "bytes in all": lambda record: int(record["online_bytes"]) + int(record["offline_bytes"] or 0),
}


def trade_offs(results: Results) -> list[Scatter]:
    """For every encoder: what it loses against what a layer of BERT-base costs by plan with the same rule, and against
    what that layer costs other systems; then against what the encoder itself costs, where there is a plan for it."""
    found = [run for run in runs(results) if run.held_out]
    plans = [record for record in results.of("plan") if record["source"] == "pair" and record["tokens"] == 128]
    peers = [record for record in results.of("peer") if record["task"] == "layer" and record["tokens"] == 128]
    drawn = []
    for encoder in dict.fromkeys(run.encoder for run in found):
        mine = [run for run in found if run.encoder == encoder]
        for what, amount in _AMOUNTS.items():
            layer = {rule: size / SHAPES[_LAYER].layers for rule, size in _costs(plans, _LAYER, amount).items()}
            title = f"{encoder}: points lost, against {what} of a layer"
            drawn.append(
                _drawing(title, f"{what} of a BERT-base layer", mine, layer, [*plans, *peers], _others(peers, amount))
            )
        for what, amount in _AMOUNTS.items():
            title = f"{encoder}: points lost, against {what} of a text"
            drawn.append(_drawing(title, f"{what} of a text", mine, _costs(plans, encoder, amount), plans))
    return [each for each in drawn if each]


def _costs(plans: Iterable[Record], model: str, amount: Amount) -> dict[str, float]:
    return {_rule_of(plan): float(amount(plan)) for plan in plans if plan["model"] == model}


def _others(peers: Iterable[Record], amount: Amount) -> Series:
    """They compute GELU and softmax themselves, so a model loses nothing by what they replace."""
    found = [peer for peer in peers if not peer["system"].startswith("comet") and "-comet" not in peer["system"]]
    points = [
        Point(amount(peer), 0.0, f"{peer['system']}: {readable_size(amount(peer))}", peer["system"])
        for peer in found
        if peer["right"]
    ]
    return Series("other systems, measured", points, line=False)


def _drawing(
    title: str, across: str, found: list[TrainedModel], costs: Mapping[str, float], from_: list[Record], *others: Series
) -> Scatter:
    shown = _most_rules(found, costs)
    losses = _losses(shown, costs)
    note = (
        "Points are dev scores, less the unmodified model's. Our costs are planned, without a third party, 128 tokens. "
        "A point a rule: steps of minimax, or a polynomial; means over seeds. What lost more than "
        f"{-_LOWEST:g} points is in the tables only."
    )
    if any(run.stage.startswith(short_stage("")) for run in shown):
        note += " Models have the short training of the paper's tables, not that of models to be served."
    if others:
        note += " CrypTen and SPU SEMI2K do not count what their third party sends."
    lowest = min((point.y for series in losses for point in series.points), default=0.0)
    axes = (
        Axis(f"{across}, 128 tokens", log=True, show=readable_size),
        Axis("points gained or lost", show=lambda value: f"{value:+g}", low=max(_LOWEST, lowest - 1.0)),
    )
    sources = [*sources_of(run.record for run in shown), *sources_of(from_)]
    return Scatter(title, *axes, [*losses, *others] if losses else [], note, sources)


def _certified(found: list[TrainedModel], prefix: str, costs: Mapping[str, float]) -> list[TrainedModel]:
    """Models of one recipe that were trained through a rule whose cost is known."""
    return [
        run
        for run in found
        if run.trained and run.stage.startswith(prefix) and run.difference is not None and _rule_of(run.record) in costs
    ]


def _rules(found: list[TrainedModel]) -> int:
    return len({_rule_of(run.record) for run in found})


def _most_rules(found: list[TrainedModel], costs: Mapping[str, float]) -> list[TrainedModel]:
    """What was trained through rules, by one recipe, and of tasks and seeds: those with the most rules."""
    recipe = max((_certified(found, prefix, costs) for prefix in ("certified-", short_stage("certified-"))), key=_rules)
    groups: dict[tuple[str, int], list[TrainedModel]] = {}
    for run in recipe:
        groups.setdefault((run.task, run.seed), []).append(run)
    most = max(map(_rules, groups.values()), default=0)
    return [run for group in groups.values() if _rules(group) == most for run in group]


def _losses(found: list[TrainedModel], costs: Mapping[str, float]) -> list[Series]:
    """What was trained through a rule: on the mean over tasks, or of the one that there is."""
    differences: dict[str, dict[str, list[float]]] = {}
    for run in found:
        assert run.difference is not None
        differences.setdefault(run.task, {}).setdefault(_rule_of(run.record), []).append(run.difference)
    averages = {task: {rule: mean(values) for rule, values in by.items()} for task, by in differences.items()}
    everywhere = {
        rule: mean(by[rule] for by in averages.values())
        for rule in costs
        if len(averages) > 1 and all(rule in by for by in averages.values())
    }
    shown = {f"mean over {', '.join(averages)}": everywhere} if everywhere else averages
    return [
        Series(
            task, [Point(costs[rule], value, f"{rule}: {value:+.2f}", rule) for rule, value in by.items()], line=False
        )
        for task, by in shown.items()
    ]


def _rule_of(record: Record) -> str:
    return record.rule.removeprefix("minimax, ")
