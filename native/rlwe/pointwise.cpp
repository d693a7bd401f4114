#include "rlwe/pointwise.hpp"

#include <algorithm>
#include <cstring>

#if COMET_X86
#pragma GCC diagnostic ignored "-Wuninitialized" // GCC 12's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace comet::rlwe {

namespace {

struct Kernels {
    void (*sum[2])(const Prime &, const u32 *x, const u32 *y, u32 *out, size_t count);
    void (*scale)(const Prime &, const u32 *x, u32 factor, u32 *out, size_t count);
    void (*product[3])(const Prime &, const u32 *start, const u32 *x, const u32 *y, u32 *out, size_t count);
    void (*scale_small)(const Prime &, const i8 *small, u32 factor, u32 *out, size_t count);
    void (*add_small[2])(const Prime &, const i8 *small, const u32 *x, u32 *out, size_t count);
    void (*combine)(const Prime &, const u32 *in, size_t stride, span<const u32> factors, u32 start, u32 *out,
                    size_t count);
    void (*wide_sum[2])(const WideSum &, const u32 *residues, Fraction *out, size_t count);
    void (*mixed_radix)(const MixedRadix &, const u32 *residues, u32 *digits, u32 *above, size_t count);
    void (*join)(const u32 *digits, span<const u64> factors, u64 *out, size_t count);
    void (*round_product[most_whole])(span<const Prime *const>, const Pieces &factor, span<const u32> powers,
                                      const Fraction *x, u32 *out, size_t count); // by the pieces of the factor
    void (*cut_words)(const u64 *words, u32 *out, size_t count);
};

namespace portable {

#define RLWE_TARGET
struct Vec {
    u64 at[lanes];
};

template <class T> COMET_INLINE Vec load(const T *x) {
    Vec v;
    for (size_t i = 0; i < lanes; ++i) v.at[i] = static_cast<u64>(x[i]);
    return v;
}
template <class T> COMET_INLINE void store(T *x, const Vec &v) {
    for (size_t i = 0; i < lanes; ++i) x[i] = static_cast<T>(v.at[i]);
}
COMET_INLINE Vec broadcast(u64 x) {
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
// Of the low halves; the high ones are zero.
COMET_INLINE Vec sub_low(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = static_cast<u32>(x.at[i] - y.at[i]);
    return x;
}
COMET_INLINE Vec lesser(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = std::min(x.at[i], y.at[i]);
    return x;
}
COMET_INLINE Vec conjunction(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] &= y.at[i];
    return x;
}
COMET_INLINE Vec disjunction(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] |= y.at[i];
    return x;
}
COMET_INLINE Vec left(Vec x, unsigned places) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = places < 64 ? x.at[i] << places : 0;
    return x;
}
COMET_INLINE Vec right(Vec x, unsigned places) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = places < 64 ? x.at[i] >> places : 0;
    return x;
}
COMET_INLINE Vec multiply(Vec x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) x.at[i] = u64{static_cast<u32>(x.at[i])} * static_cast<u32>(y.at[i]);
    return x;
}

#include "rlwe/pointwise_kernels.inc"
#undef RLWE_TARGET

} // namespace portable

#if COMET_X86

