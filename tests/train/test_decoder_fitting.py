"""Fitted functions of a decoder: near the original where the data are, and within the ranges that are proved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from comet_mpc.engine.share import Reals  # noqa: E402
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule  # noqa: E402
from comet_mpc.models.streams.decoder import DecoderShape, plain_states  # noqa: E402
from comet_mpc.models.streams.folding import FittedLayer, Folding  # noqa: E402
from comet_mpc.train.decoders.fitting import Fitting  # noqa: E402
from comet_mpc.train.decoders.learning import learn  # noqa: E402

pytestmark = pytest.mark.train

SHAPE = DecoderShape(2, 24, 2, 1, 12, 32, 40, 16)


def _tensors() -> dict[str, Reals]:
    generator = np.random.default_rng(0)
    sizes: dict[str, tuple[int, ...]] = {"embeddings": (40, 24), "last_norm.weight": (24,)}
    for i in range(2):
        rows = {"query": 24, "key": 12, "value": 12, "attention_output": 24, "gate": 32, "up": 32, "down": 24}
        sizes |= {f"layers.{i}.{name}.weight": (r, 32 if name == "down" else 24) for name, r in rows.items()}
        sizes |= {f"layers.{i}.{name}.weight": (24,) for name in ("attention_norm", "mlp_norm")}
    made = {name: generator.standard_normal(size) / np.sqrt(size[-1]) for name, size in sizes.items()}
    for name in made:
        if "norm" in name:
            made[name] = 1.0 + 0.1 * made[name]
        if name.endswith(("query.weight", "key.weight")):
            made[name] *= 2.0
    return made | {"epsilon": np.float64(1e-5)}  # type: ignore[dict-item]


def _form() -> CausalForm:
    return CausalForm(mean_rule(2.0**-15), denominator_rule(SHAPE.positions))


def _off(fitting: Fitting, ids: Any, layers: list[FittedLayer]) -> float:
    exact = fitting.states(ids, None)
    return float(((fitting.states(ids, layers) - exact) ** 2).mean() / (exact**2).mean())


def test_least_squares_stay_near_the_original_on_other_texts() -> None:
    """And what is served is what was fitted. The control: other functions are further off."""
    torch.manual_seed(0)
    train, test = torch.randint(0, 40, (30, 12)), torch.randint(0, 40, (10, 12))
    fitting = Fitting(SHAPE, _tensors(), _form())
    found = fitting.run(train)
    error = _off(fitting, test, found.layers)
    assert error < 0.1
    folding = Folding(SHAPE, fitting.tensors, found.layers, found.seen)
    rows = folding.factor * fitting.tensors["embeddings"][test[0].numpy()]
    served = plain_states(rows, SHAPE, folding.rules, folding.weights)[-1] * fitting.tensors["last_norm.weight"]
    np.testing.assert_allclose(served, fitting.states(test[:1], found.layers)[0].numpy(), atol=2e-2)
    others = [FittedLayer(own.neurons + np.array([0.0, 0.2, 0.0]), own.scores, own.scales) for own in found.layers]
    assert _off(fitting, test, others) > 1.5 * error


def test_learning_brings_next_tokens_nearer_and_looks_at_the_norms_again() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 40, (16, 12))
    fitting = Fitting(SHAPE, _tensors(), _form())
    found = fitting.run(ids)

    def off() -> float:
        wanted, given = (
            torch.log_softmax(fitting.original.logits(fitting.states(ids, layers)), -1)
            for layers in (None, found.layers)
        )
        return float((wanted.exp() * (wanted - given)).sum(-1).mean())

    before, seen = off(), fitting.looked_at(ids)
    np.testing.assert_allclose(seen.least, found.seen.least, rtol=1e-4)  # the same as while it was fitted
    learnt = learn(fitting, found, ids, 20)
    assert off() < before
    assert learnt.seen.least != seen.least
