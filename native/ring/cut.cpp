#include "ring/cut.hpp"

#include "common/bits.hpp"

namespace comet::ring {

namespace {

// A number with 64 bits after the point. Sums of two below 2^63 fit; mod 2^64 they wrap, as powers of two may.
using Point = u128;

constexpr Point point(u64 whole, u64 rest) { return u128{whole} << 64 | rest; }

struct Rounding {
    const Cut &how;
    u64 mask;
    Point modulus, up;

    explicit Rounding(const Cut &cut)
        : how(cut), mask(low_mask(cut.width)), modulus(point(cut.target, 0)), up(cut.leader ? ~u64{0} : 0) {}

    COMET_INLINE Point reduced(Point a) const { return how.target != 0 && a >= modulus ? a - modulus : a; }

    COMET_INLINE Point scaled(u64 x) const { // z'_i·s, mod N
        u64 y = x + (how.leader ? how.offset : 0);
        if (how.modulus == 0) y &= mask;
        else if (y >= how.modulus) y -= how.modulus;
        Point product = point(y, 0);
        if ((how.scale_high | how.scale_low) != 0)
            product = u128{y} * how.scale_high + static_cast<u64>((u128{y} * how.scale_low) >> 64);
        if (how.target == 0) return product;
        return point(static_cast<u64>(product >> 64) % how.target, static_cast<u64>(product));
    }

    COMET_INLINE u64 rounded(Point a) const { return static_cast<u64>(reduced(a + up) >> 64); }
};

} // namespace

void cut_finish(span<const u64> x, const TruncationBits &known, span<u64> out, const Cut &how) {
    const Rounding rounding(how);
    const auto [bits, mine, theirs, product] = known;
    const u64 p = how.products;
    const bool power_of_two = (p & (p - 1)) == 0;
    const Point constant = how.leader ? point(how.constant_high, how.constant_low) : 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const u64 b = bit(bits, i), e_own = bit(mine, i), e_other = bit(theirs, i);
        const u64 e0 = how.leader ? e_own : e_other, e1 = how.leader ? e_other : e_own;
        // as in truncate.cpp: n_0·n_1 = ±product + plus - minus, here mod P
        const u64 plus = how.leader ? e1 & (e0 ^ b) : e0 & b & ~e1, minus = how.leader ? 0 : e0 & b & e1;
        const u64 own = power_of_two ? product[i] & (p - 1) : product[i];
        u64 both = ((e0 ^ e1) != 0 ? p - own : own) + plus + p - minus; // below 3P
        if (both >= 2 * p) both -= 2 * p;
        if (both >= p) both -= p;
        if (how.factor != 1) both = power_of_two ? both * how.factor & (p - 1) : both * how.factor % p;
        const Point wrapped = u128{both} * how.step_low + point(both * how.step_high, 0);
        out[i] = rounding.rounded(rounding.reduced(rounding.reduced(rounding.scaled(x[i]) + wrapped) + constant));
    }
}

void cut_free(span<const u64> x, span<u64> out, const Cut &how) {
    const Rounding rounding(how);
    for (size_t i = 0; i < x.size(); ++i) out[i] = rounding.rounded(rounding.scaled(x[i]));
}

} // namespace comet::ring
