#pragma once

// Numbers in [0, 1), or integers mod 2^192: what a coefficient is of its modulus, to more digits than any rounding
// needs.

#include <array>

#include "common/types.hpp"

namespace comet::rlwe {

/// words[0] + words[1]·2^64 + words[2]·2^128, over 2^192 where it is a fraction.
struct Fraction {
    static constexpr unsigned bits = 192;
    std::array<u64, 3> words{};

    /// += x · factor mod 2^192.
    void add(const Fraction &x, u64 factor) {
        u128 sum = 0;
        for (size_t w = 0; w < 3; ++w) {
            sum += u128{x.words[w]} * factor + words[w];
            words[w] = static_cast<u64>(sum);
            sum >>= 64;
        }
    }

    Fraction negated() const {
        const Fraction inverted{{~words[0], ~words[1], ~words[2]}};
        Fraction out{{1, 0, 0}};
        out.add(inverted, 1);
        return out;
    }

    bool operator<(const Fraction &other) const {
        for (size_t w = 3; w-- > 0;)
            if (words[w] != other.words[w]) return words[w] < other.words[w];
        return false;
    }

    /// By 0..191 places.
    Fraction shifted_left(unsigned places) const {
        Fraction out;
        const size_t skip = places / 64;
        const unsigned rest = places % 64;
        for (size_t w = skip; w < 3; ++w) {
            out.words[w] = words[w - skip] << rest;
            if (rest != 0 && w > skip) out.words[w] |= words[w - skip - 1] >> (64 - rest);
        }
        return out;
    }

    Fraction shifted_right(unsigned places) const {
        Fraction out;
        const size_t skip = places / 64;
        const unsigned rest = places % 64;
        for (size_t w = 0; w + skip < 3; ++w) {
            out.words[w] = words[w + skip] >> rest;
            if (rest != 0 && w + skip + 1 < 3) out.words[w] |= words[w + skip + 1] << (64 - rest);
        }
        return out;
    }

    /// The nearest multiple of 2^-kept, times 2^kept; kept in 1..191, mod 2^kept.
    Fraction rounded(unsigned kept) const {
        Fraction sum = *this;
        sum.add(Fraction{{1, 0, 0}}.shifted_left(bits - 1 - kept), 1);
        return sum.shifted_right(bits - kept);
    }
};

} // namespace comet::rlwe
