"""`comet query --ready`: randomness that is prepared before there is a query."""

from __future__ import annotations

import math
from functools import partial

import typer
from rich.console import Console

from comet_mpc.cli.asking.work import Shown, Sizes
from comet_mpc.cli.stopping import if_stopped
from comet_mpc.cli.tables import table
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import ConfigurationError
from comet_mpc.offline.sources import find_source
from comet_mpc.service.client import Client
from comet_mpc.units import counted, human_bytes


def fitting(client: Client, sizes: Sizes) -> Sizes:
    """As many of the queries as can be kept ready. Says so, if that is not all of them."""
    found, wanted = client.fitting(sizes), sum(sizes.values())
    if wanted and not found:
        client.check_room(dict([next(iter(sizes.items()))]))  # raises if the server is the reason
        raise ConfigurationError("this disk has no room for prepared randomness: free some, or choose another --cache")
    if (count := sum(found.values())) < wanted:
        limit = f"the server keeps at most {client.kept}"
        try:
            client.check_room(sizes)
            limit = "this disk has no room for more"
        except ConfigurationError:
            pass
        typer.echo(
            f"preparing {count} of {wanted} queries: {limit}. The rest is prepared while the texts are answered.",
            err=True,
        )
    return found


def prepare(client: Client, sizes: Sizes, show: Shown, quiet: bool) -> None:
    """Says what is to be prepared and how much that is, and does it."""
    source, public = find_source(client.source), client.connect()
    wanted = {size: max(0, count - client.prepared(*size)) for size, count in sorted(sizes.items())}
    rows, exchanged = [], {}
    for (batch, bucket), count in wanted.items():
        plan = public.plan(batch, bucket, source)
        sent, stored = source.offline_bytes(plan, count), count * source.stored_bytes(CLIENT, plan.correlations)
        exchanged[batch, bucket] = sent
        what = f"{counted(batch, 'text')} of {bucket} tokens"
        ready = str(sizes[batch, bucket] - count)
        rows.append((what, ready, str(count), human_bytes(sent), human_bytes(stored)))
    say = Console(stderr=True)
    columns = ("queries of", "ready", "to prepare", "at most sent", "on this disk")
    say.print(table(f"Randomness from the source {source}", columns, rows), highlight=False)
    ready_of = {size: sizes[size] - count for size, count in wanted.items()}
    show.begin(sum(exchanged.values()), lambda done, _: float(done))

    def told(size: tuple[int, int], ready: int) -> None:
        ready_of[size] = min(ready, sizes[size])
        missing = sum(exchanged[one] * (sizes[one] - ready_of[one]) // max(1, wanted[one]) for one in sizes)
        words = f"{sum(ready_of.values())} of {counted(sum(sizes.values()), 'query', 'queries')}"
        show.done(sum(exchanged.values()) - missing, words)

    total = 0
    with if_stopped("What is prepared is kept. Run the same command to prepare the rest."):
        for (batch, bucket), count in sizes.items():
            told((batch, bucket), ready_of[batch, bucket])
            total += client.prepare(
                count, batch=batch, bucket=bucket, timeout=math.inf, warm=False, told=partial(told, (batch, bucket))
            )
    typer.echo(f"randomness is ready for {counted(total, 'query', 'queries')} (source: {source})", err=quiet)
