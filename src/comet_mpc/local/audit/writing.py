"""What the parties receive while a text is written: a small decoder, run for a prompt and for two tokens after it.

One bundle is for all positions. The control is a party that uses masks of one position again for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops import Step
from comet_mpc.engine.ops.operation import Drawn
from comet_mpc.engine.share import CLIENT, Reals, Words
from comet_mpc.engine.windows import Window, WindowPlan, WindowSession
from comet_mpc.engine.windows.window import Shape
from comet_mpc.functions.layer_norm import shrink_factor
from comet_mpc.functions.row_rule import wide_rule
from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.online import Case, Held, Recorded, Secrets, Watching, recorded
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import (
    DecoderLayerRules,
    DecoderRules,
    DecoderShape,
    decode,
    decoder_weights,
    encode_weights,
    input_rows,
    tell,
    top_of,
)
from comet_mpc.net.channel import Channel
from comet_mpc.offline.sources import DEALER

SHAPE = DecoderShape(1, 8, 1, 1, 4, 8, 16, 8)
_RUNS = (2, 1, 1)
"""Positions of the prompt, and of each token after it."""
_TOTAL = sum(_RUNS)


def _rules() -> DecoderRules:
    shrink = shrink_factor(SHAPE.hidden)
    norm = wide_rule(2.0**-6 * shrink**3, 2.0**7 * shrink**3, gain=shrink**0.5)
    form = CausalForm(mean_rule(2.0**-8), denominator_rule(SHAPE.positions))
    return DecoderRules((DecoderLayerRules((norm, norm), form),) * SHAPE.layers, norm)


def _model(scale: float) -> dict[str, Weight]:
    """Random weights, within what the rules claim."""
    generator, made = np.random.default_rng(3), dict[str, Reals]()
    for name, size in decoder_weights(SHAPE).items():
        values = generator.uniform(-1.0, 1.0, size)
        if name.endswith("scores"):
            made[name] = 0.01 + 0.04 * np.abs(values)
        elif name.endswith(("qkv.weight", "up.weight")):
            lengths = np.linalg.norm(values, axis=1, keepdims=True) * np.sqrt(SHAPE.hidden * SHAPE.size)
            made[name] = scale * values / lengths
        else:
            made[name] = scale * values / np.sqrt(SHAPE.hidden)
    return encode_weights(SHAPE, made)


RULES, MODELS = _rules(), (_model(1.0), _model(-0.5))
PROMPTS = tuple(np.random.default_rng(seed).uniform(-1.0, 1.0, (1, _TOTAL, SHAPE.hidden)) for seed in (1, 2))
"""The rows that a client gives: two texts."""


def _write(session: Session, window: Window, weights: Mapping[str, Weight], values: Reals | None) -> None:
    top = top_of(SHAPE, RULES)
    rows = input_rows(session, None if values is None else values[:, window.first : window.stop], window, SHAPE, top)
    tell(session, decode(session, rows, window, SHAPE, RULES, weights), window.size)


class WatchingTexts(Watching, WindowSession):
    """Compares messages of one place in the program with those of other runs of it. Preparation is judged elsewhere."""

    @property
    def _like(self) -> int:
        return self._next

    def _draw(self, correlation: Correlation) -> Drawn:
        return WindowSession._draw(self, correlation)

    def _compute(self, step: Step, drawn: Drawn | None) -> Words | None:
        return WindowSession._compute(self, step, drawn)


class _OldPositions(WatchingTexts):
    """The control: every token has the masks of the last position of the prompt."""

    def _draw(self, correlation: Correlation) -> Drawn:
        own = self._window
        if own is not None and own.first:
            self._window = _Old(own.first, own.stop, own.total)
        try:
            return super()._draw(correlation)
        finally:
            self._window = own


class _Old(Window):
    """A window whose rows are those of a position that was run before. A real one refuses that."""

    def cut(self, whole: Shape, own: Shape) -> tuple[slice, ...]:
        old = slice(_RUNS[0] - 1, _RUNS[0])
        cut = tuple(self._axis(*sizes) for sizes in zip(whole, own, strict=True))
        return tuple(old if each == slice(self.first, self.stop) else each for each in cut)


def record_writing(
    runs: int, control: Control = "", *, secret: bytes | None = None, tick: Callable[[], None] = lambda: None
) -> list[Recorded]:
    """What client and server receive in so many conversations, as `online.record`."""
    public = {name: weight.public() for name, weight in MODELS[0].items()}
    windows = WindowPlan(
        lambda session, window: _write(session, window, public, None), _TOTAL, abilities=DEALER.abilities
    )
    watching = _OldPositions if control == "old mask" else WatchingTexts

    def run(held: Held, channel: Channel, secrets: Secrets) -> Watching:
        session = watching(held.party, channel, held.randomness, dealt=True, plan=windows)
        values = PROMPTS[secrets[CLIENT]] if held.party == CLIENT else None
        for size in _RUNS:
            _write(session, session.begin(size), held.weights, values)
            session.end_program()
        return session

    return recorded(Case.of(DEALER.name, windows.whole, "", runs, secret, models=MODELS), run, tick)
