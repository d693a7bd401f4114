// Sums of products in 16 lanes of 32 bits: the two components of a ciphertext side by side.

#include "rlwe/transform_avx512.hpp"

#if COMET_X86
#pragma GCC diagnostic ignored "-Wuninitialized" // GCC 12's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <algorithm>
#include <immintrin.h>

namespace comet::rlwe::avx512 {

namespace {

using Vec = __m512i;
using Half = __m256i;

COMET_AVX512 COMET_INLINE Half half(const u32 *x) { return _mm256_loadu_si256(reinterpret_cast<const Half *>(x)); }
COMET_AVX512 COMET_INLINE Vec both(const u32 *x, const u32 *y) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(x)), half(y), 1);
}
COMET_AVX512 COMET_INLINE Vec broadcast(u32 x) { return _mm512_set1_epi32(static_cast<int>(x)); }
COMET_AVX512 COMET_INLINE Vec lesser(Vec x, Vec y) { return _mm512_min_epu32(x, y); }
COMET_AVX512 COMET_INLINE Vec sub(Vec x, Vec y) { return _mm512_sub_epi32(x, y); }
COMET_AVX512 COMET_INLINE Vec odd(Vec x) { return _mm512_srli_epi64(x, 32); }

// x, but in the lanes of the mask what `order` takes from y: 0xA0 its even lanes, twice each, 0xF5 the odd ones.
template <int order> COMET_AVX512 COMET_INLINE Vec spread(Vec x, __mmask16 mask, Vec y) {
    return _mm512_mask_shuffle_epi32(x, mask, y, static_cast<_MM_PERM_ENUM>(order));
}

constexpr __mmask16 odd_lanes = 0xAAAA, even_lanes = 0x5555;

struct Sum {
    Vec even, odd;
};

// As in transform.cpp.
COMET_AVX512 COMET_INLINE Vec reduce_sum(Sum s, Vec q, Vec inverse) {
    const Vec q2 = _mm512_add_epi32(q, q);
    const Vec low = spread<0xA0>(s.even, odd_lanes, s.odd);
    Vec high = spread<0xF5>(s.odd, even_lanes, s.even);
    high = lesser(high, sub(high, q2));
    high = lesser(high, sub(high, q2));
    high = lesser(high, sub(high, q));
    const Vec quotient = _mm512_mullo_epi32(low, inverse);
    const Vec even_part = _mm512_mul_epu32(quotient, q), odd_part = _mm512_mul_epu32(odd(quotient), q);
    const Vec carried = spread<0xF5>(odd_part, even_lanes, even_part);
    const Vec rest = _mm512_add_epi32(sub(high, carried), q);
    return lesser(rest, sub(rest, q));
}

// One row. Of the right factors the odd lanes are read from one element further on: one beyond the last is read.
template <size_t sets, bool fresh, bool adjacent>
COMET_AVX512 COMET_INLINE void one_row(const u32 *left, const Left &x, const u32 *right, size_t terms, Vec q,
                                       Vec inverse, u32 *const *acc, size_t place, size_t component) {
    Sum sum[sets];
    for (Sum &s : sum) s = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t k = 0; k < terms; ++k, left += x.term, right += sets * lanes) {
        const Vec factor = adjacent ? _mm512_loadu_si512(left) : both(left, left + x.component), next = odd(factor);
        for (size_t s = 0; s < sets; ++s) {
            const Vec even = _mm512_broadcast_i64x4(half(right + s * lanes));
            const Vec further = _mm512_broadcast_i64x4(half(right + s * lanes + 1));
            sum[s].even = _mm512_add_epi64(sum[s].even, _mm512_mul_epu32(factor, even));
            sum[s].odd = _mm512_add_epi64(sum[s].odd, _mm512_mul_epu32(next, further));
        }
    }
    for (size_t s = 0; s < sets; ++s) {
        u32 *c0 = acc[s] + place, *c1 = c0 + component;
        Vec total = reduce_sum(sum[s], q, inverse);
        if (!fresh) {
            total = _mm512_add_epi32(total, both(c0, c1));
            total = lesser(total, sub(total, q));
        }
        _mm256_storeu_si256(reinterpret_cast<Half *>(c0), _mm512_castsi512_si256(total));
        _mm256_storeu_si256(reinterpret_cast<Half *>(c1), _mm512_extracti64x4_epi64(total, 1));
    }
}

template <size_t sets, bool fresh, bool adjacent>
COMET_AVX512 COMET_INLINE void all_rows(const Prime &p, Left x, Right y, size_t terms, size_t count, u32 *const *acc,
                                        size_t component) {
    const Vec q = broadcast(p.q), inverse = broadcast(p.inverse);
    const u32 *left = x.data, *right = y.data;
    for (size_t row = 0; row + 1 < count; ++row, left += x.row, right += y.row)
        one_row<sets, fresh, adjacent>(left, x, right, terms, q, inverse, acc, row * lanes, component);
    u32 last[fold * sets * lanes + 1]; // nothing need be readable behind the factors
    std::copy_n(right, terms * sets * lanes, last);
    last[terms * sets * lanes] = 0;
    one_row<sets, fresh, adjacent>(left, x, last, terms, q, inverse, acc, (count - 1) * lanes, component);
}

} // namespace

template <size_t sets, bool fresh>
COMET_AVX512 void multiply_add_kernel(const Prime &p, Left x, Right y, size_t terms, size_t count, u32 *const *acc,
                                      size_t component) {
    x.component == lanes ? all_rows<sets, fresh, true>(p, x, y, terms, count, acc, component)
                         : all_rows<sets, fresh, false>(p, x, y, terms, count, acc, component);
}

template void multiply_add_kernel<1, false>(const Prime &, Left, Right, size_t, size_t, u32 *const *, size_t);
template void multiply_add_kernel<1, true>(const Prime &, Left, Right, size_t, size_t, u32 *const *, size_t);
template void multiply_add_kernel<2, false>(const Prime &, Left, Right, size_t, size_t, u32 *const *, size_t);
template void multiply_add_kernel<2, true>(const Prime &, Left, Right, size_t, size_t, u32 *const *, size_t);
template void multiply_add_kernel<wide, false>(const Prime &, Left, Right, size_t, size_t, u32 *const *, size_t);
template void multiply_add_kernel<wide, true>(const Prime &, Left, Right, size_t, size_t, u32 *const *, size_t);

} // namespace comet::rlwe::avx512
#endif
