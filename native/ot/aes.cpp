// AES-128 and bit matrices, portable and with the instructions of x86.
//
// The portable AES is bit-sliced, 64 blocks at a time: word s[b][p] holds bit b of byte p of each of them, so
// ShiftRows is a renaming, and the S-box is arithmetic in GF(2^8): x^254 by four products, then the affine map.
// It takes the same time for all data, which tables would not.

#include "ot/aes.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#if COMET_HAVE_AVX2
#include <immintrin.h>
#endif

namespace comet {

namespace {

// Bit matrices ---------------------------------------------------------------------------------------------------

// Transposes `lanes` matrices of 64×64 bits: bit c of a[r][lane] <-> bit r of a[c][lane].
template <size_t lanes> COMET_INLINE void transpose_64(u64 (&a)[64][lanes]) {
    u64 mask = 0x00000000ffffffff;
    for (size_t j = 32; j != 0; j >>= 1, mask ^= mask << j) {
        for (size_t k = 0; k < 64; k = (k + j + 1) & ~j) {
            for (size_t lane = 0; lane < lanes; ++lane) {
                const u64 t = ((a[k][lane] >> j) ^ a[k + j][lane]) & mask;
                a[k + j][lane] ^= t;
                a[k][lane] ^= t << j;
            }
        }
    }
}

template <size_t lanes>
COMET_INLINE void transpose_group(const u64 *planes, size_t stride, Block *rows) {
    u64 low[64][lanes], high[64][lanes];
    for (size_t r = 0; r < 64; ++r) {
        std::memcpy(low[r], planes + r * stride, sizeof low[r]);
        std::memcpy(high[r], planes + (64 + r) * stride, sizeof high[r]);
    }
    transpose_64(low);
    transpose_64(high);
    for (size_t lane = 0; lane < lanes; ++lane)
        for (size_t c = 0; c < 64; ++c) rows[64 * lane + c] = {low[c][lane], high[c][lane]};
}

COMET_INLINE void transpose_body(const u64 *planes, size_t stride, Block *rows, size_t columns) {
    size_t done = 0;
    for (; done + 256 <= columns; done += 256) transpose_group<4>(planes + done / 64, stride, rows + done);
    for (; done < columns; done += 64) transpose_group<1>(planes + done / 64, stride, rows + done);
}

COMET_INLINE void merge_body(Block *side, Block *right, const Block *left, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        side[i] = {side[i].low ^ right[i].low, side[i].high ^ right[i].high};
        right[i] = {right[i].low ^ left[i].low, right[i].high ^ left[i].high};
    }
}

void transpose_portable(const u64 *planes, size_t stride, Block *rows, size_t columns) {
    transpose_body(planes, stride, rows, columns);
}

void merge_portable(Block *side, Block *right, const Block *left, size_t n) { merge_body(side, right, left, n); }

// Portable AES ---------------------------------------------------------------------------------------------------

constexpr u8 round_constants[10] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1b, 0x36};

// Elements of GF(2^8) = GF(2)[x] / (x^8 + x^4 + x^3 + x + 1), one per bit of Word.
template <class Word> using Field = std::array<Word, 8>;

template <class Word> COMET_INLINE Field<Word> reduce(Word (&c)[15]) {
    for (size_t i = 14; i >= 8; --i) {
        c[i - 8] ^= c[i];
        c[i - 7] ^= c[i];
        c[i - 5] ^= c[i];
        c[i - 4] ^= c[i];
    }
    return {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]};
}

template <class Word> COMET_INLINE Field<Word> product(const Field<Word> &a, const Field<Word> &b) {
    Word c[15] = {};
    for (size_t i = 0; i < 8; ++i)
        for (size_t j = 0; j < 8; ++j) c[i + j] ^= a[i] & b[j];
    return reduce(c);
}

template <class Word> COMET_INLINE Field<Word> square(const Field<Word> &a) {
    Word c[15] = {};
    for (size_t i = 0; i < 8; ++i) c[2 * i] = a[i];
    return reduce(c);
}

// A·x^254 + 0x63: zero goes to zero under x^254, as it must.
template <class Word> COMET_INLINE Field<Word> substitute(const Field<Word> &x) {
    const auto x2 = square(x);
    const auto x3 = product(x2, x);
    const auto x12 = square(square(x3));
    const auto x15 = product(x12, x3);
    const auto x240 = square(square(square(square(x15))));
    const auto y = product(product(x240, x12), x2);
    Field<Word> out;
    for (size_t i = 0; i < 8; ++i) {
        out[i] = y[i] ^ y[(i + 4) % 8] ^ y[(i + 5) % 8] ^ y[(i + 6) % 8] ^ y[(i + 7) % 8];
        if ((0x63 >> i) & 1) out[i] = ~out[i];
    }
    return out;
}

