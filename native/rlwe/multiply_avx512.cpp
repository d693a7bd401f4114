// What takes 16 lanes of 32 bits: sums of products, with the two components of a ciphertext side by side, and what is
// done to coefficients in order. The kernels are those of transform_kernels.inc, with the same results.

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

COMET_AVX512 COMET_INLINE Vec load(const u32 *x) { return _mm512_loadu_si512(x); }
COMET_AVX512 COMET_INLINE void store(u32 *x, Vec v) { _mm512_storeu_si512(x, v); }
COMET_AVX512 COMET_INLINE Vec add(Vec x, Vec y) { return _mm512_add_epi32(x, y); }
constexpr size_t many = 16;

// x·w/2^32 mod q below 2q, for any x; w and its companion are the same in all lanes.
COMET_AVX512 COMET_INLINE Vec multiply(Vec x, Vec w, Vec companion, Vec q) {
    const Vec quotient = _mm512_mullo_epi32(x, companion);
    const Vec even_part = _mm512_add_epi64(_mm512_mul_epu32(x, w), _mm512_mul_epu32(quotient, q));
    const Vec odd_part = _mm512_add_epi64(_mm512_mul_epu32(odd(x), w), _mm512_mul_epu32(odd(quotient), q));
    return spread<0xF5>(odd_part, even_lanes, even_part);
}

} // namespace

COMET_AVX512 void shift_kernel(const Prime &p, const u32 *x, const u32 *y, size_t distance, u32 *sum, u32 *difference) {
    const Vec q = broadcast(p.q);
    for (size_t j = 0; j < distance; ++j) {
        const u32 left = x[j], right = y[j + degree - distance];
        sum[j] = p.minus(left, right);
        difference[j] = p.plus(left, right);
    }
    size_t j = distance;
    for (; j + many <= degree; j += many) {
        const Vec left = load(x + j), right = load(y + j - distance);
        const Vec plus = add(left, right), minus = sub(left, right);
        store(sum + j, lesser(plus, sub(plus, q)));
        store(difference + j, lesser(minus, add(minus, q)));
    }
    for (; j < degree; ++j) {
        const u32 left = x[j], right = y[j - distance];
        sum[j] = p.plus(left, right);
        difference[j] = p.minus(left, right);
    }
}

COMET_AVX512 void turn_kernel(const Prime &p, const u32 *in, size_t distance, u32 *out) {
    const Vec q = broadcast(p.q);
    const size_t count = degree / distance;
    const auto taken = [&](const Vec *x, size_t i) COMET_AVX512 {
        const Vec value = x[i & (count - 1)];
        return i & count ? sub(q, value) : value;
    };
    Vec x[64], y[64];
    for (size_t b = 0; b < distance; b += many) {
        for (size_t i = 0; i < count; ++i) x[i] = load(in + b + i * distance);
        for (size_t i = 0; i < count; ++i) y[i] = _mm512_mask_blend_epi32(0xAAAA, taken(x, i - b), taken(x, i - b - 1));
        for (size_t i = 0; i < count; ++i) x[i] = _mm512_mask_blend_epi32(0xCCCC, y[i], taken(y, i - 2));
        for (size_t i = 0; i < count; ++i) y[i] = _mm512_mask_blend_epi32(0xF0F0, x[i], taken(x, i - 4));
        for (size_t i = 0; i < count; ++i)
            store(out + b + i * distance, _mm512_mask_blend_epi32(0xFF00, y[i], taken(y, i - 8)));
    }
}

COMET_AVX512 void divide_kernel(const Prime &p, u32 special, u32 inverse, const u32 *x, const u32 *rest,
                                const u32 *more, u32 *out) {
    const Vec q = broadcast(p.q), wrap = broadcast(p.q - special), half_way = broadcast(special / 2);
    const Vec factor = broadcast(inverse), companion = broadcast(p.companion(inverse));
    for (size_t j = 0; j < degree; j += many) {
        const Vec r = load(rest + j);
        const Vec over = _mm512_mask_add_epi32(r, _mm512_cmpgt_epu32_mask(r, half_way), r, wrap);
        const Vec difference = sub(load(x + j), over);
        Vec sum = multiply(lesser(difference, add(difference, q)), factor, companion, q);
        sum = add(lesser(sum, sub(sum, q)), load(out + j));
        sum = lesser(sum, sub(sum, q));
        if (more) {
            sum = add(sum, load(more + j));
            sum = lesser(sum, sub(sum, q));
        }
        store(out + j, sum);
    }
}

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
