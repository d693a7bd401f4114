#pragma once

// Arithmetic modulo primes below 2^30 that are 1 mod 2^14: negacyclic polynomials of degree 8192 have a transform.

#include <algorithm>
#include <bit>
#include <vector>

#include "common/types.hpp"

namespace comet::rlwe {

constexpr size_t degree = 8192;
constexpr size_t lanes = 8;
constexpr size_t rows = degree / lanes;

/// The twiddles as the wider transforms want them (transform_avx512.cpp): w and floor(2^52·w/q). Made only where the
/// machine can use them.
struct WideTwiddles {
    struct alignas(64) Row {
        u64 at[lanes];
    };
    Row lane{}, lane_companion{}; // for the three stages that pair lanes; backward, entries 0 and 1 hold 1/8192
    std::vector<Row> rows, companions;
};

/// Tables for one prime q. Each twiddle w has a companion, floor(2^32·w/q): then x·w - (x·companion >> 32)·q is below 2q
/// for every x of 32 bits (Shoup's way; Harvey 2014).
/// Entries 1..7 serve the first three stages; vectors of 8 for the others start at entry 8.
struct Prime {
    u32 q;
    u32 inverse;    // q^-1 mod 2^32
    u32 montgomery; // 2^32 mod q
    u32 square;     // 2^64 mod q
    u32 scale;      // 8192^-1, in Montgomery form
    u64 barrett;    // floor(2^64 / q)
    u32 root;       // of order 2·8192
    std::vector<u32> forward, forward_companion, backward, backward_companion;
    WideTwiddles wide_forward, wide_backward;

    unsigned bits() const { return static_cast<unsigned>(std::bit_width(q)); }
    u32 reduce(u64 x) const {
        const u64 quotient = static_cast<u64>((static_cast<u128>(x) * barrett) >> 64);
        const u64 rest = x - quotient * q;
        return static_cast<u32>(rest >= q ? rest - q : rest);
    }
    /// x / 2^32 mod q.
    u32 reduce_montgomery(u64 x) const {
        u32 high = static_cast<u32>(x >> 32);
        for (const u32 multiple : {2 * q, 2 * q, q}) high = std::min(high, high - multiple);
        const u32 quotient = static_cast<u32>(x) * inverse;
        const u32 rest = high - static_cast<u32>((static_cast<u64>(quotient) * q) >> 32) + q;
        return std::min(rest, rest - q);
    }
    u32 reduce(u128 x) const {
        const u64 high = reduce(static_cast<u64>(x >> 64)), low = reduce(static_cast<u64>(x));
        return reduce(high * square + low);
    }
    u32 times(u32 x, u32 y) const { return reduce(static_cast<u64>(x) * y); }
    /// x·y / 2^32 mod q: the product if y is in Montgomery form.
    u32 times_montgomery(u32 x, u32 y) const {
        const u64 product = static_cast<u64>(x) * y;
        const u32 quotient = static_cast<u32>(product) * inverse;
        const u32 rest = static_cast<u32>(product >> 32) - static_cast<u32>((static_cast<u64>(quotient) * q) >> 32) + q;
        return std::min(rest, rest - q);
    }
    u32 plus(u32 x, u32 y) const { return x + y >= q ? x + y - q : x + y; }
    u32 minus(u32 x, u32 y) const { return x >= y ? x - y : x + q - y; }
    /// The residue of a number far below q, of either sign.
    u32 small(i8 value) const { return value < 0 ? q - static_cast<u32>(-value) : static_cast<u32>(value); }
    /// x in Montgomery form.
    u32 lifted(u32 x) const { return times(x, montgomery); }
    u32 power(u32 x, u64 exponent) const;
    u32 invert(u32 x) const { return power(x, q - 2); }
    /// For products with w, in Montgomery form: -w·q^-1 mod 2^32.
    u32 companion(u32 w) const { return 0 - w * inverse; }
    /// For products with w as it is: floor(2^32·w/q).
    u32 quotient(u32 w) const { return static_cast<u32>((u64{w} << 32) / q); }
};

/// The tables for q, made once. Throws std::invalid_argument for a number that is not such a prime.
const Prime &prime(u32 q);

/// The same for forward transforms of x(X^step) instead of x, an odd step: they take powers of another root.
const Prime &turned_prime(u32 q, size_t step);

} // namespace comet::rlwe
