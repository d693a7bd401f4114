"""Least squares of the parts of a layer. Rows come batch by batch; only sums over them are kept.

Regression   y ≈ W·x + b, W drawn to an old one
Polynomials  one for every neuron, near a function where the neuron's values are, and tame at its proved bound
fit_heads    attention weights ((z + b)² + g)² / Σ, or the square of that and h, near a softmax's,
             z = q·k/sqrt((|q|² + c)·(|k|² + c'))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comet_mpc.functions.weighing import LARGEST_OFFSET

_ROUNDS = 16
"""Of Gauss and Newton, for the numbers of heads."""
_NEVER_ZERO = 1e-30
_LEAST_WEIGHT = 1e-12


class Regression:
    """W and b with y ≈ W·x + b over weighted rows. Sums of a batch are in single precision, all others in double."""

    def __init__(self, old: Tensor) -> None:
        self.old, inputs = old.double(), old.shape[1]
        self.gram = torch.zeros(inputs + 1, inputs + 1, dtype=torch.double)
        self.right = torch.zeros(inputs + 1, old.shape[0], dtype=torch.double)
        self.rows = 0

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        extended = torch.cat([x, torch.ones(len(x), 1)], dim=1)
        weighted = (extended * weight[:, None]).T
        self.gram += (weighted @ extended).double()
        self.right += (weighted @ y).double()
        self.rows += len(x)

    def solve(self, ridge: float) -> tuple[Tensor, Tensor]:
        """ridge: rows that the old matrix counts for, at the mean square of what is multiplied with it."""
        total = self.gram[-1, -1]
        x_mean, y_mean = self.gram[:-1, -1] / total, self.right[-1] / total
        gram = self.gram[:-1, :-1] / total - torch.outer(x_mean, x_mean)
        right = self.right[:-1] / total - torch.outer(x_mean, y_mean)
        missing = right - gram @ self.old.T
        strength = ridge / self.rows * gram.diagonal().mean() + _NEVER_ZERO
        new = self.old + torch.linalg.solve(gram + strength * torch.eye(len(gram), dtype=gram.dtype), missing).T
        return new.float(), (y_mean - new @ x_mean).float()


class Polynomials:
    """s_j·Σ_k c_jk·(h_j/s_j)^k ≈ f(h_j) for every neuron j, s_j being its `scale`."""

    def __init__(self, scale: Tensor, degree: int) -> None:
        self.scale, self.degree = scale.double(), degree
        self.moments = torch.zeros(2 * degree + 1, len(scale), dtype=torch.double)
        self.products = torch.zeros(degree + 1, len(scale), dtype=torch.double)
        self.rows = 0

    def add(self, h: Tensor, wanted: Tensor) -> None:
        u, y = h.double() / self.scale, wanted.double() / self.scale
        power = torch.ones_like(u)
        for k in range(2 * self.degree + 1):
            self.moments[k] += power.sum(0)
            if k <= self.degree:
                self.products[k] += (power * y).sum(0)
            power *= u
        self.rows += len(h)

    def solve(self, bound: Tensor, guard: float) -> Tensor:
        """c, (neurons, degree + 1).

        guard: how much a row counts at each end of ±bound, where GeLU is 0 and the bound itself, relative to the
        bound's square
        """
        return _least(*self._equations(bound, guard))

    def _equations(self, bound: Tensor, guard: float) -> tuple[Tensor, Tensor]:
        """G and r of G·c = r."""
        moments, products = self.moments / self.rows, self.products / self.rows
        orders = range(self.degree + 1)
        gram = torch.stack([torch.stack([moments[i + j] for j in orders], -1) for i in orders], -2)
        right, top = products.T.clone(), bound.double() / self.scale
        weight = guard / top.square()
        for sign, value in ((1.0, top), (-1.0, torch.zeros_like(top))):
            powers = torch.stack([(sign * top) ** k for k in orders], -1)
            gram += weight[:, None, None] * powers[:, :, None] * powers[:, None, :]
            right += (weight * value)[:, None] * powers
        return gram, right

    def within(self, bound: Tensor, guard: float, shifted: float, middle: float) -> Tensor:
        """Quartics of which |δ| <= shifted·bound and |γ| <= middle, as the protocol takes them (`fitted.quartics`).

        For every c₄ of a row of candidates c₃ is held to what is allowed, then c₂, and the others are the nearest.
        """
        gram, right = self._equations(bound, guard)
        free, top = _least(gram, right), bound.double() / self.scale
        best, loss = free, torch.full((len(free),), torch.inf, dtype=torch.double)
        size = free[:, 4].abs().clamp_min(1e-12 * top**-3)
        sign = torch.where(free[:, 4] < 0.0, -1.0, 1.0).double()
        for times in (1.0, *(s * 2.0**e for s in (1.0, -1.0) for e in range(-5, 10))):
            c4 = times * sign * size
            c3 = _nearest(gram, right, {4: c4})[:, 3]
            limit = 4.0 * shifted * top * c4.abs()
            c3 = torch.minimum(torch.maximum(c3, -limit), limit)
            shift = c3 / (4.0 * c4)
            centre, reach = 6.0 * c4 * shift**2, 2.0 * middle * c4.abs() * (top - shift.abs()) ** 2
            c2 = _nearest(gram, right, {4: c4, 3: c3})[:, 2]
            c2 = torch.minimum(torch.maximum(c2, centre - reach), centre + reach)
            found = _nearest(gram, right, {4: c4, 3: c3, 2: c2})
            off = torch.einsum("nj,njk,nk->n", found, gram, found) - 2.0 * (found * right).sum(1)
            best, loss = torch.where((off < loss)[:, None], found, best), torch.minimum(loss, off)
        return best


def _nearest(gram: Tensor, right: Tensor, fixed: dict[int, Tensor]) -> Tensor:
    """G·c = r for the c that are not fixed."""
    c = torch.zeros_like(right)
    for k, value in fixed.items():
        c[:, k] = value
    others = [k for k in range(right.shape[1]) if k not in fixed]
    rest = right - torch.einsum("njk,nk->nj", gram, c)
    c[:, others] = _least(gram[:, others][:, :, others], rest[:, others])
    return c


def _least(gram: Tensor, right: Tensor) -> Tensor:
    size = gram.diagonal(dim1=1, dim2=2).clamp_min(_NEVER_ZERO).sqrt()
    even = gram / size[:, :, None] / size[:, None, :] + 1e-10 * torch.eye(gram.shape[-1], dtype=gram.dtype)
    return torch.linalg.solve(even, (right / size)[..., None])[..., 0] / size


@dataclass(frozen=True)
class Heads:
    """Numbers of a layer's heads, (heads,) each."""

    shift: Tensor
    """b"""
    offsets: Tensor
    """(heads, squares): what is added after every square but the last"""
    query_softness: Tensor
    key_softness: Tensor
    usual: Tensor
    """z + b where softmax puts its weight, to begin with."""

    def stacked(self) -> Tensor:
        logs = [softness.clamp_min(_NEVER_ZERO).log() for softness in (self.query_softness, self.key_softness)]
        return torch.stack([self.shift, *logs, *self.offsets.unbind(-1)], dim=-1).double()


