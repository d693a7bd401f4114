#pragma once

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet {

/// out = the low `size` bytes (1..8) of each word, little endian, without gaps.
void pack_words(const u64 *x, u8 *out, size_t n, unsigned size, Isa isa);

/// The inverse: n words, zero-extended.
void unpack_words(const u8 *data, u64 *out, size_t n, unsigned size, Isa isa);

} // namespace comet
