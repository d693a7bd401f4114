#include "rlwe/sampling.hpp"

#include <bit>

namespace comet::rlwe {

bool sample_uniform(const Basis &basis, span<const u32> words, span<u32> out) {
    const size_t available = words.size() / basis.size(), count = out.size() / basis.size();
    for (size_t i = 0; i < basis.size(); ++i, words = words.subspan(available), out = out.subspan(count)) {
        const u32 q = basis[i].q, mask = static_cast<u32>(low_mask(basis[i].bits()));
        size_t found = 0;
        for (size_t k = 0; k < available && found < count; ++k) {
            const u32 candidate = words[k] & mask;
            out[found] = candidate;
            found += candidate < q;
        }
        if (found < count) return false;
    }
    return true;
}

bool sample_ternary(span<const u8> bytes, span<i8> out) {
    size_t found = 0;
    for (size_t k = 0; k < bytes.size() && found < out.size(); ++k) {
        out[found] = static_cast<i8>(bytes[k] % 3 - 1);
        found += bytes[k] < 255;
    }
    return found == out.size();
}

void sample_errors(span<const u64> words, span<i8> out) {
    constexpr u64 mask = low_mask(21);
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<i8>(std::popcount(words[i] & mask) - std::popcount(words[i] >> 21 & mask));
}

} // namespace comet::rlwe
