#include "ring/words.hpp"

#include <cstring>

namespace comet::ring {

namespace {

template <class Word> COMET_INLINE void narrow(const u64 *x, u8 *out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const auto word = static_cast<Word>(x[i]);
        std::memcpy(out + i * sizeof(Word), &word, sizeof(Word));
    }
}

template <class Word> COMET_INLINE void widen(const u8 *data, u64 *out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        Word word;
        std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
        out[i] = word;
    }
}

// Words whose full 8 bytes stay inside a buffer of n words of `size` bytes; the few others are copied exactly.
COMET_INLINE size_t roomy(size_t n, unsigned size) {
    const size_t tail = (8 + size - 1) / size;
    return n > tail ? n - tail : 0;
}

COMET_INLINE void pack_body(span<const u64> words, span<u8> bytes, unsigned size) {
    const u64 *x = words.data();
    u8 *out = bytes.data();
    const size_t n = words.size();
    switch (size) {
    case 1: return narrow<u8>(x, out, n);
    case 2: return narrow<std::uint16_t>(x, out, n);
    case 4: return narrow<u32>(x, out, n);
    case 8:
        if (n > 0) std::memcpy(out, x, n * 8);
        return;
    default: break;
    }
    size_t i = 0;
    // Each store also writes 8 - size bytes that the next one overwrites.
    for (; i < roomy(n, size); ++i) std::memcpy(out + i * size, x + i, 8);
    for (; i < n; ++i) std::memcpy(out + i * size, x + i, size);
}

COMET_INLINE void unpack_body(span<const u8> bytes, span<u64> words, unsigned size) {
    const u8 *data = bytes.data();
    u64 *out = words.data();
    const size_t n = words.size();
    switch (size) {
    case 1: return widen<u8>(data, out, n);
    case 2: return widen<std::uint16_t>(data, out, n);
    case 4: return widen<u32>(data, out, n);
    case 8:
        if (n > 0) std::memcpy(out, data, n * 8);
        return;
    default: break;
    }
    const u64 mask = low_mask(8 * size);
    size_t i = 0;
    for (; i < roomy(n, size); ++i) {
        std::memcpy(out + i, data + i * size, 8);
        out[i] &= mask;
    }
    for (; i < n; ++i) {
        out[i] = 0;
        std::memcpy(out + i, data + i * size, size);
    }
}

COMET_AVX2 void pack_avx2(span<const u64> x, span<u8> out, unsigned size) { pack_body(x, out, size); }
COMET_AVX2 void unpack_avx2(span<const u8> data, span<u64> out, unsigned size) { unpack_body(data, out, size); }

constexpr Dispatch packers{Variant{Isa::portable, pack_body}, Variant{Isa::avx2, pack_avx2}};
constexpr Dispatch unpackers{Variant{Isa::portable, unpack_body}, Variant{Isa::avx2, unpack_avx2}};

} // namespace

void pack_words(span<const u64> x, span<u8> out, unsigned size, Isa isa) { packers[isa](x, out, size); }

void unpack_words(span<const u8> data, span<u64> out, unsigned size, Isa isa) { unpackers[isa](data, out, size); }

} // namespace comet::ring
