#include "ot/extension.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/bits.hpp"
#include "ot/bit_matrix.hpp"

namespace comet::ot {

namespace {

constexpr size_t tile_blocks = 64;         // AES blocks of one plane
constexpr size_t tile = 128 * tile_blocks; // transfers worked on at a time: 128 planes stay in L2
constexpr size_t plane_words = 2 * tile_blocks;
constexpr unsigned most_fold = 8;

// What is worked on: the matrix by planes, then by rows.
struct Tile {
    Block planes[128][tile_blocks];
    Block rows[tile];
    Block sum[tile_blocks], choice[tile_blocks];
    Block pending[most_fold][tile_blocks];
};

std::vector<AesSchedule> schedules_of(const Extension &e, Isa isa) {
    std::vector<AesSchedule> out((size_t{128} / e.fold) << e.fold);
    for (size_t i = 0; i < out.size(); ++i) aes(isa).schedule(e.keys.subspan(16 * i).first<16>(), out[i]);
    return out;
}

// planes[b] = Σ_{x: bit b of x} r_x and sum = Σ_x r_x, by merging sums over ranges of x pairwise: a finished range of
// 2^b values waits in pending[b] for its right neighbour, whose sum is what bit b selects.
void sums(const AesSchedule *keys, unsigned fold, u64 counter, Block (*planes)[tile_blocks], Tile &t, size_t blocks,
          Isa isa) {
    const auto stream = aes(isa).counter;
    const auto merge = bit_matrix(isa).merge;
    std::memset(planes, 0, fold * sizeof planes[0]);
    for (size_t x = 0; x < size_t{1} << fold; ++x) {
        const span<Block> range = span(x % 2 == 0 ? t.pending[0] : t.sum).first(blocks);
        stream(keys[x], counter, range);
        unsigned b = 0;
        for (; (x >> b) & 1; ++b) merge(planes[b], range.data(), span(t.pending[b]).first(blocks));
        if (b != 0 && b < fold) std::ranges::copy(range, t.pending[b]);
    }
}

// The low `halves` words of H(first + i, rows[i] + offset).
void hash_rows(const AesSchedule &key, u64 first, span<const Block> rows, Block offset, span<u64> out, size_t halves,
               Isa isa) {
    Block x[hash_batch], tweaks[hash_batch];
    for (size_t start = 0; start < rows.size(); start += hash_batch) {
        const size_t m = std::min(hash_batch, rows.size() - start);
        for (size_t i = 0; i < m; ++i) {
            x[i] = rows[start + i] ^ offset;
            tweaks[i] = {first + start + i, 0};
        }
        hash_blocks(key, span(x).first(m), span(tweaks).first(m), isa);
        if (halves == 2)
            std::memcpy(&out[2 * start], x, m * sizeof(Block));
        else
            for (size_t i = 0; i < m; ++i) out[start + i] = x[i].low;
    }
}

} // namespace

void hash_blocks(const AesSchedule &key, span<Block> x, span<const Block> tweaks, Isa isa) {
    Block once[hash_batch];
    aes(isa).encrypt(key, x);
    std::ranges::copy(x, once);
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] ^ tweaks[i];
    aes(isa).encrypt(key, x);
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] ^ once[i];
}

void extend_receiver(const Extension &e, span<u8> bits, span<u8> message, span<u64> words, Isa isa) {
    const auto keys = schedules_of(e, isa);
    AesSchedule hash_key;
    aes(isa).schedule(e.hash_key, hash_key);
    const auto t = std::make_unique_for_overwrite<Tile>();
    const size_t stride = e.count / 8, digits = 128 / e.fold;
    for (size_t start = 0; start < e.count; start += tile) {
        const size_t n = std::min(tile, e.count - start), blocks = n / 128;
        for (size_t j = 0; j < digits; ++j) {
            sums(&keys[j << e.fold], e.fold, (e.first + start) / 128, &t->planes[j * e.fold], *t, blocks, isa);
            if (j == 0) {
                std::copy_n(t->sum, blocks, t->choice);
                std::memcpy(&bits[start / 8], t->choice, n / 8);
                continue;
            }
            for (size_t i = 0; i < blocks; ++i) t->sum[i] = t->sum[i] ^ t->choice[i];
            std::memcpy(&message[(j - 1) * stride + start / 8], t->sum, n / 8);
        }
        for (size_t b = 0; b < 128; ++b) std::memcpy(&e.planes[b * stride + start / 8], t->planes[b], n / 8);
        const span<Block> rows = span(t->rows).first(n);
        bit_matrix(isa).transpose(&t->planes[0][0].low, plane_words, rows);
        hash_rows(hash_key, e.first + start, rows, {0, 0}, words.subspan(e.halves * start), e.halves, isa);
    }
}

void extend_sender(const Extension &e, AesKey delta, span<const u8> message, span<u64> zeros, span<u64> ones, Isa isa) {
    const auto keys = schedules_of(e, isa);
    AesSchedule hash_key;
    aes(isa).schedule(e.hash_key, hash_key);
    Block offset;
    std::memcpy(&offset, delta.data(), sizeof offset);
    const auto t = std::make_unique_for_overwrite<Tile>();
    const size_t stride = e.count / 8, digits = 128 / e.fold;
    for (size_t start = 0; start < e.count; start += tile) {
        const size_t n = std::min(tile, e.count - start), blocks = n / 128;
        for (size_t j = 0; j < digits; ++j) {
            sums(&keys[j << e.fold], e.fold, (e.first + start) / 128, &t->planes[j * e.fold], *t, blocks, isa);
            if (j == 0) continue;
            std::memcpy(t->sum, &message[(j - 1) * stride + start / 8], n / 8);
            for (unsigned b = 0; b < e.fold; ++b) {
                const u64 mask = -bit(delta, j * e.fold + b);
                Block *plane = t->planes[j * e.fold + b];
                for (size_t i = 0; i < blocks; ++i)
                    plane[i] = plane[i] ^ Block { t->sum[i].low &mask, t->sum[i].high &mask };
            }
        }
        for (size_t b = 0; b < 128; ++b) std::memcpy(&e.planes[b * stride + start / 8], t->planes[b], n / 8);
        const span<Block> rows = span(t->rows).first(n);
        bit_matrix(isa).transpose(&t->planes[0][0].low, plane_words, rows);
        hash_rows(hash_key, e.first + start, rows, {0, 0}, zeros.subspan(e.halves * start), e.halves, isa);
        hash_rows(hash_key, e.first + start, rows, offset, ones.subspan(e.halves * start), e.halves, isa);
    }
}

void transfer_hash(AesKey key, u64 first, span<const u8> rows, span<u64> out, Isa isa) {
    AesSchedule schedule;
    aes(isa).schedule(key, schedule);
    std::vector<Block> blocks(out.size());
    if (!blocks.empty()) std::memcpy(blocks.data(), rows.data(), 16 * blocks.size());
    hash_rows(schedule, first, blocks, {0, 0}, out, 1, isa);
}

} // namespace comet::ot
