// Butterflies in lanes of 64 bits, of which a multiplication looks at the lowest 52: primes have 30 bits, so no sum is
// ever reduced on the way. The transforms are those of transform_kernels.inc, with the same results.
//
// A product x·w mod q takes three multiplications (Shoup): with w' = floor(2^52·w/q) and x below 2^46,
//
//     x·w - floor(x·w'/2^52)·q   lies in [0, q + q/64).
//
// Its low 52 bits are right, and what is above is never looked at. Forward, a difference x - y·w needs x >= y·w: all
// start 14q higher and lose at most q + q/64 in each of 13 stages. Backward, sums double in each stage: below 2^44.

#include "rlwe/transform_avx512.hpp"

#if COMET_X86
#pragma GCC diagnostic ignored "-Wuninitialized" // GCC 12's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

namespace comet::rlwe::avx512 {

namespace {

using Vec = __m512i;

constexpr size_t part = rows / 8; // rows that go through the later stages together: 8 kB
constexpr u64 bias = 14;          // times q

COMET_AVX512 COMET_INLINE Vec load(const u64 *x) { return _mm512_load_si512(x); }
COMET_AVX512 COMET_INLINE void store(u64 *x, Vec v) { _mm512_store_si512(x, v); }
COMET_AVX512 COMET_INLINE Vec widened(const u32 *x) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)));
}
COMET_AVX512 COMET_INLINE Vec broadcast(u64 x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
COMET_AVX512 COMET_INLINE Vec add(Vec x, Vec y) { return _mm512_add_epi64(x, y); }
COMET_AVX512 COMET_INLINE Vec sub(Vec x, Vec y) { return _mm512_sub_epi64(x, y); }

// `negative` is 2^52 - q.
COMET_AVX512 COMET_INLINE Vec multiply(Vec x, Vec w, Vec companion, Vec negative) {
    const Vec zero = _mm512_setzero_si512();
    const Vec quotient = _mm512_madd52hi_epu64(zero, x, companion);
    return _mm512_madd52lo_epu64(_mm512_madd52lo_epu64(zero, x, w), quotient, negative);
}

/// Constants of a prime.
struct Modulus {
    Vec q, negative, reciprocal, start;

    COMET_AVX512 COMET_INLINE explicit Modulus(const Prime &p)
        : q(_mm512_set1_epi32(static_cast<int>(p.q))), negative(broadcast((u64{1} << 52) - p.q)),
          reciprocal(broadcast((u64{1} << 52) / p.q)), start(broadcast(bias * p.q)) {}

    /// x mod q, or that plus q, for x below 2^46, in the low halves of the lanes.
    COMET_AVX512 COMET_INLINE Vec reduced(Vec x) const {
        const Vec quotient = _mm512_madd52hi_epu64(_mm512_setzero_si512(), x, reciprocal);
        return _mm512_madd52lo_epu64(x, quotient, negative);
    }
    /// Two rows of numbers below 2q as 16 residues.
    COMET_AVX512 COMET_INLINE Vec narrowed(Vec x, Vec y) const {
        const Vec even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        const Vec both = _mm512_permutex2var_epi32(x, even, y);
        return _mm512_min_epu32(both, _mm512_sub_epi32(both, q));
    }
};

COMET_AVX512 COMET_INLINE void store_rows(u32 *first, u32 *second, Vec both) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(first), _mm512_castsi512_si256(both));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(second), _mm512_extracti64x4_epi64(both, 1));
}

/// Where the twiddles of one group of butterflies begin: group g of `groups` in the first of several stages.
struct Group {
    const WideTwiddles &table;
    size_t groups, g;

    /// Vector u of the `stage`-th stage after the first.
    COMET_INLINE size_t at(unsigned stage, size_t u) const { return ((groups + g) << stage) - 1 + u; }
    COMET_AVX512 COMET_INLINE Vec factor(unsigned stage, size_t u) const { return load(table.rows[at(stage, u)].at); }
    COMET_AVX512 COMET_INLINE Vec companion(unsigned stage, size_t u) const {
        return load(table.companions[at(stage, u)].at);
    }
};

