#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

// Functions marked so are compiled for AVX2 and must only be called where isa.cpp found it.
#if defined(__x86_64__)
#define COMET_AVX2 __attribute__((target("avx2")))
#define COMET_HAVE_AVX2 1
#else
#define COMET_AVX2
#define COMET_HAVE_AVX2 0
#endif

// One body, compiled once per instruction set: it must be inlined into its callers.
#define COMET_INLINE inline __attribute__((always_inline))

namespace comet {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using std::size_t;

static_assert(std::endian::native == std::endian::little, "words are stored and sent in little-endian order");

/// 2^width - 1, width in 1..64.
constexpr u64 low_mask(unsigned width) { return ~u64{0} >> (64 - width); }

/// 2^exponent mod 2^64.
constexpr u64 power_of_two(unsigned exponent) { return exponent < 64 ? u64{1} << exponent : 0; }

} // namespace comet
