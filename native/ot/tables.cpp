#include "ot/tables.hpp"

#include <algorithm>
#include <vector>

#include "common/bits.hpp"

namespace comet::ot {

namespace {

COMET_INLINE Block block_at(span<const u64> words, size_t i) { return {words[2 * i], words[2 * i + 1]}; }

// Set apart from the tweaks of plain transfers by the high word.
COMET_INLINE Block tweak_of(const Tables &t, size_t i, u64 place) {
    return {(t.first + i * t.index_bits) << most_index_bits | place, 1};
}

// keys[e] = K_e of table i.
void place_keys(const Tables &t, size_t i, span<const u64> zeros, span<const u64> ones, span<Block> keys) {
    keys[0] = {0, 0};
    for (unsigned l = 0; l < t.index_bits; ++l) {
        const size_t at = i * t.index_bits + l, half = size_t{1} << l;
        const Block zero = block_at(zeros, at), one = block_at(ones, at);
        for (size_t e = 0; e < half; ++e) {
            keys[half + e] = keys[e] ^ one;
            keys[e] = keys[e] ^ zero;
        }
    }
}

} // namespace

void tables_sender(const Tables &t, span<const u64> zeros, span<const u64> ones, span<u64> words, Isa isa) {
    AesSchedule key;
    aes(isa).schedule(t.hash_key, key);
    const size_t size = size_t{1} << t.index_bits, group = std::max<size_t>(1, hash_batch / size);
    std::vector<Block> pads(group * size), tweaks(group * size);
    for (size_t start = 0; start < t.count; start += group) {
        const size_t stop = std::min(t.count, start + group), n = (stop - start) * size;
        for (size_t i = start; i < stop; ++i) {
            const size_t place = (i - start) * size;
            place_keys(t, i, zeros, ones, span(pads).subspan(place, size));
            for (size_t e = 0; e < size; ++e) tweaks[place + e] = tweak_of(t, i, e);
        }
        for (size_t done = 0; done < n; done += hash_batch) {
            const size_t few = std::min(hash_batch, n - done);
            hash_blocks(key, span(pads).subspan(done, few), span(tweaks).subspan(done, few), isa);
        }
        for (size_t j = 0; j < n; ++j) words[start * size + j] = pads[j].low;
    }
}

void tables_receiver(const Tables &t, span<const u64> known, span<const u8> choices, span<u64> words, Isa isa) {
    AesSchedule key;
    aes(isa).schedule(t.hash_key, key);
    Block pads[hash_batch], tweaks[hash_batch];
    for (size_t start = 0; start < t.count; start += hash_batch) {
        const size_t n = std::min(hash_batch, t.count - start);
        for (size_t i = 0; i < n; ++i) {
            u64 place = 0;
            pads[i] = {0, 0};
            for (unsigned l = 0; l < t.index_bits; ++l) {
                const size_t at = (start + i) * t.index_bits + l;
                pads[i] = pads[i] ^ block_at(known, at);
                place |= bit(choices, at) << l;
            }
            tweaks[i] = tweak_of(t, start + i, place);
        }
        hash_blocks(key, span(pads).first(n), span(tweaks).first(n), isa);
        for (size_t i = 0; i < n; ++i) words[start + i] = pads[i].low;
    }
}

} // namespace comet::ot
