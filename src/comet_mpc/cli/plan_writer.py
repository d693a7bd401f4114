"""`comet plan` of a model that writes: the prompt's run, each token after it, and what is prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import RenderableType

from comet_mpc.cli.options import option
from comet_mpc.cli.tables import origin, report, table
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.streams.decoder import DECODERS
from comet_mpc.models.writing.costs import TokenCosts, conversation_costs, shape_conversation, token_costs
from comet_mpc.models.writing.drafts import accepted_from_which_it_pays
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.offline.source import Source
from comet_mpc.progress import doing
from comet_mpc.units import human_bytes

Prompt = Annotated[int, option("For a model that writes: tokens of the prompt, before --tokens that follow.", min=1)]


def plan_writer(
    model: Path | None, shape: str | None, prompt: int, tokens: int, source: Source, json: Path | None
) -> None:
    """shape: one of `DECODERS`, where there is no model"""
    if model is not None and shape is not None:
        raise ConfigurationError("name a checkpoint or a shape, not both")
    name = str(model or shape)
    if model is not None:
        with doing(f"reading {model}"):
            served = load_decoder(model)
    with doing(f"planning {name}, {tokens} tokens after a prompt of {prompt}"):
        if model is not None:
            costs = token_costs(served, source, prompt, tokens)
        else:
            costs = conversation_costs(
                shape_conversation(DECODERS[str(shape)], prompt + tokens - 1, source), source, prompt, tokens
            )
    summary = {"record": "writing plan", "model": name, **msgspec.to_builtins(costs)}
    report(summary | origin(), json, *_shown(name, costs, source))


def _shown(name: str, costs: TokenCosts, source: Source) -> list[RenderableType]:
    rows = [
        (f"the prompt, {costs.prompt} tokens", f"{costs.prompt_rounds}", human_bytes(costs.prompt_bytes)),
        ("each token after it", f"{costs.token_rounds}", human_bytes(costs.token_bytes)),
    ]
    if costs.drafts:
        rows.append((f"a run with {costs.drafts} drafts", f"{costs.token_rounds}", human_bytes(costs.draft_bytes)))
    words = (
        f"[bold]{costs.tokens} tokens: {human_bytes(costs.online_bytes)} online, {costs.rounds} rounds[/bold]\n"
        f"{human_bytes(costs.offline_bytes)} offline for {costs.positions} positions, {source.who}: "
        f"{human_bytes(costs.offline_bytes_a_token)} each\n"
        f"about {costs.compute_seconds:.2f} s of compute a token for each party\n"
    )
    pays = None
    if costs.drafts and costs.token_bytes:
        pays = accepted_from_which_it_pays(costs.token_bytes, costs.draft_bytes, 1 + costs.drafts)
    if pays is not None:
        words += f"{costs.drafts} drafts save rounds at once, and bytes if {100 * pays:.0f} % of them are right\n"
    return [table(name, ("", "rounds", "online"), rows), words]
