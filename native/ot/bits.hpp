#pragma once

#include <algorithm>
#include <cstring>

#include "common/types.hpp"

namespace comet {

/// Writes numbers of `width` bits (0..64) one after the other, lowest bit first, without gaps.
class BitWriter {
public:
    BitWriter(u8 *out, unsigned width) : out_(out), width_(width) {}

    void put(u64 value) {
        pending_ |= value << fill_;
        fill_ += width_;
        if (fill_ < 64) return;
        std::memcpy(out_, &pending_, 8);
        out_ += 8;
        fill_ -= 64;
        pending_ = fill_ == 0 ? 0 : value >> (width_ - fill_);
    }

    void finish() {
        if (fill_ != 0) std::memcpy(out_, &pending_, (fill_ + 7) / 8);
    }

private:
    u8 *out_;
    unsigned width_, fill_ = 0;
    u64 pending_ = 0;
};

/// Reads them again; never beyond the bytes that n of them take.
class BitReader {
public:
    BitReader(const u8 *in, size_t n, unsigned width) : in_(in), left_((n * width + 7) / 8), width_(width) {}

    u64 get() {
        if (width_ == 0) return 0;
        u64 value = pending_;
        if (fill_ < width_) {
            const size_t bytes = std::min<size_t>(8, left_);
            u64 next = 0;
            std::memcpy(&next, in_, bytes);
            in_ += bytes;
            left_ -= bytes;
            value |= next << fill_;
            const unsigned used = width_ - fill_;
            pending_ = used == 64 ? 0 : next >> used;
            fill_ += 64;
        } else {
            pending_ >>= width_;
        }
        fill_ -= width_;
        return value & low_mask(width_);
    }

private:
    const u8 *in_;
    size_t left_;
    unsigned width_, fill_ = 0;
    u64 pending_ = 0;
};

/// Bit i of packed bits.
COMET_INLINE u64 bit(const u8 *bits, size_t i) { return (bits[i / 8] >> (i % 8)) & 1; }

} // namespace comet