// Stages `stage` … of `stages` stages of 2^stages rows.
template <unsigned stages, unsigned stage = 0>
COMET_AVX512 COMET_INLINE void forward_stages(Vec *x, Group group, Vec negative) {
    constexpr size_t half = size_t{1} << (stages - 1 - stage);
#pragma GCC unroll 8
    for (size_t k = 0; k < size_t{1} << (stages - 1); ++k) {
        const size_t u = k / half, i = k + u * half;
        const Vec low = x[i];
        const Vec high = multiply(x[i + half], group.factor(stage, u), group.companion(stage, u), negative);
        x[i] = add(low, high);
        x[i + half] = sub(low, high);
    }
    if constexpr (stage + 1 < stages) forward_stages<stages, stage + 1>(x, group, negative);
}

// The same backward, the last of `stages` stages first. Before them, so many stages have been done: numbers are below
// 2^done·(q + q/64).
template <unsigned stages, unsigned stage = stages - 1>
COMET_AVX512 COMET_INLINE void backward_stages(Vec *x, Group group, u64 q, unsigned done, Vec negative) {
    constexpr size_t half = size_t{1} << (stages - 1 - stage);
    const Vec above = broadcast(q << (done + 1));
#pragma GCC unroll 8
    for (size_t k = 0; k < size_t{1} << (stages - 1); ++k) {
        const size_t u = k / half, i = k + u * half;
        const Vec low = x[i], high = x[i + half];
        x[i] = add(low, high);
        x[i + half] = multiply(add(sub(low, high), above), group.factor(stage, u), group.companion(stage, u), negative);
    }
    if constexpr (stage > 0) backward_stages<stages, stage - 1>(x, group, q, done + 1, negative);
}

// What a pass of forward stages reads and writes: rows in `work`; the first one of short polynomials reads numbers
// that all lanes share, or of `columns` numbers one for each lane; the last one writes residues, `stride` from row to
// row.
enum class From { work, numbers, columns };
enum class To { work, rows };
constexpr __mmask16 low_halves = 0x5555;

template <unsigned stages, From from, To to>
COMET_AVX512 COMET_INLINE void forward_pass(const Modulus &m, const u32 *source, u64 *work, size_t step, Group group,
                                            u32 *out, size_t stride, const u32 *picked = nullptr) {
    constexpr size_t count = size_t{1} << stages;
    [[maybe_unused]] const Vec places = from == From::columns ? widened(picked) : m.q;
    for (size_t j = 0; j < step; ++j) {
        Vec x[count];
        u64 *here = work + j * lanes;
#pragma GCC unroll 16
        for (size_t i = 0; i < count; ++i) {
            if constexpr (from == From::numbers)
                x[i] = broadcast(source[j + i * step]);
            else if constexpr (from == From::columns)
                x[i] = _mm512_maskz_permutexvar_epi32(low_halves, places,
                                                      _mm512_loadu_si512(source + (j + i * step) * columns));
            else
                x[i] = load(here + i * step * lanes);
        }
        if constexpr (from != From::work)
#pragma GCC unroll 8
            for (size_t i = 0; i < count / 2; ++i) x[i] = add(x[i], m.start);
        forward_stages<stages>(x, group, m.negative);
        if constexpr (to == To::rows) {
#pragma GCC unroll 8
            for (size_t i = 0; i < count; i += 2)
                store_rows(out + i * stride, out + (i + 1) * stride, m.narrowed(m.reduced(x[i]), m.reduced(x[i + 1])));
        } else {
#pragma GCC unroll 16
            for (size_t i = 0; i < count; ++i) store(here + i * step * lanes, x[i]);
        }
    }
}

