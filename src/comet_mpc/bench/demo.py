"""One encoder layer and its classification head between three processes over TLS: what it computes, costs and shows.

The client holds 16 token vectors, the server random weights, the dealer neither. The demonstration prints the private
result beside the same model in plaintext floating point, and what the server received beside uniform bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc

from comet_mpc.attention import plain_attention
from comet_mpc.bench.workers import LOOPBACK, Crew, Link, identity
from comet_mpc.channel import Channel, Traffic, agree, greet
from comet_mpc.dealing import DealtSource, mask_weight
from comet_mpc.fetching import PARTY_ROLES, fetch_to_memory
from comet_mpc.party import PartySession
from comet_mpc.plan import Plan, plan_program
from comet_mpc.seeds import new_seed
from comet_mpc.session import Session, Weight
from comet_mpc.share import CLIENT, SERVER, Words, decode, encode
from comet_mpc.sockets import connect, listen
from comet_mpc.store import new_bundle_id
from comet_mpc.transformer import (
    EncoderRules,
    EncoderShape,
    certified_rules,
    classify,
    encode_weights,
    encoder_weights,
    input_mask,
    input_rows,
    public_weights,
)

__all__ = ["DemoResult", "Glimpse", "run_demo"]

Reals = npt.NDArray[np.float64]

SHAPE = EncoderShape(layers=1, hidden=64, heads=2, intermediate=256, labels=4)
TOKENS, REAL_TOKENS = 16, 12

_INPUT_SEED, _WEIGHT_SEED = 11, 12


def _rules() -> EncoderRules:
    """More steps than a fine-tuned model needs: random weights have not learnt to live with fewer."""
    return certified_rules(SHAPE, 6, row_steps=7)


class Glimpse(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that somebody saw, and how far they are from uniform ones."""

    what: str
    size: int
    first_bytes: str
    entropy: float
    """Bits a byte, of at most 8."""
    p_value: float
    """Of a chi-squared test: uniform bytes are below 0.001 once in a thousand times."""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes are what a party sent, frame headers included; seconds are the slower party's."""

    private_result: list[float]
    plaintext_result: list[float]
    max_abs_error: float
    glimpses: list[Glimpse]
    client_sent: int
    planned_client_sent: int
    server_sent: int
    planned_server_sent: int
    rounds: int
    planned_rounds: int
    setup_bytes: int
    offline_bytes: int
    planned_offline_bytes: int
    setup_seconds: float
    offline_seconds: float
    online_seconds: float


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    traffic: tuple[int, int, int]
    setup_bytes: int
    offline_bytes: int
    setup_seconds: float
    offline_seconds: float
    online_seconds: float
    glimpses: list[Glimpse]
    result: list[float]


