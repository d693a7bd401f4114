"""A whole model with random weights between real processes, measured by operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.parts import Block, names
from comet_mpc.engine.party import Measured
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, SERVER, Reals, Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.local.processes import Crew, Link
from comet_mpc.models.planning import plan_shape, shape_and_rules
from comet_mpc.models.transformer import (
    EncoderShape,
    encode_weight,
    encoder_weights,
    forward,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.offline.sources import DEALER, find_source
from comet_mpc.offline.store import new_bundle_id
from comet_research.bench.parties import (
    MeasuredRun,
    Runs,
    Seat,
    Spent,
    Stopwatch,
    peak_memory,
    reveal,
    run_parties,
    set_up,
)


class ModelCase(msgspec.Struct, frozen=True):
    """What is run: a shape with random weights."""

    name: str
    shape: EncoderShape
    tokens: int
    steps: int
    batch: int = 1
    network: Network | None = None
    seed: int = 0
    source: str = DEALER.name
    """Of randomness, by name."""
    rule: str = "minimax"


class OperationCost(msgspec.Struct, frozen=True):
    """Measured at the client, all layers together; the parties wait for each other, so seconds are both's."""

    operation: str
    online_bytes: int
    rounds: int
    seconds: float
    cpu_seconds: tuple[float, float]


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes are both parties' together, frame headers included; pairs are (client, server)."""

    model: str
    layers: int
    tokens: int
    batch: int
    steps: int
    rule: str
    source: str
    network: str | None
    weights: str
    online_bytes: int
    planned_online_bytes: int
    sent: tuple[int, int]
    rounds: int
    planned_rounds: int
    offline_bytes: int
    planned_offline_bytes: int
    setup_bytes: int
    seconds: float
    offline_seconds: float
    setup_seconds: float
    cpu_seconds: tuple[float, float]
    offline_cpu_seconds: tuple[float, float]
    peak_rss: tuple[int, int]
    max_logit_difference: float
    """Against the plaintext fixed-point twin."""
    operations: tuple[OperationCost, ...]


class _Side(NamedTuple):
    """One party's."""

    run: MeasuredRun
    keys: Spent
    setup_bytes: int
    setup_seconds: float
    peak_rss: int
    parts: dict[str, Measured]
    logits: Reals | None
    """At the client."""


def random_weights(shape: EncoderShape, generator: np.random.Generator) -> dict[str, Reals]:
    """Weights of realistic scales that keep the certified ranges: neurons, queries and keys divided by their bounds."""
    return dict(_drawn(shape, generator))


def _drawn(shape: EncoderShape, generator: np.random.Generator) -> Iterator[tuple[str, Reals]]:
    """The same, one after the other."""
    d = shape.hidden
    for name, size in encoder_weights(shape).items():
        if name.endswith("up.weight"):
            drawn = generator.normal(0.0, 1.0, size)
            yield name, drawn / (np.linalg.norm(drawn, axis=1, keepdims=True) * math.sqrt(d) * 1.1)
        elif name.endswith("qkv.weight"):
            drawn = generator.normal(0.0, 1.0 / d, size)
            drawn -= drawn.mean(axis=1, keepdims=True)
            drawn[: 2 * d] /= 2.0 + 2.0 * math.sqrt(d / shape.heads / d)
            drawn[2 * d :] *= math.sqrt(d)
            yield name, drawn
        elif name.endswith("weight"):
            drawn = generator.normal(0.0, 1.0 / math.sqrt(size[-1]), size)
            centred = name.endswith(("output.weight", "down.weight"))  # what is normalised has the mean 0
            yield name, drawn - drawn.mean(axis=0) if centred else drawn
        elif name.endswith("gamma"):
            yield name, generator.uniform(0.8, 1.2, size)
        elif name.endswith("threshold"):
            yield name, generator.uniform(-0.6, -0.2, size) if shape.constants else generator.uniform(-0.3, 0.3, size)
        elif name.endswith(("softness", "constants")):
            yield name, generator.uniform(2.0**-5, 2.0**-3, size)
        else:
            yield name, generator.uniform(-0.02, 0.02, size)


def case_weights(case: ModelCase) -> dict[str, Weight]:
    """The server's weights, drawn from the case's seed, one by one: doubles take twice the memory."""
    shape, _ = shape_and_rules(case.shape, case.steps, case.rule)
    return {name: encode_weight(name, drawn) for name, drawn in _drawn(shape, np.random.default_rng(case.seed))}


def masked_weights(names: Iterable[str]) -> list[str]:
    """Those that a client downloads, masked, when a dealer prepares the randomness."""
    return [name for name in names if name.endswith(("weight", "gamma"))]