// The passes of `length` rows that are group `block` of rows/length: `First` stages, then others of 3 and 4.
template <From from, unsigned first, unsigned... rest>
COMET_AVX512 COMET_INLINE void short_passes(const Prime &p, const u32 *in, size_t block, u64 *work, u32 *out,
                                            size_t stride, const u32 *picked) {
    constexpr size_t length = size_t{1} << (first + ... + rest);
    const Modulus m(p);
    Group group{p.wide_forward, rows / length, block};
    if constexpr (sizeof...(rest) == 0) {
        forward_pass<first, from, To::rows>(m, in, work, 1, group, out, stride, picked);
    } else {
        size_t step = length >> first;
        forward_pass<first, from, To::work>(m, in, work, step, group, out, stride, picked);
        size_t count = size_t{1} << first; // groups of `step` rows
        const auto next = [&]<unsigned stages>() COMET_AVX512 {
            const bool last = step == size_t{1} << stages;
            for (size_t g = 0; g < count; ++g) {
                const Group here{p.wide_forward, group.groups * count, block * count + g};
                u64 *some = work + g * step * lanes;
                u32 *to = out + g * step * stride;
                last ? forward_pass<stages, From::work, To::rows>(m, in, some, 1, here, to, stride)
                     : forward_pass<stages, From::work, To::work>(m, in, some, step >> stages, here, to, stride);
            }
            step >>= stages;
            count <<= stages;
        };
        (next.template operator()<rest>(), ...);
    }
}

COMET_AVX512 COMET_INLINE void transpose(Vec (&x)[8]) {
    Vec y[8], z[8];
    for (size_t i = 0; i < 8; i += 2) {
        y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4)
        for (size_t j = i; j < i + 2; ++j) {
            z[j] = _mm512_shuffle_i64x2(y[j], y[j + 2], 0x88);
            z[j + 2] = _mm512_shuffle_i64x2(y[j], y[j + 2], 0xDD);
        }
    for (size_t j = 0; j < 4; ++j) {
        x[j] = _mm512_shuffle_i64x2(z[j], z[j + 4], 0x88);
        x[j + 4] = _mm512_shuffle_i64x2(z[j], z[j + 4], 0xDD);
    }
}

/// The twiddles of the three stages that pair lanes: one for all lanes.
struct LaneTwiddles {
    Vec w[8], companion[8];

    COMET_AVX512 COMET_INLINE explicit LaneTwiddles(const WideTwiddles &table) {
        for (size_t i = 0; i < lanes; ++i)
            w[i] = broadcast(table.lane.at[i]), companion[i] = broadcast(table.lane_companion.at[i]);
    }
};

// The first three stages pair lanes, half a distance of `half`.
template <size_t half> COMET_AVX512 COMET_INLINE void forward_lanes(Vec *x, const LaneTwiddles &t, Vec negative) {
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
        const size_t u = k / half, i = k + u * half;
        const Vec low = x[i], high = multiply(x[i + half], t.w[4 / half + u], t.companion[4 / half + u], negative);
        x[i] = add(low, high);
        x[i + half] = sub(low, high);
    }
    if constexpr (half > 1) forward_lanes<half / 2>(x, t, negative);
}

template <bool foreign> COMET_AVX512 void forward_all(const Prime &p, u32 from, const u32 *in, u32 *out,
                                                      size_t stride) {
    alignas(64) u64 work[degree];
    alignas(64) u64 some[8][lanes * lanes];
    const Modulus m(p);
    const LaneTwiddles t(p.wide_forward);
    const Vec half = broadcast(from / 2), difference = broadcast(u64{p.q} - from);
    for (size_t first = 0; first < part; first += lanes) {
        for (size_t k = 0; k < 8; ++k) {
            Vec x[8];
            for (size_t lane = 0; lane < lanes; ++lane) {
                x[lane] = widened(in + lane * rows + k * part + first);
                if (foreign)
                    x[lane] =
                        _mm512_mask_add_epi64(x[lane], _mm512_cmpgt_epu64_mask(x[lane], half), x[lane], difference);
            }
            for (size_t lane = 0; lane < 4; ++lane) x[lane] = add(x[lane], m.start);
            forward_lanes<4>(x, t, m.negative);
            transpose(x);
            for (size_t i = 0; i < 8; ++i) store(&some[k][i * lanes], x[i]);
        }
        for (size_t i = 0; i < lanes; ++i) {
            Vec x[8];
            for (size_t k = 0; k < 8; ++k) x[k] = load(&some[k][i * lanes]);
            forward_stages<3>(x, {p.wide_forward, 1, 0}, m.negative);
            for (size_t k = 0; k < 8; ++k) store(work + (k * part + first + i) * lanes, x[k]);
        }
    }
    for (size_t k = 0; k < 8; ++k) {
        forward_pass<3, From::work, To::work>(m, nullptr, work + k * part * lanes, 16, {p.wide_forward, 8, k}, out,
                                              stride);
        for (size_t g = 8 * k; g < 8 * k + 8; ++g)
            forward_pass<4, From::work, To::rows>(m, nullptr, work + g * 16 * lanes, 1, {p.wide_forward, 64, g},
                                                  out + g * 16 * stride, stride);
    }
}

