// The portable AES is bit-sliced, 64 blocks at a time: word s[b][p] holds bit b of byte p of each of them, so
// ShiftRows is a renaming, and the S-box is arithmetic in GF(2^8): x^254 by four products, then the affine map.
// It takes the same time for all data, which tables would not.

#include "ot/aes.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "ot/aes_x86.hpp"
#include "ot/bit_matrix.hpp"

namespace comet::ot {

namespace {

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

void schedule_portable(AesKey key, AesSchedule &out) {
    u8 *w = out.bytes;
    std::memcpy(w, key.data(), 16);
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

void encrypt_portable(const AesSchedule &key, span<Block> blocks) {
    for (; blocks.size() >= 64; blocks = blocks.subspan(64)) encrypt_64(key, blocks.data());
    if (blocks.empty()) return;
    Block last[64] = {};
    std::ranges::copy(blocks, last);
    encrypt_64(key, last);
    std::copy_n(last, blocks.size(), blocks.begin());
}

void counter_portable(const AesSchedule &key, u64 first, span<Block> out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = {first + i, 0};
    encrypt_portable(key, out);
}

#if COMET_X86
constexpr Dispatch dispatch{Variant{Isa::portable, Aes{schedule_portable, encrypt_portable, counter_portable}},
                            Variant{Isa::aesni, Aes{schedule_aesni, encrypt_aesni, counter_aesni}},
                            Variant{Isa::vaes, Aes{schedule_aesni, encrypt_vaes, counter_vaes}}};
#else
constexpr Dispatch dispatch{Variant{Isa::portable, Aes{schedule_portable, encrypt_portable, counter_portable}}};
#endif

} // namespace

const Aes &aes(Isa isa) { return dispatch[isa]; }

} // namespace comet::ot
