#pragma once

// Numbers of any width up to 128 bits one after the other in a string of bytes, lowest bit first.

#include <algorithm>
#include <cstring>

#include "rlwe/transform.hpp"

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
        const unsigned bytes = (fill_ + 7) / 8;
        std::memcpy(out_, &held_, bytes);
        out_ += bytes;
        held_ = fill_ = 0;
    }

private:
    void put_word(u64 value, unsigned bits) {
        held_ |= u128{value} << fill_; // fill_ is below 64
        fill_ += bits;
        if (fill_ >= 64) {
            const u64 word = static_cast<u64>(held_);
            std::memcpy(out_, &word, 8);
            out_ += 8;
            held_ >>= 64;
            fill_ -= 64;
        }
    }

    u8 *out_;
    u128 held_ = 0;
    unsigned fill_ = 0;
};

class BitReader {
public:
    BitReader(const u8 *in, size_t size) : in_(in), end_(in + size) {}

    u128 get(unsigned bits) {
        if (bits <= 64) return get_word(bits);
        const u128 low = get_word(64);
        return low | u128{get_word(bits - 64)} << 64;
    }

    /// Goes on at the next whole byte; returns the bits it skips.
    u64 align() {
        const unsigned bits = fill_ % 8;
        return bits ? get_word(bits) : 0;
    }

private:
    u64 get_word(unsigned bits) {
        if (fill_ < bits) {
            u64 word = 0;
            const size_t bytes = std::min<size_t>(8, static_cast<size_t>(end_ - in_));
            bytes == 8 ? std::memcpy(&word, in_, 8) : std::memcpy(&word, in_, bytes);
            in_ += bytes;
            held_ |= u128{word} << fill_;
            fill_ += static_cast<unsigned>(8 * bytes);
        }
        const u64 value = static_cast<u64>(held_) & low_mask(bits);
        held_ >>= bits;
        fill_ -= bits;
        return value;
    }

    const u8 *in_, *end_;
    u128 held_ = 0;
    unsigned fill_ = 0;
};

} // namespace comet::lattice