class _Recorder(Channel):
    """A channel that keeps a copy of all that came in."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner.timeout)
        self._inner = inner
        self.seen = bytearray()

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        incoming = self._inner._transfer(outgoing, sizes, deadline)
        self.seen += incoming
        return incoming

    def _release(self) -> None:
        self._inner.close()


def glimpse(what: str, data: bytes | bytearray) -> Glimpse:
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    total = max(1, len(data))
    share = counts[counts > 0] / total
    chi_squared = float(np.sum((counts - total / 256) ** 2) / (total / 256))
    return Glimpse(
        what=what,
        size=len(data),
        first_bytes=bytes(data[:16]).hex(" "),
        entropy=float(-np.sum(share * np.log2(share))),
        p_value=float(gammaincc(255 / 2, chi_squared / 2)),
    )


# The two parties' secrets, and the same model in plaintext ---------------------------------------------------


def client_input() -> tuple[Reals, Reals]:
    """16 normalised token vectors, of which 12 are text and 4 padding."""
    x = np.random.default_rng(_INPUT_SEED).normal(0.0, 1.0, (1, TOKENS, SHAPE.hidden))
    x = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
    return x * (1.0 - 2.0**-10), (np.arange(TOKENS) < REAL_TOKENS).astype(np.float64).reshape(1, TOKENS)


def server_weights() -> dict[str, Reals]:
    """Random weights, scaled as a deployed model's are: what the certified form bounds by 1 stays below 1."""
    generator = np.random.default_rng(_WEIGHT_SEED)
    weights = {
        name: generator.normal(0.0, 1.0 / math.sqrt(size[-1]) if len(size) == 2 else 0.05, size)
        for name, size in encoder_weights(SHAPE).items()
    }
    d, top = SHAPE.hidden, math.sqrt(SHAPE.hidden)
    head = d // SHAPE.heads
    qkv, bias = weights["layer.0.qkv.weight"], weights["layer.0.qkv.bias"]
    for start in range(0, 2 * d, head):
        rows = slice(start, start + head)
        bound = top * np.linalg.norm(qkv[rows], 2) + np.linalg.norm(bias[rows])
        qkv[rows] /= bound
        bias[rows] /= bound
    up, up_bias = weights["layer.0.up.weight"], weights["layer.0.up.bias"]
    bounds = top * np.linalg.norm(up, axis=-1) + np.abs(up_bias)
    up /= bounds[:, None]
    up_bias /= bounds
    weights["layer.0.down.weight"] *= bounds
    for skip in ("first", "second"):
        weights[f"layer.0.{skip}.gamma"] = 1.0 + weights[f"layer.0.{skip}.gamma"]
    return weights


def plaintext(x: Reals, mask: Reals, weights: Mapping[str, Reals]) -> Reals:
    """The model in float64, with exact square roots."""
    rules = _rules()

    def linear(values: Reals, name: str) -> Reals:
        return np.asarray(values @ weights[name + ".weight"].T + weights[name + ".bias"])

    def heads(values: Reals) -> Reals:
        return values.reshape(TOKENS, SHAPE.heads, -1).transpose(1, 0, 2)

    def normalised(values: Reals) -> Reals:
        spread = np.sqrt(values.var(axis=-1, keepdims=True) + rules.epsilon)
        return np.asarray((values - values.mean(axis=-1, keepdims=True)) / spread)

    n = x[0]
    q, k, v = (heads(part) for part in np.split(linear(n, "layer.0.qkv"), 3, axis=-1))
    context = plain_attention(q, k, v, rules.attention, weights["layer.0.threshold"], mask[0])
    merged = context.transpose(1, 0, 2).reshape(TOKENS, -1)
    n = normalised(linear(merged, "layer.0.output") + weights["layer.0.first.gamma"] * n)
    active = rules.activation(linear(n, "layer.0.up"))
    n = normalised(linear(active, "layer.0.down") + weights["layer.0.second.gamma"] * n)
    pooled = linear(n[0], "pooler")
    return linear(pooled / np.sqrt(1.0 + pooled**2), "classifier")


# The protocol --------------------------------------------------------------------------------------------


def _program(session: Session, inputs: tuple[Reals, Reals] | None, weights: Mapping[str, Weight]) -> Words | None:
    """Logits, revealed to the client."""
    x, mask = inputs or (None, None)
    rows = input_rows(session, x, (1, TOKENS, SHAPE.hidden))
    logits = classify(
        session,
        rows,
        input_mask(session, mask, (1, TOKENS)),
        SHAPE,
        _rules(),
        weights,
    )
    return session.reveal(logits, to=CLIENT)


def _plan() -> Plan:
    return plan_program(lambda session: _program(session, None, public_weights(SHAPE)))


