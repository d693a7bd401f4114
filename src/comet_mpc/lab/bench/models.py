"""A whole model with random weights between real processes: dealer, server and client, measured by operation."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.party import PartySession, SourceName
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CometError
from comet_mpc.lab.bench.network import relay
from comet_mpc.lab.bench.operations import peak_memory
from comet_mpc.lab.bench.workers import LOOPBACK, Crew, Link, identity
from comet_mpc.models.transformer import (
    EncoderShape,
    certified_rules,
    classify,
    encode_weights,
    encoder_weights,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.net.channel import Channel, Traffic, agree, greet
from comet_mpc.net.sockets import connect, listen
from comet_mpc.offline.dealer.bundles import DealtRandomness, mask_weight
from comet_mpc.offline.dealer.fetch import PARTY_ROLES, fetch_bundle
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.pair.shares import PairRandomness
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore, new_bundle_id

__all__ = [
    "ModelCase",
    "ModelRecord",
    "OperationCost",
    "case_weights",
    "measure_model",
    "plan_case",
    "random_weights",
    "run_case",
    "set_up",
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
    source: SourceName = "dealer"
    """dealer, or pair: the two parties prepare their randomness themselves."""


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
    values: dict[str, Reals] = {}
    d = shape.hidden
    for name, size in encoder_weights(shape).items():
        if name.endswith("up.weight"):
            drawn = generator.normal(0.0, 1.0, size)
            values[name] = drawn / (np.linalg.norm(drawn, axis=1, keepdims=True) * math.sqrt(d) * 1.1)
        elif name.endswith("qkv.weight"):
            drawn = generator.normal(0.0, 1.0 / d, size)
            drawn[: 2 * d] /= 2.0 + 2.0 * math.sqrt(d / shape.heads / d)
            drawn[2 * d :] *= math.sqrt(d)
            values[name] = drawn
        elif name.endswith("weight"):
            values[name] = generator.normal(0.0, 1.0 / math.sqrt(size[-1]), size)
        elif name.endswith("gamma"):
            values[name] = generator.uniform(0.8, 1.2, size)
        elif name.endswith("threshold"):
            values[name] = generator.uniform(-0.3, 0.3, size)
        else:
            values[name] = generator.uniform(-0.02, 0.02, size)
    return values


def case_weights(case: ModelCase) -> dict[str, Weight]:
    """The server's weights, drawn from the case's seed."""
    return encode_weights(case.shape, random_weights(case.shape, np.random.default_rng(case.seed)))


def _inputs(case: ModelCase) -> tuple[Reals, Reals]:
    """Normalised rows and a mask with some padding, the client's."""
    generator = np.random.default_rng(case.seed + 1)
    rows = generator.normal(0.0, 1.0, (case.batch, case.tokens, case.shape.hidden))
    rows = rows - rows.mean(axis=-1, keepdims=True)
    rows /= rows.std(axis=-1, keepdims=True)
    mask = np.arange(case.tokens)[None] < generator.integers(case.tokens // 2 + 1, case.tokens + 1, (case.batch, 1))
    return rows, mask.astype(np.float64)


def run_case(case: ModelCase, session: Session, weights: dict[str, Weight]) -> Share:
    size = (case.batch, case.tokens, case.shape.hidden)
    rows, mask = _inputs(case) if session.holds(CLIENT) else (None, None)
    rules = certified_rules(case.shape, case.steps)
    return classify(
        session, input_rows(session, rows, size), input_mask(session, mask, size[:2]), case.shape, rules, weights
    )


def plan_case(case: ModelCase) -> Plan:
    fused = case.source == "dealer"
    return plan_program(lambda session: run_case(case, session, public_weights(case.shape)), fused=fused)


def measure_model(crew: Crew, case: ModelCase) -> ModelRecord:
    """One private inference between the crew's dealer and two fresh processes; measured must equal planned."""
    plan = plan_case(case)
    bundle_id = new_bundle_id()
    server = crew.start("server", _party, SERVER, case, crew.keys, crew.dealer_address, bundle_id)
    client = crew.start("client", _party, CLIENT, case, crew.keys, crew.dealer_address, bundle_id)
    (address,) = crew.notes([server])
    if case.network is not None:
        between = crew.start("network", relay, address, case.network)
        (address,) = crew.notes([between])
    client.tell(address)
    sides = [msgspec.json.decode(side, type=_Side) for side in crew.results([client, server])]
    for party, side in enumerate(sides):
        if (side.sent, side.received, side.rounds) != (plan.sent(party), plan.sent(1 - party), plan.rounds):
            raise CometError(f"the {PARTY_ROLES[party]} measured other bytes or rounds than were planned")
    logits = run_case(case, TwinSession(), case_weights(case))
    expected = decode(logits.flat(), logits.fraction, logits.width).reshape(logits.shape)
    return ModelRecord(
        model=case.name,
        layers=case.shape.layers,
        tokens=case.tokens,
        batch=case.batch,
        steps=case.steps,
        source=case.source,
        network=None
        if case.network is None
        else f"{case.network.rate / 1e6:g}mbit/{case.network.round_trip * 1e3:g}ms",
        weights="random",
        online_bytes=sum(side.sent for side in sides),
        planned_online_bytes=plan.online_bytes,
        sent=(sides[0].sent, sides[1].sent),
        rounds=sides[0].rounds,
        planned_rounds=plan.rounds,
        offline_bytes=sum(side.offline_bytes for side in sides),
        planned_offline_bytes=_planned_offline(plan, case.source),
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


def _planned_offline(plan: Plan, source: SourceName) -> int:
    if source == "dealer":
        return plan.correction_bytes
    traffic = preparation_traffic(plan.correlations)
    return traffic.sent + traffic.received


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


def _party(link: Link, party: int, case: ModelCase, keys: Path, dealer: tuple[str, int], bundle_id: str) -> bytes:
    plan = plan_case(case)
    if party == SERVER:
        with listen(LOOPBACK, 0) as listener:
            link.tell(listener.address)
            channel = listener.accept(120.0, channel_timeout=600.0)
    else:
        host, port = link.hear()
        channel = connect(host, port, timeout=600.0)
    with channel, TemporaryDirectory(prefix="comet-store-") as directory:
        mine = {"role": PARTY_ROLES[party], "program": plan.digest}
        agree(mine, greet(channel, mine, timeout=120.0), ("program",))
        start = time.perf_counter()
        key = new_seed() if party == SERVER else None
        masked = case.source == "dealer"  # a pair multiplies with the weights themselves, homomorphically
        values = case_weights(case) if party == SERVER else None
        weights = set_up(channel, public_weights(case.shape), values, key, masked=masked)
        setup, setup_seconds = channel.traffic, time.perf_counter() - start
        start, cpu = time.perf_counter(), time.process_time()
        source: DealtRandomness | PairRandomness
        if case.source == "pair":
            source = prepare_bundle(channel, party, plan.correlations, weights)
            offline = channel.traffic - setup
        else:
            with connect(*dealer, identity(keys, PARTY_ROLES[party]).client_context()) as line:
                store = BundleStore(Path(directory) / "bundles", party, DEALER)
                sink = partial(store.add, bundle_id, plan.digest)
                fetch_bundle(line, party, bundle_id, plan.correlations, sink, key=key)
            offline = line.traffic
            source = DealtRandomness(store.take(bundle_id, plan.digest, plan.correlations), weights)
            source.compute_ahead()
        offline_seconds, offline_cpu = time.perf_counter() - start, time.process_time() - cpu
        session = PartySession(party, channel, source)
        channel.exchange([b"ready"], 5)
        before, cpu, start = channel.traffic, time.process_time(), time.perf_counter()
        share = run_case(case, session, weights)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        online: Traffic = channel.traffic - before
        peak = peak_memory()
        logits = _reveal(party, channel, share)
    return msgspec.json.encode(
        _Side(
            sent=online.sent,
            received=online.received,
            rounds=online.rounds,
            seconds=seconds,
            cpu_seconds=cpu,
            offline_bytes=offline.sent if case.source == "pair" else offline.sent + offline.received,
            offline_seconds=offline_seconds,
            offline_cpu_seconds=offline_cpu,
            setup_bytes=setup.sent,
            setup_seconds=setup_seconds,
            peak_rss=peak,
            parts={
                name: (
                    spent.traffic.sent + spent.traffic.received,
                    spent.traffic.rounds,
                    spent.seconds,
                    spent.cpu_seconds,
                )
                for name, spent in session.measured.items()
            },
            logits=logits,
        )
    )


def set_up(
    channel: Channel,
    public: dict[str, Weight],
    values: dict[str, Weight] | None,
    key: bytes | None,
    *,
    masked: bool = True,
) -> dict[str, Weight]:
    """The server's weights, `values`; at the client, the masked ones, downloaded once per model.

    public  their shapes and scales: what both parties know
    """
    needed = [name for name in public if masked and name.endswith(("weight", "gamma"))]
    if values is not None:
        assert key is not None
        for name in needed:
            channel.exchange([mask_weight(key, values[name])], 0)
        return values
    found = dict(public)
    for name in needed:
        weight = public[name]
        data = channel.exchange([], 8 * math.prod(weight.shape))
        words = np.frombuffer(data, np.uint64).reshape(weight.shape)
        found[name] = replace(weight, masked=words)
    return found


def _reveal(party: int, channel: Channel, share: Share) -> list[list[float]]:
    own = share.flat()
    if party == SERVER:
        channel.exchange([own], 0)
        return []
    theirs = np.frombuffer(channel.exchange([], own.nbytes), np.uint64)
    logits: list[list[float]] = decode(own + theirs, share.fraction, share.width).reshape(share.shape).tolist()
    return logits