@dataclass(frozen=True)
class Attended:
    """A batch at one layer: the queries, keys and values that it has, and the weights that it should get."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    """Added to z."""
    wanted: Tensor
    tokens: Tensor
    """(batch, n): 1, or 0 where there is padding."""


@dataclass(frozen=True)
class Limits:
    """What is allowed of `Heads.stacked`."""

    low: Tensor
    high: Tensor

    @staticmethod
    def of(start: Heads, query_softness: tuple[Tensor, Tensor], key_softness: tuple[Tensor, Tensor]) -> Limits:
        """The lowest and the highest softness; |b| and what is added to squares are at most 1.

        No softer than the start, and neither b nor what is added much less: a head's weights would be so small beside
        the largest possible that the protocol could not divide by their sum (`first_heads`).
        """
        q_low, k_low = query_softness[0], key_softness[0]
        ones, room = torch.ones_like(start.shift), 0.25 * start.usual
        q_top, k_top = (
            torch.maximum(torch.minimum(high, soft), low)
            for soft, (low, high) in ((start.query_softness, query_softness), (start.key_softness, key_softness))
        )
        squares = range(start.offsets.shape[-1])
        most = [LARGEST_OFFSET * 4.0 ** (2**i) * ones for i in squares]
        least = [-(start.usual ** (2 ** (i + 1) - 1)) * room for i in squares]
        low = [(start.shift - room).clamp(-1.0, 1.0), q_low.log(), k_low.log(), *least]
        high = [ones, q_top.log(), k_top.log(), *most]
        return Limits(*(torch.stack([n.double() for n in each], dim=-1) for each in (low, high)))


def fit_heads(batches: Sequence[Attended], start: Heads, limits: Limits) -> Heads:
    """Gauss–Newton with damping, every head by itself, for what the heads average."""
    numbers = start.stacked().clamp(limits.low, limits.high)
    damping = torch.full((len(numbers),), 1e-2, dtype=torch.double)
    loss, gram, slope = _linearised(batches, numbers)
    for _ in range(_ROUNDS):
        diagonal = torch.diag_embed(damping[:, None] * gram.diagonal(dim1=1, dim2=2) + _NEVER_ZERO)
        step = torch.linalg.solve(gram + diagonal, slope[..., None])[..., 0].clamp(-1.0, 1.0)
        tried = (numbers - step).clamp(limits.low, limits.high)
        found = _linearised(batches, tried)
        better = found[0] < loss
        numbers = torch.where(better[:, None], tried, numbers)
        loss = torch.where(better, found[0], loss)
        gram = torch.where(better[:, None, None], found[1], gram)
        slope = torch.where(better[:, None], found[2], slope)
        damping = torch.where(better, damping * 0.3, damping * 5.0)
    shift, query, key, *offsets = numbers.float().unbind(-1)
    return Heads(shift, torch.stack(offsets, dim=-1), query.exp(), key.exp(), start.usual)


def _linearised(batches: Sequence[Attended], numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every head: the sum of squares that are left, JᵀJ and Jᵀr, r being what the averages of values are off by."""
    heads, count = numbers.shape
    loss, gram, slope = (torch.zeros(heads, *shape, dtype=torch.double) for shape in ((), (count, count), (count,)))
    shift, query, key, *offsets = (n[:, None, None] for n in numbers.float().unbind(-1))
    for batch in batches:
        rows = batch.tokens[:, None, :, None].float()
        q2, k2 = batch.q.square().sum(-1, keepdim=True), batch.k.square().sum(-1, keepdim=True)
        q_part, k_part = query.exp() / (q2 + query.exp()), (key.exp() / (k2 + key.exp())).transpose(-1, -2)
        unit_q, unit_k = batch.q * torch.rsqrt(q2 + query.exp()), batch.k * torch.rsqrt(k2 + key.exp())
        z = unit_q @ unit_k.transpose(-1, -2)
        u = z + shift if batch.bias is None else z + (batch.bias + shift).clamp(-1.0, 1.0)
        columns = batch.tokens[:, None, None, :].float()
        r, changes = u, [torch.ones_like(u)]
        for offset in offsets:
            changes = [*(2.0 * r * change for change in changes), torch.ones_like(u)]
            r = r.square() + offset
        total = (r.square() * columns).sum(-1, keepdim=True) + _LEAST_WEIGHT
        weights = r.square() * columns / total
        steep, *others = (2.0 * r * change * columns / total for change in changes)
        changes = [steep, -0.5 * steep * z * q_part, -0.5 * steep * z * k_part, *others]
        off = ((weights - batch.wanted) @ batch.v) * rows
        moved = [((c - weights * c.sum(-1, keepdim=True)) @ batch.v) * rows for c in changes]
        jacobian = torch.stack([m.transpose(0, 1).flatten(1) for m in moved], dim=1)
        residual = off.transpose(0, 1).flatten(1)
        loss += residual.square().sum(1).double()
        gram += (jacobian @ jacobian.transpose(1, 2)).double()
        slope += (jacobian @ residual[..., None])[..., 0].double()
    return loss, gram, slope


