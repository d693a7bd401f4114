"""`comet plan`: what a model will cost, without running it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from comet_mpc.costs import Cost, Network, by_layer, by_operation, compute_seconds, party_memory
from comet_mpc.deployment import ServedModel
from comet_mpc.errors import ConfigurationError
from comet_mpc.plan import Plan, plan_program
from comet_mpc.transformer import (
    SHAPES,
    EncoderShape,
    certified_rules,
    classify,
    encoder_weights,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.units import human_bytes, human_seconds

__all__ = ["plan_shape", "register"]


def plan_shape(shape: EncoderShape, tokens: int, steps: int, batch: int = 1) -> Plan:
    """The plan of the certified encoder at a named shape, with universal rules."""
    rules, weights = certified_rules(shape, steps), public_weights(shape)
    size = (batch, tokens, shape.hidden)
    return plan_program(
        lambda session: classify(
            session, input_rows(session, None, size), input_mask(session, None, size[:2]), shape, rules, weights
        )
    )


def _table(title: str, costs: list[Cost]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("rounds", "online MB", "offline MB", "compute s"):
        table.add_column(name, justify="right")
    for cost in costs:
        table.add_row(
            cost.name,
            str(cost.rounds),
            f"{cost.online_bytes / 1e6:.2f}",
            f"{cost.offline_bytes / 1e6:.2f}",
            f"{cost.compute_seconds:.2f}",
        )
    return table


def register(app: typer.Typer) -> None:
    @app.command()
    def plan(
        model: Annotated[Path | None, typer.Argument(help="A Comet checkpoint; or use --shape.")] = None,
        shape: Annotated[str | None, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = None,
        tokens: Annotated[int, typer.Option(min=1, max=4096, help="Tokens per text, padding included.")] = 128,
        batch: Annotated[int, typer.Option(min=1, max=1024, help="Texts at once.")] = 1,
        steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of 1/sqrt, with --shape.")] = 3,
        layers: Annotated[int | None, typer.Option(min=1, help="Only so many layers, with --shape.")] = None,
        network: Annotated[str | None, typer.Option(help="RATE/RTT, for example 200mbit/10ms.")] = None,
        json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    ) -> None:
        """Bytes, rounds, memory and estimated time of a private prediction, by operation and layer."""
        if (model is None) == (shape is None):
            raise ConfigurationError("name either a checkpoint or a --shape")
        if model is not None:
            served = ServedModel.load(model)
            size, planned, name = served.shape, served.plan(batch, tokens), str(model)
        else:
            if shape not in SHAPES:
                raise ConfigurationError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
            full = SHAPES[shape]
            size = replace(full, layers=layers or full.layers)
            planned, name = plan_shape(size, tokens, steps, batch), shape
        words = sum(math.prod(sizes) for sizes in encoder_weights(size).values())
        compute = compute_seconds(planned)
        link = Network.parse(network) if network else None
        summary = {
            "model": name,
            "tokens": tokens,
            "batch": batch,
            "rounds": planned.rounds,
            "online_bytes": planned.online_bytes,
            "client_sends": planned.sent(0),
            "server_sends": planned.sent(1),
            "offline_bytes": planned.correction_bytes,
            "setup_bytes": 8 * words,
            "memory_bytes": party_memory(planned, words),
            "compute_seconds": compute,
            "network_seconds": link.seconds(planned) if link else None,
            "digest": planned.digest,
        }
        if json:
            groups = {"operations": by_operation(planned), "layers": by_layer(planned)}
            typer.echo(msgspec.json.format(msgspec.json.encode(summary | groups), indent=1).decode())
            return
        console = Console()
        console.print(_table(f"{name}, {batch} × {tokens} tokens: by operation", by_operation(planned)))
        console.print(_table("by layer", by_layer(planned)))
        memory = party_memory(planned, words)
        console.print(
            f"[bold]{planned.rounds} rounds, {human_bytes(planned.online_bytes)} online[/bold] "
            f"(client {human_bytes(planned.sent(0))}, server {human_bytes(planned.sent(1))}), "
            f"{human_bytes(planned.correction_bytes)} offline from the dealer to the server, "
            f"{human_bytes(8 * words)} set-up once per client and model, "
            f"about {human_bytes(memory)} of memory, about {human_seconds(compute)} of compute."
        )
        if link:
            console.print(f"On {network}: about {link.seconds(planned):.1f} s on the network besides the compute.")
