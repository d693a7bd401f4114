"""The paper's own forms inside the protocol. NOT CERTIFIED: for research only, no service takes them.

    activation  s-GeLU: smu with α and μ (the paper: 0 and 1/√2) of neurons that are not normalised
    attention   Softmax* (ReLU) or s-Softmax* (smu) of q·k/√d

Their intervals come from calibration, so some input may leave them, and then the protocol may compute anything. So
every text is also run through the twin, which checks all values: if it finds one out of range, the result is marked
untrusted. Two rules for 1/sqrt:

    minimax  the coefficients of the checkpoint: shares stay uniform, nothing is revealed
    paper    the flooded guess and plain Newton steps. NOT PRIVATE (`functions.flooding`). Arguments of activations,
             scores and denominators are scaled to at most 1 here, where it does best; variances are taken as they are

GeLU, Softmax and tanh have no protocol here that a model can be run with (`functions.baselines` has GeLU and Softmax as
single operations, for comparison). Dealer and server are processes on this machine and the client is this process: that
shows values and costs, and is no deployment.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Reals, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CheckpointError, ConfigurationError, PeerClosed, PeerError, RangeError
from comet_mpc.functions.attention import AttentionForm
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.neurons import SmuNeurons
from comet_mpc.functions.root_rule import RootRule
from comet_mpc.functions.rule import InverseRule, Rule, Smu
from comet_mpc.functions.weighing import SmuWeighing
from comet_mpc.local.evaluation import compared, texts_of
from comet_mpc.local.processes import LOOPBACK, Link
from comet_mpc.models.blocks import LayerRules
from comet_mpc.models.bounds import activation_bounds, power_of_two_above
from comet_mpc.models.certify import norm_sites
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.fold import fold, neuron_scale, plain_states
from comet_mpc.models.heads import HeadRules
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import public_part
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_mpc.models.tasks import Example, Task
from comet_mpc.models.transformer import EncoderRules, encode_weights, forward, input_mask, input_rows
from comet_mpc.net.channel import Channel, Traffic
from comet_mpc.net.sockets import connect, listen
from comet_mpc.offline.source import Progress
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.progress import silent
from comet_research.bench.models import masked_weights
from comet_research.bench.parties import Seat, check_planned, set_up
from comet_research.crew import Crew
from comet_research.functions.newton_rule import NewtonRule

ResearchRule = Literal["own", "paper"]

_BIAS = 64.0
"""|relative position bias|."""
_TIMEOUT = 600.0
_COMING = b"coming"
_ORDER_BYTES = 256


@dataclass(frozen=True)
class Outcome:
    """Logits of one run, and whether the twin saw every value in its range."""

    logits: Reals
    trusted: bool
    why: str
    """The first value out of range, if not."""
    plan: Plan
    seconds: float


def _check_form(config: CometConfig) -> None:
    """Says what of a form has no protocol, or what is missing."""
    activation, attention = config.activation, config.attention
    if activation.kind != "smu":
        raise ConfigurationError(
            "GeLU has no protocol here: make a model with s-GeLU, `comet unify --form paper --activation smu`"
        )
    if attention.kind == "softmax":
        raise ConfigurationError(
            "Softmax has no protocol here: make a model with `comet unify --form paper --attention relu` (or smu)"
        )
    if config.pooler != "algebraic":
        raise ConfigurationError(
            "tanh has no protocol here: `comet unify --form paper --pooler algebraic` takes x/sqrt(1 + x²) instead"
        )
    if activation.normalised or attention.cosine:
        raise ConfigurationError("this is (part of) the certified form: evaluate it with `comet eval --secure`")
    layers = range(config.encoder.layers)
    needed = [f"layers.{i}.{part}" for i in layers for part in ("activation", "scores", "denominators")]
    missing = [name for name in (*needed, *norm_sites(config), "pooler") if name not in config.sites]
    if missing:
        raise CheckpointError(f"no interval for {missing[0]}: run `comet calibrate` on the checkpoint first")


def _rescaled(rule: Rule, bits: int) -> Rule:
    """The same rule for t·2^-bits, `bits` even: all its numbers stay."""
    assert isinstance(rule, MinimaxRule | RootRule)
    factor = 2.0**-bits
    return replace(
        rule,
        low=rule.low * factor,
        high=rule.high * factor,
        floor=rule.floor * factor,
        exponent=rule.exponent - bits,
    )


def _rules(config: CometConfig, tensors: Tensors, logit_bound: float, values: Sequence[float]) -> EncoderRules:
    """The checkpoint's calibrated rules, for what the protocol computes with."""

    def learnt(name: str, otherwise: float) -> float:
        return float(tensors[name]) if name in tensors else otherwise

    sites = config.sites
    layers = []
    for i, value_bound in enumerate(values):
        layer = f"layers.{i}."
        rule, scale = sites[layer + "activation"].rule, neuron_scale(config, i)
        rule = _rescaled(rule, 2 * round(math.log2(scale)))
        form = Smu(
            learnt(layer + "activation.mu", config.activation.mu) / scale,
            learnt(layer + "activation.alpha", config.activation.alpha),
        )
        before = f"layers.{i - 1}.output_norm" if i else "embeddings.norm"
        gamma, beta = tensors[before + ".weight"], tensors[before + ".bias"]
        queries = [
            activation_bounds(tensors[f"{layer}{part}.weight"], tensors[f"{layer}{part}.bias"], gamma, beta).max()
            for part in ("query", "key")
        ]
        mu = learnt(layer + "attention.mu", config.attention.mu) if config.attention.kind == "smu" else 0.0
        layers.append(
            LayerRules(
                neurons=SmuNeurons(form, rule),
                attention=_attention(config, mu, sites[layer + "scores"].rule, sites[layer + "denominators"].inverse),
                variances=(sites[layer + "attention_norm"].inverse, sites[layer + "output_norm"].inverse),
                value_bound=value_bound,
                query_bound=power_of_two_above(1.05 * float(max(queries))),
                neuron_bound=(1.0 - 2.0**-8) * math.sqrt((rule.high - float(np.max(np.square(form.mu)))) / form.factor),
            )
        )
    return EncoderRules(
        layers=tuple(layers),
        head=HeadRules(pooler=sites["pooler"].inverse, bound=logit_bound),
        epsilon=config.encoder.epsilon,
    )


