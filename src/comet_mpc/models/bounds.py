"""What a Transformer's weights prove about its values, for every input whatsoever.

Everything follows from one fact. LayerNorm gives γ⊙n + β with Σn = 0 and ‖n‖ <= √d, whatever came before. So

    |w·(γ⊙n + β) + b|    <= ‖C(γ⊙w)‖·√d + |w·β + b|              C z = z - mean(z): n does not see a constant
    ‖W·(γ⊙n + β) + b‖    <= σ(W·diag(γ)·C)·√d + ‖W·β + b‖         σ: the largest singular value

Attention averages value rows, so each head's part of its output is bounded by its worst row. An activation's slope is
between 0 and 1 (smu with 0 <= α <= 1), so the feed-forward block is a linear map W₂·D·W₁ with a diagonal D of such
numbers, around its value for n = 0. With D = ½ + ½·S and |S| <= 1,

    σ(W₂·D·W₁) <= ½·σ(W₂·W₁) + ½·σ(W₂)·σ(W₁).

The steps that the protocol takes err a little, and fixed point rounds; `SLACK` stands for the relative error of a
LayerNorm's result, and the errors of approximate activations and of attention's weights are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ShapeError

Tensors = Mapping[str, npt.NDArray[np.float32]]

SLACK = 2.0**-8
"""A LayerNorm by its rule, in fixed point, is at most so much longer than √d, relatively."""


LEAST_BOUND = 2.0**-20
"""What is divided by its bound has one of at least this: a neuron or a head of zeros stays what it is."""


class Weights:
    """Tensors by name, in double precision."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Reals:
        return self._tensors[name].astype(np.float64)

    def pair(self, name: str) -> tuple[Reals, Reals]:
        return self[f"{name}.weight"], self[f"{name}.bias"]

    def before(self, layer: int) -> tuple[Reals, Reals]:
        """γ and β of the LayerNorm whose output the layer reads."""
        return self.pair(norm_before(layer))


def norm_before(layer: int) -> str:
    """The LayerNorm whose output the layer reads, or behind the last."""
    return f"layers.{layer - 1}.output_norm" if layer else "embeddings.norm"


def activation_bounds(w: Any, b: Any, gamma: Any, beta: Any) -> Any:
    """B_j = ‖C(γ⊙w_j)‖·√d·(1 + SLACK) + |w_j·β + b_j|, so that |w_j·x + b_j| <= B_j for every LayerNorm's output x.
    Never below `LEAST_BOUND`.

    Takes numpy arrays or torch tensors (with gradients): the one formula for training and serving.
    """
    scaled = w * gamma
    centred = scaled - scaled.mean(axis=-1, keepdims=True)
    size = math.sqrt(w.shape[-1]) * (1.0 + SLACK)
    return ((centred**2).sum(axis=-1) ** 0.5 * size + abs(w @ beta + b)).clip(LEAST_BOUND)


def longest_row(size: int) -> float:
    """‖n‖ of a LayerNorm's result, by its rule and in fixed point."""
    return math.sqrt(size) * (1.0 + SLACK)


def _centred(matrix: Reals, axis: int) -> Reals:
    return np.asarray(matrix - matrix.mean(axis=axis, keepdims=True))


