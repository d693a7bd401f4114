"""`comet plan`: what a model will cost, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from comet_mpc.engine.costs import Cost, Network, by_layer, by_operation, compute_seconds, party_memory
from comet_mpc.engine.party import SourceName
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.served import ServedModel
from comet_mpc.models.transformer import (
    SHAPES,
    EncoderShape,
    certified_rules,
    classify,
    encoder_weights,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.net.channel import Traffic
from comet_mpc.offline.pair.costs import preparation_parts
from comet_mpc.units import human_bytes, human_seconds

__all__ = ["plan_shape", "register"]


def plan_shape(shape: EncoderShape, tokens: int, steps: int, batch: int = 1, *, fused: bool = True) -> Plan:
    """The plan of the certified encoder at a named shape, with universal rules."""
    rules, weights = certified_rules(shape, steps), public_weights(shape)
    size = (batch, tokens, shape.hidden)
    return plan_program(
        lambda session: classify(
            session, input_rows(session, None, size), input_mask(session, None, size[:2]), shape, rules, weights
        ),
        fused=fused,
    )


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _costs(title: str, costs: list[Cost], source: SourceName) -> Table:
    """What a dealer sends is for one operation; two parties prepare what is alike together, so it has its own table."""
    columns: dict[str, Callable[[Cost], str]] = {
        "rounds": lambda cost: str(cost.rounds),
        "online MB": lambda cost: f"{cost.online_bytes / 1e6:.2f}",
        "offline MB": lambda cost: f"{cost.offline_bytes / 1e6:.2f}",
        "compute s": lambda cost: f"{cost.compute_seconds:.2f}",
    }
    if source == "pair":
        del columns["offline MB"]
    return _table(title, tuple(columns), ((cost.name, *(show(cost) for show in columns.values())) for cost in costs))


def _preparation(parts: dict[str, Traffic]) -> Table:
    rows = ((n, str(t.rounds), f"{t.sent / 1e6:.2f}", f"{t.received / 1e6:.2f}") for n, t in parts.items())
    return _table("preparation between the two parties", ("rounds", "client sends MB", "server sends MB"), rows)


def _as_json(cost: Cost, source: SourceName) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(cost)
    if source == "pair":
        del shown["offline_bytes"]
    return shown


def register(app: typer.Typer) -> None:
    @app.command()
    def plan(
        model: Annotated[Path | None, typer.Argument(help="A Comet checkpoint; or use --shape.")] = None,
        shape: Annotated[str | None, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = None,
        tokens: Annotated[int, typer.Option(min=1, max=4096, help="Tokens per text, padding included.")] = 128,
        batch: Annotated[int, typer.Option(min=1, max=1024, help="Texts at once.")] = 1,
        steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of 1/sqrt, with --shape.")] = 3,
        layers: Annotated[int | None, typer.Option(min=1, help="Only so many layers, with --shape.")] = None,
        source: Annotated[SourceName, typer.Option(help="Who prepares the randomness.")] = "dealer",
        network: Annotated[str | None, typer.Option(help="RATE/RTT, for example 200mbit/10ms.")] = None,
        json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    ) -> None:
        """Bytes, rounds, memory and estimated time of a private prediction, by operation and layer."""
        if (model is None) == (shape is None):
            raise ConfigurationError("name either a checkpoint or a --shape")
        if model is not None:
            served = ServedModel.load(model)
            size, planned, name = served.shape, served.plan(batch, tokens, fused=source == "dealer"), str(model)
        else:
            if shape not in SHAPES:
                raise ConfigurationError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
            full = SHAPES[shape]
            size = replace(full, layers=layers or full.layers)
            planned, name = plan_shape(size, tokens, steps, batch, fused=source == "dealer"), shape
        words = sum(math.prod(sizes) for sizes in encoder_weights(size).values())
        parts = preparation_parts(planned.correlations) if source == "pair" else {}
        offline = sum(part.sent + part.received for part in parts.values()) or planned.correction_bytes
        setup = 8 * words if source == "dealer" else 0
        compute = compute_seconds(planned)
        link = Network.parse(network) if network else None
        summary = {
            "model": name,
            "tokens": tokens,
            "batch": batch,
            "source": source,
            "rounds": planned.rounds,
            "online_bytes": planned.online_bytes,
            "client_sends": planned.sent(0),
            "server_sends": planned.sent(1),
            "offline_bytes": offline,
            "setup_bytes": setup,
            "memory_bytes": party_memory(planned, words),
            "compute_seconds": compute,
            "network_seconds": link.seconds(planned) if link else None,
            "digest": planned.digest,
        }
        if json:
            groups: dict[str, Any] = {"operations": by_operation(planned), "layers": by_layer(planned)}
            groups = {name: [_as_json(cost, source) for cost in costs] for name, costs in groups.items()}
            if parts:
                groups["preparation"] = parts
            typer.echo(msgspec.json.format(msgspec.json.encode(summary | groups), indent=1).decode())
            return
        console = Console()
        console.print(_costs(f"{name}, {batch} × {tokens} tokens: by operation", by_operation(planned), source))
        console.print(_costs("by layer", by_layer(planned), source))
        if parts:
            console.print(_preparation(parts))
        memory = party_memory(planned, words)
        console.print(
            f"[bold]{planned.rounds} rounds, {human_bytes(planned.online_bytes)} online[/bold] "
            f"(client {human_bytes(planned.sent(0))}, server {human_bytes(planned.sent(1))}), "
            f"{human_bytes(offline)} offline "
            + ("between the two parties, " if parts else "from the dealer to the server, ")
            + (f"{human_bytes(setup)} set-up once per client and model, " if setup else "")
            + f"about {human_bytes(memory)} of memory, about {human_seconds(compute)} of compute."
        )
        if link:
            console.print(f"On {network}: about {link.seconds(planned):.1f} s on the network besides the compute.")