template <From from>
COMET_AVX512 void forward_few(const Prime &p, const u32 *in, size_t live, size_t block, u32 *out, size_t stride,
                              const u32 *picked) {
    alignas(64) u64 work[degree];
    switch (live) {
    case 2: return short_passes<from, 1>(p, in, block, work, out, stride, picked);
    case 4: return short_passes<from, 2>(p, in, block, work, out, stride, picked);
    case 8: return short_passes<from, 3>(p, in, block, work, out, stride, picked);
    case 16: return short_passes<from, 4>(p, in, block, work, out, stride, picked);
    case 32: return short_passes<from, 2, 3>(p, in, block, work, out, stride, picked);
    case 64: return short_passes<from, 3, 3>(p, in, block, work, out, stride, picked);
    case 128: return short_passes<from, 3, 4>(p, in, block, work, out, stride, picked);
    case 256: return short_passes<from, 4, 4>(p, in, block, work, out, stride, picked);
    case 512: return short_passes<from, 3, 3, 3>(p, in, block, work, out, stride, picked);
    default: return short_passes<from, 3, 3, 4>(p, in, block, work, out, stride, picked);
    }
}

// Backward they are the last three; the factor 1/8192 is part of the very last.
template <size_t half = 1>
COMET_AVX512 COMET_INLINE void backward_lanes(Vec *x, const LaneTwiddles &t, u64 q, unsigned done, Vec negative) {
    const Vec above = broadcast(q << (done + 1));
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
        const size_t u = k / half, i = k + u * half;
        const Vec low = x[i], high = x[i + half];
        x[i] = add(low, high);
        if (half == 4) x[i] = multiply(x[i], t.w[0], t.companion[0], negative);
        x[i + half] = multiply(add(sub(low, high), above), t.w[4 / half + u], t.companion[4 / half + u], negative);
    }
    if constexpr (half < 4) backward_lanes<half * 2>(x, t, q, done + 1, negative);
}

// The end of a backward transform: 8 rows become 8 columns of the result.
COMET_AVX512 COMET_INLINE void finish(const Modulus &m, const LaneTwiddles &t, Vec (&x)[8], u64 q, unsigned done,
                                      u32 *out, size_t count) {
    transpose(x);
    backward_lanes(x, t, q, done, m.negative);
    for (size_t lane = 0; lane < lanes; lane += 2)
        store_rows(out + lane * count, out + (lane + 1) * count, m.narrowed(x[lane], x[lane + 1]));
}

template <unsigned stages, bool first>
COMET_AVX512 COMET_INLINE void backward_pass(const Modulus &m, const Prime &p, const u32 *in, u64 *work, size_t step,
                                             Group group, unsigned done) {
    constexpr size_t count = size_t{1} << stages;
    for (size_t j = 0; j < step; ++j) {
        Vec x[count];
#pragma GCC unroll 16
        for (size_t i = 0; i < count; ++i)
            x[i] = first ? widened(in + (j + i * step) * lanes) : load(work + (j + i * step) * lanes);
        backward_stages<stages>(x, group, p.q, done, m.negative);
#pragma GCC unroll 16
        for (size_t i = 0; i < count; ++i) store(work + (j + i * step) * lanes, x[i]);
    }
}

