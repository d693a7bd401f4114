"""Comet's non-linear functions on CrypTen's tensors: `with comet_functions(): …`.

Inside the block `inv_sqrt` and `softmax` of every MPCTensor are Comet's, and MPCTensor has two more methods: `gelu` (as
s-GeLU) and `layer_norm`. Afterwards CrypTen is as it was.

    certified  the public coefficients that Comet serves with (`functions.rule`), for ranges that you state
    paper      the flooded guess as printed, then 4 plain Newton steps. NOT PRIVATE (`functions.flooding`)

Everything is made of CrypTen's own products and openings, so it works with each of its providers, and CrypTen's
promises stay CrypTen's: its truncation is local and can wrap around, its default provider is one of the parties. What
Comet's engine does beyond that (open once, exact truncation, proved ranges) is not part of a plug-in. Inference only:
no gradients. Two parties.

crypten 0.4.1 must be installed without its dependencies, `pip install --no-deps crypten==0.4.1`; `load_crypten` gives
it a module that newer versions of torch have moved.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from comet_mpc.engine.seeds import expand, new_seed
from comet_mpc.errors import CometError, ConfigurationError
from comet_mpc.functions.activation import argument_interval, smu_rule
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.root_rule import DEGREES, RootRule
from comet_mpc.functions.rule import Smu
from comet_mpc.functions.rules import make_rule
from comet_research.functions.flooding import Flooding, float_bits

Tensor = Any
"""CrypTen's MPCTensor, whose package may be absent."""

_MOVED = {"torch.onnx._internal.registration": "torch.onnx._internal.torchscript_exporter.registration"}
_CONSTANT_STEPS = 4
_GROWN = 16.0
_PAPER_MU = 1 / math.sqrt(2.0)


@dataclass(frozen=True)
class Ranges:
    """What is true of every value that the functions will see. A value beyond makes the result wrong.

    roots        the arguments of inv_sqrt
    activations  |x| of gelu
    scores       |x| of softmax
    variances    of the rows of layer_norm
    rule         of the roots of activations and scores: a polynomial's name (`functions.root_rule`), or minimax
    steps        of minimax, there
    root_steps   of inv_sqrt
    row_steps    of 1/sqrt for what there is one of per row
    """

    roots: tuple[float, float] = (1 / 16, 16.0)
    activations: float = 8.0
    scores: float = 8.0
    variances: tuple[float, float] = (1 / 16, 64.0)
    rule: str = "quadratic"
    steps: int = 3
    root_steps: int = 4
    row_steps: int = 7


def load_crypten() -> Any:
    """The package `crypten`, also on a torch that has moved a module which it imports."""
    for name in ("torch", "crypten"):
        if find_spec(name) is None:
            raise ConfigurationError(
                f"{name} is not installed: pip install torch onnx pandas, then pip install --no-deps crypten==0.4.1"
            )
    for old, new in _MOVED.items():
        if old not in sys.modules and find_spec(old) is None:
            sys.modules[old] = import_module(new)
    return import_module("crypten")


class LeakError(CometError):
    """A protocol that is known to leak was requested without saying so."""


@contextmanager
def comet_functions(
    mode: str = "certified", ranges: Ranges | None = None, *, permits_leaks: bool = False
) -> Iterator[None]:
    """CrypTen's tensors with Comet's functions, until the block ends. mode: certified or paper."""
    crypten = load_crypten()
    if mode == "certified":
        functions = _certified(ranges or Ranges())
    elif mode == "paper":
        if not permits_leaks:
            raise LeakError(
                "the paper's flooded shares leak their secrets (docs/explanation/security.md): "
                "for research, say permits_leaks=True"
            )
        functions = _paper()
    else:
        raise ConfigurationError(f"unknown mode {mode!r}: choose certified or paper")
    kind = crypten.mpc.MPCTensor
    before = {name: vars(kind).get(name) for name in functions}
    for name, function in functions.items():
        setattr(kind, name, function)
    try:
        yield
    finally:
        for name, original in before.items():
            if original is None:
                delattr(kind, name)
            else:
                setattr(kind, name, original)


Function = Callable[..., Tensor]


# By public coefficients --------------------------------------------------------------------------------------


def _certified(ranges: Ranges) -> dict[str, Function]:
    """Rules are made once, when the block begins."""
    roots = _minimax(*ranges.roots, ranges.root_steps)
    form = Smu(1 / 16)
    activation = smu_rule(form, 1.0, ranges.steps, name=ranges.rule)
    if not isinstance(activation, RootRule | MinimaxRule):
        raise ConfigurationError(f"the plug-in has no rule {ranges.rule!r}: choose minimax, {', '.join(DEGREES)}")
    rows = _minimax(2.0**-14, 1.0 + 2.0**-4, ranges.row_steps)
    variances = _minimax(*ranges.variances, ranges.row_steps)

    def smu(x: Tensor, bound: float) -> Tensor:
        """smu(x/bound), whatever the bound."""
        scaled = x.mul(1.0 / bound)
        t = scaled.square().add(float(np.square(form.mu)))
        return scaled.add(_root(t, activation)).mul(0.5)

    def gelu(self: Tensor) -> Tensor:
        return smu(self, ranges.activations).mul(ranges.activations)

    def softmax(self: Tensor, dim: int, **_: Any) -> Tensor:
        weights = smu(self, ranges.scores).mul(_GROWN).square()  # up to 256, so that small ones keep their bits
        share = 1.0 / (_GROWN**2 * self.size(dim))
        y = _by_rule(weights.sum(dim, keepdim=True).mul(share), rows)
        return weights.mul(y.square().mul(share))  # small products, since CrypTen's truncation wraps large ones

    return {
        "inv_sqrt": lambda self: _by_rule(self, roots),
        "gelu": gelu,
        "softmax": softmax,
        "layer_norm": _layer_norm(lambda t: _by_rule(t, variances)),
    }


