#pragma once

// Ciphertexts times polynomials in the clear. Ciphertexts are transformed, [c0, c1][prime][8192].

#include "rlwe/basis.hpp"
#include "rlwe/transform.hpp"

namespace comet::rlwe {

struct ShortShape {
    size_t row_blocks, inputs, outputs, live;
    u32 divisor;
};

/// out[o][r] = Σ_i x[r][i] · y[o][i] / divisor mod q, for ciphertexts x, as [r][prime][row][i][c0, c1][8], and short
/// integer polynomials y[o][i][live].
void multiply_short(const Basis &basis, span<const u32> x, span<const i64> y, const ShortShape &shape, span<u32> out,
                    Isa isa);

struct TurnedShape {
    size_t row_blocks, inputs, outputs, live;
    unsigned levels, turns;
    size_t plain_limbs; // modulo later primes the ciphertexts that are not turned are zero
};

/// The first `turns` of `levels` merges of packing (packing.hpp), done in the products themselves: of 2^levels outputs,
/// or fewer, 2^(levels-turns) remain,
///
///     out[r][k] = Σ_m X^(m·d) · Σ_S s_S(Σ_i x[r][i]·y[k + m·d][i]),   d = 2^(levels-turns),  m < 2^turns,
///
/// where s_S are all products of the first automorphisms. With x[S] = s_S(x) in hand (`turn_all`) this is Σ_S,i x[S][i]
/// times s_S(w), w = Σ_m s_S^-1(X^(m·d))·y[k + m·d][i]. x is [r][prime][S][i][row][c0, c1][8] with a row
/// too many: polynomials at strides of whole pages would share a few sets of the caches. live is at most 512.
void multiply_turned(const Basis &basis, span<const u32> x, span<const i64> y, const TurnedShape &shape, span<u32> out,
                     Isa isa);

/// out = Σ_k x[k] · y[k], for ciphertexts x and polynomials y from `transform_plain`.
void multiply_plain(const Basis &basis, span<const span<const u32>> x, span<const span<const u32>> y, span<u32> out,
                    Isa isa);

} // namespace comet::rlwe
