#include "rlwe/scheme.hpp"

#include "common/bits.hpp"

namespace comet::rlwe {

void transform_small(const Basis &basis, span<const i8, degree> in, span<u32> out, Isa isa) {
    std::vector<u32> residues(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const Polynomial to = polynomial(out, i);
        for (size_t j = 0; j < degree; ++j) residues[j] = p.small(in[j]);
        forward(p, polynomial(residues, 0), to, isa);
        for (u32 &residue : to) residue = p.times(residue, p.montgomery);
    }
}

void encrypt(const Basis &basis, span<const u32> scaled, span<const i8, degree> errors, span<const u32> c1,
             span<const u32> secret, span<u32> c0, Isa isa) {
    std::vector<u32> sum(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const size_t start = i * degree;
        for (size_t j = 0; j < degree; ++j) sum[j] = p.plus(scaled[start + j], p.small(errors[j]));
        forward(p, polynomial(sum, 0), polynomial(c0, i), isa);
        for (size_t j = start; j < start + degree; ++j) c0[j] = p.minus(c0[j], p.times_montgomery(c1[j], secret[j]));
    }
}

namespace {

/// u1 + u2 + u3 of every flood, in one word more than a summand has.
std::vector<u64> flood_sums(span<const u64> flood, unsigned flood_bits, size_t used) {
    const size_t width = (flood_bits + 63) / 64, digits = width + 1;
    const u64 top = low_mask((flood_bits - 1) % 64 + 1);
    std::vector<u64> sums(used * digits);
    for (size_t j = 0; j < used; ++j) {
        const span<u64> words = span(sums).subspan(j * digits, digits);
        for (size_t k = 0; k < 3; ++k) {
            const span<const u64> summand = flood.subspan((3 * j + k) * width, width);
            u64 carry = 0;
            for (size_t w = 0; w < width; ++w) {
                const u128 sum = u128{words[w]} + (w + 1 == width ? summand[w] & top : summand[w]) + carry;
                words[w] = static_cast<u64>(sum);
                carry = static_cast<u64>(sum >> 64);
            }
            words[width] += carry;
        }
    }
    return sums;
}

/// A fraction of 2^128 as the nearest one of 2^bits.
u128 rounded(u128 fraction, unsigned bits) { return (fraction + (u128{1} << (127 - bits))) >> (128 - bits); }

} // namespace

void respond(const Basis &basis, span<u32> ciphertext, span<const u32> public_key, const Blinding &b,
             const Rounding &rounding, span<u8> out0, span<u8> out1, Isa isa) {
    const auto [positions, bits0, bits1] = rounding;
    const size_t limbs = basis.size(), used = positions.size(), digits = (b.flood_bits + 63) / 64 + 1;
    std::vector<u32> ephemeral(limbs * degree), c0(limbs * used), c1(limbs * degree), ordered(degree);
    const std::vector<u64> floods = flood_sums(b.flood, b.flood_bits, used);
    transform_small(basis, b.ephemeral, ephemeral, isa);
    for (size_t i = 0; i < limbs; ++i) {
        const Prime &p = basis[i];
        const Polynomial own = polynomial(c1, i);
        for (size_t component = 0; component < 2; ++component) {
            const Polynomial c = polynomial(ciphertext, component * limbs + i);
            const ConstPolynomial key = polynomial(public_key, component * limbs + i), e = polynomial(ephemeral, i);
            for (size_t j = 0; j < degree; ++j) c[j] = p.plus(c[j], p.times_montgomery(e[j], key[j]));
        }
        backward(p, polynomial(ciphertext, i), polynomial(ordered, 0), isa);
        const u32 centre = p.times(3, p.power(2, b.flood_bits - 1));
        u32 radix[4] = {1, p.square};
        for (size_t w = 2; w < 4; ++w) radix[w] = p.times(radix[w - 1], p.square);
        for (size_t j = 0; j < used; ++j) {
            u64 flood = p.q - centre;
            for (size_t w = 0; w < digits; ++w) flood += static_cast<u64>(p.reduce(floods[j * digits + w])) * radix[w];
            const u32 sum = p.plus(ordered[positions[j]], b.masks[i * used + j]);
            c0[i * used + j] = p.plus(p.plus(sum, p.reduce(flood)), p.small(b.errors0[j]));
        }
        backward(p, polynomial(ciphertext, limbs + i), own, isa);
        for (size_t j = 0; j < degree; ++j) own[j] = p.plus(own[j], p.small(b.errors1[j]));
    }
    BitWriter low(out0), high(out1);
    for (size_t j = 0; j < used; ++j) low.put_wide(rounded(basis.fraction(span(c0).subspan(j), used), bits0), bits0);
    low.finish();
    for (size_t j = 0; j < degree; ++j)
        high.put_wide(rounded(basis.fraction(span(c1).subspan(j), degree), bits1), bits1);
    high.finish();
}

void phase(const Basis &basis, span<const u8> in0, span<const u8> in1, span<const u32> secret, const Rounding &rounding,
           span<u128> out, Isa isa) {
    const auto [positions, bits0, bits1] = rounding;
    std::vector<u128> values(degree);
    std::vector<u32> ordered(degree), transformed(degree), products(basis.size() * degree);
    BitReader high(in1);
    for (u128 &value : values) value = high.get_wide(bits1);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const ConstPolynomial key = polynomial(secret, i);
        for (size_t j = 0; j < degree; ++j) ordered[j] = p.reduce(values[j]);
        forward(p, polynomial(ordered, 0), polynomial(transformed, 0), isa);
        for (size_t j = 0; j < degree; ++j) transformed[j] = p.times_montgomery(transformed[j], key[j]);
        backward(p, polynomial(transformed, 0), polynomial(products, i), isa);
    }
    BitReader low(in0);
    const u128 half = basis.modulus() / 2;
    for (size_t j = 0; j < positions.size(); ++j) {
        u128 product = basis.lift(span(products).subspan(positions[j]), degree);
        if (product > half) product -= basis.modulus();
        out[j] = (low.get_wide(bits0) << (128 - bits0)) + (product << (128 - bits1));
    }
}

} // namespace comet::rlwe
