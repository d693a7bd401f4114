#include "ring/odd.hpp"

#include <algorithm>
#include <vector>

#include "common/bits.hpp"

namespace comet::ring {

OddModulus::OddModulus(u64 modulus) : t_(modulus), inverse_(1) {
    for (int i = 0; i < 6; ++i) inverse_ *= 2 - modulus * inverse_; // T·inverse = 1 mod 2^64, bits doubling each time
    const u64 one = static_cast<u64>((u128{1} << 64) % modulus);
    square_ = static_cast<u64>(u128{one} * one % modulus);
}

void odd_multiply(const OddModulus &ring, span<const u64> a, span<const u64> b, span<u64> out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = ring.times(ring.lifted(a[i]), b[i]);
}

void odd_evaluate(const OddModulus &ring, const PolynomialPlan &plan, span<const span<const u64>> opened,
                  span<u64> out) {
    constexpr size_t block = 512;
    const size_t products = plan.products.size();
    std::vector<u64> lifted(opened.size() * block), table(products * block), sum(block);
    std::vector<const u64 *> values(products);
    for (size_t start = 0; start < out.size(); start += block) {
        const size_t count = std::min(block, out.size() - start);
        for (size_t v = 0; v < opened.size(); ++v)
            for (size_t i = 0; i < count; ++i) lifted[v * block + i] = ring.lifted(opened[v][start + i]);
        for (size_t p = 0; p < products; ++p) {
            const u64 *right = &lifted[plan.products[p].variable * block];
            values[p] = right;
            if (plan.products[p].previous == 0) continue;
            const u64 *left = values[plan.products[p].previous - 1];
            for (size_t i = 0; i < count; ++i) table[p * block + i] = ring.times(left[i], right[i]);
            values[p] = &table[p * block];
        }
        const span<u64> target = out.subspan(start, count);
        std::fill(target.begin(), target.end(), u64{0});
        for (const auto &row : plan.rows) { // all that is multiplied is lifted, but for the shares
            std::fill_n(sum.begin(), count, ring.lifted(row.constant));
            for (const auto &term : row.terms) {
                const u64 factor = ring.lifted(term.coefficient), *value = values[term.product];
                for (size_t i = 0; i < count; ++i) sum[i] = ring.plus(sum[i], ring.times(factor, value[i]));
            }
            for (size_t i = 0; i < count; ++i)
                target[i] = ring.plus(target[i], ring.times(sum[i], row.share.empty() ? 1 : row.share[start + i]));
        }
    }
}

void odd_uniform(const OddModulus &ring, span<const u64> words, span<u64> out) {
    const u64 t = ring.value();
    for (size_t i = 0; i < out.size(); ++i) {
        const u64 carry = static_cast<u64>((u128{words[2 * i]} * t) >> 64);
        out[i] = static_cast<u64>((u128{words[2 * i + 1]} * t + carry) >> 64);
    }
}

namespace {

struct Source {
    const Conversion &how;
    u64 mask;

    explicit Source(const Conversion &conversion) : how(conversion), mask(low_mask(conversion.width)) {}

    COMET_INLINE u64 shifted(u64 x) const { // z'_i
        const u64 sum = x + (how.leader ? how.offset : 0);
        if (how.modulus == 0) return sum & mask;
        return sum >= how.modulus ? sum - how.modulus : sum;
    }
    COMET_INLINE u64 below(u64 x) const { return shifted(x) < how.half; }
    COMET_INLINE u64 scaled(u64 x) const {
        const u64 y = shifted(x);
        if ((how.scale_high | how.scale_low) == 0) return y;
        return static_cast<u64>((u128{y} * how.scale_high + static_cast<u64>((u128{y} * how.scale_low) >> 64)) >> 64);
    }
};

} // namespace

void convert_mask(span<const u64> x, span<const u8> bits, span<u8> out, const Conversion &how) {
    const Source source(how);
    std::fill(out.begin(), out.end(), u8{0});
    for (size_t i = 0; i < x.size(); ++i)
        out[i / 8] = static_cast<u8>(out[i / 8] | ((source.below(x[i]) ^ bit(bits, i)) << (i % 8)));
}

void convert_finish(span<const u64> x, const TruncationBits &known, span<u64> out, const Conversion &how) {
    const Source source(how);
    const auto [bits, mine, theirs, product] = known;
    const u64 constant = how.leader ? how.constant : 0;
    const bool odd = how.target != 0;
    const OddModulus ring(odd ? how.target : 3);
    const u64 wrap = odd ? ring.lifted(how.wrap) : how.wrap;
    for (size_t i = 0; i < x.size(); ++i) {
        const u64 b = bit(bits, i), e_own = bit(mine, i), e_other = bit(theirs, i);
        const u64 e0 = how.leader ? e_own : e_other, e1 = how.leader ? e_other : e_own, flip = e0 ^ e1;
        // as in truncate.cpp: n_0·n_1 = ±product + plus - minus
        const u64 plus = how.leader ? e1 & (e0 ^ b) : e0 & b & ~e1, minus = how.leader ? 0 : e0 & b & e1;
        const u64 scaled = source.scaled(x[i]);
        if (odd) {
            const u64 signed_product = flip != 0 && product[i] != 0 ? how.target - product[i] : product[i];
            const u64 both = ring.minus(ring.plus(signed_product, plus), minus);
            out[i] = ring.plus(ring.plus(ring.times(both, wrap), constant), ring.reduce(scaled));
        } else {
            const u64 signed_product = flip != 0 ? u64{0} - product[i] : product[i];
            out[i] = (signed_product + plus - minus) * wrap + constant + scaled;
        }
    }
}

void pack_bits(span<const u64> x, span<u8> out, unsigned width) {
    BitWriter writer(out);
    for (const u64 word : x) writer.put(word & low_mask(width), width);
    writer.finish();
}

bool unpack_bits(span<const u8> in, span<u64> out, unsigned width, u64 limit) {
    BitReader reader(in);
    bool valid = true;
    for (u64 &word : out) {
        word = reader.get(width);
        valid &= limit == 0 || word < limit;
    }
    return valid && reader.align() == 0;
}

} // namespace comet::ring