void schedule_portable(const u8 *key, AesSchedule &out) {
    u8 *w = out.bytes;
    std::memcpy(w, key, 16);
    for (size_t round = 1; round <= 10; ++round, w += 16) {
        Field<u32> bits{};
        for (size_t i = 0; i < 4; ++i)
            for (size_t b = 0; b < 8; ++b) bits[b] |= static_cast<u32>((w[12 + (i + 1) % 4] >> b) & 1) << i;
        bits = substitute(bits);
        for (size_t i = 0; i < 4; ++i) {
            u8 byte = i == 0 ? round_constants[round - 1] : 0;
            for (size_t b = 0; b < 8; ++b) byte ^= static_cast<u8>(((bits[b] >> i) & 1) << b);
            for (size_t word = 0; word < 4; ++word) {
                byte ^= w[4 * word + i];
                w[16 + 4 * word + i] = byte;
            }
        }
    }
}

using Pair = u64 __attribute__((vector_size(16))); // two bytes' places at once
union Sliced {
    u64 words[8][16];
    Pair pairs[8][8];
};

COMET_INLINE void add_round_key(Sliced &s, const u8 *key) {
    for (size_t b = 0; b < 8; ++b)
        for (size_t p = 0; p < 16; ++p) s.words[b][p] ^= -static_cast<u64>((key[p] >> b) & 1);
}

COMET_INLINE void substitute_all(Sliced &s) {
    for (size_t p = 0; p < 8; ++p) {
        Field<Pair> x;
        for (size_t b = 0; b < 8; ++b) x[b] = s.pairs[b][p];
        x = substitute(x);
        for (size_t b = 0; b < 8; ++b) s.pairs[b][p] = x[b];
    }
}

COMET_INLINE void shift_rows(Sliced &s) {
    for (auto &plane : s.words) {
        u64 old[16];
        std::memcpy(old, plane, sizeof old);
        for (size_t p = 0; p < 16; ++p) plane[p] = old[(p + 4 * (p % 4)) % 16];
    }
}

COMET_INLINE void mix_columns(Sliced &s) {
    for (size_t column = 0; column < 16; column += 4) {
        u64 a[8][4];
        for (size_t b = 0; b < 8; ++b) std::memcpy(a[b], s.words[b] + column, sizeof a[b]);
        for (size_t i = 0; i < 4; ++i) {
            const size_t j = (i + 1) % 4, k = (i + 2) % 4, l = (i + 3) % 4;
            const u64 carry = a[7][i] ^ a[7][j];
            for (size_t b = 0; b < 8; ++b) {
                u64 twice = b == 0 ? carry : a[b - 1][i] ^ a[b - 1][j];
                if (b == 1 || b == 3 || b == 4) twice ^= carry;
                s.words[b][column + i] = twice ^ a[b][j] ^ a[b][k] ^ a[b][l];
            }
        }
    }
}

void encrypt_64(const AesSchedule &key, Block *blocks) {
    u64 half[64][2];
    std::memcpy(half, blocks, sizeof half);
    transpose_64(half);
    Sliced s;
    for (size_t p = 0; p < 16; ++p)
        for (size_t b = 0; b < 8; ++b) s.words[b][p] = half[8 * (p % 8) + b][p / 8];
    add_round_key(s, key.bytes);
    for (size_t round = 1; round <= 10; ++round) {
        substitute_all(s);
        shift_rows(s);
        if (round < 10) mix_columns(s);
        add_round_key(s, key.bytes + 16 * round);
    }
    for (size_t p = 0; p < 16; ++p)
        for (size_t b = 0; b < 8; ++b) half[8 * (p % 8) + b][p / 8] = s.words[b][p];
    transpose_64(half);
    std::memcpy(blocks, half, sizeof half);
}

void encrypt_portable(const AesSchedule &key, Block *blocks, size_t n) {
    for (; n >= 64; n -= 64, blocks += 64) encrypt_64(key, blocks);
    if (n == 0) return;
    Block last[64] = {};
    std::copy_n(blocks, n, last);
    encrypt_64(key, last);
    std::copy_n(last, n, blocks);
}

void counter_portable(const AesSchedule &key, u64 first, Block *out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = {first + i, 0};
    encrypt_portable(key, out, n);
}

constexpr TransferIsa portable{"portable",       schedule_portable, encrypt_portable,
                               counter_portable, merge_portable,    transpose_portable};

// x86 ------------------------------------------------------------------------------------------------------------

#if COMET_HAVE_AVX2

#define COMET_AES __attribute__((target("avx2,aes")))
#define COMET_VAES __attribute__((target("avx2,aes,vaes")))

