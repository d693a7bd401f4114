"""`comet plan`: what a model will cost, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group

from comet_mpc.cli.options import (
    DEFAULT_SOURCE,
    Batch,
    JsonFile,
    Layers,
    NetworkName,
    ShapeName,
    ShapeRule,
    SourceName,
    Steps,
    find_shape,
    option,
)
from comet_mpc.cli.plan_writer import Prompt, plan_writer
from comet_mpc.cli.tables import origin, report, table
from comet_mpc.engine.costs import (
    Cost,
    Network,
    Stretch,
    by_layer,
    by_operation,
    compute_seconds,
    party_memory,
    stretches,
)
from comet_mpc.engine.plan import Plan
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import chosen_rule
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.served import ServedModel
from comet_mpc.models.streams.decoder import DECODERS
from comet_mpc.models.transformer import encoder_weights
from comet_mpc.models.writing.stored import is_decoder
from comet_mpc.net.channel import Traffic
from comet_mpc.offline.cheapest import USUAL_NETWORK, offline_seconds
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import doing
from comet_mpc.units import human_bytes, human_seconds


def plan(
    model: Annotated[Path | None, typer.Argument(help="A Comet checkpoint. Or use --shape.")] = None,
    shape: ShapeName = None,
    tokens: Annotated[int, option("Tokens per text, padding included.", min=1, max=4096)] = 128,
    prompt: Prompt = 16,
    batch: Batch = 1,
    rule: ShapeRule = None,
    steps: Steps = None,
    layers: Layers = None,
    source: SourceName = DEFAULT_SOURCE,
    network: NetworkName = None,
    rounds: Annotated[bool, option("List every round: what it is for and what it sends.", flag="--rounds")] = False,
    json: JsonFile = None,
) -> None:
    """Show what a private prediction will cost, without running it.

    Bytes, rounds, memory and an estimate of the time, by operation and by layer. Bytes and rounds are exact. With
    --rounds, also every round: the part and the operation it is for, its tensors, their rings in bits and their bytes.

    Of a model that writes (a checkpoint, or --shape stories15m, smollm2 or gpt2): what the prompt and each token cost.
    """
    if (model is not None and is_decoder(model)) or (model is None and shape in DECODERS):
        plan_writer(model, shape, prompt, tokens, find_source(source), json)
        return
    kind, (by, count) = find_source(source), chosen_rule(rule, steps)
    link = Network.parse(network) if network else None
    planned_on: Callable[[Network], Plan]
    if model is None:
        if shape is None:
            raise ConfigurationError("name a checkpoint, or a shape with --shape")
        size, name = find_shape(shape, layers), shape
        planned_on = partial(plan_shape, size, tokens, count, batch, by, kind)
    elif shape is not None:
        raise ConfigurationError("name a checkpoint or a shape, not both")
    else:
        with doing(f"reading {model}"):
            served = ServedModel.load(model)
        size, name = served.shape, str(model)
        planned_on = partial(_plan_model, served, tokens, batch, kind)
    with doing(f"planning {name}, {batch} × {tokens} tokens"):
        planned = planned_on(link or USUAL_NETWORK)
    summary = {
        "model": name, "tokens": tokens, "batch": batch, "rule": rule if model is None else None,
        "steps": count if model is None and by == "minimax" else None,
        **_summary(planned, kind, sum(math.prod(sizes) for sizes in encoder_weights(size).values())),
    }  # fmt: skip
    if link is not None:
        summary |= _on_network(link, planned, planned_on(USUAL_NETWORK), kind)
    groups = {"operations": by_operation(planned), "layers": by_layer(planned)}
    records = {group: [_as_json(cost, kind) for cost in costs] for group, costs in groups.items()}
    parts = kind.parts(planned.correlations)
    tables = [
        _costs(f"{name}, {batch} × {tokens} tokens: by operation", groups["operations"], kind),
        _costs("By layer", groups["layers"], kind),
        *([_preparation(parts)] if parts else []),
        *([_rounds(stretch) for stretch in stretches(planned)] if rounds else []),
        _in_words(summary, kind),
    ]
    listed = {"schedule": msgspec.to_builtins(planned.schedule)} if rounds else {}
    report(summary | records | ({"preparation": parts} if parts else {}) | listed | origin(), json, *tables)


def _summary(planned: Plan, source: Source, words: int) -> dict[str, Any]:
    """words: of the model's weights"""
    together = source.together(planned.correlations)
    return {
        "source": source.name, "rounds": planned.rounds, "online_bytes": planned.online_bytes,
        "client_sends": planned.sent(0), "server_sends": planned.sent(1),
        "offline_bytes": source.offline_bytes(planned), "together": together,
        "offline_bytes_together": source.offline_bytes(planned, together) // together,
        "setup_bytes": 8 * words if source.masks_weights else 0, "memory_bytes": party_memory(planned, words),
        "compute_seconds": compute_seconds(planned), "ways": sorted(planned.ways), "digest": planned.digest,
    }  # fmt: skip


