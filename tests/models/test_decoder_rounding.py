"""Decoders in fixed point: no row leaves a range because weights were rounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.engine.share import Reals, Share
from comet_mpc.engine.twin import TwinSession
from comet_mpc.engine.windows import Window
from comet_mpc.errors import CheckpointError, RangeError
from comet_mpc.models.streams import rounding
from comet_mpc.models.streams.decoder import DecoderShape, decode, encode_weights, input_rows, top_of
from comet_mpc.models.streams.folding import FittedLayer, Folding, Seen
from comet_mpc.models.writing.stored import load_decoder, save_decoder
from support.small_writers import GPT2, LLAMA, config_of, layers_of, weights_of
from support.toy_writer import letters

SHAPE = replace(LLAMA, layers=1, intermediate=2048)


def one_way(times: float) -> tuple[Folding, Reals]:
    """All that is added to the stream looks along one direction, and so does the row that is given with it.

    times: of 2^-8, the last digit of what is multiplied by the neurons
    """
    weights = weights_of(config_of(SHAPE))
    sign = np.where(np.arange(SHAPE.hidden) % 2 == 0, 1.0, -1.0)
    weights["embeddings"] = np.tile(0.02 * sign, (SHAPE.vocabulary, 1))
    for name in ("layers.0.attention_norm", "layers.0.mlp_norm", "last_norm"):
        weights[f"{name}.weight"] = np.ones(SHAPE.hidden)
    for name in ("value", "attention_output"):
        weights[f"layers.0.{name}.weight"] *= 1e-4
    for name in ("gate", "up"):
        weights[f"layers.0.{name}.weight"] = np.tile(0.1 * sign, (SHAPE.intermediate, 1))
    weights["layers.0.down.weight"] = np.tile(sign[:, None], (1, SHAPE.intermediate))
    weights["epsilon"] = np.asarray(1e-5)
    (own,) = layers_of(SHAPE, weights)
    fitted = [FittedLayer(np.tile([0.0, 0.0, 0.12], (SHAPE.intermediate, 1)), own.scores, own.scales)]

    def folded(scale: float) -> Folding:
        down = scale * weights["layers.0.down.weight"]
        return Folding(SHAPE, {**weights, "layers.0.down.weight": down}, fitted, Seen((2.0**-30,) * 3))

    found = folded(times * 2.0**-8 / float(folded(1.0).weights["layer.0.down.weight"].max()))
    return found, np.asarray(found.factor * weights["embeddings"][:1])[None]


def run(folding: Folding, rows: Reals) -> Share:
    """The twin checks every bound."""
    session, window, top = TwinSession(), Window(0, 1, 1), top_of(SHAPE, folding.rules)
    given = input_rows(session, rows, window, SHAPE, top)
    return decode(session, given, window, SHAPE, folding.rules, encode_weights(SHAPE, folding.weights))


@pytest.mark.parametrize("times", [0.50001, 0.55, 1.4999])
def test_weights_that_all_round_the_same_way_stay_within_their_range(times: float) -> None:
    assert run(*one_way(times)).shape == (1, 1, SHAPE.hidden)


def test_without_what_rounding_adds_they_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: they are served twice as large as they are."""
    monkeypatch.setattr("comet_mpc.models.streams.folding.feed_forward_moved", lambda *args, **more: 0.0)
    with pytest.raises(RangeError, match="the bound that was claimed"):
        run(*one_way(0.50001))


@pytest.mark.parametrize(("part", "what"), [("qkv.weight", "a query, a key or a value"), ("up.weight", "a neuron")])
def test_what_may_leave_its_range_once_it_is_rounded_is_refused(
    part: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(LLAMA)
    weights = weights_of(config)
    save_decoder(tmp_path, config, weights, layers_of(LLAMA, weights), tokenizer=letters().text.encode())
    load_decoder(tmp_path)
    served = rounding.served

    def larger(weights: rounding.Weights, name: str) -> Reals:
        return served(weights, name) * (1.1 if name.endswith(part) else 1.0)

    monkeypatch.setattr(rounding, "served", larger)
    with pytest.raises(CheckpointError, match=f"layer 0: {what} may leave its range once it is rounded"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_rounding_hardly_moves_the_ranges_of_usual_weights(
    shape: DecoderShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(config_of(shape)) | {"epsilon": np.asarray(1e-5)}
    seen = Seen((2.0**-6,) * (2 * shape.layers + 1))
    with_it = Folding(shape, weights, layers_of(shape, weights), seen)
    for name in ("attention_moved", "feed_forward_moved"):
        monkeypatch.setattr(f"comet_mpc.models.streams.folding.{name}", lambda *args, **more: 0.0)
    without = Folding(shape, weights, layers_of(shape, weights), seen)
    assert without.top < with_it.top < 1.001 * without.top


@pytest.mark.parametrize("name", ["gate", "up", "value", "query", "key"])
def test_rows_of_zeros_are_served(name: str, tmp_path: Path) -> None:
    """Models that were pruned, or filled up to a round size, have some."""
    config = config_of(LLAMA)
    weights = weights_of(config)
    weights[f"layers.0.{name}.weight"][: LLAMA.size] = 0.0
    fitted = layers_of(LLAMA, weights)
    fitted[0].neurons[:, 1] = 0.0
    save_decoder(tmp_path, config, weights, fitted, tokenizer=letters().text.encode())
    assert load_decoder(tmp_path).shape == LLAMA
