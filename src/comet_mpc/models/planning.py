"""Plans of whole encoders, by the ways that cost the least on a network: one layer stands for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from comet_mpc.engine import Session
from comet_mpc.engine.costs import Network
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import Share
from comet_mpc.functions.neurons import Quartics
from comet_mpc.functions.weighing import Eighth, Quartic
from comet_mpc.models.checkpoint import FITTED, NEAR
from comet_mpc.models.transformer import (
    EncoderRules,
    EncoderShape,
    certified_rules,
    encoder_block,
    encoder_frame,
    fitted_rules,
    forward,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.offline.cheapest import USUAL_NETWORK, Sample, cheapest_plan
from comet_mpc.offline.source import Source


def plan_encoder(
    program: Callable[[Session], object],
    shape: EncoderShape,
    rules: EncoderRules,
    batch: int,
    tokens: int,
    source: Source,
    network: Network | None = None,
) -> Plan:
    """program: whatever is done with such an encoder. network: the usual one, if it is None"""
    weights, size = public_weights(shape), (batch, tokens, shape.hidden)

    def layer(session: Session) -> Share:
        if shape.stream:
            from comet_mpc.models.vision.forward import one_layer  # most models are of texts

            return one_layer(session, batch, shape, rules, weights)
        rows, mask = input_rows(session, None, size), input_mask(session, None, size[:2])
        block, own, frame = encoder_block(shape, 0), rules.layers[0], encoder_frame(session, mask, rules, weights)
        return block.run(frame, rows, own, block.ring(frame, own))

    return cheapest_plan(program, source, network or USUAL_NETWORK, sample=Sample(layer, shape.layers))


def shape_and_rules(shape: EncoderShape, steps: int, rule: str) -> tuple[EncoderShape, EncoderRules]:
    """A named shape with universal rules, or with fitted functions and the constants that they have."""
    if rule == FITTED:
        return replace(shape, constants=Quartic.constants), fitted_rules(shape)
    if rule == NEAR:
        own = replace(shape, constants=Eighth.constants, neurons=Quartics.constants)
        return own, fitted_rules(own, near=True)
    return shape, certified_rules(shape, steps, rule=rule)


def plan_shape(
    shape: EncoderShape,
    tokens: int,
    steps: int,
    batch: int,
    rule: str,
    source: Source,
    network: Network | None = None,
) -> Plan:
    """The plan of the certified encoder at a named shape, with universal rules, or with fitted functions."""
    shape, rules = shape_and_rules(shape, steps, rule)
    weights = public_weights(shape)
    size = (batch, tokens, shape.hidden)

    def program(session: Session) -> Share:
        rows, mask = input_rows(session, None, size), input_mask(session, None, size[:2])
        return forward(session, rows, mask, shape, rules, weights)

    return plan_encoder(program, shape, rules, batch, tokens, source, network)
