#include "transfer_tables.hpp"

#include <algorithm>
#include <vector>

#include "transfer_bits.hpp"

namespace comet {

namespace {

COMET_INLINE Block block_at(const u64 *words, size_t i) { return {words[2 * i], words[2 * i + 1]}; }

COMET_INLINE Block sum(Block a, Block b) { return {a.low ^ b.low, a.high ^ b.high}; }

// Set apart from the tweaks of plain transfers by the high word.
COMET_INLINE Block tweak_of(const Tables &t, size_t i, u64 entry) {
    return {(t.first + i * t.index_bits) << most_index_bits | entry, 1};
}

// keys[j] = K_{j + flip} of table i; returns flip.
u64 entry_keys(const Tables &t, size_t i, const u64 *zeros, const u64 *ones, const u8 *flips, Block *keys) {
    u64 flip = 0;
    keys[0] = {0, 0};
    for (unsigned l = 0; l < t.index_bits; ++l) {
        const size_t at = i * t.index_bits + l, half = size_t{1} << l;
        const Block zero = block_at(zeros, at), change = sum(zero, block_at(ones, at));
        const u64 swap = bit(flips, at);
        const Block start = {zero.low ^ (change.low & -swap), zero.high ^ (change.high & -swap)};
        flip |= swap << l;
        for (size_t j = 0; j < half; ++j) {
            keys[j] = sum(keys[j], start);
            keys[half + j] = sum(keys[j], change);
        }
    }
    return flip;
}

} // namespace

void tables_sender(const Tables &t, const u64 *zeros, const u64 *ones, const u8 *flips, const u64 *entries, u8 *message,
                   const TransferIsa &isa) {
    AesSchedule key;
    isa.schedule(t.hash_key, key);
    const size_t size = size_t{1} << t.index_bits, group = std::max<size_t>(1, hash_batch / size);
    const u64 mask = low_mask(t.width);
    std::vector<Block> pads(group * size), tweaks(group * size);
    BitWriter sent(message, t.width);
    for (size_t start = 0; start < t.count; start += group) {
        const size_t stop = std::min(t.count, start + group), n = (stop - start) * size;
        for (size_t i = start; i < stop; ++i) {
            const size_t place = (i - start) * size;
            const u64 flip = entry_keys(t, i, zeros, ones, flips, &pads[place]);
            for (size_t j = 0; j < size; ++j) tweaks[place + j] = tweak_of(t, i, j ^ flip);
        }
        for (size_t done = 0; done < n; done += hash_batch)
            hash_blocks(key, &pads[done], &tweaks[done], std::min(hash_batch, n - done), isa);
        for (size_t j = 0; j < n; ++j) sent.put((entries[start * size + j] + pads[j].low) & mask);
    }
    sent.finish();
}

void tables_receiver(const Tables &t, const u64 *known, const u8 *choices, const u8 *chosen, const u8 *message, u64 *out,
                     const TransferIsa &isa) {
    AesSchedule key;
    isa.schedule(t.hash_key, key);
    const size_t size = size_t{1} << t.index_bits;
    const u64 mask = low_mask(t.width);
    Block pads[hash_batch], tweaks[hash_batch];
    u64 wanted[hash_batch];
    BitReader received(message, t.count * size, t.width);
    for (size_t start = 0; start < t.count; start += hash_batch) {
        const size_t n = std::min(hash_batch, t.count - start);
        for (size_t i = 0; i < n; ++i) {
            u64 place = 0;
            wanted[i] = 0;
            pads[i] = {0, 0};
            for (unsigned l = 0; l < t.index_bits; ++l) {
                const size_t at = (start + i) * t.index_bits + l;
                pads[i] = sum(pads[i], block_at(known, at));
                place |= bit(choices, at) << l;
                wanted[i] |= bit(chosen, at) << l;
            }
            tweaks[i] = tweak_of(t, start + i, place);
        }
        hash_blocks(key, pads, tweaks, n, isa);
        for (size_t i = 0; i < n; ++i) {
            u64 found = 0; // every entry is read, so that time and caches do not tell which one was wanted
            for (u64 j = 0; j < size; ++j) found |= received.get() & -static_cast<u64>(j == wanted[i]);
            out[start + i] = (found - pads[i].low) & mask;
        }
    }
}

} // namespace comet