def run_demo(crew: Crew) -> DemoResult:
    """Runs it between two fresh processes and the crew's dealer."""
    plan = _plan()
    bundle_id = new_bundle_id()
    parties = [
        crew.start(role, _party, party, crew.keys, crew.dealer_address, bundle_id)
        for party, role in enumerate(PARTY_ROLES)
    ]
    (address,) = crew.notes([parties[SERVER]])
    parties[CLIENT].tell(address)
    client, server = (msgspec.json.decode(side, type=_Side) for side in crew.results(parties))
    exact = plaintext(*client_input(), server_weights())
    return DemoResult(
        private_result=client.result,
        plaintext_result=exact.tolist(),
        max_abs_error=float(np.max(np.abs(np.array(client.result) - exact))),
        glimpses=[*client.glimpses, *server.glimpses],
        client_sent=client.traffic[0],
        planned_client_sent=plan.sent(CLIENT),
        server_sent=server.traffic[0],
        planned_server_sent=plan.sent(SERVER),
        rounds=client.traffic[2],
        planned_rounds=plan.rounds,
        setup_bytes=server.setup_bytes,
        offline_bytes=client.offline_bytes + server.offline_bytes,
        planned_offline_bytes=plan.correction_bytes,
        setup_seconds=max(client.setup_seconds, server.setup_seconds),
        offline_seconds=max(client.offline_seconds, server.offline_seconds),
        online_seconds=max(client.online_seconds, server.online_seconds),
    )


def _party(link: Link, party: int, keys: Path, dealer: tuple[str, int], bundle_id: str) -> bytes:
    plan = _plan()
    me = identity(keys, PARTY_ROLES[party])
    if party == SERVER:
        with listen(LOOPBACK, 0, me.server_context(require_client=True)) as listener:
            link.tell(listener.address)
            inner = listener.accept(60.0)
    else:
        host, port = link.hear()
        inner = connect(host, port, me.client_context())
    with _Recorder(inner) as channel:
        mine = {"role": PARTY_ROLES[party], "program": plan.digest}
        agree(mine, greet(channel, mine), ("program",))
        key = new_seed() if party == SERVER else None

        start, before = time.perf_counter(), channel.traffic
        weights = _set_up(channel, key)
        setup, setup_seconds = channel.traffic - before, time.perf_counter() - start

        start = time.perf_counter()
        offline = connect(*dealer, me.client_context())
        source = DealtSource(fetch_to_memory(offline, party, bundle_id, plan.correlations, key=key), weights)
        source.prepare()
        offline_seconds = time.perf_counter() - start

        channel.exchange([b"ready"], 5)
        channel.seen.clear()
        start, before = time.perf_counter(), channel.traffic
        session = PartySession(party, channel, source)
        words = _program(session, client_input() if party == CLIENT else None, weights)
        online_seconds, online = time.perf_counter() - start, channel.traffic - before
    side = _Side(
        traffic=(online.sent, online.received, online.rounds),
        setup_bytes=setup.sent,
        offline_bytes=_both_ways(offline.traffic),
        setup_seconds=setup_seconds,
        offline_seconds=offline_seconds,
        online_seconds=online_seconds,
        glimpses=_glimpses(party, channel.seen),
        result=[] if words is None else decode(words, 16).reshape(-1).tolist(),
    )
    return msgspec.json.encode(side)


def _both_ways(traffic: Traffic) -> int:
    return traffic.sent + traffic.received


def _set_up(channel: Channel, key: bytes | None) -> dict[str, Weight]:
    """The server's weights; at the client, masked ones."""
    if key is not None:
        weights = encode_weights(SHAPE, server_weights())
        for weight in weights.values():
            channel.exchange([mask_weight(key, weight)], 0)
        return weights
    masked = {}
    for name, public in public_weights(SHAPE).items():
        words = np.frombuffer(channel.exchange([], 8 * math.prod(public.shape)), np.uint64).reshape(public.shape)
        masked[name] = Weight(name, public.shape, public.fraction, public.gain, masked=words)
    return masked


def _glimpses(party: int, seen: bytearray) -> list[Glimpse]:
    if party == SERVER:
        return [glimpse("all that the server received", seen)]
    x, _ = client_input()
    return [glimpse("the client's input, unprotected", encode(x, 18).tobytes())]