namespace avx2 {

#define RLWE_TARGET COMET_AVX2
struct Vec {
    __m256i low, high;
};

COMET_AVX2 COMET_INLINE Vec load(const u64 *x) {
    const auto *halves = reinterpret_cast<const __m256i *>(x);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
COMET_AVX2 COMET_INLINE Vec load(const u32 *x) {
    const auto *quarters = reinterpret_cast<const __m128i *>(x);
    return {_mm256_cvtepu32_epi64(_mm_loadu_si128(quarters)), _mm256_cvtepu32_epi64(_mm_loadu_si128(quarters + 1))};
}
COMET_AVX2 COMET_INLINE Vec load(const i8 *x) {
    int low, high;
    std::memcpy(&low, x, 4);
    std::memcpy(&high, x + 4, 4);
    return {_mm256_cvtepi8_epi64(_mm_cvtsi32_si128(low)), _mm256_cvtepi8_epi64(_mm_cvtsi32_si128(high))};
}
COMET_AVX2 COMET_INLINE void store(u64 *x, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(x), v.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(x + 4), v.high);
}
COMET_AVX2 COMET_INLINE void store(u32 *x, Vec v) {
    const __m256 both = _mm256_shuffle_ps(_mm256_castsi256_ps(v.low), _mm256_castsi256_ps(v.high), 0x88);
    const __m256i ordered = _mm256_permute4x64_epi64(_mm256_castps_si256(both), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(x), ordered);
}
COMET_AVX2 COMET_INLINE Vec broadcast(u64 x) {
    const __m256i all = _mm256_set1_epi64x(static_cast<long long>(x));
    return {all, all};
}
COMET_AVX2 COMET_INLINE Vec add(Vec x, Vec y) {
    return {_mm256_add_epi64(x.low, y.low), _mm256_add_epi64(x.high, y.high)};
}
COMET_AVX2 COMET_INLINE Vec sub(Vec x, Vec y) {
    return {_mm256_sub_epi64(x.low, y.low), _mm256_sub_epi64(x.high, y.high)};
}
COMET_AVX2 COMET_INLINE Vec sub_low(Vec x, Vec y) {
    return {_mm256_sub_epi32(x.low, y.low), _mm256_sub_epi32(x.high, y.high)};
}
COMET_AVX2 COMET_INLINE Vec lesser(Vec x, Vec y) {
    return {_mm256_min_epu32(x.low, y.low), _mm256_min_epu32(x.high, y.high)};
}
COMET_AVX2 COMET_INLINE Vec conjunction(Vec x, Vec y) {
    return {_mm256_and_si256(x.low, y.low), _mm256_and_si256(x.high, y.high)};
}
COMET_AVX2 COMET_INLINE Vec disjunction(Vec x, Vec y) {
    return {_mm256_or_si256(x.low, y.low), _mm256_or_si256(x.high, y.high)};
}
COMET_AVX2 COMET_INLINE Vec left(Vec x, unsigned places) {
    const int by = static_cast<int>(places);
    return {_mm256_slli_epi64(x.low, by), _mm256_slli_epi64(x.high, by)};
}
COMET_AVX2 COMET_INLINE Vec right(Vec x, unsigned places) {
    const int by = static_cast<int>(places);
    return {_mm256_srli_epi64(x.low, by), _mm256_srli_epi64(x.high, by)};
}
COMET_AVX2 COMET_INLINE Vec multiply(Vec x, Vec y) {
    return {_mm256_mul_epu32(x.low, y.low), _mm256_mul_epu32(x.high, y.high)};
}

#include "rlwe/pointwise_kernels.inc"
#undef RLWE_TARGET

} // namespace avx2

namespace avx512 {

#define RLWE_TARGET COMET_AVX512
using Vec = __m512i;

COMET_AVX512 COMET_INLINE Vec load(const u64 *x) { return _mm512_loadu_si512(x); }
COMET_AVX512 COMET_INLINE Vec load(const u32 *x) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)));
}
COMET_AVX512 COMET_INLINE Vec load(const i8 *x) {
    return _mm512_cvtepi8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(x)));
}
COMET_AVX512 COMET_INLINE void store(u64 *x, Vec v) { _mm512_storeu_si512(x, v); }
COMET_AVX512 COMET_INLINE void store(u32 *x, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(x), _mm512_cvtepi64_epi32(v));
}
COMET_AVX512 COMET_INLINE Vec broadcast(u64 x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
COMET_AVX512 COMET_INLINE Vec add(Vec x, Vec y) { return _mm512_add_epi64(x, y); }
COMET_AVX512 COMET_INLINE Vec sub(Vec x, Vec y) { return _mm512_sub_epi64(x, y); }
COMET_AVX512 COMET_INLINE Vec sub_low(Vec x, Vec y) { return _mm512_sub_epi32(x, y); }
COMET_AVX512 COMET_INLINE Vec lesser(Vec x, Vec y) { return _mm512_min_epu32(x, y); }
COMET_AVX512 COMET_INLINE Vec conjunction(Vec x, Vec y) { return _mm512_and_si512(x, y); }
COMET_AVX512 COMET_INLINE Vec disjunction(Vec x, Vec y) { return _mm512_or_si512(x, y); }
COMET_AVX512 COMET_INLINE Vec left(Vec x, unsigned places) { return _mm512_slli_epi64(x, places); }
COMET_AVX512 COMET_INLINE Vec right(Vec x, unsigned places) { return _mm512_srli_epi64(x, places); }
COMET_AVX512 COMET_INLINE Vec multiply(Vec x, Vec y) { return _mm512_mul_epu32(x, y); }

#include "rlwe/pointwise_kernels.inc"
#undef RLWE_TARGET

} // namespace avx512

