#include "rlwe/scheme.hpp"

#include <algorithm>

#include "common/bits.hpp"

namespace comet::rlwe {

namespace {

void read_numbers(span<const u8> in, unsigned bits, span<Fraction> out) {
    BitReader reader(in);
    for (Fraction &value : out)
        for (unsigned w = 0; w * 64 < bits; ++w) value.words[w] = reader.get(std::min(64U, bits - w * 64));
}

u32 residue(const Prime &p, const Fraction &number) {
    const auto &[low, middle, high] = number.words;
    const u64 upper = p.reduce(u64{p.reduce(high)} * p.square + p.reduce(middle));
    return p.reduce(upper * p.square + p.reduce(low));
}

} // namespace

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

void blind(const Basis &basis, span<const i8, degree> errors, span<const u32> c1, span<const u32> secret, span<u32> w,
           span<Fraction> fractions, Isa isa) {
    std::vector<u32> product(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const size_t start = i * degree;
        for (size_t j = 0; j < degree; ++j) product[j] = p.times_montgomery(c1[start + j], secret[start + j]);
        backward(p, polynomial(product, 0), polynomial(w, i), isa);
        for (size_t j = 0; j < degree; ++j) w[start + j] = p.minus(p.small(errors[j]), w[start + j]);
    }
    for (size_t j = 0; j < degree; ++j) fractions[j] = basis.fraction(w.subspan(j), degree);
}

void pack_rest(const Basis &basis, span<const u32> w, span<const u32> base, unsigned bits, span<u8> out) {
    const Fraction half = Fraction{{1, 0, 0}}.shifted_left(bits - 1);
    BitWriter writer(out);
    for (size_t j = 0; j < degree; ++j) {
        u32 rest[most_primes];
        for (size_t i = 0; i < basis.size(); ++i) rest[i] = basis[i].minus(w[i * degree + j], base[i * degree + j]);
        Fraction number = basis.centred(rest, 1);
        number.add(half, 1);
        for (unsigned k = 0; k * 64 < bits; ++k) {
            const unsigned width = std::min(64U, bits - k * 64);
            writer.put(number.words[k] & low_mask(width), width);
        }
    }
    writer.finish();
}

void unpack_rest(const Basis &basis, span<const u8> in, span<const u32> base, unsigned bits, span<u32> c0, Isa isa) {
    std::vector<Fraction> values(degree);
    read_numbers(in, bits, values);
    std::vector<u32> ordered(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 half = p.power(2, bits - 1);
        for (size_t j = 0; j < degree; ++j)
            ordered[j] = p.plus(p.minus(residue(p, values[j]), half), base[i * degree + j]);
        forward(p, polynomial(ordered, 0), polynomial(c0, i), isa);
    }
}

void respond(const Basis &basis, span<u32> ciphertext, span<const u32> public_key, const Blinding &b,
             span<const u32> positions, unsigned bits, span<u8> sent, span<Fraction> kept, Isa isa) {
    const size_t limbs = basis.size(), used = positions.size();
    std::vector<u32> ephemeral(limbs * degree), c0(limbs * used), c1(limbs * degree), ordered(degree);
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
        for (size_t j = 0; j < used; ++j) c0[i * used + j] = p.plus(ordered[positions[j]], p.small(b.errors0[j]));
        backward(p, polynomial(ciphertext, limbs + i), own, isa);
        for (size_t j = 0; j < degree; ++j) own[j] = p.plus(own[j], p.small(b.errors1[j]));
    }
    for (size_t j = 0; j < used; ++j) kept[j] = basis.fraction(span(c0).subspan(j), used);
    BitWriter writer(sent);
    for (size_t j = 0; j < degree; ++j) {
        const Fraction number = basis.fraction(span(c1).subspan(j), degree).rounded(bits);
        for (unsigned w = 0; w * 64 < bits; ++w) writer.put(number.words[w], std::min(64U, bits - w * 64));
    }
    writer.finish();
}

void phase(const Basis &basis, span<const u8> in, span<const u32> secret, span<const u32> positions, unsigned bits,
           span<Fraction> out, Isa isa) {
    std::vector<Fraction> values(degree);
    std::vector<u32> ordered(degree), transformed(degree), products(basis.size() * degree);
    read_numbers(in, bits, values);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const ConstPolynomial key = polynomial(secret, i);
        for (size_t j = 0; j < degree; ++j) ordered[j] = residue(p, values[j]);
        forward(p, polynomial(ordered, 0), polynomial(transformed, 0), isa);
        for (size_t j = 0; j < degree; ++j) transformed[j] = p.times_montgomery(transformed[j], key[j]);
        backward(p, polynomial(transformed, 0), polynomial(products, i), isa);
    }
    for (size_t j = 0; j < positions.size(); ++j)
        out[j] = basis.centred(span(products).subspan(positions[j]), degree).shifted_left(Fraction::bits - bits);
}

} // namespace comet::rlwe
