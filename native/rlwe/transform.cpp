#include "rlwe/transform.hpp"

#include <algorithm>

#include "rlwe/transform_avx512.hpp"

#if COMET_X86
#include <immintrin.h>
#endif

namespace comet::rlwe {

namespace {

struct Kernels {
    using Forward = void (*)(const Prime &, u32 from, const u32 *in, u32 *work, u32 *out, size_t stride);
    using MultiplyAdd = void (*)(const Prime &, Left, Right, size_t terms, size_t count, u32 *const *acc,
                                 size_t component);

    Forward forward, forward_foreign;
    void (*forward_short)(const Prime &, const u32 *in, size_t live, size_t block, u32 *work, u32 *out, size_t stride);
    void (*forward_columns)(const Prime &, const u32 *in, const u32 *picked, size_t live, size_t block, u32 *work,
                            u32 *out, size_t stride);
    void (*backward)(const Prime &, u32 *in, size_t count, u32 *out);
    void (*fold)(const Prime &, u32 *in, size_t count);
    MultiplyAdd multiply_add[3][2]; // [one set, two, `wide`][add, fresh]
    void (*shift)(const Prime &, const u32 *x, const u32 *y, size_t distance, u32 *sum, u32 *difference);
    void (*turn)(const Prime &, const u32 *in, size_t distance, u32 *out);
    void (*divide)(const Prime &, u32 special, u32 inverse, const u32 *x, const u32 *rest, const u32 *more, u32 *out);
};

namespace portable {

#define RLWE_TARGET
constexpr size_t most_sums = wide; // sets of sums that are kept in registers
struct Vec {
    u32 at[lanes];
};
struct Sum {
    u64 at[lanes];
};

COMET_INLINE Vec load(const u32 *x) {
    Vec v;
    for (size_t i = 0; i < lanes; ++i) v.at[i] = x[i];
    return v;
}
COMET_INLINE Vec pick(const u32 *x, const u32 *places) {
    Vec v;
    for (size_t i = 0; i < lanes; ++i) v.at[i] = x[places[i]];
    return v;
}
COMET_INLINE void store(u32 *x, const Vec &v) {
    for (size_t i = 0; i < lanes; ++i) x[i] = v.at[i];
}
COMET_INLINE Vec broadcast(u32 x) {
    Vec v;
    for (size_t i = 0; i < lanes; ++i) v.at[i] = x;
    return v;
}
COMET_INLINE Vec add(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] += y.at[i];
    return x;
}
COMET_INLINE Vec sub(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] -= y.at[i];
    return x;
}
COMET_INLINE Vec lesser(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = std::min(x.at[i], y.at[i]);
    return x;
}
// x·w mod q, below 2q, for any x.
COMET_INLINE Vec multiply(Vec x, const Vec &w, const Vec &companion, const Vec &q) {
    for (size_t i = 0; i < lanes; ++i) {
        const u32 quotient = static_cast<u32>((static_cast<u64>(x.at[i]) * companion.at[i]) >> 32);
        x.at[i] = x.at[i] * w.at[i] - quotient * q.at[i];
    }
    return x;
}
COMET_INLINE void transpose(Vec (&x)[8]) {
    for (size_t i = 0; i < lanes; ++i)
        for (size_t j = 0; j < i; ++j) std::swap(x[i].at[j], x[j].at[i]);
}
// Lanes of y whose number has this bit, the others of x.
template <unsigned bit> COMET_INLINE Vec choose_lanes(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = i & bit ? y.at[i] : x.at[i];
    return x;
}
COMET_INLINE Vec choose_above(Vec x, const Vec &bound, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = x.at[i] > bound.at[i] ? y.at[i] : x.at[i];
    return x;
}
COMET_INLINE Sum zero_sum() { return Sum{}; }
COMET_INLINE Sum high_sum(const Vec &x) {
    Sum s;
    for (size_t i = 0; i < lanes; ++i) s.at[i] = u64{x.at[i]} << 32;
    return s;
}
COMET_INLINE void accumulate(Sum &s, const Vec &x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) s.at[i] += static_cast<u64>(x.at[i]) * y.at[i];
}
// s/2^32 mod q, below q. The upper half of s is below 4q.
COMET_INLINE Vec reduce_sum(const Sum &s, const Vec &q, const Vec &inverse) {
    Vec v;
    for (size_t i = 0; i < lanes; ++i) {
        const u32 n = q.at[i], low = static_cast<u32>(s.at[i]);
        u32 high = static_cast<u32>(s.at[i] >> 32);
        high = std::min(high, high - 2 * n);
        const u32 quotient = low * inverse.at[i];
        u32 rest = high - static_cast<u32>((static_cast<u64>(quotient) * n) >> 32) + n;
        rest = std::min(rest, rest - 2 * n);
        v.at[i] = std::min(rest, rest - n);
    }
    return v;
}