def _attention(config: CometConfig, mu: float, scores: Rule, denominators: InverseRule) -> AttentionForm:
    """R is at most 1 where smu is taken of s/scale, scale a power of four (so that rules keep their numbers)."""
    bits = 2 * math.ceil(math.log2(scores.high) / 4)
    power = config.attention.power
    weighing = SmuWeighing(
        power,
        Smu(mu * 2.0**-bits),
        _rescaled(scores, 2 * bits),
        score_bound=math.sqrt(scores.high - mu**2) * (1.0 - 2.0**-7),
        scale=2.0**bits,
    )
    return AttentionForm(
        weighing,
        cosine=False,
        denominators=_rescaled(denominators, bits * power).inverse(),
        threshold_bound=_BIAS if config.encoder.buckets else 1.0,
        floor=config.attention.floor * 2.0 ** (-bits * power),
    )


def _flooded(rules: EncoderRules, steps: int) -> EncoderRules:
    """All of them by the paper's guess."""

    def paper(rule: Rule) -> NewtonRule:
        return NewtonRule("paper", rule.low, rule.high, steps)

    def flooded(own: LayerRules) -> LayerRules:
        neurons, weighing = own.neurons, own.attention.weighing
        assert isinstance(neurons, SmuNeurons)
        assert isinstance(weighing, SmuWeighing)
        attention = replace(
            own.attention,
            weighing=replace(weighing, rule=paper(weighing.rule)),
            denominators=paper(own.attention.denominators),
        )
        return replace(
            own,
            neurons=replace(neurons, rule=paper(neurons.rule)),
            attention=attention,
            variances=(paper(own.variances[0]), paper(own.variances[1])),
        )

    layers = [flooded(own) for own in rules.layers]
    assert rules.head.pooler is not None
    return replace(rules, layers=tuple(layers), head=replace(rules.head, pooler=paper(rules.head.pooler)))