// Passes of so many stages each, over fewer rows than all.
template <unsigned first, unsigned... rest>
COMET_AVX512 void backward_few(const Prime &p, const u32 *in, u32 *out) {
    constexpr unsigned stages = (first + ... + rest);
    constexpr size_t count = size_t{1} << stages;
    alignas(64) u64 work[count * lanes];
    const Modulus m(p);
    for (size_t g = 0; g < count >> first; ++g)
        backward_pass<first, true>(m, p, in + (g << first) * lanes, work + (g << first) * lanes, 1,
                                   {p.wide_backward, count >> first, g}, 0);
    unsigned done = first;
    [[maybe_unused]] const auto next = [&]<unsigned more>() COMET_AVX512 {
        for (size_t g = 0; g < count >> (done + more); ++g)
            backward_pass<more, false>(m, p, in, work + (g << (done + more)) * lanes, size_t{1} << done,
                                       {p.wide_backward, count >> (done + more), g}, done);
        done += more;
    };
    (next.template operator()<rest>(), ...);
    const LaneTwiddles t(p.wide_backward);
    for (size_t j = 0; j < count; j += lanes) {
        Vec x[8];
        for (size_t i = 0; i < lanes; ++i) x[i] = load(work + (j + i) * lanes);
        finish(m, t, x, p.q, stages, out + j, count);
    }
}

COMET_AVX512 void backward_all(const Prime &p, const u32 *in, u32 *out) {
    alignas(64) u64 work[degree];
    alignas(64) u64 some[8][lanes * lanes];
    const Modulus m(p);
    for (size_t k = 0; k < 8; ++k) {
        for (size_t g = 8 * k; g < 8 * k + 8; ++g)
            backward_pass<4, true>(m, p, in + g * 16 * lanes, work + g * 16 * lanes, 1, {p.wide_backward, 64, g}, 0);
        backward_pass<3, false>(m, p, nullptr, work + k * part * lanes, 16, {p.wide_backward, 8, k}, 4);
    }
    const LaneTwiddles t(p.wide_backward);
    for (size_t first = 0; first < part; first += lanes) {
        for (size_t i = 0; i < lanes; ++i) {
            Vec x[8];
            for (size_t k = 0; k < 8; ++k) x[k] = load(work + (k * part + first + i) * lanes);
            backward_stages<3>(x, {p.wide_backward, 1, 0}, p.q, 7, m.negative);
            for (size_t k = 0; k < 8; ++k) store(&some[k][i * lanes], x[k]);
        }
        for (size_t k = 0; k < 8; ++k) {
            Vec x[8];
            for (size_t i = 0; i < lanes; ++i) x[i] = load(&some[k][i * lanes]);
            finish(m, t, x, p.q, 10, out + k * part + first, rows);
        }
    }
}

} // namespace

COMET_AVX512 void forward_kernel(const Prime &p, u32 from, const u32 *in, u32 *, u32 *out, size_t stride) {
    forward_all<false>(p, from, in, out, stride);
}

COMET_AVX512 void forward_foreign_kernel(const Prime &p, u32 from, const u32 *in, u32 *, u32 *out, size_t stride) {
    forward_all<true>(p, from, in, out, stride);
}

COMET_AVX512 void forward_short_kernel(const Prime &p, const u32 *in, size_t live, size_t block, u32 *, u32 *out,
                                       size_t stride) {
    forward_few<From::numbers>(p, in, live, block, out, stride, nullptr);
}

COMET_AVX512 void forward_columns_kernel(const Prime &p, const u32 *in, const u32 *picked, size_t live, size_t block,
                                         u32 *, u32 *out, size_t stride) {
    forward_few<From::columns>(p, in, live, block, out, stride, picked);
}

COMET_AVX512 void backward_kernel(const Prime &p, u32 *in, size_t count, u32 *out) {
    switch (count) {
    case 8: return backward_few<3>(p, in, out);
    case 16: return backward_few<4>(p, in, out);
    case 32: return backward_few<2, 3>(p, in, out);
    case 64: return backward_few<3, 3>(p, in, out);
    case 128: return backward_few<4, 3>(p, in, out);
    case 256: return backward_few<4, 4>(p, in, out);
    case 512: return backward_few<3, 3, 3>(p, in, out);
    default: return backward_all(p, in, out);
    }
}

} // namespace comet::rlwe::avx512
#endif