def _minimax(low: float, high: float, steps: int) -> MinimaxRule:
    rule = make_rule("minimax", low, high, steps)
    assert isinstance(rule, MinimaxRule)
    return rule


def _root(t: Tensor, rule: RootRule | MinimaxRule) -> Tensor:
    """sqrt(t): a quadratic opens one value."""
    if isinstance(rule, MinimaxRule):
        return _by_rule(t, rule, root=True)
    return _polynomial(rule.coefficients, t.mul(2.0**-rule.exponent)).mul(2.0 ** (rule.exponent // 2))


def _by_rule(t: Tensor, rule: MinimaxRule, *, root: bool = False) -> Tensor:
    """1/sqrt(t), or sqrt(t), by the coefficients of a rule. Opens 6 values a step, and few for the start.

    τ·y² is made of τ·y, which is at most 1 like itself: y² would be large where τ is small, and CrypTen's truncation
    would wrap around more often.
    """
    tau = t.mul(2.0**-rule.exponent)
    y = _polynomial(rule.start, tau)
    for place, step in enumerate(rule.steps):
        b = 2.0**-step.shift
        if root and place == len(rule.steps) - 1:
            z = tau.mul(y)
            return z.mul(z.mul(y).mul(-b).add(step.a)).mul(2.0 ** (rule.exponent // 2))
        y = y.mul(tau.mul(y).mul(y).mul(-b).add(step.a))
    if root:
        y = y.mul(tau)
    return y.mul(2.0 ** ((rule.exponent if root else -rule.exponent) // 2))


def _polynomial(coefficients: Sequence[float], t: Tensor) -> Tensor:
    """Σ c_i·t^i, by pairs of coefficients: one square, and a product for every two degrees beyond the second."""
    pairs = [coefficients[place : place + 2] for place in range(0, len(coefficients), 2)]
    square = t.square() if len(pairs) > 1 else None

    def linear(pair: Sequence[float]) -> Tensor | float:
        return t.mul(pair[1]).add(pair[0]) if len(pair) == 2 else pair[0]

    value = linear(pairs[-1])
    for pair in reversed(pairs[:-1]):
        assert square is not None
        value = square.mul(value).add(linear(pair))
    return value


def _layer_norm(inverse_root: Function) -> Function:
    def layer_norm(self: Tensor, weight: Tensor = None, bias: Tensor = None, epsilon: float = 1e-12) -> Tensor:
        """Along the last axis."""
        centred = self.sub(self.mean(-1, keepdim=True))
        y = inverse_root(centred.square().mean(-1, keepdim=True).add(epsilon))
        normal = centred.mul(y)
        normal = normal if weight is None else normal.mul(weight)
        return normal if bias is None else normal.add(bias)

    return layer_norm


# As printed --------------------------------------------------------------------------------------------------


def _paper() -> dict[str, Function]:
    low, _ = argument_interval(Smu(_PAPER_MU), 1.0)

    def smu(x: Tensor) -> Tensor:
        t = x.square().add(low)
        return x.add(t.mul(_flooded(t))).mul(0.5)

    def softmax(self: Tensor, dim: int, **_: Any) -> Tensor:
        """s-Softmax*: smu(x)/Σ smu(x). The reciprocal is the square of an inverse root of the row's mean."""
        weights = smu(self)
        y = _flooded(weights.sum(dim, keepdim=True).mul(1.0 / self.size(dim)))
        return weights.mul(y).mul(y).mul(1.0 / self.size(dim))

    return {"inv_sqrt": _flooded, "gelu": smu, "softmax": softmax, "layer_norm": _layer_norm(_flooded)}


def _flooded(t: Tensor) -> Tensor:
    """The double approximation and plain Newton steps. LEAKS t - F - r to party 0, and 2r - t to both."""
    y = _guess(t)
    y = t.mul(-0.5 * y**3).add(1.5 * y)  # the first step from a public guess is local
    for _ in range(_CONSTANT_STEPS - 1):
        y = y.mul(y.square().mul(t).mul(-0.5).add(1.5))
    return y


def _guess(t: Tensor) -> Tensor:
    """y0 in the clear, as a torch tensor: what both parties know of it."""
    torch = import_module("torch")
    communicator = import_module("crypten.communicator").get()
    if communicator.get_world_size() != 2:
        raise ConfigurationError("the paper's shares are those of two parties")
    flooding = Flooding()
    share, scale = t.share, float(t.encoder.scale)
    if communicator.get_rank() == 1:
        uniform = (expand(new_seed(), 0, share.numel()) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        mask = np.rint((flooding.flood + flooding.spread * uniform) * scale)
        communicator.send(share - torch.from_numpy(mask.astype(np.int64)).reshape(share.shape), 0)
        bits = flooding.server_constant - float_bits(mask / scale) // 4
    else:
        received = torch.empty_like(share)
        flooded = share + communicator.recv(received, 1)
        bits = -(float_bits(flooded.numpy() / scale) // 4)
    mine = torch.from_numpy(np.ascontiguousarray(bits.reshape(share.shape)))
    opened = communicator.all_reduce(mine).numpy()
    return torch.from_numpy(opened.astype(np.uint32).view(np.float32).copy())
