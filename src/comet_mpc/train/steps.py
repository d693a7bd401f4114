"""1/sqrt and smu in torch by the protocol's own steps, and other rules to compare with: experiments, not certified."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.attention import denominator_rule
from comet_mpc.functions.inverse_rule import MinimaxRule, RuleStep
from comet_mpc.functions.rule import Rule
from comet_mpc.functions.rules import make_rule
from comet_mpc.functions.weighing import LARGEST_OFFSET
from comet_mpc.models.certify import smu_rules
from comet_mpc.models.checkpoint import CometConfig

_PAPER_START = 0.4833  # what the paper's guess amounts to, whatever t is
_BLOCK = 1 << 16  # elements that stay in a core's cache while a rule goes over them


def newton_rule(constant: float, iterations: int, low: float, high: float) -> MinimaxRule:
    """Plain Newton y <- y·(3/2 - t·y²/2) from a public constant, as a rule: what the paper's guess amounts to."""
    step = RuleStep(1.5, 1, 43, math.inf)
    return MinimaxRule(low, high, 0.0, 0, 14, 14, (constant,), 40, math.inf, (step,) * iterations, 1.0, math.inf)


def other_rules(config: CometConfig, kind: str, steps: int) -> dict[str, Rule]:
    """Rules of activations and scores of another kind or number of steps: an experiment, not certified.

    Quantities of which there is one per row keep their rules, but for attention's denominators in the certified form:
    what they are sums of has another top.
    """
    mus = {"activation": config.activation.mu, "scores": config.attention.mu / 2}
    universal = config.certifiable
    if universal:
        intervals = {name: (mu**2, 1.0 + mu**2) for name, mu in mus.items()}
    else:
        sites = {name: site.rule for name, site in config.sites.items() if name.endswith(tuple(mus))}
        intervals = {name: (rule.low, rule.high) for name, rule in sites.items()}
    if not intervals:
        raise ConfigurationError(
            "another rule or number of steps needs a model with smu whose intervals are known: "
            "this one is unmodified, or needs `comet calibrate` first"
        )
    rules: dict[str, Rule]
    if kind == "newton":
        rules = {name: newton_rule(_PAPER_START, steps, *interval) for name, interval in intervals.items()}
    elif steps == 0 and kind == "minimax":
        ends = {name: (math.sqrt(low), math.sqrt(high)) for name, (low, high) in intervals.items()}
        rules = {name: newton_rule(2.0 / sum(ends[name]), 0, *interval) for name, interval in intervals.items()}
    elif universal:
        changed = msgspec.structs.replace(config, rule=kind, steps=max(1, steps))
        rules = dict(zip(mus, smu_rules(changed), strict=True))
    else:
        return {
            name: make_rule(kind, *interval, steps, root=True, emphasis=config.emphasis)
            for name, interval in intervals.items()
        }
    return rules | _denominators(config, rules) if universal else rules


def _denominators(config: CometConfig, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """A rule for means of smu(s)² up to the largest that these rules give, |s| <= 1."""
    s = torch.linspace(-1.0, 1.0, 4097, dtype=torch.float64)
    top = float(smu(s, config.attention.mu / 2, 0.0, rules["scores"]).square().max())
    return {"denominators": denominator_rule(1.02 * top, config.row_steps + 1 if config.row_steps else None)}


def through_rules(config: CometConfig, through: str | None) -> dict[str, Rule]:
    """The rules of an experiment, by its name: newton-3."""
    if through is None:
        return {}
    if not config.certifiable:
        raise ConfigurationError("only the certified form is trained through plain Newton steps, or through none")
    kind, _, steps = through.rpartition("-")
    return other_rules(config, "newton" if kind == "newton" else "minimax", int(steps))


class _SmuByRule(torch.autograd.Function):
    """(1+α)/2·x + ½·sqrt(φ·x² + μ²), the root by a rule, block by block, and its derivative in the same pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mu: float, alpha: float, rule: Rule) -> Tensor:
        flat = x.contiguous().view(-1)
        out = torch.empty_like(flat)
        slope = torch.empty_like(flat) if ctx.needs_input_grad[0] else None
        factor, half = (1.0 - alpha) ** 2, 0.5 * (1.0 + alpha)
        for at in range(0, flat.numel(), _BLOCK):
            part = flat[at : at + _BLOCK]
            t = part.square().mul_(factor).add_(mu * mu)
            if slope is None:
                found = rule.root(t)
            else:
                found, change = rule.root_and_slope(t) or _differentiated(rule, t)
                slope[at : at + _BLOCK] = change.mul_(part).mul_(factor).add_(half)
            torch.mul(found, 0.5, out=out[at : at + _BLOCK])
        out.add_(flat, alpha=half)
        if slope is not None:
            ctx.save_for_backward(slope.view(x.shape))
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None, None


def _differentiated(rule: Rule, t: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(t) and its derivative, where a rule leaves the latter to torch."""
    with torch.enable_grad():
        t.requires_grad_()
        found = rule.root(t)
        (slope,) = torch.autograd.grad(found.sum(), t)
    return found.detach(), slope


def rounded_smu(x: Tensor, mu: float, alpha: float, rule: Rule) -> Tensor:
    """smu by the rule, t rounded at random to one of its two neighbours, as the parties round it. Not for training."""
    t = torch.floor(((1.0 - alpha) ** 2 * x * x + mu * mu) / rule.unit + torch.rand_like(x)) * rule.unit
    return 0.5 * (1.0 + alpha) * x + 0.5 * rule.root(t)


def smu(x: Tensor, mu: float | Tensor, alpha: float | Tensor = 0.0, rule: Rule | None = None) -> Tensor:
    """The smooth maximum unit, exact or by a rule for t = φ·x² + μ². μ and α learn from either."""
    learnt = isinstance(mu, Tensor) or isinstance(alpha, Tensor)
    if rule is not None and not learnt:
        by_rule: Tensor = _SmuByRule.apply(x, mu, alpha, rule)
        return by_rule
    if rule is None and not learnt and mu == 0.0:
        return F.leaky_relu(x, float(alpha))
    t = (1.0 - alpha) ** 2 * x * x + mu * mu
    found = torch.sqrt(t) if rule is None else rule.root(t)
    return 0.5 * (1.0 + alpha) * x + 0.5 * found


def fitted_neurons(h: Tensor, scale: Tensor, coefficients: Tensor) -> Tensor:
    """s·Σ c_k·(h/s)^k, every neuron's own (`models.fitted.numbers`)."""
    x, powers = h / scale, coefficients.unbind(-1)
    found = powers[-1].expand_as(x)
    for coefficient in reversed(powers[:-1]):
        found = found * x + coefficient
    return found * scale


def fitted_weights(z: Tensor, scores: Tensor, bias: Tensor | None) -> Tensor:
    """(((z + b)/2)² + g)² of soft cosines (batch, heads, n, n), with every head's b/a and g/(2a)², as they act; or the
    square of that and h/(2a)⁴."""
    a, b, *offsets = scores[:, :, None, None].unbind(1)
    shift = b / a if bias is None else b / a + bias
    r, unit = (0.5 * (z + shift.clamp(-1.0, 1.0))).square(), 4.0 * a.square()
    for offset in offsets:
        r = (r + (offset / unit).clamp(-LARGEST_OFFSET, LARGEST_OFFSET)).square()
        unit = unit.square()
    return r