def first_heads(batches: Sequence[Attended], power: int, softness: float, least: float) -> Heads:
    """(z + b)^power near the softmax of q·k/√d, c being so many times the mean of |q|², and c' of |k|².

    Or fewer times, so that z + b is usually not below `least`: it is power·√d over the lengths that are divided by.
    """
    count = sum(float(batch.tokens.sum()) for batch in batches)

    def mean_square(part: str) -> Tensor:
        sums = [(getattr(b, part).square().sum(-1) * b.tokens[:, None, :]).sum((0, 2)) for b in batches]
        return torch.stack(sums).sum(0) / count

    query, key = mean_square("q"), mean_square("k")
    steepest = power * math.sqrt(batches[0].q.shape[-1]) / torch.sqrt(query * key)
    soft = (steepest / least - 1.0).clamp(1e-3, softness)
    usual = (steepest / (1.0 + soft)).clamp_min(least)
    length = torch.sqrt(query * key) * (1.0 + soft)
    centre = torch.zeros(len(query))
    for b in batches:  # where the softmax puts its weight
        scores = (b.q @ b.k.transpose(-1, -2) * b.wanted).sum(-1) * b.tokens[:, None, :]
        centre = centre + scores.sum((0, 2)) / (count * length)
    offsets = torch.zeros(len(query), power.bit_length() - 2)
    return Heads((usual - centre).clamp(-1.0, 1.0), offsets, soft * query, soft * key, usual)
