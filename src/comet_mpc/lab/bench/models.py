"""A whole model with random weights between real processes, measured by operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, SERVER, Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.lab.bench.parties import Seat, Stopwatch, check_planned, peak_memory, reveal, run_parties, set_up
from comet_mpc.lab.processes import Crew, Link
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.transformer import (
    EncoderShape,
    certified_rules,
    encode_weight,
    encoder_weights,
    forward,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.net.channel import Traffic
from comet_mpc.offline.sources import DEALER, find_source
from comet_mpc.offline.store import new_bundle_id

__all__ = [
    "ModelCase",
    "ModelRecord",
    "OperationCost",
    "case_weights",
    "input_arrays",
    "masked_weights",
    "measure_model",
    "plan_case",
    "random_weights",
    "run_case",
]

Reals = npt.NDArray[np.float64]


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


class _Side(msgspec.Struct, frozen=True):
    sent: int
    received: int
    rounds: int
    seconds: float
    cpu_seconds: float
    offline_bytes: int
    offline_seconds: float
    offline_cpu_seconds: float
    setup_bytes: int
    setup_seconds: float
    peak_rss: int
    parts: dict[str, tuple[int, int, float, float]]
    logits: list[list[float]]


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
            yield name, generator.normal(0.0, 1.0 / math.sqrt(size[-1]), size)
        elif name.endswith("gamma"):
            yield name, generator.uniform(0.8, 1.2, size)
        elif name.endswith("threshold"):
            yield name, generator.uniform(-0.3, 0.3, size)
        else:
            yield name, generator.uniform(-0.02, 0.02, size)


def case_weights(case: ModelCase) -> dict[str, Weight]:
    """The server's weights, drawn from the case's seed, one by one: doubles take twice the memory."""
    return {name: encode_weight(name, drawn) for name, drawn in _drawn(case.shape, np.random.default_rng(case.seed))}


def masked_weights(names: Iterable[str]) -> list[str]:
    """Those that a client downloads, masked, when a dealer prepares the randomness."""
    return [name for name in names if name.endswith(("weight", "gamma"))]


def input_arrays(case: ModelCase) -> tuple[Reals, Reals]:
    """Normalised rows and a mask with some padding, the client's."""
    generator = np.random.default_rng(case.seed + 1)
    rows = generator.normal(0.0, 1.0, (case.batch, case.tokens, case.shape.hidden))
    rows = rows - rows.mean(axis=-1, keepdims=True)
    rows /= rows.std(axis=-1, keepdims=True)
    mask = np.arange(case.tokens)[None] < generator.integers(case.tokens // 2 + 1, case.tokens + 1, (case.batch, 1))
    return rows * mask[..., None], mask.astype(np.float64)


def run_case(case: ModelCase, session: Session, weights: dict[str, Weight]) -> Share:
    size = (case.batch, case.tokens, case.shape.hidden)
    rows, mask = input_arrays(case) if session.holds(CLIENT) else (None, None)
    rules = certified_rules(case.shape, case.steps, rule=case.rule)
    return forward(
        session, input_rows(session, rows, size), input_mask(session, mask, size[:2]), case.shape, rules, weights
    )


def plan_case(case: ModelCase) -> Plan:
    source = find_source(case.source)
    return plan_shape(case.shape, case.tokens, case.steps, case.batch, case.rule, source, case.network)


def measure_model(crew: Crew, case: ModelCase) -> ModelRecord:
    """One private inference between the crew's dealer and two fresh processes; measured must equal planned."""
    plan = plan_case(case)
    results = run_parties(crew, _party, case, new_bundle_id(), network=case.network)
    sides = [msgspec.json.decode(side, type=_Side) for side in results]
    for party, side in enumerate(sides):
        check_planned(party, Traffic(side.sent, side.received, side.rounds), plan)
    logits = run_case(case, TwinSession(), case_weights(case))
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
        online_bytes=sum(side.sent for side in sides),
        planned_online_bytes=plan.online_bytes,
        sent=(sides[0].sent, sides[1].sent),
        rounds=sides[0].rounds,
        planned_rounds=plan.rounds,
        offline_bytes=sum(side.offline_bytes for side in sides),
        planned_offline_bytes=find_source(case.source).offline_bytes(plan),
        setup_bytes=sides[SERVER].setup_bytes,
        seconds=max(side.seconds for side in sides),
        offline_seconds=max(side.offline_seconds for side in sides),
        setup_seconds=max(side.setup_seconds for side in sides),
        cpu_seconds=(sides[0].cpu_seconds, sides[1].cpu_seconds),
        offline_cpu_seconds=(sides[0].offline_cpu_seconds, sides[1].offline_cpu_seconds),
        peak_rss=(sides[0].peak_rss, sides[1].peak_rss),
        max_logit_difference=float(np.max(np.abs(np.array(sides[CLIENT].logits) - expected))),
        operations=_by_operation(sides[0], sides[1]),
    )


def _by_operation(client: _Side, server: _Side) -> tuple[OperationCost, ...]:
    names: dict[str, list[str]] = {}
    for part in client.parts:
        path = part.split("/")
        if len(path) == 2 and path[0].startswith("layer "):
            names.setdefault(path[1], []).append(part)
        elif len(path) == 1 and not path[0].startswith("layer "):
            names.setdefault(path[0], []).append(part)
    return tuple(
        OperationCost(
            operation=name,
            online_bytes=sum(client.parts[part][0] for part in parts),
            rounds=sum(client.parts[part][1] for part in parts),
            seconds=sum(client.parts[part][2] for part in parts),
            cpu_seconds=(
                sum(client.parts[part][3] for part in parts),
                sum(server.parts[part][3] for part in parts),
            ),
        )
        for name, parts in names.items()
    )


# In a party's process ------------------------------------------------------------------------------------


def _party(link: Link, seat: Seat, case: ModelCase, bundle_id: str) -> bytes:
    plan, kind = plan_case(case), find_source(case.source)
    with seat.meet(link, plan.digest) as channel:
        watch = Stopwatch()
        public = public_weights(case.shape)
        values = case_weights(case) if seat.party == SERVER else None
        masked = masked_weights(public) if kind.masks_weights else []
        weights = set_up(channel, public, values, seat.key, masked)
        setup, (setup_seconds, _) = channel.traffic, watch.lap()
        source, offline_bytes = seat.prepare(channel, kind, plan, weights, bundle_id)
        offline_seconds, offline_cpu = watch.lap()
        session = PartySession(seat.party, channel, source, ways=plan.ways)
        channel.exchange([b"ready"], 5)
        before, watch = channel.traffic, Stopwatch()
        share = run_case(case, session, weights)
        seconds, cpu = watch.lap()
        online = channel.traffic - before
        peak = peak_memory()
        logits = reveal(seat.party, channel, share)
    return msgspec.json.encode(
        _Side(
            sent=online.sent,
            received=online.received,
            rounds=online.rounds,
            seconds=seconds,
            cpu_seconds=cpu,
            offline_bytes=offline_bytes,
            offline_seconds=offline_seconds,
            offline_cpu_seconds=offline_cpu,
            setup_bytes=setup.sent,
            setup_seconds=setup_seconds,
            peak_rss=peak,
            parts={
                name: (part.traffic.sent + part.traffic.received, part.traffic.rounds, part.seconds, part.cpu_seconds)
                for name, part in session.measured.items()
            },
            logits=[] if logits is None else logits.tolist(),
        )
    )
