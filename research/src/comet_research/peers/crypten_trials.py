"""One party of CrypTen: one function on many random values inside its range, counting wrong results. Prints its record.

    python -m comet_research.peers.crypten_trials FUNCTION COUNT SEED own|certified

CrypTen's truncation is local: each party divides its own share. With a chance of |v|·2^-32, v being the result of a
product with 16 fraction bits, that wraps around, and the result is off by about 2^47. `product` measures just that,
with values large enough to see it; the functions show how often it happens in them. What CrypTen's own decoding makes
of right results is counted apart.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from comet_research.crypten import Ranges
from comet_research.peers.crypten_party import (
    begin,
    compute_gelu,
    compute_layer_norm,
    decoded,
    functions_of,
    stands_for,
)
from comet_research.peers.inputs import Functions, Reals, layer_norm

Generator = np.random.Generator

_RANGES = Ranges(activations=8.0, scores=8.0)
_ROW, _SCORES = 768, 128
_OFF, _WRAPPED = 0.05, 1000.0
_BATCH = 1 << 19
LARGE = 64.0
"""|x| and |y| of the product."""


def _rows(width: int) -> Callable[[Generator, int], Reals]:
    """Rows of all variances that are allowed."""

    def draw(generator: Generator, count: int) -> Reals:
        low, high = _RANGES.variances
        spread = np.exp(generator.uniform(0.5 * math.log(1.2 * low), 0.5 * math.log(high / 1.2), (count // width, 1)))
        rows = generator.normal(0.0, 1.0, (count // width, width))
        rows = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
        return np.asarray(spread * rows + generator.uniform(-1.0, 1.0, (count // width, 1)))

    return draw


def _within(bound: float, width: int = 1) -> Callable[[Generator, int], Reals]:
    return lambda generator, count: generator.uniform(-bound, bound, (count // width, width))


def _roots(generator: Generator, count: int) -> Reals:
    low, high = _RANGES.roots
    return np.asarray(np.exp(generator.uniform(math.log(low), math.log(high), count)))


TRIALS: dict[
    str, tuple[Callable[[Generator, int], Reals], Callable[[Any], Any], Callable[[Reals, Functions], Reals]]
] = {
    "product": (_within(LARGE), lambda x: x * x, lambda x, _: np.square(x)),
    "inverse_sqrt": (_roots, lambda x: x.inv_sqrt(), lambda x, _: 1.0 / np.sqrt(x)),
    "activation": (_within(_RANGES.activations), compute_gelu, lambda x, f: f.gelu(x)),
    "softmax": (_within(_RANGES.scores, _SCORES), lambda x: x.softmax(-1), lambda x, f: f.softmax(x)),
    "layer_norm": (_rows(_ROW), compute_layer_norm, lambda x, _: layer_norm(x)),
}
"""By name: how inputs are drawn, what CrypTen computes, and what is meant."""


def expected_wraps(count: int) -> float:
    """Of products of numbers that are uniform up to LARGE: the mean of x² is LARGE²/3."""
    return count * LARGE**2 / 3.0 * 2.0**-32


def main(function: str, count: int, seed: int, variant: str) -> dict[str, Any]:
    crypten, torch = begin(), sys.modules["torch"]
    draw, compute, exact = TRIALS[function]
    generator = np.random.default_rng(seed)
    done = off = wrapped = misread = 0
    worst = 0.0
    meant = stands_for(variant, _RANGES)
    with functions_of(variant, _RANGES):
        while done < count:
            values = draw(generator, min(_BATCH, max(_ROW, count - done)))
            found = compute(crypten.cryptensor(torch.from_numpy(values.astype(np.float32)), src=0))
            wanted = exact(values.astype(np.float32).astype(np.float64), meant)
            result = decoded(found)
            error = np.abs(result - wanted) / np.maximum(1.0, np.abs(wanted))
            done += error.size
            misread += int(np.sum(np.abs(found.get_plain_text().numpy() - result) > 0.5 + 1e-6 * np.abs(result)))
            off += int(np.sum(error > _OFF))
            wrapped += int(np.sum(error > _WRAPPED))
            worst = max(worst, float(error[error <= _WRAPPED].max(initial=0.0)))
    return {"values": done, "off": off, "wrapped": wrapped, "misread": misread, "worst_else": worst}


if __name__ == "__main__":
    record = main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    print("RECORD" + json.dumps(record), flush=True)
