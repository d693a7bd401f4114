#include "rlwe/transform.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#if COMET_HAVE_AVX2
#include <immintrin.h>
#endif

namespace comet::lattice {

namespace {

u32 companion_of(const Prime &p, u32 w) { return 0 - w * p.inverse; }

} // namespace

namespace portable {

#define LATTICE_TARGET
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
// x·w/2^32 mod q, below 2q, for any x.
COMET_INLINE Vec multiply(Vec x, const Vec &w, const Vec &companion, const Vec &q) {
    for (size_t i = 0; i < lanes; ++i) {
        const u32 quotient = x.at[i] * companion.at[i];
        x.at[i] = static_cast<u32>((static_cast<u64>(x.at[i]) * w.at[i] + static_cast<u64>(quotient) * q.at[i]) >> 32);
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
COMET_INLINE void accumulate(Sum &s, const Vec &x, const Vec &y) {
    for (size_t i = 0; i < lanes; ++i) s.at[i] += static_cast<u64>(x.at[i]) * y.at[i];
}
COMET_INLINE Vec reduce_sum(const Sum &s, const Vec &q, const Vec &inverse) {
    Vec v;
    for (size_t i = 0; i < lanes; ++i) {
        const u32 n = q.at[i], low = static_cast<u32>(s.at[i]);
        u32 high = static_cast<u32>(s.at[i] >> 32);
        high = std::min(high, high - 2 * n);
        high = std::min(high, high - 2 * n);
        high = std::min(high, high - n);
        const u32 quotient = low * inverse.at[i];
        const u32 rest = high - static_cast<u32>((static_cast<u64>(quotient) * n) >> 32) + n;
        v.at[i] = std::min(rest, rest - n);
    }
    return v;
}

#include "rlwe/transform_kernels.inc"
#undef LATTICE_TARGET

} // namespace portable

#if COMET_HAVE_AVX2

namespace avx2 {

#define LATTICE_TARGET COMET_AVX2
using Vec = __m256i;
struct Sum {
    __m256i even, odd;
};

COMET_AVX2 COMET_INLINE Vec load(const u32 *x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)); }
COMET_AVX2 COMET_INLINE void store(u32 *x, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(x), v); }
COMET_AVX2 COMET_INLINE Vec broadcast(u32 x) { return _mm256_set1_epi32(static_cast<int>(x)); }
COMET_AVX2 COMET_INLINE Vec add(Vec x, Vec y) { return _mm256_add_epi32(x, y); }
COMET_AVX2 COMET_INLINE Vec sub(Vec x, Vec y) { return _mm256_sub_epi32(x, y); }
COMET_AVX2 COMET_INLINE Vec lesser(Vec x, Vec y) { return _mm256_min_epu32(x, y); }
COMET_AVX2 COMET_INLINE Vec odd(Vec x) { return _mm256_srli_epi64(x, 32); }
COMET_AVX2 COMET_INLINE Vec multiply(Vec x, Vec w, Vec companion, Vec q) {
    const Vec quotient = _mm256_mullo_epi32(x, companion);
    const Vec even_part = _mm256_add_epi64(_mm256_mul_epu32(x, w), _mm256_mul_epu32(quotient, q));
    const Vec odd_part = _mm256_add_epi64(_mm256_mul_epu32(odd(x), odd(w)), _mm256_mul_epu32(odd(quotient), q));
    return _mm256_blend_epi32(odd(even_part), odd_part, 0xAA);
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
COMET_AVX2 COMET_INLINE void accumulate(Sum &s, Vec x, Vec y) {
    s.even = _mm256_add_epi64(s.even, _mm256_mul_epu32(x, y));
    s.odd = _mm256_add_epi64(s.odd, _mm256_mul_epu32(odd(x), odd(y)));
}
COMET_AVX2 COMET_INLINE Vec reduce_sum(Sum s, Vec q, Vec inverse) {
    const Vec q2 = add(q, q);
    const Vec low = _mm256_blend_epi32(s.even, _mm256_slli_epi64(s.odd, 32), 0xAA);
    Vec high = _mm256_blend_epi32(odd(s.even), s.odd, 0xAA);
    high = lesser(high, sub(high, q2));
    high = lesser(high, sub(high, q2));
    high = lesser(high, sub(high, q));
    const Vec quotient = _mm256_mullo_epi32(low, inverse);
    const Vec even_part = _mm256_mul_epu32(quotient, q), odd_part = _mm256_mul_epu32(odd(quotient), q);
    const Vec rest = add(sub(high, _mm256_blend_epi32(odd(even_part), odd_part, 0xAA)), q);
    return lesser(rest, sub(rest, q));
}

#include "rlwe/transform_kernels.inc"
#undef LATTICE_TARGET

} // namespace avx2

#else
namespace avx2 = portable;
#endif

namespace {

bool is_prime(u32 n) {
    for (u32 d = 3; static_cast<u64>(d) * d <= n; d += 2)
        if (n % d == 0) return false;
    return n > 2 && n % 2 == 1;
}

size_t reversed(size_t x, unsigned bits) {
    size_t out = 0;
    for (unsigned i = 0; i < bits; ++i) out = out << 1 | (x >> i & 1);
    return out;
}

// Entry k of the usual table is psi^bitreverse(k); stage m, group g takes entry m + g. Here lane l takes the groups
// l·2^h … of stage m = 8·2^h, so a vector gathers one entry of each lane.
void fill(const Prime &p, u32 psi, std::vector<u32> &table, std::vector<u32> &companion) {
    std::vector<u32> powers(degree);
    u32 power = 1;
    for (size_t i = 0; i < degree; ++i, power = p.times(power, psi)) powers[i] = power;
    const auto entry = [&](size_t k) { return p.times(powers[reversed(k, 13)], p.montgomery); };
    table.assign(8 + (rows - 1) * lanes, 0);
    for (size_t k = 1; k < 8; ++k) table[k] = entry(k);
    for (size_t groups = 1; groups < rows; groups *= 2)
        for (size_t g = 0; g < groups; ++g)
            for (size_t lane = 0; lane < lanes; ++lane)
                table[8 + (groups - 1 + g) * lanes + lane] = entry(lanes * groups + lane * groups + g);
    companion.resize(table.size());
    for (size_t i = 0; i < table.size(); ++i) companion[i] = companion_of(p, table[i]);
}

std::unique_ptr<const Prime> make_prime(u32 q) {
    if (q >= u32{1} << 30 || q % (2 * degree) != 1 || !is_prime(q))
        throw std::invalid_argument("not a prime below 2^30 that is 1 mod 2^14");
    auto made = std::make_unique<Prime>();
    Prime &p = *made;
    p.q = q;
    p.inverse = 1;
    for (int i = 0; i < 5; ++i) p.inverse *= 2 - q * p.inverse;
    p.barrett = static_cast<u64>((static_cast<u128>(1) << 64) / q);
    p.montgomery = static_cast<u32>((u64{1} << 32) % q);
    p.square = p.times(p.montgomery, p.montgomery);
    u32 psi = 0;
    for (u32 base = 2; psi == 0; ++base) {
        const u32 candidate = p.power(base, (q - 1) / (2 * degree));
        if (p.power(candidate, degree) == q - 1) psi = candidate;
    }
    fill(p, psi, p.forward, p.forward_companion);
    fill(p, p.invert(psi), p.backward, p.backward_companion);
    p.scale = p.times(p.invert(static_cast<u32>(degree)), p.montgomery);
    return made;
}

} // namespace

u32 Prime::power(u32 x, u64 exponent) const {
    u32 out = 1;
    for (; exponent; exponent >>= 1, x = times(x, x))
        if (exponent & 1) out = times(out, x);
    return out;
}

const Prime &prime(u32 q) {
    static std::mutex mutex;
    static std::map<u32, std::unique_ptr<const Prime>> known;
    const std::lock_guard<std::mutex> guard(mutex);
    auto &entry = known[q];
    if (!entry) {
        try {
            entry = make_prime(q);
        } catch (...) {
            known.erase(q);
            throw;
        }
    }
    return *entry;
}

void forward(const Prime &p, const u32 *in, u32 *out, Isa isa) {
    const auto kernel = isa == Isa::avx2 ? avx2::forward_kernel<false> : portable::forward_kernel<false>;
    kernel(p, p.q, in, out, out, lanes);
}

void forward_foreign(const Prime &p, u32 from, const u32 *in, u32 *work, u32 *out, size_t stride, Isa isa) {
    const auto kernel = isa == Isa::avx2 ? avx2::forward_kernel<true> : portable::forward_kernel<true>;
    kernel(p, from, in, work, out, stride);
}

void forward_short(const Prime &p, const u32 *in, size_t live, size_t block, u32 *work, u32 *out, size_t stride,
                   Isa isa) {
    const auto kernel = isa == Isa::avx2 ? avx2::forward_short_kernel : portable::forward_short_kernel;
    kernel(p, in, live, block, work, out, stride);
}

void backward(const Prime &p, u32 *in, u32 *out, Isa isa) {
    const auto kernel = isa == Isa::avx2 ? avx2::backward_kernel : portable::backward_kernel;
    kernel(p, in, rows, out);
}

void backward_sparse(const Prime &p, u32 *in, size_t step, u32 *out, Isa isa) {
    isa == Isa::avx2 ? avx2::fold_kernel(p, in, step) : portable::fold_kernel(p, in, step);
    const auto kernel = isa == Isa::avx2 ? avx2::backward_kernel : portable::backward_kernel;
    kernel(p, in, rows / step, out);
}

void multiply_add(const Prime &p, Left x, Right y, size_t terms, size_t sets, size_t count, u32 *const *acc,
                  size_t component, bool fresh, Isa isa) {
    const auto of = [&](auto two, auto one) { return sets == wide ? two : one; };
    const auto kernel =
        isa == Isa::avx2
            ? (fresh ? of(avx2::multiply_add_kernel<wide, true>, avx2::multiply_add_kernel<1, true>)
                     : of(avx2::multiply_add_kernel<wide, false>, avx2::multiply_add_kernel<1, false>))
            : (fresh ? of(portable::multiply_add_kernel<wide, true>, portable::multiply_add_kernel<1, true>)
                     : of(portable::multiply_add_kernel<wide, false>, portable::multiply_add_kernel<1, false>));
    kernel(p, x, y, terms, count, acc, component);
}

void shift(const Prime &p, const u32 *x, const u32 *y, size_t distance, u32 *sum, u32 *difference, Isa isa) {
    isa == Isa::avx2 ? avx2::shift_kernel(p, x, y, distance, sum, difference)
                     : portable::shift_kernel(p, x, y, distance, sum, difference);
}

void turn(const Prime &p, const u32 *in, size_t distance, u32 *out, Isa isa) {
    isa == Isa::avx2 ? avx2::turn_kernel(p, in, distance, out) : portable::turn_kernel(p, in, distance, out);
}

void divide(const Prime &p, u32 special, u32 inverse, const u32 *x, const u32 *rest, const u32 *more, u32 *out,
            Isa isa) {
    isa == Isa::avx2 ? avx2::divide_kernel(p, special, inverse, x, rest, more, out)
                     : portable::divide_kernel(p, special, inverse, x, rest, more, out);
}

Basis::Basis(const std::vector<u32> &primes) {
    if (primes.empty() || primes.size() > 8) throw std::invalid_argument("a basis has 1 to 8 primes");
    for (const u32 q : primes) {
        for (const Prime *other : primes_)
            if (other->q == q) throw std::invalid_argument("the primes of a basis must differ");
        primes_.push_back(&prime(q));
        modulus_ *= q;
        low_ *= q;
    }
    garner_.assign(size() * size(), 0);
    for (size_t i = 0; i < size(); ++i) {
        const Prime &p = *primes_[i];
        u32 product = 1;
        for (size_t j = 0; j < size(); ++j) {
            if (j == i) continue;
            product = p.times(product, p.reduce(u64{primes_[j]->q}));
            if (j < i) garner_[i * size() + j] = p.invert(p.reduce(u64{primes_[j]->q}));
        }
        punctured_.push_back(p.invert(product));
        reciprocals_.push_back(~u128{0} / p.q); // q is odd and above 1, so this is floor(2^128 / q)
    }
}

u128 Basis::fraction(const u32 *residues, size_t stride) const {
    u128 sum = 0;
    for (size_t i = 0; i < size(); ++i) sum += reciprocals_[i] * primes_[i]->times(residues[i * stride], punctured_[i]);
    return sum;
}

void Basis::digits(const u32 *residues, size_t stride, u32 *out) const {
    for (size_t i = 0; i < size(); ++i) {
        const Prime &p = *primes_[i];
        u32 digit = residues[i * stride];
        for (size_t j = 0; j < i; ++j) digit = p.times(p.minus(digit, p.reduce(u64{out[j]})), garner_[i * size() + j]);
        out[i] = digit;
    }
}

u128 Basis::lift(const u32 *residues, size_t stride) const {
    u32 out[8];
    digits(residues, stride, out);
    u128 x = 0;
    for (size_t i = size(); i-- > 0;) x = x * primes_[i]->q + out[i];
    return x;
}

u32 Basis::modulus_mod(u32 divisor) const {
    u64 rest = 1;
    for (const Prime *p : primes_) rest = rest * (p->q % divisor) % divisor;
    return static_cast<u32>(rest);
}

} // namespace comet::lattice
