#pragma once

#include "ot/block.hpp"

namespace comet::ot {

using AesKey = span<const u8, 16>;

/// Round keys of AES-128 in the order of FIPS 197.
struct alignas(16) AesSchedule {
    u8 bytes[176];
};

/// AES-128 on one instruction set. Nothing branches on, or looks up by, secret data.
struct Aes {
    void (*schedule)(AesKey key, AesSchedule &out);
    /// blocks[i] = AES(blocks[i])
    void (*encrypt)(const AesSchedule &key, span<Block> blocks);
    /// out[i] = AES(first + i, as a little-endian number of 128 bits)
    void (*counter)(const AesSchedule &key, u64 first, span<Block> out);
};

/// Portable, with AES-NI (and AVX2), or with VAES.
const Aes &aes(Isa isa);

} // namespace comet::ot
