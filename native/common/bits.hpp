#pragma once

// Numbers of any width one after the other in a string of bytes, lowest bit first, without gaps.

#include <cstring>

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet {

/// Bytes that `count` numbers of `width` bits take.
constexpr size_t packed_bytes(size_t count, unsigned width) { return (count * width + 7) / 8; }

class BitWriter {
public:
    explicit BitWriter(span<u8> out) : out_(out) {}

    /// Appends a value below 2^width, width in 0..64.
    COMET_INLINE void put(u64 value, unsigned width) {
        pending_ |= value << fill_; // fill_ is below 64
        fill_ += width;
        if (fill_ < 64) return;
        store(8);
        fill_ -= 64;
        pending_ = fill_ == 0 ? 0 : value >> (width - fill_);
    }

    /// The same for a width in 0..128.
    COMET_INLINE void put_wide(u128 value, unsigned width) {
        if (width <= 64) return put(static_cast<u64>(value), width);
        put(static_cast<u64>(value), 64);
        put(static_cast<u64>(value >> 64), width - 64);
    }

    /// Fills up the last byte with zeros; what follows starts at a whole byte.
    void finish() {
        if (fill_ != 0) store((fill_ + 7) / 8);
        pending_ = fill_ = 0;
    }

private:
    COMET_INLINE void store(size_t bytes) {
        std::memcpy(out_.subspan(at_, bytes).data(), &pending_, bytes);
        at_ += bytes;
    }

    span<u8> out_;
    size_t at_ = 0;
    u64 pending_ = 0;
    unsigned fill_ = 0;
};

/// Reads them again. Beyond the end of the string there are zeros.
class BitReader {
public:
    explicit BitReader(span<const u8> in) : in_(in) {}

    /// The next number, width in 0..64.
    COMET_INLINE u64 get(unsigned width) {
        if (width == 0) return 0;
        u64 value = pending_;
        if (fill_ < width) {
            const u64 next = load();
            value |= next << fill_;
            const unsigned used = width - fill_;
            pending_ = used == 64 ? 0 : next >> used;
            fill_ += 64;
        } else {
            pending_ >>= width;
        }
        fill_ -= width;
        return value & low_mask(width);
    }

    /// The same for a width in 0..128.
    COMET_INLINE u128 get_wide(unsigned width) {
        if (width <= 64) return get(width);
        const u64 low = get(64);
        return u128{get(width - 64)} << 64 | low;
    }

    /// Goes on at the next whole byte; returns the bits it skips.
    u64 align() { return get(fill_ % 8); }

private:
    COMET_INLINE u64 load() {
        u64 word = 0;
        const size_t left = in_.size() - at_;
        if (left >= 8) {
            std::memcpy(&word, in_.subspan(at_, 8).data(), 8);
            at_ += 8;
        } else {
            for (size_t i = 0; i < left; ++i) word |= u64{in_[at_ + i]} << (8 * i);
            at_ = in_.size();
        }
        return word;
    }

    span<const u8> in_;
    size_t at_ = 0;
    u64 pending_ = 0;
    unsigned fill_ = 0;
};

/// Bit i of packed bits.
COMET_INLINE u64 bit(span<const u8> bits, size_t i) { return (bits[i / 8] >> (i % 8)) & 1; }

} // namespace comet