def input_arrays(case: ModelCase, *, padded: bool = True) -> tuple[Reals, Reals]:
    """Normalised rows and a mask, the client's. padded: some rows are padding, as in a text."""
    generator = np.random.default_rng(case.seed + 1)
    rows = generator.normal(0.0, 1.0, (case.batch, case.tokens, case.shape.hidden))
    rows = rows - rows.mean(axis=-1, keepdims=True)
    rows /= rows.std(axis=-1, keepdims=True)
    if not padded:
        return rows, np.ones((case.batch, case.tokens))
    mask = np.arange(case.tokens)[None] < generator.integers(case.tokens // 2 + 1, case.tokens + 1, (case.batch, 1))
    return rows * mask[..., None], mask.astype(np.float64)


def run_case(case: ModelCase, session: Session, weights: dict[str, Weight]) -> Share:
    size = (case.batch, case.tokens, case.shape.hidden)
    rows, mask = input_arrays(case) if session.holds(CLIENT) else (None, None)
    shape, rules = shape_and_rules(case.shape, case.steps, case.rule)
    return forward(session, input_rows(session, rows, size), input_mask(session, mask, size[:2]), shape, rules, weights)


def plan_case(case: ModelCase) -> Plan:
    source = find_source(case.source)
    return plan_shape(case.shape, case.tokens, case.steps, case.batch, case.rule, source, case.network)


def measure_model(crew: Crew, case: ModelCase) -> ModelRecord:
    """One private inference between the crew's dealer and two fresh processes; measured must equal planned."""
    plan = plan_case(case)
    client, server = run_parties(crew, _party, case, new_bundle_id(), network=case.network)
    sides, runs = (client, server), (client.run, server.run)
    logits = run_case(case, TwinSession(), case_weights(case))
    assert client.logits is not None
    expected = decode(logits.flat(), logits.fraction, logits.width).reshape(logits.shape)
    return ModelRecord(
        model=case.name,
        layers=case.shape.layers,
        tokens=case.tokens,
        batch=case.batch,
        steps=case.steps,
        rule=case.rule,
        source=case.source,
        network=str(case.network) if case.network else None,
        weights="random",
        online_bytes=sum(run.traffic.sent for run in runs),
        planned_online_bytes=plan.online_bytes,
        sent=(client.run.traffic.sent, server.run.traffic.sent),
        rounds=client.run.traffic.rounds,
        planned_rounds=plan.rounds,
        offline_bytes=sum(side.keys.bytes + side.run.offline.bytes for side in sides),
        planned_offline_bytes=find_source(case.source).offline_bytes(plan),
        setup_bytes=server.setup_bytes,
        seconds=max(run.seconds for run in runs),
        offline_seconds=max(side.keys.seconds + side.run.offline.seconds for side in sides),
        setup_seconds=max(side.setup_seconds for side in sides),
        cpu_seconds=(client.run.cpu_seconds, server.run.cpu_seconds),
        offline_cpu_seconds=(_offline_cpu(client), _offline_cpu(server)),
        peak_rss=(client.peak_rss, server.peak_rss),
        max_logit_difference=float(np.max(np.abs(client.logits - expected))),
        operations=_by_operation(client.parts, server.parts),
    )


def _offline_cpu(side: _Side) -> float:
    return side.keys.cpu_seconds + side.run.offline.cpu_seconds


def _by_operation(client: dict[str, Measured], server: dict[str, Measured]) -> tuple[OperationCost, ...]:
    operations: dict[str, list[str]] = {}
    for part in client:
        path = names(part)
        inner = path if Block.parse(path[0]) is None else path[1:]
        if len(inner) == 1:
            operations.setdefault(inner[0], []).append(part)
    costs = []
    for name, parts in operations.items():
        mine, theirs = (sum((side[part] for part in parts), Measured()) for side in (client, server))
        traffic, cpu = mine.traffic, (mine.cpu_seconds, theirs.cpu_seconds)
        costs.append(OperationCost(name, traffic.sent + traffic.received, traffic.rounds, mine.seconds, cpu))
    return tuple(costs)


# In a party's process ------------------------------------------------------------------------------------


def _party(link: Link, seat: Seat, case: ModelCase, bundle_id: str) -> _Side:
    plan, kind = plan_case(case), find_source(case.source)
    with seat.meet(link, plan.digest) as channel:
        watch = Stopwatch()
        public = public_weights(shape_and_rules(case.shape, case.steps, case.rule)[0])
        values = case_weights(case) if seat.party == SERVER else None
        masked = masked_weights(public) if kind.masks_weights else []
        weights = set_up(channel, public, values, seat.key, masked)
        setup, (setup_seconds, _) = channel.traffic, watch.lap()
        runs = Runs(seat, channel, kind, plan, weights)
        run, session, share = runs.run(
            bundle_id, lambda session: partial(run_case, case, session, weights),
            progress=link.progress if seat.party == CLIENT else None,
        )  # fmt: skip
        peak = peak_memory()
        logits = reveal(seat.party, channel, share)
    return _Side(run, runs.keys, setup.sent, setup_seconds, peak, dict(session.measured), logits)
