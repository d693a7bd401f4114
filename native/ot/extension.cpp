#include "ot/extension.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ot/bits.hpp"

namespace comet {

namespace {

constexpr size_t tile_blocks = 64;         // AES blocks of one plane
constexpr size_t tile = 128 * tile_blocks; // transfers worked on at a time: 128 planes stay in L2
constexpr size_t tile_words = 2 * tile_blocks;
constexpr unsigned most_fold = 8;

// What is worked on: the matrix by planes, then by rows.
struct Tile {
    Block planes[128][tile_blocks];
    Block rows[tile];
    Block sum[tile_blocks], choice[tile_blocks];
    Block pending[most_fold][tile_blocks];
};

std::vector<AesSchedule> schedules_of(const Extension &e, const TransferIsa &isa) {
    std::vector<AesSchedule> out((size_t{128} / e.fold) << e.fold);
    for (size_t i = 0; i < out.size(); ++i) isa.schedule(e.keys + 16 * i, out[i]);
    return out;
}

// planes[b] = Σ_{x: bit b of x} r_x and sum = Σ_x r_x, by merging sums over ranges of x pairwise: a finished range of
// 2^b values waits in pending[b] for its right neighbour, whose sum is what bit b selects.
void sums(const AesSchedule *keys, unsigned fold, u64 counter, Block (*planes)[tile_blocks], Tile &t, size_t blocks,
          const TransferIsa &isa) {
    std::memset(planes, 0, fold * sizeof planes[0]);
    for (size_t x = 0; x < size_t{1} << fold; ++x) {
        Block *range = x % 2 == 0 ? t.pending[0] : t.sum;
        isa.counter(keys[x], counter, range, blocks);
        unsigned b = 0;
        for (; (x >> b) & 1; ++b) isa.merge(planes[b], range, t.pending[b], blocks);
        if (b != 0 && b < fold) std::copy_n(range, blocks, t.pending[b]);
    }
}

// The low `halves` words of H(first + i, rows[i] + offset).
void hash_rows(const AesSchedule &key, u64 first, const Block *rows, Block offset, u64 *out, size_t n, size_t halves,
               const TransferIsa &isa) {
    Block x[hash_batch], tweaks[hash_batch];
    for (size_t start = 0; start < n; start += hash_batch) {
        const size_t m = std::min(hash_batch, n - start);
        for (size_t i = 0; i < m; ++i) {
            x[i] = {rows[start + i].low ^ offset.low, rows[start + i].high ^ offset.high};
            tweaks[i] = {first + start + i, 0};
        }
        hash_blocks(key, x, tweaks, m, isa);
        if (halves == 2)
            std::memcpy(out + 2 * start, x, m * sizeof(Block));
        else
            for (size_t i = 0; i < m; ++i) out[start + i] = x[i].low;
    }
}

} // namespace

void hash_blocks(const AesSchedule &key, Block *x, const Block *tweaks, size_t n, const TransferIsa &isa) {
    Block once[hash_batch];
    isa.encrypt(key, x, n);
    std::copy_n(x, n, once);
    for (size_t i = 0; i < n; ++i) x[i] = {x[i].low ^ tweaks[i].low, x[i].high ^ tweaks[i].high};
    isa.encrypt(key, x, n);
    for (size_t i = 0; i < n; ++i) x[i] = {x[i].low ^ once[i].low, x[i].high ^ once[i].high};
}

size_t extension_bytes(unsigned fold, size_t count) { return (128 / fold - 1) * (count / 8); }

void extend_receiver(const Extension &e, u8 *bits, u8 *message, u64 *words, const TransferIsa &isa) {
    const auto keys = schedules_of(e, isa);
    AesSchedule hash_key;
    isa.schedule(e.hash_key, hash_key);
    const auto t = std::make_unique_for_overwrite<Tile>();
    const size_t stride = e.count / 8, digits = 128 / e.fold;
    for (size_t start = 0; start < e.count; start += tile) {
        const size_t n = std::min(tile, e.count - start), blocks = n / 128;
        for (size_t j = 0; j < digits; ++j) {
            sums(&keys[j << e.fold], e.fold, (e.first + start) / 128, &t->planes[j * e.fold], *t, blocks, isa);
            if (j == 0) {
                std::copy_n(t->sum, blocks, t->choice);
                std::memcpy(bits + start / 8, t->choice, n / 8);
                continue;
            }
            for (size_t i = 0; i < blocks; ++i)
                t->sum[i] = {t->sum[i].low ^ t->choice[i].low, t->sum[i].high ^ t->choice[i].high};
            std::memcpy(message + (j - 1) * stride + start / 8, t->sum, n / 8);
        }
        isa.transpose(&t->planes[0][0].low, tile_words, t->rows, n);
        hash_rows(hash_key, e.first + start, t->rows, {0, 0}, words + e.halves * start, n, e.halves, isa);
    }
}

void extend_sender(const Extension &e, const u8 *delta, const u8 *message, u64 *zeros, u64 *ones,
                   const TransferIsa &isa) {
    const auto keys = schedules_of(e, isa);
    AesSchedule hash_key;
    isa.schedule(e.hash_key, hash_key);
    Block offset;
    std::memcpy(&offset, delta, sizeof offset);
    const auto t = std::make_unique_for_overwrite<Tile>();
    const size_t stride = e.count / 8, digits = 128 / e.fold;
    for (size_t start = 0; start < e.count; start += tile) {
        const size_t n = std::min(tile, e.count - start), blocks = n / 128;
        for (size_t j = 0; j < digits; ++j) {
            sums(&keys[j << e.fold], e.fold, (e.first + start) / 128, &t->planes[j * e.fold], *t, blocks, isa);
            if (j == 0) continue;
            std::memcpy(t->sum, message + (j - 1) * stride + start / 8, n / 8);
            for (unsigned b = 0; b < e.fold; ++b) {
                const u64 mask = -bit(delta, j * e.fold + b);
                Block *plane = t->planes[j * e.fold + b];
                for (size_t i = 0; i < blocks; ++i)
                    plane[i] = {plane[i].low ^ (t->sum[i].low & mask), plane[i].high ^ (t->sum[i].high & mask)};
            }
        }
        isa.transpose(&t->planes[0][0].low, tile_words, t->rows, n);
        hash_rows(hash_key, e.first + start, t->rows, {0, 0}, zeros + e.halves * start, n, e.halves, isa);
        hash_rows(hash_key, e.first + start, t->rows, offset, ones + e.halves * start, n, e.halves, isa);
    }
}

void transfer_hash(const u8 *key, u64 first, const u8 *rows, u64 *out, size_t n, const TransferIsa &isa) {
    AesSchedule schedule;
    isa.schedule(key, schedule);
    std::vector<Block> blocks(n);
    if (n > 0) std::memcpy(blocks.data(), rows, 16 * n);
    hash_rows(schedule, first, blocks.data(), {0, 0}, out, n, 1, isa);
}

void products_sender(const u64 *zeros, const u64 *ones, u8 *bits, u64 *shares, u8 *message, size_t n, unsigned width) {
    const u64 mask = low_mask(width);
    BitWriter own(bits, 1), sent(message, width - 1);
    for (size_t i = 0; i < n; ++i) {
        const u64 difference = zeros[i] - ones[i], b = difference & 1;
        own.put(b);
        sent.put(((difference + b) & mask) >> 1);
        shares[i] = -zeros[i] & mask;
    }
    own.finish();
    sent.finish();
}

void products_receiver(const u64 *words, const u8 *bits, const u8 *message, u64 *shares, size_t n, unsigned width) {
    const u64 mask = low_mask(width);
    BitReader received(message, n, width - 1);
    for (size_t i = 0; i < n; ++i) shares[i] = (words[i] + ((received.get() << 1) & -bit(bits, i))) & mask;
}

void correlate_sender(const u64 *zeros, const u64 *ones, const u8 *flips, const u64 *values, u64 *shares, u8 *message,
                      size_t n, unsigned width) {
    const u64 mask = low_mask(width);
    BitWriter sent(message, width);
    for (size_t i = 0; i < n; ++i) {
        const u64 swap = (zeros[i] ^ ones[i]) & -bit(flips, i), zero = zeros[i] ^ swap, one = ones[i] ^ swap;
        sent.put((zero - one + values[i]) & mask);
        shares[i] = -zero & mask;
    }
    sent.finish();
}

void correlate_receiver(const u64 *words, const u8 *chosen, const u8 *message, u64 *shares, size_t n, unsigned width) {
    const u64 mask = low_mask(width);
    BitReader received(message, n, width);
    for (size_t i = 0; i < n; ++i) shares[i] = (words[i] + (received.get() & -bit(chosen, i))) & mask;
}

} // namespace comet
