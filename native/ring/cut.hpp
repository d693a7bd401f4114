#pragma once

// Truncation from any ring into any other with small products of bits, or with none.

#include "common/types.hpp"
#include "ring/truncate.hpp"

namespace comet::ring {

/// z = z_0 + z_1 in Z_M becomes z·s in Z_N, s = j·N/(P·M), off by less than one unit.
///
/// As in odd.hpp z'_i = z_i + offset·[leader] mod M, and n_i says that z'_i is below M/2. Over the rational numbers
///
///     z·s = Σ z'_i·s - (1 - n_0·n_1)·j·N/P - offset·s      mod N,
///
/// and with shares r_0 + r_1 = n_0·n_1 mod P the product is Σ r_i·j·N/P: what wraps mod P is a multiple of N. Each party
/// adds up its own terms with 64 bits after the point; the leader rounds up, the other down.
///
/// P = 1 takes no bits: what wraps mod M is a multiple of M·s = j·N. engine/ops/conversion.py chooses the numbers.
struct Cut {
    u64 modulus;                      // M, or 0 for 2^width
    unsigned width;                   // of M
    u64 offset, half;                 // half: the least residue that is not below M/2
    u64 scale_high, scale_low;        // s·2^128; both 0 for 1
    u64 target;                       // N, or 0 for a power of two
    u64 products, factor;             // P < 2^40 and j < 2^24
    u64 step_high, step_low;          // N/P·2^64
    u64 constant_high, constant_low;  // (-j·N/P - offset·s mod N)·2^64, the leader's
    bool leader;
};

/// out = this party's share. The masked bits are those of `convert_mask`; `product` is a share of b_0·b_1 mod P.
void cut_finish(span<const u64> x, const TruncationBits &bits, span<u64> out, const Cut &how);

/// The same for P = 1: no bits, no offset, no constant.
void cut_free(span<const u64> x, span<u64> out, const Cut &how);

} // namespace comet::ring
