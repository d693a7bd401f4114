#include "ring/matmul.hpp"

#include <algorithm>

namespace comet::ring {

namespace {

// out = x·y with y k×n. Rows of y are reused from cache by all rows of x within a block of k.
void portable_plain(const u64 *x, const u64 *y, u64 *out, MatmulShape s) {
    constexpr size_t block_k = 64, block_n = 512;
    std::fill_n(out, s.m * s.n, u64{0});
    for (size_t j0 = 0; j0 < s.n; j0 += block_n) {
        const size_t nc = std::min(block_n, s.n - j0);
        for (size_t k0 = 0; k0 < s.k; k0 += block_k) {
            const size_t k1 = std::min(k0 + block_k, s.k);
            for (size_t i = 0; i < s.m; ++i) {
                u64 *__restrict row = out + i * s.n + j0;
                for (size_t k = k0; k < k1; ++k) {
                    const u64 factor = x[i * s.k + k];
                    const u64 *__restrict right = y + k * s.n + j0;
                    for (size_t j = 0; j < nc; ++j) row[j] += factor * right[j];
                }
            }
        }
    }
}

// out = x·yᵀ with y n×k: dot products of rows. Signed entries extend to 64 bits, which is their value mod 2^64.
template <class Right> void portable_transposed(const u64 *x, const Right *y, u64 *out, MatmulShape s) {
    constexpr size_t block_n = 32;
    for (size_t j0 = 0; j0 < s.n; j0 += block_n) {
        const size_t j1 = std::min(j0 + block_n, s.n);
        for (size_t i = 0; i < s.m; ++i) {
            const u64 *left = x + i * s.k;
            for (size_t j = j0; j < j1; ++j) {
                const Right *right = y + j * s.k;
                u64 sum = 0;
                for (size_t k = 0; k < s.k; ++k) sum += left[k] * static_cast<u64>(right[k]);
                out[i * s.n + j] = sum;
            }
        }
    }
}

void matmul_portable(span<const u64> x, span<const u64> y, span<u64> out, MatmulShape s, bool transposed, unsigned) {
    transposed ? portable_transposed(x.data(), y.data(), out.data(), s)
               : portable_plain(x.data(), y.data(), out.data(), s);
}

void matmul_int32_portable(span<const u64> x, span<const i32> w, span<u64> out, MatmulShape s, unsigned) {
    portable_transposed(x.data(), w.data(), out.data(), s);
}

constexpr Dispatch plain{Variant{Isa::portable, matmul_portable}, Variant{Isa::avx2, matmul_avx2}};
constexpr Dispatch narrow{Variant{Isa::portable, matmul_int32_portable}, Variant{Isa::avx2, matmul_int32_avx2}};

void reduce(span<u64> out, unsigned width) {
    if (width == 64) return;
    const u64 mask = low_mask(width);
    for (u64 &word : out) word &= mask;
}

} // namespace

void matmul(span<const u64> x, span<const u64> y, span<u64> out, MatmulShape s, bool transposed, unsigned width,
            Isa isa) {
    plain[isa](x, y, out, s, transposed, width);
    reduce(out, width);
}

void matmul_int32(span<const u64> x, span<const i32> w, span<u64> out, MatmulShape s, unsigned width, Isa isa) {
    narrow[isa](x, w, out, s, width);
    reduce(out, width);
}

} // namespace comet::ring
