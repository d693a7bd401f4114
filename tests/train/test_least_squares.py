"""Least squares of the parts of a layer: they find what is there, and what they give is allowed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from torch.nn.functional import gelu  # noqa: E402

from comet_mpc.models.fitted.quartics import bent  # noqa: E402
from comet_mpc.train.fitting.layers import _balanced  # noqa: E402
from comet_mpc.train.fitting.least_squares import (  # noqa: E402
    Attended,
    Heads,
    Limits,
    Polynomials,
    Regression,
    first_heads,
    fit_heads,
)

pytestmark = pytest.mark.train


def test_a_regression_finds_the_map_and_keeps_the_old_one_where_rows_say_nothing() -> None:
    torch.manual_seed(0)
    wanted, shift, old = torch.randn(3, 6), torch.randn(3), torch.randn(3, 6)
    found = Regression(old)
    for _ in range(4):
        x = torch.randn(50, 6) + 2.0
        x[:, 5] = 0.0  # nobody knows what this one does
        found.add(x, x @ wanted.T + shift, torch.rand(50) + 0.5)
    weight, bias = found.solve(1e-3)
    torch.testing.assert_close(weight[:, :5], wanted[:, :5], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(weight[:, 5], old[:, 5])
    torch.testing.assert_close(bias, shift, atol=1e-2, rtol=1e-2)


def test_rows_count_by_their_weights() -> None:
    x, y = torch.tensor([[0.0], [1.0], [0.0], [1.0]]), torch.tensor([[0.0], [1.0], [0.0], [3.0]])
    found = Regression(torch.zeros(1, 1))
    found.add(x, y, torch.tensor([1.0, 3.0, 1.0, 1.0]))
    assert float(found.solve(0.0)[0]) == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize("degree", [2, 4])
def test_a_polynomial_is_the_nearest_and_a_guard_tames_it_at_the_bound(degree: int) -> None:
    torch.manual_seed(degree)
    h, scale = torch.randn(4000, 5) * torch.tensor([0.3, 0.5, 1.0, 2.0, 3.0]) - 0.5, torch.full((5,), 0.7)
    found = Polynomials(scale, degree)
    for part in h.split(1000):
        found.add(part, gelu(part))
    bound = 15.0 * h.std(0)

    def at(coefficients: Any, values: Any) -> Any:
        u = values.double() / scale.double()
        return sum(coefficients[:, k] * u**k for k in range(degree + 1)) * scale

    def error(coefficients: Any) -> Any:
        return (at(coefficients, h) - gelu(h)).square().mean(0)

    free, tame = found.solve(bound, 0.0), found.solve(bound, 0.1)
    for j in range(5):
        powers = torch.stack([h[:, j].double() ** k for k in range(degree + 1)], -1)
        best = torch.linalg.lstsq(powers, gelu(h[:, j]).double()[:, None]).solution
        nearest = (powers @ best - gelu(h[:, j])[:, None]).square().mean()
        assert float(error(free)[j]) == pytest.approx(float(nearest), rel=1e-3, abs=1e-7)
    off = [(at(coefficients, bound[None]) - bound).abs() for coefficients in (tame, free)]
    assert bool((off[0] < off[1]).all())
    assert bool((error(tame) >= error(free) * (1 - 1e-6)).all())


def test_a_quartic_within_limits_is_nearer_than_one_that_is_bent_afterwards() -> None:
    torch.manual_seed(5)
    h = torch.randn(4000, 40) * torch.linspace(0.3, 3.0, 40) - torch.linspace(0.0, 2.0, 40)
    scale, bound = h.std(0), 15.0 * h.std(0) + 2.0
    found = Polynomials(scale, 4)
    found.add(h, gelu(h))
    mended = torch.from_numpy(bent(found.solve(bound, 1e-4).numpy(), scale.double().numpy(), bound.double().numpy()))
    within = found.within(bound, 1e-4, 0.5, 1.0)
    gram, right = found._equations(bound, 1e-4)

    def off(c: Any) -> Any:
        return torch.einsum("nj,njk,nk->n", c, gram, c) - 2.0 * (c * right).sum(1)

    tight = found.within(bound, 1e-4, 0.02, 0.05)
    for c, shifted, most in ((within, 0.5, 1.0), (mended, 0.5, 1.0), (tight, 0.02, 0.05)):
        shift, reach = (c[:, 3] / (4.0 * c[:, 4])).abs(), bound.double() / scale
        middle = (c[:, 2] / c[:, 4] - 6.0 * shift**2).abs() / (2.0 * (reach - shift) ** 2)
        assert bool((shift <= shifted * reach * (1.0 + 1e-9)).all())
        assert bool((middle <= most + 1e-9).all())
    assert bool((off(within) <= off(mended) + 1e-9).all())


def test_balanced_queries_and_keys_give_the_same_scores_and_vary_alike() -> None:
    torch.manual_seed(6)
    q, k = (torch.randn(500, 6).double() @ torch.randn(6, 6).double() for _ in range(2))
    root, inverse = _balanced(q.T @ q / 500, k.T @ k / 500)
    torch.testing.assert_close((q @ root.T) @ (k @ inverse.T).T, q @ k.T)
    lengths = [float((z @ m.T).square().sum()) for z, m in ((q, root), (k, inverse))]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)
    assert sum(lengths) < 0.8 * float(q.square().sum() + k.square().sum())


def _attended(numbers: Heads, bias: Any | None, given: tuple[Any, Any, Any] | None = None) -> Attended:
    """What heads with these numbers give."""
    q, k, v = given or (torch.randn(6, 2, 9, 4), torch.randn(6, 2, 9, 4), torch.randn(6, 2, 9, 4))
    tokens = torch.ones(6, 9, dtype=torch.long)
    tokens[0, 5:] = 0
    unit_q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + numbers.query_softness[:, None, None])
    unit_k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + numbers.key_softness[:, None, None])
    z = unit_q @ unit_k.transpose(-1, -2) + numbers.shift[:, None, None] + (0.0 if bias is None else bias)
    for offset in numbers.offsets.unbind(-1):
        z = z.square() + offset[:, None, None]
    r = z.square() * tokens[:, None, None, :]
    return Attended(q, k, v, bias, r / r.sum(-1, keepdim=True), tokens)


@pytest.mark.parametrize("squares", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_heads_with_such_numbers_are_found_again(biased: bool, squares: int) -> None:
    torch.manual_seed(3)
    offsets = [[0.1, 0.2][:squares], [-0.05, 0.1][:squares]]
    wanted = Heads(*map(torch.tensor, ([0.4, -0.3], offsets, [3.0, 9.0], [5.0, 2.0], [1.0, 1.0])))
    bias = 0.2 * torch.randn(2, 9, 9) if biased else None
    batches = [_attended(wanted, bias) for _ in range(3)]
    limit = torch.full((2,), 0.1), torch.full((2,), 100.0)
    none = [[0.0] * squares] * 2
    start = Heads(*map(torch.tensor, ([0.3, -0.4], none, [8.0, 12.0], [8.0, 6.0], [2.0, 2.0])))
    found = fit_heads(batches, start, Limits.of(start, limit, limit))
    far, near = (
        max(float((_attended(n, bias, (b.q, b.k, b.v)).wanted - b.wanted).square().mean()) for b in batches)
        for n in (start, found)
    )
    assert near < 0.2 * far


@pytest.mark.parametrize("power", [4, 8])
def test_heads_stay_within_their_limits_and_come_nearer_to_a_softmax(power: int) -> None:
    torch.manual_seed(4)
    numbers = Heads(*map(torch.tensor, ([0.4, 0.3], [[0.1], [0.0]], [3.0, 9.0], [5.0, 2.0], [1.0, 1.0])))
    batch = _attended(numbers, None)
    scores = (batch.q @ batch.k.transpose(-1, -2)).masked_fill(batch.tokens[:, None, None, :] == 0, -torch.inf)
    batch = Attended(batch.q, batch.k, batch.v, None, torch.softmax(scores, -1), batch.tokens)
    low, high = torch.full((2,), 1.0), torch.full((2,), 20.0)
    start = first_heads([batch], power, 4.0, 0.16)
    assert bool((start.usual >= 0.16).all())
    found = fit_heads([batch], start, Limits.of(start, (low, high), (low, high)))
    assert bool((found.shift.abs() <= 1.0).all())
    assert bool((found.offsets.abs() <= torch.tensor([1.0, 4.0])[: power.bit_length() - 2]).all())
    for softness in (found.query_softness, found.key_softness):
        assert bool(((softness >= 0.999 * low) & (softness <= 1.001 * high)).all())
