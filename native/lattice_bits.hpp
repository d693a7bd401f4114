#pragma once

// Numbers of any width up to 128 bits one after the other in a string of bytes, lowest bit first.

#include <cstring>

#include "lattice.hpp"

namespace comet::lattice {

class BitWriter {
public:
    explicit BitWriter(u8 *out) : out_(out) {}

    void put(u128 value, unsigned bits) {
        if (bits > 64) {
            put_word(static_cast<u64>(value), 64);
            put_word(static_cast<u64>(value >> 64), bits - 64);
        } else {
            put_word(static_cast<u64>(value), bits);
        }
    }

    /// Fills up the last byte with zeros.
    void flush() {
        if (fill_) *out_++ = static_cast<u8>(held_);
        held_ = fill_ = 0;
    }

private:
    void put_word(u64 value, unsigned bits) {
        held_ |= u128{value} << fill_;
        for (fill_ += bits; fill_ >= 8; fill_ -= 8, held_ >>= 8) *out_++ = static_cast<u8>(held_);
    }

    u8 *out_;
    u128 held_ = 0;
    unsigned fill_ = 0;
};

class BitReader {
public:
    explicit BitReader(const u8 *in) : in_(in) {}

    u128 get(unsigned bits) {
        if (bits <= 64) return get_word(bits);
        const u128 low = get_word(64);
        return low | u128{get_word(bits - 64)} << 64;
    }

    /// Goes on at the next whole byte; returns the bits it skips.
    u8 align() {
        const u8 rest = static_cast<u8>(held_);
        held_ = fill_ = 0;
        return rest;
    }

private:
    u64 get_word(unsigned bits) {
        for (; fill_ < bits; fill_ += 8) held_ |= u128{*in_++} << fill_;
        const u64 value = static_cast<u64>(held_) & low_mask(bits);
        held_ >>= bits;
        fill_ -= bits;
        return value;
    }

    const u8 *in_;
    u128 held_ = 0;
    unsigned fill_ = 0;
};

} // namespace comet::lattice
