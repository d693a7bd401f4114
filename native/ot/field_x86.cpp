#include "ot/field_x86.hpp"

#if COMET_X86

#include <immintrin.h>

namespace comet::ot {

namespace {

/// x·y: 256 bits by four products, then the upper half folded in by x^128 = x^7 + x^2 + x + 1, twice.
COMET_CLMUL COMET_INLINE __m128i multiply(__m128i x, __m128i y) {
    const __m128i low = _mm_clmulepi64_si128(x, y, 0x00), high = _mm_clmulepi64_si128(x, y, 0x11);
    const __m128i middle = _mm_xor_si128(_mm_clmulepi64_si128(x, y, 0x01), _mm_clmulepi64_si128(x, y, 0x10));
    const __m128i lower = _mm_xor_si128(low, _mm_slli_si128(middle, 8));
    const __m128i upper = _mm_xor_si128(high, _mm_srli_si128(middle, 8));
    const __m128i fold = _mm_set_epi64x(0, 0x87);
    const __m128i top = _mm_clmulepi64_si128(upper, fold, 0x01); // of the highest 64 bits
    const __m128i rest = _mm_xor_si128(upper, _mm_srli_si128(top, 8));
    const __m128i bottom = _mm_clmulepi64_si128(rest, fold, 0x00);
    return _mm_xor_si128(_mm_xor_si128(lower, _mm_slli_si128(top, 8)), bottom);
}

constexpr size_t pipeline = 8; // rows worked on at a time: enough to hide the latency of a product

template <size_t n> COMET_CLMUL COMET_INLINE void hash(__m128i key, const Block *rows, size_t length, Block *digests) {
    __m128i sums[n];
    for (size_t p = 0; p < n; ++p) sums[p] = _mm_setzero_si128();
    for (size_t i = 0; i < length; ++i)
        for (size_t p = 0; p < n; ++p) {
            const auto *block = reinterpret_cast<const __m128i *>(rows + p * length + i);
            sums[p] = _mm_xor_si128(multiply(sums[p], key), _mm_loadu_si128(block));
        }
    for (size_t p = 0; p < n; ++p) _mm_storeu_si128(reinterpret_cast<__m128i *>(digests + p), sums[p]);
}

} // namespace

COMET_CLMUL void hash_clmul(Block key, span<const Block> rows, span<Block> digests) {
    const size_t count = digests.size(), length = rows.size() / count;
    const __m128i factor = _mm_loadu_si128(reinterpret_cast<const __m128i *>(&key));
    size_t p = 0;
    for (; p + pipeline <= count; p += pipeline) hash<pipeline>(factor, &rows[p * length], length, &digests[p]);
    for (; p < count; ++p) hash<1>(factor, &rows[p * length], length, &digests[p]);
}

} // namespace comet::ot

#endif
