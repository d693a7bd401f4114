#pragma once

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet::ring {

/// Exact truncation of z = z_0 + z_1 mod 2^width, |z| < 2^(width-2), by `shift` <= width - 2 bits.
///
/// With z'_i = z_i + (2^(width-2) - 1)·[leader] mod 2^width, the sum z'_0 + z'_1 has top bit 0, so it wrapped unless
/// both top bits are 0: with n_i = 1 - topbit(z'_i),
///
///     z / 2^shift ≈ Σ (z'_i >> shift) + 1 - (1 - n_0·n_1)·2^(width-shift) - 2^(width-2-shift).
///
/// The result is floor(z / 2^shift), or one more with probability frac(z / 2^shift) over uniform shares: exact where
/// the low bits are zero, unbiased everywhere. That is what the -1 in the offset is for: two shares of z - 1 lose
/// the fraction of (z - 1) / 2^shift, or that and a whole unit with the right probability.
struct Truncation {
    unsigned width, shift;
    bool leader;
};

/// out = packed n_i xor bits. Bits are packed in little order; padding bits of `out` are zero.
void truncate_mask(span<const u64> x, span<const u8> bits, span<u8> out, Truncation how, Isa isa);

/// What both parties know after the masked bits e_k = n_k xor b_k were exchanged, and what only this one knows.
struct TruncationBits {
    span<const u8> own;          // b_k of this party
    span<const u8> mine, theirs; // e_k of both
    span<const u64> product;     // a share of b_0·b_1
};

/// out = this party's share of the truncated value mod 2^64:
/// n_0·n_1 = e_0·e_1 + e_1·s_0·b_0 + e_0·s_1·b_1 + s_0·s_1·b_0·b_1,  s_k = 1 - 2e_k.
void truncate_finish(span<const u64> x, const TruncationBits &bits, span<u64> out, Truncation how, Isa isa);

} // namespace comet::ring
