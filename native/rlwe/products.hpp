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

/// out = Σ_k x[k] · y[k], for ciphertexts x and polynomials y from `transform_plain`.
void multiply_plain(const Basis &basis, span<const span<const u32>> x, span<const span<const u32>> y, span<u32> out,
                    Isa isa);

} // namespace comet::rlwe