@dataclass(frozen=True, eq=False)
class UncertifiedModel:
    """A model whose ranges do not hold for every input. Nothing that serves takes one."""

    texts: PublicModel
    """For tokens and embeddings; it has no program of its own."""
    rules: EncoderRules
    folded: Mapping[str, Reals]
    fixed: Mapping[str, Weight]
    leaks: bool
    """The rule is not private."""

    @staticmethod
    def load(directory: Path, *, rule: ResearchRule = "own") -> UncertifiedModel:
        config, tensors = load_checkpoint(directory)
        _check_form(config)
        folded, values, logit_bound = fold(config, tensors)
        texts = public_part(directory, config, tensors, values, logit_bound)
        rules = _rules(config, tensors, logit_bound, values)
        return UncertifiedModel(
            texts=texts,
            rules=_flooded(rules, config.steps) if rule == "paper" else rules,
            folded=folded,
            fixed=encode_weights(texts.shape, folded),
            leaks=rule == "paper",
        )

    def plain_states(self, query: Query) -> list[Reals]:
        """In real arithmetic, through the rules (exact functions where a rule is the paper's)."""
        return plain_states(query.rows, query.mask, self.texts.shape, self.rules, self.folded)

    def answer(self, query: Query) -> Callable[[Session, Mapping[str, Weight]], Reals | None]:
        """The whole program: logits, revealed to the client."""

        def run(session: Session, weights: Mapping[str, Weight]) -> Reals | None:
            client = session.holds(CLIENT)
            rows = input_rows(session, query.tokens_only if client else None, query.rows.shape)
            mask = input_mask(session, query.mask if client else None, query.mask.shape)
            logits = forward(session, rows, mask, self.texts.shape, self.rules, weights)
            words = session.reveal(logits, CLIENT)
            return None if words is None else decode(words, logits.fraction, logits.width)

        return run

    def untrusted(self, query: Query) -> str:
        """The first value out of its range, as the twin finds it; empty if there is none."""
        try:
            self.answer(query)(TwinSession(), self.fixed)
        except RangeError as error:
            return str(error)
        return ""

    def public_weights(self) -> dict[str, Weight]:
        """Their shapes and scales."""
        return {name: weight.public() for name, weight in self.fixed.items()}

    def plan(self, query: Query) -> Plan:
        public = self.public_weights()
        return plan_program(lambda session: self.answer(query)(session, public))


class Parties:
    """A dealer and a server in processes of their own; the client is this process. All talk over TLS."""

    def __init__(self, directory: Path, rule: ResearchRule = "own") -> None:
        self.model = UncertifiedModel.load(directory, rule=rule)
        self._crew = Crew()
        self._start = (directory, rule)

    def __enter__(self) -> Self:
        crew = self._crew.__enter__()
        try:
            server = Seat(SERVER, crew.keys, crew.dealer_address, new_seed())
            self._server = crew.start("server", _serve, server, *self._start)
            self._seat = Seat(CLIENT, crew.keys, crew.dealer_address)
            ((host, port),) = crew.notes([self._server])
            self._channel = connect(host, port, self._seat.identity.client_context(), timeout=_TIMEOUT)
            public = self.model.public_weights()
            self._weights = set_up(self._channel, public, None, None, masked_weights(public))
        except BaseException:
            crew.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._crew.close()

    def run(self, query: Query) -> Outcome:
        """By two parties, and by the twin for the ranges."""
        plan, why = self.model.plan(query), self.model.untrusted(query)
        order = _Order(new_bundle_id(), *query.mask.shape)
        try:
            self._channel.send(msgspec.json.encode(order))
            self._channel.receive(len(_COMING))  # the dealer would wait for a server that is gone
            start = time.monotonic()
            logits, online = _take_part(self._seat, self._channel, self.model, query, order, self._weights, plan)
        except PeerError:
            self._crew.results([self._server])  # raises what ended the server
            raise
        assert logits is not None
        check_planned(CLIENT, online, plan)
        return Outcome(logits, not why, why, plan, time.monotonic() - start)


