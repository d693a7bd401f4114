#pragma once

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet::ring {

/// out = the low `size` bytes (1..8) of each word, little endian, without gaps.
void pack_words(span<const u64> x, span<u8> out, unsigned size, Isa isa);

/// The inverse: as many words as `out` has, zero-extended.
void unpack_words(span<const u8> data, span<u64> out, unsigned size, Isa isa);

} // namespace comet::ring
