#pragma once

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet::ring {

struct MatmulShape {
    size_t m, k, n;
};

/// out = x·y mod 2^width, row-major. x is m×k; y is k×n, or n×k if `transposed` (then out = x·yᵀ).
void matmul(span<const u64> x, span<const u64> y, span<u64> out, MatmulShape shape, bool transposed, unsigned width,
            Isa isa);

/// out = x·wᵀ mod 2^width with signed w, n×k.
void matmul_int32(span<const u64> x, span<const i32> w, span<u64> out, MatmulShape shape, unsigned width, Isa isa);

// The AVX2 implementations; they leave bits above `width` unspecified.
void matmul_avx2(span<const u64> x, span<const u64> y, span<u64> out, MatmulShape shape, bool transposed,
                 unsigned width);
void matmul_int32_avx2(span<const u64> x, span<const i32> w, span<u64> out, MatmulShape shape, unsigned width);

} // namespace comet::ring
