"""What every system computes: single operations, one encoder layer and two, with their exact results. Only numpy.

Run by other environments too, so it imports nothing of this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Arrays = Mapping[str, Reals]

HIDDEN, HEADS, HEAD = 768, 12, 64


@dataclass(frozen=True)
class Functions:
    """What stands for GELU and for softmax."""

    gelu: Callable[[Reals], Reals]
    softmax: Callable[[Reals], Reals]


@dataclass(frozen=True)
class PeerTask:
    """An operation: the names of the client's arrays and of the server's, and the exact result of both."""

    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    exact: Callable[[Arrays, Functions], Reals]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.inputs, *self.weights)


def gelu(x: Reals) -> Reals:
    """By the error function."""
    return np.asarray(0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))))


def softmax(x: Reals) -> Reals:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def layer_norm(x: Reals) -> Reals:
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12))


def smooth(smu: Callable[[Reals, float], Reals], bound: float, score_bound: float, power: int) -> Functions:
    """The unified functions in real arithmetic: s-GeLU, and smu(s)^p / Σ smu(s)^p. smu: of x, for |x| <= a bound."""

    def weigh(x: Reals) -> Reals:
        weights = smu(x, score_bound) ** power
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    return Functions(lambda x: smu(x, bound), weigh)


USUAL = Functions(gelu, softmax)


def _attend(a: Functions, q: Reals, k: Reals, v: Reals) -> Reals:
    return np.asarray(a.softmax(q @ k.swapaxes(-1, -2) / math.sqrt(HEAD)) @ v)


def _heads(x: Reals) -> Reals:
    return np.asarray(x.reshape(len(x), HEADS, HEAD).transpose(1, 0, 2))


def _layer(a: Arrays, functions: Functions) -> Reals:
    """One encoder layer of BERT-base: attention, LayerNorm, GELU, LayerNorm."""
    q, k, v = (_heads(a["x"] @ a[name]) for name in ("query", "key", "value"))
    context = _attend(functions, q, k, v).transpose(1, 0, 2).reshape(len(a["x"]), HIDDEN)
    middle = layer_norm(a["x"] + context @ a["out"])
    return layer_norm(middle + functions.gelu(middle @ a["up"]) @ a["down"])


def _two_layers(a: Arrays, functions: Functions) -> Reals:
    """The layer twice, one after the other, so that what a system sends once can be told from what a layer takes."""
    return _layer({**a, "x": _layer(a, functions)}, functions)


LAYERS = {"layer": 1, "two_layers": 2}
"""Tasks that are so many layers of an encoder."""
_LAYER_WEIGHTS = ("query", "key", "value", "out", "up", "down")
TASKS = {
    "inverse_sqrt": PeerTask(("x",), (), lambda a, _: np.asarray(1.0 / np.sqrt(a["x"]))),
    "activation": PeerTask(("x",), (), lambda a, f: f.gelu(a["x"])),
    "attention": PeerTask(("q", "k", "v"), (), lambda a, f: _attend(f, a["q"], a["k"], a["v"])),
    "layer_norm": PeerTask(("x",), (), lambda a, _: layer_norm(a["x"])),
    "linear": PeerTask(("x",), ("weight",), lambda a, _: a["x"] @ a["weight"]),
    "layer": PeerTask(("x",), _LAYER_WEIGHTS, _layer),
    "two_layers": PeerTask(("x",), _LAYER_WEIGHTS, _two_layers),
}


def load(path: str) -> dict[str, Reals]:
    """The arrays of a task, as `compare` has written them."""
    with np.load(path) as file:
        return {name: file[name].astype(np.float64) for name in file.files}