def _on_network(network: Network, planned: Plan, usual: Plan, source: Source) -> dict[str, Any]:
    return {
        "record": "network plan", "network": str(network),
        "online_seconds": network.seconds(planned), "offline_seconds": offline_seconds(planned, source, network),
        "usual_seconds": network.seconds(usual) + offline_seconds(usual, source, network),
    }  # fmt: skip


def _plan_model(served: ServedModel, tokens: int, batch: int, source: Source, network: Network) -> Plan:
    return replace(served, network=network).plan(batch, tokens, source)


def _as_json(cost: Cost, source: Source) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(cost)
    if not source.has_third_party:
        del shown["offline_bytes"]
    return shown


def _costs(title: str, costs: list[Cost], source: Source) -> Group:
    """A dealer sends its part for each operation; two parties prepare it for all together, so it has its own table."""
    columns: dict[str, Callable[[Cost], str]] = {
        "rounds": lambda cost: str(cost.rounds),
        "online MB": lambda cost: f"{cost.online_bytes / 1e6:.2f}",
        "offline MB": lambda cost: f"{cost.offline_bytes / 1e6:.2f}",
        "compute s": lambda cost: f"{cost.compute_seconds:.2f}",
    }
    if not source.has_third_party:
        del columns["offline MB"]
    return table(title, ("", *columns), ((cost.name, *(show(cost) for show in columns.values())) for cost in costs))


def _preparation(parts: dict[str, Traffic]) -> Group:
    whole = {**parts, "in all": sum(parts.values(), Traffic())}
    rows = ((n, str(t.rounds), f"{t.sent / 1e6:.2f}", f"{t.received / 1e6:.2f}") for n, t in whole.items())
    return table("Preparation by client and server", ("", "rounds", "client sends MB", "server sends MB"), rows)


def _rounds(stretch: Stretch) -> Group:
    """One row for each tensor that is sent; the first of a round has its number."""
    first, *others = stretch.alike
    rows = [
        (
            "" if place else str(number),
            each.part.removeprefix(first).lstrip("/"),
            each.operation,
            "×".join(map(str, each.shape)),
            each.ring if each.ring == each.into else f"{each.ring} → {each.into}",
            f"{each.from_client:,}",
            f"{each.from_server:,}",
        )
        for number, entry in enumerate(stretch.rounds, start=1)
        for place, each in enumerate(entry.requests)
    ]
    title = f"Rounds of {first}"
    if others:
        title += f", and the same in {others[0]}" + (f" … {others[-1]}" if len(others) > 1 else "")
    return table(title, ("", "for", "operation", "tensor", "ring", "client sends B", "server sends B"), rows, left=5)


def _in_words(summary: dict[str, Any], source: Source) -> str:
    size = {key: human_bytes(summary[f"{key}_bytes"]) for key in ("online", "offline", "setup", "memory")}
    client, server = (human_bytes(summary[f"{party}_sends"]) for party in ("client", "server"))
    together = summary["together"]
    each = f"; {human_bytes(summary['offline_bytes_together'])} for each of {together} that are prepared together"
    lines = [
        f"[bold]{summary['rounds']} rounds, {size['online']} online[/bold] (client {client}, server {server})",
        f"{size['offline']} offline, {source.who}{each if together > 1 else ''}",
        *([f"{size['setup']} for set-up, once per client and model"] if summary["setup_bytes"] else []),
        f"about {size['memory']} of memory and {human_seconds(summary['compute_seconds'])} of compute for each party",
    ]
    if "network" in summary:
        prepared, online = summary["offline_seconds"], summary["online_seconds"]
        lines.append(
            f"about {prepared + online:.1f} s on a network of {summary['network']}, besides the compute: "
            f"{prepared:.1f} s to prepare, {online:.1f} s online; planned for another network, "
            f"{summary['usual_seconds']:.1f} s"
        )
    return "\n".join(lines) + "\n"