#include "rlwe/transform_kernels.inc"
#undef RLWE_TARGET

} // namespace portable

#if COMET_X86

namespace avx2 {

#define RLWE_TARGET COMET_AVX2
constexpr size_t most_sums = 2; // there are 16 registers, and a set takes four
using Vec = __m256i;
struct Sum {
    __m256i even, odd;
};

COMET_AVX2 COMET_INLINE Vec load(const u32 *x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)); }
COMET_AVX2 COMET_INLINE Vec pick(const u32 *x, const u32 *places) {
    return _mm256_permutevar8x32_epi32(load(x + (places[0] & lanes)), load(places)); // of a place its lowest bits count
}
COMET_AVX2 COMET_INLINE void store(u32 *x, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(x), v); }
COMET_AVX2 COMET_INLINE Vec broadcast(u32 x) { return _mm256_set1_epi32(static_cast<int>(x)); }
COMET_AVX2 COMET_INLINE Vec add(Vec x, Vec y) { return _mm256_add_epi32(x, y); }
COMET_AVX2 COMET_INLINE Vec sub(Vec x, Vec y) { return _mm256_sub_epi32(x, y); }
COMET_AVX2 COMET_INLINE Vec lesser(Vec x, Vec y) { return _mm256_min_epu32(x, y); }
COMET_AVX2 COMET_INLINE Vec odd(Vec x) { return _mm256_srli_epi64(x, 32); }
COMET_AVX2 COMET_INLINE Vec multiply(Vec x, Vec w, Vec companion, Vec q) {
    const Vec even_part = _mm256_mul_epu32(x, companion), odd_part = _mm256_mul_epu32(odd(x), odd(companion));
    const Vec quotient = _mm256_blend_epi32(odd(even_part), odd_part, 0xAA);
    return sub(_mm256_mullo_epi32(x, w), _mm256_mullo_epi32(quotient, q));
}
COMET_AVX2 COMET_INLINE void transpose(Vec (&x)[8]) {
    Vec y[8], z[8];
    for (size_t i = 0; i < 4; ++i) {
        y[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) {
        z[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
        z[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
        z[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
        z[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (size_t i = 0; i < 4; ++i) {
        x[i] = _mm256_permute2x128_si256(z[i], z[i + 4], 0x20);
        x[i + 4] = _mm256_permute2x128_si256(z[i], z[i + 4], 0x31);
    }
}
template <unsigned bit> COMET_AVX2 COMET_INLINE Vec choose_lanes(Vec x, Vec y) {
    return _mm256_blend_epi32(x, y, bit == 1 ? 0xAA : bit == 2 ? 0xCC : 0xF0);
}
// y where x > bound, else x; both below 2^31.
COMET_AVX2 COMET_INLINE Vec choose_above(Vec x, Vec bound, Vec y) {
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi32(x, bound));
}
COMET_AVX2 COMET_INLINE Sum zero_sum() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
COMET_AVX2 COMET_INLINE Sum high_sum(Vec x) {
    return {_mm256_slli_epi64(x, 32), _mm256_blend_epi32(_mm256_setzero_si256(), x, 0xAA)};
}
COMET_AVX2 COMET_INLINE void accumulate(Sum &s, Vec x, Vec y) {
    s.even = _mm256_add_epi64(s.even, _mm256_mul_epu32(x, y));
    s.odd = _mm256_add_epi64(s.odd, _mm256_mul_epu32(odd(x), odd(y)));
}
COMET_AVX2 COMET_INLINE Vec reduce_sum(Sum s, Vec q, Vec inverse) {
    const Vec q2 = add(q, q);
    const Vec low = _mm256_blend_epi32(s.even, _mm256_slli_epi64(s.odd, 32), 0xAA);
    Vec high = _mm256_blend_epi32(odd(s.even), s.odd, 0xAA);
    high = lesser(high, sub(high, q2));
    const Vec quotient = _mm256_mullo_epi32(low, inverse);
    const Vec even_part = _mm256_mul_epu32(quotient, q), odd_part = _mm256_mul_epu32(odd(quotient), q);
    Vec rest = add(sub(high, _mm256_blend_epi32(odd(even_part), odd_part, 0xAA)), q);
    rest = lesser(rest, sub(rest, q2));
    return lesser(rest, sub(rest, q));
}

#include "rlwe/transform_kernels.inc"
#undef RLWE_TARGET

} // namespace avx2

constexpr Kernels with_ifma() {
    Kernels kernels = avx2::kernels;
    kernels.forward = avx512::forward_kernel;
    kernels.forward_foreign = avx512::forward_foreign_kernel;
    kernels.forward_short = avx512::forward_short_kernel;
    kernels.forward_columns = avx512::forward_columns_kernel;
    kernels.backward = avx512::backward_kernel;
    kernels.shift = avx512::shift_kernel;
    kernels.turn = avx512::turn_kernel;
    kernels.divide = avx512::divide_kernel;
    kernels.multiply_add[0][0] = avx512::multiply_add_kernel<1, false>;
    kernels.multiply_add[0][1] = avx512::multiply_add_kernel<1, true>;
    kernels.multiply_add[1][0] = avx512::multiply_add_kernel<2, false>;
    kernels.multiply_add[1][1] = avx512::multiply_add_kernel<2, true>;
    kernels.multiply_add[2][0] = avx512::multiply_add_kernel<wide, false>;
    kernels.multiply_add[2][1] = avx512::multiply_add_kernel<wide, true>;
    return kernels;
}

constexpr Dispatch dispatch{Variant{Isa::portable, portable::kernels}, Variant{Isa::avx2, avx2::kernels},
                            Variant{Isa::avx512, with_ifma()}};

#else
constexpr Dispatch dispatch{Variant{Isa::portable, portable::kernels}};
#endif

} // namespace

void forward(const Prime &p, ConstPolynomial in, Polynomial out, Isa isa) {
    dispatch[isa].forward(p, p.q, in.data(), out.data(), out.data(), lanes);
}

void forward(const Prime &p, ConstPolynomial in, Polynomial work, span<u32> out, size_t stride, Isa isa) {
    dispatch[isa].forward(p, p.q, in.data(), work.data(), out.data(), stride);
}

void forward_foreign(const Prime &p, u32 from, ConstPolynomial in, Polynomial work, span<u32> out, size_t stride,
                     Isa isa) {
    dispatch[isa].forward_foreign(p, from, in.data(), work.data(), out.data(), stride);
}

void forward_short(const Prime &p, span<const u32> in, size_t block, span<u32> work, span<u32> out, size_t stride,
                   Isa isa) {
    dispatch[isa].forward_short(p, in.data(), in.size(), block, work.data(), out.data(), stride);
}

void forward_columns(const Prime &p, span<const u32> in, span<const u32, lanes> picked, size_t block, span<u32> work,
                     span<u32> out, size_t stride, Isa isa) {
    dispatch[isa].forward_columns(p, in.data(), picked.data(), in.size() / columns, block, work.data(), out.data(),
                                  stride);
}

void backward(const Prime &p, Polynomial in, Polynomial out, Isa isa) {
    dispatch[isa].backward(p, in.data(), rows, out.data());
}

void backward_sparse(const Prime &p, Polynomial in, size_t step, span<u32> out, Isa isa) {
    dispatch[isa].fold(p, in.data(), step);
    dispatch[isa].backward(p, in.data(), rows / step, out.data());
}

void multiply_add(const Prime &p, Left x, Right y, size_t terms, size_t count, span<u32 *const> acc, size_t component,
                  bool fresh, Isa isa) {
    dispatch[isa].multiply_add[acc.size() / 2][fresh](p, x, y, terms, count, acc.data(), component);
}

void shift(const Prime &p, ConstPolynomial x, ConstPolynomial y, size_t distance, Polynomial sum, Polynomial difference,
           Isa isa) {
    dispatch[isa].shift(p, x.data(), y.data(), distance, sum.data(), difference.data());
}

void turn(const Prime &p, ConstPolynomial in, size_t distance, Polynomial out, Isa isa) {
    dispatch[isa].turn(p, in.data(), distance, out.data());
}

void divide(const Prime &p, u32 special, u32 inverse, ConstPolynomial x, ConstPolynomial rest, span<const u32> more,
            Polynomial out, Isa isa) {
    dispatch[isa].divide(p, special, inverse, x.data(), rest.data(), more.data(), out.data());
}

} // namespace comet::rlwe
