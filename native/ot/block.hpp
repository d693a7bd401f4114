#pragma once

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet::ot {

/// 128 bits, bit 0 first: an AES block, or one row of the matrix of an OT extension.
struct alignas(16) Block {
    u64 low, high;
};

COMET_INLINE Block operator^(Block a, Block b) { return {a.low ^ b.low, a.high ^ b.high}; }

} // namespace comet::ot
