#pragma once

// Arithmetic modulo an odd T below 2^62, on vectors of residues 0 … T-1.

#include "common/types.hpp"
#include "ring/polynomial.hpp"
#include "ring/truncate.hpp"

namespace comet::ring {

/// Montgomery's arithmetic: `times(a, b)` is a·b/2^64 mod T.
class OddModulus {
public:
    explicit OddModulus(u64 modulus);

    u64 value() const { return t_; }
    COMET_INLINE u64 plus(u64 a, u64 b) const { return reduced(a + b); }
    COMET_INLINE u64 minus(u64 a, u64 b) const { return reduced(a + t_ - b); }
    COMET_INLINE u64 times(u64 a, u64 b) const {
        const u128 product = u128{a} * b;
        const u64 quotient = static_cast<u64>(product) * inverse_;
        const u64 high = static_cast<u64>(product >> 64), low = static_cast<u64>((u128{quotient} * t_) >> 64);
        return reduced(high + t_ - low);
    }
    /// a·2^64 mod T: the form in which a factor is given to `times` so that the product is plain.
    COMET_INLINE u64 lifted(u64 a) const { return times(a, square_); }
    COMET_INLINE u64 reduce(u64 a) const { return a % t_; }

private:
    COMET_INLINE u64 reduced(u64 a) const { return a >= t_ ? a - t_ : a; }
    u64 t_, inverse_, square_;
};

void odd_multiply(const OddModulus &ring, span<const u64> a, span<const u64> b, span<u64> out);

/// As `evaluate` in polynomial.hpp, mod T. Constants and coefficients of the plan are residues.
void odd_evaluate(const OddModulus &ring, const PolynomialPlan &plan, span<const span<const u64>> opened,
                  span<u64> out);

/// out = ⌊w·T/2^128⌋ for numbers w of 128 bits, the low word first: uniform mod T but for less than T/2^128.
void odd_uniform(const OddModulus &ring, span<const u64> words, span<u64> out);

/// From one ring into another: z = z_0 + z_1 in Z_M, |z| < M/4, becomes z·scale in Z_N, off by about one unit at most.
///
/// With z'_i = z_i + offset·[leader] mod M, offset near M/4, the sum z'_0 + z'_1 is below M/2 or wrapped; it wrapped
/// unless both shares are below M/2. With n_i for "below" and K for M·scale,
///
///     z·scale ≈ Σ ⌊z'_i·scale⌋ + 1 - (1 - n_0·n_1)·K - offset·scale.
///
/// engine/ring.py chooses the numbers and says what error is left.
struct Conversion {
    u64 modulus;                  // M, or 0 for 2^width
    unsigned width;               // of M
    u64 offset, half;             // half: the least residue that is not below M/2
    u64 scale_high, scale_low;    // scale·2^128; both 0 for scale 1
    u64 target;                   // N, or 0 for 2^64
    u64 wrap, constant;           // mod N: K, and 1 - K - offset·scale
    bool leader;
};

void convert_mask(span<const u64> x, span<const u8> bits, span<u8> out, const Conversion &how);
void convert_finish(span<const u64> x, const TruncationBits &bits, span<u64> out, const Conversion &how);

/// The low `width` bits of each word, without gaps; the last byte is filled up with zeros.
void pack_bits(span<const u64> x, span<u8> out, unsigned width);

/// The inverse. Returns whether all numbers are below `limit` (0: any) and the padding is zero.
bool unpack_bits(span<const u8> in, span<u64> out, unsigned width, u64 limit);

} // namespace comet::ring
