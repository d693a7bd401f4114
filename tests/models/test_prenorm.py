"""Pre-normalised blocks: what two parties make of them is what the formulas say."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.parts import Block
from comet_mpc.engine.share import CLIENT, Reals, Share
from comet_mpc.engine.twin import run_twin
from comet_mpc.errors import RangeError
from comet_mpc.functions.activation import smu_rule
from comet_mpc.functions.attention import certified_form, plain_attention
from comet_mpc.functions.layer_norm import layer_norm_rule, plain_centred, plain_normalise, shrink_factor
from comet_mpc.functions.neurons import SmuNeurons
from comet_mpc.functions.rule import Smu
from comet_mpc.models.blocks import SLACK, Attention, FeedForward, Frame, LayerRules
from comet_mpc.models.streams.block import PreNormBlock, into_stream, normalised, stream_top
from comet_mpc.models.transformer import encode_weight
from comet_mpc.testing import Weights, run_two_parties

TOKENS, HIDDEN, HEADS, INNER = 5, 48, 2, 32
EPSILON = 1e-6


def _rules() -> LayerRules:
    activation = Smu(1.0 / 16.0)
    return LayerRules(
        neurons=SmuNeurons(activation, smu_rule(activation, SLACK, 3)),
        attention=certified_form(3),
        variances=(layer_norm_rule(HIDDEN, 2.0**-5, 2.0**6), layer_norm_rule(HIDDEN, 2.0**-5, 2.0**7)),
        value_bound=8.0,
        query_bound=1.0,
    )


def _blocks(*, first: bool) -> list[PreNormBlock]:
    parts = [(Attention(HIDDEN, HEADS, 0, first=first and i == 1), FeedForward(HIDDEN, INNER)) for i in range(2)]
    return [PreNormBlock(Block("layer", i), part) for i, part in enumerate(parts)]


def _weights(blocks: list[PreNormBlock]) -> dict[str, Reals]:
    """Random, within their bounds: neurons below 1 and queries shorter than 1; sums are centred and times d/2^k."""
    generator, made = np.random.default_rng(3), {}
    for block in blocks:
        for name, size in block.weights().items():
            values = generator.standard_normal(size)
            scale = 0.02 if name.endswith("bias") else 2.0 / math.sqrt(HIDDEN)
            if name.endswith(("up.weight", "qkv.weight")):
                scale = 0.9 / HIDDEN
            if name.endswith("threshold"):
                scale = 0.1
            values = scale * values
            if name.endswith("qkv.weight"):
                values[: 2 * HIDDEN] *= 0.4
            if name.endswith(("output.weight", "down.weight")):
                values = shrink_factor(HIDDEN) * plain_centred(values, axis=0)
            if name.endswith(("output.bias", "down.bias")):
                values = shrink_factor(HIDDEN) * plain_centred(values)
            made[name] = values
    return made


def _plain(rows: Reals, blocks: list[PreNormBlock], rules: LayerRules, weights: dict[str, Reals]) -> Reals:
    def linear(x: Reals, name: str) -> Reals:
        return np.asarray(x @ weights[name + ".weight"].T + weights[name + ".bias"])

    for block in blocks:
        attention, _ = block.parts
        assert isinstance(attention, Attention)
        prefix, asking = block.prefix, 1 if attention.first else TOKENS
        n = plain_normalise(rows, rules.variances[0], epsilon=EPSILON)
        qkv = linear(n, prefix + "qkv").reshape(1, TOKENS, 3, HEADS, HIDDEN // HEADS).transpose(2, 0, 3, 1, 4)
        thresholds = weights[prefix + "threshold"][:, 0]
        q, k, v = qkv[0][:, :, :asking], qkv[1], qkv[2]
        context = plain_attention(q, k, v, rules.attention, thresholds, exact=False)
        context = context.transpose(0, 2, 1, 3).reshape(1, asking, HIDDEN)
        rows = rows[:, :asking] + linear(context, prefix + "output")
        active = rules.neurons(linear(plain_normalise(rows, rules.variances[1], epsilon=EPSILON), prefix + "up"))
        rows = rows + linear(active, prefix + "down")
    return plain_normalise(rows, rules.variances[1], epsilon=EPSILON)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "first"), [("dealer", False), ("pair", True)])
def test_parties_compute_what_the_formulas_say(source: Literal["dealer", "pair"], first: bool) -> None:
    """`run_two_parties` compares bytes, rounds and correlations with the plan, and values with the twin's."""
    blocks, rules = _blocks(first=first), _rules()
    real = _weights(blocks)
    encoded = {name: encode_weight(name, values) for name, values in real.items()}
    states = shrink_factor(HIDDEN) * plain_centred(np.random.default_rng(4).standard_normal((1, TOKENS, HIDDEN)))
    top = stream_top(HIDDEN, rules.variances[1])

    def program(session: Session, weights: Weights) -> Share:
        frame = Frame(session, None, weights, EPSILON)
        stream = into_stream(session.private(CLIENT, states.shape, 20, 8.0, states), top)
        for block in blocks:
            with session.part(block.name):
                stream = block.run(frame, stream, rules, top)
        return normalised(frame, stream, rules.variances[1], 56)

    run = run_two_parties(program, encoded, source=source, tolerance=2.0**-6)
    expected = _plain(states, blocks, rules, {name: _real(weight) for name, weight in encoded.items()})
    assert run.value.shape == (1, 1 if first else TOKENS, HIDDEN)
    np.testing.assert_allclose(run.value, expected, atol=2.0**-4)
    without = _plain(states, blocks[:1], rules, {name: _real(weight) for name, weight in encoded.items()})
    assert np.max(np.abs(run.value - without[:, : run.value.shape[1]])) > 0.5  # the tolerance says something


def _real(weight: Weight) -> Reals:
    return np.asarray(weight.fixed() * 2.0**-weight.fraction)


def test_the_stream_has_no_gamma() -> None:
    """What a post-normalised block multiplies the skipped rows by is not there."""
    (block, _) = _blocks(first=False)
    assert not [name for name in block.weights() if name.endswith("gamma")]


def test_a_stream_that_may_leave_its_ring_is_refused() -> None:
    """The bound of a LayerNorm's interval is claimed of the stream, and the twin notices where it is not kept."""
    rules = _rules()
    rule = rules.variances[0]
    large = np.full((1, 1, HIDDEN), 2.0**5)

    def program(session: Session) -> Share:
        frame = Frame(session, None, {}, EPSILON)
        stream = into_stream(session.private(CLIENT, large.shape, 20, 2.0**6, large), 2.0**12)
        return normalised(frame, stream, rule, 56)

    with pytest.raises(RangeError):
        run_twin(program)