def sigma(matrix: Reals) -> float:
    """The largest singular value, from the smaller of the two Gram matrices, rounded up."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1]))) * (1.0 + 1e-9)


def _sigma_of_product(left: Reals, right: Reals) -> float:
    """The same of left·right, which has many more rows and columns than there are in between.

    With left = Q·R and rightᵀ = Q'·R', both Q orthonormal, it is that of R·R'ᵀ.
    """
    if left.shape[1] >= min(left.shape[0], right.shape[1]):
        return sigma(left @ right)
    first, second = (np.asarray(np.linalg.qr(each, mode="r")) for each in (left, right.T))
    return sigma(first @ second.T)


def head_bounds(w: Reals, b: Reals, gamma: Reals, beta: Reals, heads: int) -> Reals:
    """‖q‖ per head: σ(W_h·diag(γ)·C)·√d·(1 + SLACK) + ‖W_h·β + b_h‖. Shape (heads,). The same for keys and values.
    Never below `LEAST_BOUND`."""
    if w.shape[0] % heads:
        raise ShapeError(f"{w.shape[0]} rows do not divide into {heads} heads")
    size = math.sqrt(w.shape[1]) * (1.0 + SLACK)
    blocks = np.split(w, heads), np.split(b, heads)
    return np.array(
        [
            sigma(_centred(part * gamma, 1)) * size + float(np.linalg.norm(part @ beta + shift))
            for part, shift in zip(*blocks, strict=True)
        ]
    ).clip(LEAST_BOUND)


def embedding_norm_top(tables: list[Reals]) -> float:
    """Variance of a sum of one row of every table (words, positions, types): (Σ max ‖C row‖)²/d."""
    total = sum(float(np.max(np.linalg.norm(_centred(table, 1), axis=1))) for table in tables)
    return float(total**2 / tables[0].shape[1])


def image_norm(patches: Reals, positions: Reals) -> float:
    """‖C row‖ of [CLS], the first of the positions, and of every patch that there can be: of pixels in [0, 1]."""
    matrix, rows = _centred(patches, 0), _centred(positions, 1)
    middle = rows[1:] + 0.5 * matrix.sum(axis=1)  # of a grey image
    spread = 0.5 * math.sqrt(patches.shape[1]) * sigma(matrix)
    return float(max(np.linalg.norm(rows[0]), np.max(np.linalg.norm(middle, axis=1)) + spread))


def attention_norm_top(
    value: tuple[Reals, Reals],
    output: tuple[Reals, Reals],
    gamma: Reals,
    beta: Reals,
    heads: int,
    *,
    weight_error: float = 0.0,
) -> float:
    """Variance of x + W_o·(attention of x) + b_o, x = γ⊙n + β, or β - γ where a row is padding.

    Head h's part lies in the convex hull of O_h·(V_h·x_j + v_h) over the tokens j, times the sum of its weights, which
    is at most 1 + weight_error (and less where a denominator is below its interval).
    """
    (v, v_shift), (o, o_shift) = value, output
    d = len(gamma)
    size = math.sqrt(d) * (1.0 + SLACK)
    o = _centred(o, 0)
    real = sigma(_centred(_centred(np.diag(gamma), 0), 1)) * size + float(np.linalg.norm(_centred(beta + o_shift, 0)))
    spread = max(real, float(np.linalg.norm(_centred(beta + o_shift - gamma, 0))))
    return (spread + (1.0 + weight_error) * _heads_reach((v, v_shift), o, gamma, beta, heads)) ** 2 / d


def _heads_reach(value: tuple[Reals, Reals], output: Reals, gamma: Reals, beta: Reals, heads: int) -> float:
    """‖W_o·(attention of x)‖ at most, W_o centred, if weights add up to 1."""
    (v, v_shift), size = value, math.sqrt(len(gamma)) * (1.0 + SLACK)
    reach = 0.0
    for o_h, v_h, shift in zip(
        np.split(output, heads, axis=1), np.split(v, heads), np.split(v_shift, heads), strict=True
    ):
        reach += _sigma_of_product(o_h, _centred(v_h * gamma, 1)) * size
        reach += float(np.linalg.norm(o_h @ (v_h @ beta + shift)))
    return reach


def attention_step(
    value: tuple[Reals, Reals],
    output: tuple[Reals, Reals],
    gamma: Reals,
    beta: Reals,
    heads: int,
    *,
    weight_error: float = 0.0,
) -> float:
    """‖C(W_o·(attention of x) + b_o)‖, x = γ⊙n + β: what a pre-normalised block adds to its stream."""
    own = float(np.linalg.norm(_centred(output[1], 0)))
    return own + (1.0 + weight_error) * _heads_reach(value, _centred(output[0], 0), gamma, beta, heads)


def output_norm_top(
    up: tuple[Reals, Reals],
    down: tuple[Reals, Reals],
    gamma: Reals,
    beta: Reals,
    middle: Reals,
    *,
    activation_error: Reals | None = None,
    skips: bool = True,
) -> float:
    """Variance of x + W₂·f(W₁·x + b₁) + b₂, x = γ⊙n + β, for an f with slopes in [0, 1].

    middle            f(W₁·β + b₁): the activations for n = 0
    activation_error  |f̂ - f| per neuron, where f̂ is what the protocol computes
    skips             False: of the sum without x, as pre-normalised blocks add it to their stream
    """
    (w1, _), (w2, shift) = up, down
    d = len(gamma)
    size = math.sqrt(d) * (1.0 + SLACK)
    w1 = _centred(w1 * gamma, 1)
    w2 = _centred(w2, 0)
    # D commutes with a diagonal: balance rows of W₁ against columns of W₂ for a smaller product of norms.
    rows, columns = np.linalg.norm(w1, axis=1), np.linalg.norm(w2, axis=0)
    balance = np.sqrt(np.maximum(rows, 1e-12) / np.maximum(columns, 1e-12))
    mixed = sigma(w2 * balance) * sigma(w1 / balance[:, None])
    residual = _centred(_centred(np.diag(gamma), 0), 1) if skips else 0.0
    linear = sigma(residual + 0.5 * (w2 @ w1)) + 0.5 * mixed
    constant = float(np.linalg.norm(_centred((beta if skips else 0.0) + w2 @ middle + shift, 0)))
    if activation_error is not None:
        by_columns = float(columns @ activation_error)
        constant += min(by_columns, sigma(w2) * float(np.linalg.norm(activation_error)))
    return (linear * size + constant) ** 2 / d


def quadratic_norm_top(
    up: tuple[Reals, Reals],
    down: tuple[Reals, Reals],
    gamma: Reals,
    beta: Reals,
    polynomials: tuple[Reals, Reals, Reals],
    *,
    activation_error: Reals,
    skips: bool = True,
) -> float:
    """The same for neurons f_j(h) = c₀ + c₁·h + c₂·h², `polynomials`: c₀, c₁ and c₂.

    With h₀ = W₁·β + b₁ and x = W₁·γ⊙n, f(h₀ + x) = f(h₀) + f'(h₀)·x + c₂·x², exactly. So the sum has a constant part, a
    linear map of n, and W₂·(c₂ ⊙ x²), which is linear in n⊗n. That is |n|²/(d-1) times the identity, whose part is one
    vector, and a rest without a trace, no longer than |n|². The rest's part is bounded by the largest singular value of
    the map from n⊗n, or by |x_j| <= its bound and the matrices' own singular values, whichever is less.
    """
    (w1, b1), (w2, shift), (c0, c1, c2) = up, down, polynomials
    d = len(gamma)
    size = math.sqrt(d) * (1.0 + SLACK)
    start = w1 @ beta + b1
    x, w2 = _centred(w1 * gamma, 1), _centred(w2, 0)
    lengths = np.linalg.norm(x, axis=1)
    residual = _centred(_centred(np.diag(gamma), 0), 1) if skips else 0.0
    linear = sigma(residual + (w2 * (c1 + 2.0 * c2 * start)) @ x)
    constant = _centred((beta if skips else 0.0) + w2 @ (c0 + c1 * start + c2 * start**2) + shift, 0)
    traced = constant + w2 @ (c2 * lengths**2) * (size**2 / (d - 1))
    curved = w2 * c2
    products = (x @ x.T) ** 2 - np.outer(lengths**2, lengths**2) / (d - 1)
    gram = curved @ products @ curved.T
    flat = math.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1]))) * (1.0 + 1e-6) * size**2
    spread, columns = np.abs(c2) * lengths * size, np.linalg.norm(w2, axis=0)
    balance = np.sqrt(np.maximum(lengths, 1e-12) / np.maximum(columns * spread, 1e-12))
    direct = sigma(w2 * (spread * balance)) * sigma(x / balance[:, None]) * size
    away = float(np.linalg.norm(w2 @ (c2 * lengths**2))) * (size**2 / (d - 1))
    rounding = min(float(columns @ activation_error), sigma(w2) * float(np.linalg.norm(activation_error)))
    with_trace = max(float(np.linalg.norm(constant)), float(np.linalg.norm(traced))) + flat
    without = float(np.linalg.norm(constant)) + min(direct, away + flat)
    return (min(with_trace, without) + linear * size + rounding) ** 2 / d


def polynomial_norm_top(
    up: tuple[Reals, Reals],
    down: tuple[Reals, Reals],
    gamma: Reals,
    beta: Reals,
    polynomials: tuple[Reals, ...],
    *,
    activation_error: Reals,
    skips: bool = True,
) -> float:
    """The same for polynomials of any degree, `polynomials`: c₀, c₁, …

    With h = h₀ + x, f is Σ d_k·x^k. Up to k = 2 that is a quadratic. Beyond, x_j^k is (s_j·√d)^k·⟨e_j, n/√d⟩^k, which
    is linear in the k-th tensor power of n/√d, no longer than 1; and ⟨e_i^⊗k, e_j^⊗k⟩ = ⟨e_i, e_j⟩^k for the directions
    e of the neurons. So W₂·(d_k ⊙ x^k) is no longer than the root of the largest eigenvalue of V·K·Vᵀ,
    V = W₂·diag(d_k·(s·√d)^k), K_ij = ⟨e_i, e_j⟩^k. Neurons of other directions are not at their bounds together.
    """
    (w1, b1), w2, d = up, down[0], len(gamma)
    start, x = w1 @ beta + b1, _centred(w1 * gamma, 1)
    moved = _about(polynomials, start)
    c0, c1, c2 = moved[:3]
    quadratic = c0 - c1 * start + c2 * start**2, c1 - 2.0 * c2 * start, c2
    lower = quadratic_norm_top(up, down, gamma, beta, quadratic, activation_error=activation_error, skips=skips)
    lengths = np.maximum(np.linalg.norm(x, axis=1), 1e-30)
    cosines = np.clip((x @ x.T) / np.outer(lengths, lengths), -1.0, 1.0)
    w2, reach, norm = _centred(w2, 0), lengths * math.sqrt(d) * (1.0 + SLACK), math.sqrt(lower * d)
    for k in range(3, len(moved)):
        scaled = w2 * (moved[k] * reach**k)
        gram = scaled @ cosines**k @ scaled.T
        norm += math.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1]))) * (1.0 + 1e-6)
    return norm**2 / d


def _about(polynomials: tuple[Reals, ...], start: Reals) -> list[Reals]:
    """Σ c_k·h^k in powers of h - start."""
    moved = [np.zeros_like(start) for _ in polynomials]
    for i, c in enumerate(polynomials):
        for k in range(i + 1):
            moved[k] = moved[k] + math.comb(i, k) * c * start ** (i - k)
    return moved


def state_top(gamma: Reals, beta: Reals) -> float:
    """Mean square of γ⊙n + β."""
    spread = sigma(_centred(np.diag(gamma), 1)) * math.sqrt(len(gamma)) * (1.0 + SLACK)
    return float((spread + float(np.linalg.norm(beta))) ** 2 / len(gamma))


def power_of_two_above(value: float) -> float:
    """A published top says no more about the weights than its order of magnitude."""
    return float(2.0 ** math.ceil(math.log2(value)))
