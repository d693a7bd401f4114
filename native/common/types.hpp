#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace comet {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
__extension__ typedef unsigned __int128 u128;
using std::size_t;
using std::span;

static_assert(std::endian::native == std::endian::little, "words are stored and sent in little-endian order");

/// 2^width - 1, width in 1..64.
constexpr u64 low_mask(unsigned width) { return ~u64{0} >> (64 - width); }

/// 2^exponent mod 2^64.
constexpr u64 power_of_two(unsigned exponent) { return exponent < 64 ? u64{1} << exponent : 0; }

} // namespace comet