COMET_AVX2 void transpose_avx2(const u64 *planes, size_t stride, Block *rows, size_t columns) {
    transpose_body(planes, stride, rows, columns);
}

COMET_AVX2 void merge_avx2(Block *side, Block *right, const Block *left, size_t n) { merge_body(side, right, left, n); }

template <int constant> COMET_AES __m128i next_round_key(__m128i key) {
    const __m128i word = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, constant), 0xff);
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

COMET_AES void schedule_aesni(const u8 *key, AesSchedule &out) {
    __m128i k[11];
    k[0] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(key));
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

constexpr size_t pipeline = 8; // enough independent blocks to hide the latency of a round

template <size_t n> COMET_AES COMET_INLINE void rounds_aesni(const __m128i *key, __m128i (&x)[n]) {
    for (size_t i = 0; i < n; ++i) x[i] = _mm_xor_si128(x[i], key[0]);
    for (size_t round = 1; round < 10; ++round)
        for (size_t i = 0; i < n; ++i) x[i] = _mm_aesenc_si128(x[i], key[round]);
    for (size_t i = 0; i < n; ++i) x[i] = _mm_aesenclast_si128(x[i], key[10]);
}

COMET_AES void encrypt_aesni(const AesSchedule &key, Block *blocks, size_t n) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    auto *data = reinterpret_cast<__m128i *>(blocks);
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

COMET_AES void counter_aesni(const AesSchedule &key, u64 first, Block *out, size_t n) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    auto *data = reinterpret_cast<__m128i *>(out);
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

template <size_t n> COMET_VAES COMET_INLINE void rounds_vaes(const __m128i *key, __m256i (&x)[n]) {
    for (size_t i = 0; i < n; ++i) x[i] = _mm256_xor_si256(x[i], _mm256_broadcastsi128_si256(key[0]));
    for (size_t round = 1; round < 10; ++round) {
        const __m256i k = _mm256_broadcastsi128_si256(key[round]);
        for (size_t i = 0; i < n; ++i) x[i] = _mm256_aesenc_epi128(x[i], k);
    }
    const __m256i last = _mm256_broadcastsi128_si256(key[10]);
    for (size_t i = 0; i < n; ++i) x[i] = _mm256_aesenclast_epi128(x[i], last);
}

COMET_VAES void encrypt_vaes(const AesSchedule &key, Block *blocks, size_t n) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    for (; n >= 2 * pipeline; n -= 2 * pipeline, blocks += 2 * pipeline) {
        auto *data = reinterpret_cast<__m256i *>(blocks);
        __m256i x[pipeline];
        for (size_t i = 0; i < pipeline; ++i) x[i] = _mm256_loadu_si256(data + i);
        rounds_vaes(k, x);
        for (size_t i = 0; i < pipeline; ++i) _mm256_storeu_si256(data + i, x[i]);
    }
    encrypt_aesni(key, blocks, n);
}

COMET_VAES void counter_vaes(const AesSchedule &key, u64 first, Block *out, size_t n) {
    const auto *k = reinterpret_cast<const __m128i *>(key.bytes);
    for (; n >= 2 * pipeline; n -= 2 * pipeline, out += 2 * pipeline, first += 2 * pipeline) {
        auto *data = reinterpret_cast<__m256i *>(out);
        __m256i x[pipeline];
        for (size_t i = 0; i < pipeline; ++i) {
            const auto place = static_cast<long long>(first + 2 * i);
            x[i] = _mm256_set_epi64x(0, place + 1, 0, place);
        }
        rounds_vaes(k, x);
        for (size_t i = 0; i < pipeline; ++i) _mm256_storeu_si256(data + i, x[i]);
    }
    counter_aesni(key, first, out, n);
}

constexpr TransferIsa aesni{"aesni", schedule_aesni, encrypt_aesni, counter_aesni, merge_avx2, transpose_avx2};
constexpr TransferIsa vaes{"vaes", schedule_aesni, encrypt_vaes, counter_vaes, merge_avx2, transpose_avx2};

#endif

std::vector<const TransferIsa *> available() {
    std::vector<const TransferIsa *> found{&portable};
#if COMET_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("aes")) {
        found.push_back(&aesni);
        if (__builtin_cpu_supports("vaes")) found.push_back(&vaes);
    }
#endif
    return found;
}

} // namespace

std::vector<std::string> transfer_isa_names() {
    std::vector<std::string> names;
    for (const TransferIsa *isa : available()) names.emplace_back(isa->name);
    return names;
}

const TransferIsa &transfer_isa(const std::string &name) {
    static const auto found = available();
    if (name.empty()) return *found.back();
    for (const TransferIsa *isa : found)
        if (name == isa->name) return *isa;
    throw std::invalid_argument("unknown or unavailable instruction set: " + name);
}

} // namespace comet
