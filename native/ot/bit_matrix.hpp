#pragma once

// Sums and transposes of bit matrices.

#include <cstring>

#include "ot/block.hpp"

namespace comet::ot {

/// What the extension does with bits, on one instruction set.
struct BitMatrix {
    /// side ^= right, right ^= left, for as many blocks as `left` has.
    void (*merge)(Block *side, Block *right, span<const Block> left);
    /// Bit c of planes[r · stride …] becomes bit r of rows[c], for 128 planes of rows.size() bits, a multiple of 64.
    void (*transpose)(const u64 *planes, size_t stride, span<Block> rows);
};

/// Portable or with AVX2.
const BitMatrix &bit_matrix(Isa isa);

/// Transposes `lanes` matrices of 64×64 bits: bit c of a[r][lane] <-> bit r of a[c][lane].
template <size_t lanes> COMET_INLINE void transpose_64(u64 (&a)[64][lanes]) {
    u64 mask = 0x00000000ffffffff;
    for (size_t j = 32; j != 0; j >>= 1, mask ^= mask << j) {
        for (size_t k = 0; k < 64; k = (k + j + 1) & ~j) {
            for (size_t lane = 0; lane < lanes; ++lane) {
                const u64 t = ((a[k][lane] >> j) ^ a[k + j][lane]) & mask;
                a[k + j][lane] ^= t;
                a[k][lane] ^= t << j;
            }
        }
    }
}

} // namespace comet::ot
