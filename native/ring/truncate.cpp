#include "ring/truncate.hpp"

#include <algorithm>

namespace comet::ring {

namespace {

COMET_INLINE u64 offset_of(Truncation how) { return how.leader ? (u64{1} << (how.width - 2)) - 1 : 0; }

COMET_INLINE void mask_body(span<const u64> x, span<const u8> bits, span<u8> out, Truncation how) {
    const size_t n = x.size();
    const u64 offset = offset_of(how);
    const unsigned top = how.width - 1;
    for (size_t i = 0; i < n / 8; ++i) {
        u64 tops = 0;
        for (unsigned j = 0; j < 8; ++j) tops |= (((x[8 * i + j] + offset) >> top) & 1) << j;
        out[i] = static_cast<u8>(~tops ^ bits[i]);
    }
    if (const size_t rest = n % 8; rest != 0) {
        u64 tops = 0;
        for (unsigned j = 0; j < rest; ++j) tops |= (((x[n - rest + j] + offset) >> top) & 1) << j;
        out[n / 8] = static_cast<u8>((~tops ^ bits[n / 8]) & low_mask(static_cast<unsigned>(rest)));
    }
}

// The four products of bits, as bit sets of 8 elements: n_0·n_1 = ±product + plus - minus.
struct Signs {
    u64 flip, plus, minus;
};

COMET_INLINE Signs signs_of(u64 b, u64 mine, u64 theirs, bool leader) {
    const u64 e0 = leader ? mine : theirs, e1 = leader ? theirs : mine;
    // Leader: e_0·e_1 + e_1·s_0·b is e_1·b or e_1·(1 - b). Follower: e_0·s_1·b is +-e_0·b.
    if (leader) return {e0 ^ e1, e1 & (e0 ^ b), 0};
    return {e0 ^ e1, e0 & b & ~e1, e0 & b & e1};
}

struct Finish {
    u64 offset, mask, constant, scale;
    unsigned shift;

    COMET_INLINE u64 operator()(u64 x, u64 product, Signs s, unsigned j) const {
        const u64 flip = -((s.flip >> j) & 1);
        const u64 both = (product ^ flip) - flip + ((s.plus >> j) & 1) - ((s.minus >> j) & 1);
        return (((x + offset) & mask) >> shift) + both * scale + constant;
    }
};

COMET_INLINE void finish_body(span<const u64> x, const TruncationBits &known, span<u64> out, Truncation how) {
    const size_t n = x.size();
    const auto [bits, mine, theirs, product] = known;
    u64 *__restrict target = out.data();
    const unsigned exponent = how.width - how.shift;
    const u64 constant = 1 - power_of_two(exponent) - power_of_two(exponent - 2);
    const Finish finish{offset_of(how), low_mask(how.width), how.leader ? constant : 0, power_of_two(exponent),
                        how.shift};
    for (size_t i = 0; i < n / 8; ++i) {
        const Signs s = signs_of(bits[i], mine[i], theirs[i], how.leader);
        for (unsigned j = 0; j < 8; ++j) target[8 * i + j] = finish(x[8 * i + j], product[8 * i + j], s, j);
    }
    if (const size_t rest = n % 8; rest != 0) {
        const Signs s = signs_of(bits[n / 8], mine[n / 8], theirs[n / 8], how.leader);
        for (unsigned j = 0; j < rest; ++j) target[n - rest + j] = finish(x[n - rest + j], product[n - rest + j], s, j);
    }
}

COMET_AVX2 void mask_avx2(span<const u64> x, span<const u8> bits, span<u8> out, Truncation how) {
    mask_body(x, bits, out, how);
}

COMET_AVX2 void finish_avx2(span<const u64> x, const TruncationBits &bits, span<u64> out, Truncation how) {
    finish_body(x, bits, out, how);
}

constexpr Dispatch masks{Variant{Isa::portable, mask_body}, Variant{Isa::avx2, mask_avx2}};
constexpr Dispatch finishes{Variant{Isa::portable, finish_body}, Variant{Isa::avx2, finish_avx2}};

} // namespace

void truncate_mask(span<const u64> x, span<const u8> bits, span<u8> out, Truncation how, Isa isa) {
    masks[isa](x, bits, out, how);
}

void truncate_finish(span<const u64> x, const TruncationBits &bits, span<u64> out, Truncation how, Isa isa) {
    finishes[isa](x, bits, out, how);
}

} // namespace comet::ring
