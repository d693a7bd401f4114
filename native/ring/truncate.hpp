#pragma once

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet {

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
void truncate_mask(const u64 *x, const u8 *bits, u8 *out, size_t n, Truncation how, Isa isa);

/// out = this party's share of the truncated value mod 2^64, from the masked bits e_k = n_k xor b_k of both and
/// `product`, a share of b_0·b_1:  n_0·n_1 = e_0·e_1 + e_1·s_0·b_0 + e_0·s_1·b_1 + s_0·s_1·b_0·b_1,  s_k = 1 - 2e_k.
void truncate_finish(const u64 *x, const u8 *bits, const u8 *mine, const u8 *theirs, const u64 *product, u64 *out,
                     size_t n, Truncation how, Isa isa);

} // namespace comet