class _Order(msgspec.Struct, frozen=True):
    """What the server must know of a query."""

    bundle_id: str
    batch: int
    tokens: int


def _serve(link: Link, seat: Seat, directory: Path, rule: ResearchRule) -> None:
    """The server's process: one client, until it leaves."""
    model = UncertifiedModel.load(directory, rule=rule)
    with listen(LOOPBACK, 0, seat.identity.server_context(require_client=True)) as listener:
        link.tell(listener.address)
        channel = listener.accept(_TIMEOUT, channel_timeout=_TIMEOUT)
    with channel, contextlib.suppress(PeerClosed):
        public = model.public_weights()
        set_up(channel, public, dict(model.fixed), seat.key, masked_weights(public))
        while True:
            order = msgspec.json.decode(channel.receive(_ORDER_BYTES), type=_Order)
            size = (order.batch, order.tokens)
            query = Query(np.zeros((*size, model.texts.shape.hidden)), np.ones(size), ())
            plan = model.plan(query)
            channel.send(_COMING)
            _take_part(seat, channel, model, query, order, model.fixed, plan)


def _take_part(
    seat: Seat,
    channel: Channel,
    model: UncertifiedModel,
    query: Query,
    order: _Order,
    weights: Mapping[str, Weight],
    plan: Plan,
) -> tuple[Reals | None, Traffic]:
    """One party's run of a query: the client's logits, and what it sent and received online."""
    randomness, _ = seat.fetch(plan, weights, order.bundle_id)
    before = channel.traffic
    session = PartySession(seat.party, channel, randomness)
    logits = model.answer(query)(session, weights)
    return logits, channel.traffic - before


def evaluate_uncertified(
    parties: Parties, examples: Sequence[Example], task: Task, *, progress: Progress = silent
) -> dict[str, Any]:
    """Runs the examples one by one, by two parties and in the clear. Returns numbers that JSON can carry.

    `compared` of those whose values all stayed in their calibrated ranges; `untrusted` counts the others, whose logits
    may be anything, and `all_scores` has the scores with them.
    """
    model = parties.model
    outcomes, plain = [], []
    for done, text in enumerate(texts_of(examples), 1):
        query = model.texts.encode([text])
        outcomes.append(parties.run(query))
        with np.errstate(over="ignore", invalid="ignore"):  # out of its range, a rule may explode
            plain.append(np.nan_to_num(model.plain_states(query)[-1]))
        progress(done, len(examples))
    secure, clear = np.concatenate([outcome.logits for outcome in outcomes]), np.concatenate(plain)
    trusted = [place for place, outcome in enumerate(outcomes) if outcome.trusted]
    report = compared(secure[trusted], clear[trusted], [examples[place] for place in trusted], task) if trusted else {}
    return report | {
        "certified": False,
        "private": not model.leaks,
        "untrusted": len(outcomes) - len(trusted),
        "first_reason": next((outcome.why for outcome in outcomes if outcome.why), ""),
        "all_scores": task.score(secure, np.array([example.label for example in examples])),
        "runs": len(outcomes),
        "online_bytes": sum(outcome.plan.online_bytes for outcome in outcomes),
        "offline_bytes": sum(outcome.plan.correction_bytes for outcome in outcomes),
        "rounds": sum(outcome.plan.rounds for outcome in outcomes),
        "seconds": sum(outcome.seconds for outcome in outcomes),
    }
