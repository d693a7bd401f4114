#pragma once

#include <string>
#include <vector>

#include "common/types.hpp"

namespace comet {

/// 128 bits, bit 0 first: an AES block, or one row of the matrix of an OT extension.
struct alignas(16) Block {
    u64 low, high;
};

/// Round keys of AES-128 in the order of FIPS 197.
struct alignas(16) AesSchedule {
    u8 bytes[176];
};

/// The primitives of the OT extension on one instruction set. None of them branches on, or looks up by, secret data.
struct TransferIsa {
    const char *name;
    void (*schedule)(const u8 *key, AesSchedule &out);
    /// blocks[i] = AES(blocks[i])
    void (*encrypt)(const AesSchedule &key, Block *blocks, size_t n);
    /// out[i] = AES(first + i, as a little-endian number of 128 bits)
    void (*counter)(const AesSchedule &key, u64 first, Block *out, size_t n);
    /// side ^= right, right ^= left
    void (*merge)(Block *side, Block *right, const Block *left, size_t n);
    /// Bit c of planes[r · stride] becomes bit r of rows[c], 128 rows of `columns` bits, a multiple of 64.
    void (*transpose)(const u64 *planes, size_t stride, Block *rows, size_t columns);
};

/// Those this machine can run, best last: portable, aesni (needs AVX2 too), vaes.
std::vector<std::string> transfer_isa_names();

/// The one called `name`; an empty name means the best one. Throws std::invalid_argument.
const TransferIsa &transfer_isa(const std::string &name);

} // namespace comet
