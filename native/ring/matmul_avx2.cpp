// Products mod 2^64 from 32-bit multiplications.
//
// Write x = xl + 2^32·xh with xl the low half as a *signed* number (so xh absorbs a carry), and y likewise. Then
//     x·y = xl·yl + 2^32·(xh·yl + xl·yh)  mod 2^64,
// and the bracket is needed mod 2^32 only: it is summed in 32-bit lanes, 8 to a register, while xl·yl is summed in
// 64-bit lanes, even and odd columns apart. 8 products take 4 multiplications; 3 if y fits into 32 signed bits
// (yh = 0), which is why the low half is signed; 1 if the result is wanted mod 2^32 only.
//
// Blocking: a panel of 8 columns and `block_k` rows of y stays in L1, the packed rows of x in L2.

#include "ring/matmul.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#if COMET_X86
#include <immintrin.h>
#endif

namespace comet::ring {

#if COMET_X86

namespace {

enum class Mode {
    full,  // 64-bit y
    int32, // y in 32 signed bits
    low32, // result mod 2^32
};

constexpr size_t block_k = 384;
constexpr size_t block_m = 128;
constexpr size_t columns = 8;

constexpr size_t rows_of(Mode mode) { return mode == Mode::low32 ? 6 : 4; }
constexpr size_t x_halves(Mode mode) { return mode == Mode::low32 ? 1 : 2; }
constexpr size_t y_halves(Mode mode) { return mode == Mode::full ? 2 : 1; }

struct Free {
    void operator()(i32 *pointer) const { std::free(pointer); }
};
using Buffer = std::unique_ptr<i32[], Free>;

Buffer aligned_buffer(size_t words) {
    const size_t bytes = (words * sizeof(i32) + 63) / 64 * 64;
    auto *pointer = static_cast<i32 *>(std::aligned_alloc(64, std::max<size_t>(bytes, 64)));
    if (pointer == nullptr) throw std::bad_alloc();
    return Buffer(pointer);
}

COMET_INLINE i32 low_half(u64 v) { return static_cast<i32>(static_cast<u32>(v)); }
COMET_INLINE i32 high_half(u64 v) { return static_cast<i32>(static_cast<u32>((v + 0x80000000u) >> 32)); }

// dst[k][half][row] for one group of `rows` rows of x.
template <Mode mode>
COMET_AVX2 void pack_left(const u64 *x, size_t stride, size_t rows, size_t kc, i32 *dst) {
    for (size_t k = 0; k < kc; ++k) {
        for (size_t r = 0; r < rows; ++r) {
            const u64 v = x[r * stride + k];
            *dst++ = low_half(v);
            if constexpr (mode != Mode::low32) *dst++ = high_half(v);
        }
    }
}

// dst[k][half][column] for one panel of up to 8 columns of y; missing columns are zero.
template <Mode mode, class Right, bool transposed>
COMET_AVX2 void pack_right(const Right *y, size_t stride, size_t nc, size_t kc, i32 *dst) {
    constexpr size_t step = columns * y_halves(mode);
    if (nc < columns) std::fill_n(dst, kc * step, 0);
    if constexpr (transposed) {
        for (size_t j = 0; j < nc; ++j) {
            const Right *row = y + j * stride;
            for (size_t k = 0; k < kc; ++k) {
                dst[k * step + j] = low_half(static_cast<u64>(row[k]));
                if constexpr (mode == Mode::full) dst[k * step + columns + j] = high_half(static_cast<u64>(row[k]));
            }
        }
    } else {
        for (size_t k = 0; k < kc; ++k) {
            const Right *row = y + k * stride;
            for (size_t j = 0; j < nc; ++j) {
                dst[k * step + j] = low_half(row[j]);
                if constexpr (mode == Mode::full) dst[k * step + columns + j] = high_half(row[j]);
            }
        }
    }
}

COMET_AVX2 COMET_INLINE void store(u64 *c, __m256i value, bool accumulate) {
    auto *p = reinterpret_cast<__m256i *>(c);
    if (accumulate) value = _mm256_add_epi64(value, _mm256_loadu_si256(p));
    _mm256_storeu_si256(p, value);
}

// c[rows][8] (+)= packed x · packed y
template <Mode mode, int rows>
COMET_AVX2 void micro_kernel(const i32 *x, const i32 *y, size_t kc, u64 *c, size_t stride, bool accumulate) {
    __m256i even[rows], odd[rows], cross[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) even[r] = odd[r] = cross[r] = _mm256_setzero_si256();
    for (size_t k = 0; k < kc; ++k) {
        const __m256i yl = _mm256_load_si256(reinterpret_cast<const __m256i *>(y));
        if constexpr (mode == Mode::low32) {
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
                cross[r] = _mm256_add_epi32(cross[r], _mm256_mullo_epi32(_mm256_set1_epi32(x[r]), yl));
        } else {
            const __m256i yo = _mm256_srli_epi64(yl, 32);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const __m256i xl = _mm256_set1_epi32(x[2 * r]);
                even[r] = _mm256_add_epi64(even[r], _mm256_mul_epi32(xl, yl));
                odd[r] = _mm256_add_epi64(odd[r], _mm256_mul_epi32(xl, yo));
                if constexpr (mode == Mode::full) {
                    const __m256i yh = _mm256_load_si256(reinterpret_cast<const __m256i *>(y + columns));
                    cross[r] = _mm256_add_epi32(cross[r], _mm256_mullo_epi32(xl, yh));
                }
                cross[r] = _mm256_add_epi32(cross[r], _mm256_mullo_epi32(_mm256_set1_epi32(x[2 * r + 1]), yl));
                // Without this the compiler keeps copies of the sums, and spills them.
                asm("" : "+x"(even[r]), "+x"(odd[r]), "+x"(cross[r]));
            }
        }
        x += rows * x_halves(mode);
        y += columns * y_halves(mode);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, c += stride) {
        if constexpr (mode == Mode::low32) {
            store(c, _mm256_cvtepu32_epi64(_mm256_castsi256_si128(cross[r])), accumulate);
            store(c + 4, _mm256_cvtepu32_epi64(_mm256_extracti128_si256(cross[r], 1)), accumulate);
        } else {
            const __m256i upper = _mm256_set1_epi64x(static_cast<long long>(0xffffffff00000000u));
            const __m256i e = _mm256_add_epi64(even[r], _mm256_slli_epi64(cross[r], 32));  // columns 0 2 4 6
            const __m256i o = _mm256_add_epi64(odd[r], _mm256_and_si256(cross[r], upper)); // columns 1 3 5 7
            const __m256i a = _mm256_unpacklo_epi64(e, o);                                 // columns 0 1 4 5
            const __m256i b = _mm256_unpackhi_epi64(e, o);                                 // columns 2 3 6 7
            store(c, _mm256_permute2x128_si256(a, b, 0x20), accumulate);
            store(c + 4, _mm256_permute2x128_si256(a, b, 0x31), accumulate);
        }
    }
}

template <Mode mode, int rows>
void any_rows(size_t count, const i32 *x, const i32 *y, size_t kc, u64 *c, size_t stride, bool accumulate) {
    if constexpr (rows > 1) {
        if (count < rows) return any_rows<mode, rows - 1>(count, x, y, kc, c, stride, accumulate);
    }
    micro_kernel<mode, rows>(x, y, kc, c, stride, accumulate);
}

// At the right edge of `out` a panel has fewer than 8 columns: compute it aside and copy what exists.
template <Mode mode>
void tile(size_t count, const i32 *x, const i32 *y, size_t kc, u64 *c, size_t stride, size_t nc, bool accumulate) {
    constexpr int rows = rows_of(mode);
    if (nc == columns) return any_rows<mode, rows>(count, x, y, kc, c, stride, accumulate);
    u64 aside[rows * columns];
    any_rows<mode, rows>(count, x, y, kc, aside, columns, false);
    for (size_t r = 0; r < count; ++r)
        for (size_t j = 0; j < nc; ++j)
            c[r * stride + j] = aside[r * columns + j] + (accumulate ? c[r * stride + j] : 0);
}

template <Mode mode, class Right, bool transposed>
void blocked(const u64 *x, const Right *y, u64 *out, MatmulShape s) {
    if (s.k == 0) std::fill_n(out, s.m * s.n, u64{0});
    constexpr size_t rows = rows_of(mode);
    const size_t max_k = std::min(block_k, s.k);
    const Buffer left = aligned_buffer(std::min(block_m, s.m) * max_k * x_halves(mode));
    const Buffer right = aligned_buffer(columns * max_k * y_halves(mode));
    for (size_t i0 = 0; i0 < s.m; i0 += block_m) {
        const size_t mc = std::min(block_m, s.m - i0);
        for (size_t k0 = 0; k0 < s.k; k0 += block_k) {
            const size_t kc = std::min(block_k, s.k - k0);
            for (size_t r = 0; r < mc; r += rows)
                pack_left<mode>(x + (i0 + r) * s.k + k0, s.k, std::min(rows, mc - r), kc,
                                left.get() + r * kc * x_halves(mode));
            for (size_t j0 = 0; j0 < s.n; j0 += columns) {
                const size_t nc = std::min(columns, s.n - j0);
                if constexpr (transposed) {
                    pack_right<mode, Right, true>(y + j0 * s.k + k0, s.k, nc, kc, right.get());
                } else {
                    pack_right<mode, Right, false>(y + k0 * s.n + j0, s.n, nc, kc, right.get());
                }
                for (size_t r = 0; r < mc; r += rows)
                    tile<mode>(std::min(rows, mc - r), left.get() + r * kc * x_halves(mode), right.get(), kc,
                               out + (i0 + r) * s.n + j0, s.n, nc, k0 > 0);
            }
        }
    }
}

} // namespace

void matmul_avx2(span<const u64> x, span<const u64> y, span<u64> out, MatmulShape s, bool transposed, unsigned width) {
    const auto multiply = width <= 32
                              ? (transposed ? blocked<Mode::low32, u64, true> : blocked<Mode::low32, u64, false>)
                              : (transposed ? blocked<Mode::full, u64, true> : blocked<Mode::full, u64, false>);
    multiply(x.data(), y.data(), out.data(), s);
}

void matmul_int32_avx2(span<const u64> x, span<const i32> w, span<u64> out, MatmulShape s, unsigned width) {
    const auto multiply = width <= 32 ? blocked<Mode::low32, i32, true> : blocked<Mode::int32, i32, true>;
    multiply(x.data(), w.data(), out.data(), s);
}

#else

// Never reached: isa.cpp offers AVX2 on x86-64 only.
void matmul_avx2(span<const u64>, span<const u64>, span<u64>, MatmulShape, bool, unsigned) { std::abort(); }
void matmul_int32_avx2(span<const u64>, span<const i32>, span<u64>, MatmulShape, unsigned) { std::abort(); }

#endif

} // namespace comet::ring
