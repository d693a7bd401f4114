#include "ot/aes_x86.hpp"

#if COMET_X86

#include <immintrin.h>

#include <cstring>

namespace comet::ot {

namespace {

template <int constant> COMET_AES __m128i next_round_key(__m128i key) {
    const __m128i word = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, constant), 0xff);
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

constexpr size_t pipeline = 8; // enough independent blocks to hide the latency of a round

template <size_t n> COMET_AES COMET_INLINE void rounds_aesni(const __m128i *key, __m128i (&x)[n]) {
    for (size_t i = 0; i < n; ++i) x[i] = _mm_xor_si128(x[i], key[0]);
    for (size_t round = 1; round < 10; ++round)
        for (size_t i = 0; i < n; ++i) x[i] = _mm_aesenc_si128(x[i], key[round]);
    for (size_t i = 0; i < n; ++i) x[i] = _mm_aesenclast_si128(x[i], key[10]);
}

template <size_t n> COMET_VAES COMET_INLINE void rounds_vaes(const __m128i *key, __m256i (&x)[n]) {
    for (size_t i = 0; i < n; ++i) x[i] = _mm256_xor_si256(x[i], _mm256_broadcastsi128_si256(key[0]));
    for (size_t round = 1; round < 10; ++round) {
        const __m256i k = _mm256_broadcastsi128_si256(key[round]);
        for (size_t i = 0; i < n; ++i) x[i] = _mm256_aesenc_epi128(x[i], k);
    }
    const __m256i last = _mm256_broadcastsi128_si256(key[10]);
    for (size_t i = 0; i < n; ++i) x[i] = _mm256_aesenclast_epi128(x[i], last);
}

} // namespace

COMET_AES void schedule_aesni(AesKey key, AesSchedule &out) {
    __m128i k[11];
    k[0] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(key.data()));
    k[1] = next_round_key<0x01>(k[0]);
    k[2] = next_round_key<0x02>(k[1]);
    k[3] = next_round_key<0x04>(k[2]);
    k[4] = next_round_key<0x08>(k[3]);
    k[5] = next_round_key<0x10>(k[4]);
    k[6] = next_round_key<0x20>(k[5]);
    k[7] = next_round_key<0x40>(k[6]);
    k[8] = next_round_key<0x80>(k[7]);
    k[9] = next_round_key<0x1b>(k[8]);
    k[10] = next_round_key<0x36>(k[9]);
    std::memcpy(out.bytes, k, sizeof k);
}

COMET_AES void encrypt_aesni(const AesSchedule &key, span<Block> blocks) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    auto *data = reinterpret_cast<__m128i *>(blocks.data());
    size_t n = blocks.size();
    for (; n >= pipeline; n -= pipeline, data += pipeline) {
        __m128i x[pipeline];
        for (size_t i = 0; i < pipeline; ++i) x[i] = _mm_load_si128(data + i);
        rounds_aesni(k, x);
        for (size_t i = 0; i < pipeline; ++i) _mm_store_si128(data + i, x[i]);
    }
    for (; n > 0; --n, ++data) {
        __m128i x[1] = {_mm_load_si128(data)};
        rounds_aesni(k, x);
        _mm_store_si128(data, x[0]);
    }
}

COMET_AES void counter_aesni(const AesSchedule &key, u64 first, span<Block> out) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    auto *data = reinterpret_cast<__m128i *>(out.data());
    size_t n = out.size();
    for (; n >= pipeline; n -= pipeline, data += pipeline, first += pipeline) {
        __m128i x[pipeline];
        for (size_t i = 0; i < pipeline; ++i) x[i] = _mm_set_epi64x(0, static_cast<long long>(first + i));
        rounds_aesni(k, x);
        for (size_t i = 0; i < pipeline; ++i) _mm_store_si128(data + i, x[i]);
    }
    for (; n > 0; --n, ++data, ++first) {
        __m128i x[1] = {_mm_set_epi64x(0, static_cast<long long>(first))};
        rounds_aesni(k, x);
        _mm_store_si128(data, x[0]);
    }
}

COMET_VAES void encrypt_vaes(const AesSchedule &key, span<Block> blocks) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    for (; blocks.size() >= 2 * pipeline; blocks = blocks.subspan(2 * pipeline)) {
        auto *data = reinterpret_cast<__m256i *>(blocks.data());
        __m256i x[pipeline];
        for (size_t i = 0; i < pipeline; ++i) x[i] = _mm256_loadu_si256(data + i);
        rounds_vaes(k, x);
        for (size_t i = 0; i < pipeline; ++i) _mm256_storeu_si256(data + i, x[i]);
    }
    encrypt_aesni(key, blocks);
}

COMET_VAES void counter_vaes(const AesSchedule &key, u64 first, span<Block> out) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    for (; out.size() >= 2 * pipeline; out = out.subspan(2 * pipeline), first += 2 * pipeline) {
        auto *data = reinterpret_cast<__m256i *>(out.data());
        __m256i x[pipeline];
        for (size_t i = 0; i < pipeline; ++i) {
            const auto place = static_cast<long long>(first + 2 * i);
            x[i] = _mm256_set_epi64x(0, place + 1, 0, place);
        }
        rounds_vaes(k, x);
        for (size_t i = 0; i < pipeline; ++i) _mm256_storeu_si256(data + i, x[i]);
    }
    counter_aesni(key, first, out);
}

} // namespace comet::ot

#endif