constexpr Dispatch dispatch{Variant{Isa::portable, portable::kernels}, Variant{Isa::avx2, avx2::kernels},
                            Variant{Isa::avx512, avx512::kernels}};

#else
constexpr Dispatch dispatch{Variant{Isa::portable, portable::kernels}};
#endif

} // namespace

Pieces pieces(const Fraction &number) {
    Pieces out;
    for (unsigned k = 0; k < most_pieces; ++k)
        out[k] = static_cast<u32>(number.shifted_right(k * piece_bits).words[0] & low_mask(piece_bits));
    return out;
}

void sum(const Prime &p, span<const u32> x, Sign sign, span<const u32> y, span<u32> out, Isa isa) {
    dispatch[isa].sum[sign == Sign::minus](p, x.data(), y.data(), out.data(), out.size());
}

void scale(const Prime &p, span<const u32> x, u32 factor, span<u32> out, Isa isa) {
    dispatch[isa].scale(p, x.data(), factor, out.data(), out.size());
}

void product(const Prime &p, span<const u32> x, span<const u32> y, span<u32> out, Isa isa) {
    dispatch[isa].product[0](p, nullptr, x.data(), y.data(), out.data(), out.size());
}

void product(const Prime &p, span<const u32> start, Sign sign, span<const u32> x, span<const u32> y, span<u32> out,
             Isa isa) {
    dispatch[isa].product[sign == Sign::plus ? 1 : 2](p, start.data(), x.data(), y.data(), out.data(), out.size());
}

void scale_small(const Prime &p, span<const i8> small, u32 factor, span<u32> out, Isa isa) {
    dispatch[isa].scale_small(p, small.data(), factor, out.data(), out.size());
}

void add_small(const Prime &p, span<const i8> small, Sign sign, span<const u32> x, span<u32> out, Isa isa) {
    dispatch[isa].add_small[sign == Sign::minus](p, small.data(), x.data(), out.data(), out.size());
}

void combine(const Prime &p, const u32 *in, size_t stride, span<const u32> factors, u32 start, span<u32> out, Isa isa) {
    dispatch[isa].combine(p, in, stride, factors, start, out.data(), out.size());
}

void wide_sum(const WideSum &sum, span<const u32> residues, span<Fraction> out, Isa isa) {
    dispatch[isa].wide_sum[sum.wrap != Pieces{}](sum, residues.data(), out.data(), out.size());
}

void mixed_radix(const MixedRadix &how, span<const u32> residues, span<u32> digits, span<u32> above, Isa isa) {
    dispatch[isa].mixed_radix(how, residues.data(), digits.data(), above.data(), above.size());
}

void join(span<const u32> digits, span<const u64> factors, span<u64> out, Isa isa) {
    dispatch[isa].join(digits.data(), factors, out.data(), out.size());
}

void round_product(span<const Prime *const> primes, const Pieces &factor, span<const u32> powers,
                   span<const Fraction> x, span<u32> out, Isa isa) {
    size_t size = most_whole;
    while (size > 1 && factor[size - 1] == 0) --size;
    dispatch[isa].round_product[size - 1](primes, factor, powers, x.data(), out.data(), x.size());
}

void cut_words(span<const u64> words, span<u32> out, Isa isa) {
    dispatch[isa].cut_words(words.data(), out.data(), words.size());
}

void cut_bits(span<const u8> in, unsigned bits, size_t count, span<u32> out) {
    const auto word = [&](size_t byte) {
        u64 value = 0;
        if (byte + 8 <= in.size())
            std::memcpy(&value, &in[byte], 8);
        else if (byte < in.size())
            std::memcpy(&value, &in[byte], in.size() - byte);
        return value;
    };
    for (unsigned k = 0; k * piece_bits < bits; ++k) {
        const u64 mask = low_mask(std::min(piece_bits, bits - k * piece_bits));
        size_t place = size_t{k} * piece_bits;
        for (size_t j = 0; j < count; ++j, place += bits)
            out[k * count + j] = static_cast<u32>(word(place / 8) >> (place % 8) & mask);
    }
}

} // namespace comet::rlwe
