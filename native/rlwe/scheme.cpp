#include "rlwe/scheme.hpp"

#include <algorithm>

#include "common/bits.hpp"

namespace comet::rlwe {

namespace {

/// Numbers of `bits` bits in a row, as residues.
class Numbers {
public:
    Numbers(span<const u8> in, unsigned bits) : size_((bits + piece_bits - 1) / piece_bits), pieces_(size_ * degree) {
        cut_bits(in, bits, degree, pieces_);
    }

    /// out = number·2^shift + start mod p.
    void residues(const Prime &p, unsigned shift, u32 start, span<u32> out, Isa isa) const {
        std::vector<u32> factors;
        for (size_t k = 0; k < size_; ++k) factors.push_back(p.lifted(p.power(2, k * piece_bits + shift)));
        combine(p, pieces_.data(), degree, factors, start, out, isa);
    }

private:
    size_t size_;
    std::vector<u32> pieces_;
};

/// The lowest `bits` bits of every number, in a row.
void write_numbers(span<const Fraction> numbers, unsigned bits, span<u8> out) {
    BitWriter writer(out);
    for (const Fraction &number : numbers)
        for (unsigned w = 0; w * 64 < bits; ++w) {
            const unsigned width = std::min(64U, bits - w * 64);
            writer.put(number.words[w] & low_mask(width), width);
        }
    writer.finish();
}

void pick(span<const u32> in, span<const u32> positions, span<u32> out) {
    for (size_t j = 0; j < positions.size(); ++j) out[j] = in[positions[j]];
}

} // namespace

void transform_small(const Basis &basis, span<const i8, degree> in, span<u32> out, Isa isa) {
    std::vector<u32> residues(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        scale_small(p, in, p.square, residues, isa);
        forward(p, polynomial(residues, 0), polynomial(out, i), isa);
    }
}

void encrypt(const Basis &basis, span<const u32> scaled, span<const i8, degree> errors, span<const u32> c1,
             span<const u32> secret, span<u32> c0, Isa isa) {
    std::vector<u32> sum(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const Polynomial to = polynomial(c0, i);
        add_small(p, errors, Sign::plus, polynomial(scaled, i), sum, isa);
        forward(p, polynomial(sum, 0), to, isa);
        product(p, to, Sign::minus, polynomial(c1, i), polynomial(secret, i), to, isa);
    }
}

void blind(const Basis &basis, span<const i8, degree> errors, span<const u32> c1, span<const u32> secret, span<u32> w,
           span<Fraction> fractions, Isa isa) {
    std::vector<u32> transformed(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        product(p, polynomial(c1, i), polynomial(secret, i), transformed, isa);
        backward(p, polynomial(transformed, 0), polynomial(w, i), isa);
        add_small(p, errors, Sign::minus, polynomial(w, i), polynomial(w, i), isa);
    }
    wide_sum(basis.fraction(), w, fractions, isa);
}

bool pack_rest(const Basis &basis, span<const u32> w, span<const u32> base, Rest rest, const Fraction &largest,
               span<u8> out, Isa isa) {
    std::vector<u32> difference(basis.size() * degree);
    std::vector<Fraction> numbers(degree);
    for (size_t i = 0; i < basis.size(); ++i)
        sum(basis[i], polynomial(w, i), Sign::minus, polynomial(base, i), polynomial(difference, i), isa);
    const Fraction middle = Fraction{{1, 0, 0}}.shifted_left(rest.bits - 1);
    WideSum how = basis.centred();
    how.start = pieces(middle);
    wide_sum(how, difference, numbers, isa);
    Fraction lowest = middle, highest = middle;
    lowest.add(largest.negated(), 1);
    highest.add(largest, 1);
    bool within = true;
    for (Fraction &number : numbers) {
        within &= !(number < lowest) && !(highest < number);
        number = number.shifted_right(rest.dropped);
    }
    write_numbers(numbers, rest.bits - rest.dropped, out);
    return within;
}

void unpack_rest(const Basis &basis, span<const u8> in, span<const u32> base, Rest rest, span<u32> c0, Isa isa) {
    const Numbers numbers(in, rest.bits - rest.dropped);
    std::vector<u32> ordered(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 middle = rest.dropped != 0 ? p.power(2, rest.dropped - 1) : 0;
        numbers.residues(p, rest.dropped, p.minus(middle, p.power(2, rest.bits - 1)), ordered, isa);
        sum(p, ordered, Sign::plus, polynomial(base, i), ordered, isa);
        forward(p, polynomial(ordered, 0), polynomial(c0, i), isa);
    }
}

void respond(const Basis &basis, span<u32> ciphertext, span<const u32> public_key, const Blinding &b,
             span<const u32> positions, unsigned bits, span<u8> sent, span<Fraction> kept, Isa isa) {
    const size_t limbs = basis.size(), used = positions.size();
    std::vector<u32> ephemeral(degree), transformed(degree), ordered(degree), c0(limbs * used), c1(limbs * degree);
    for (size_t i = 0; i < limbs; ++i) {
        const Prime &p = basis[i];
        scale_small(p, b.ephemeral, p.square, ordered, isa);
        forward(p, polynomial(ordered, 0), polynomial(ephemeral, 0), isa);
        for (size_t component = 0; component < 2; ++component) {
            const Polynomial c = polynomial(ciphertext, component * limbs + i);
            product(p, c, Sign::plus, ephemeral, polynomial(public_key, component * limbs + i), transformed, isa);
            backward(p, polynomial(transformed, 0), polynomial(ordered, 0), isa);
            if (component == 0) {
                const span<u32> own = span(c0).subspan(i * used, used);
                pick(ordered, positions, own);
                add_small(p, b.errors0, Sign::plus, own, own, isa);
            } else {
                add_small(p, b.errors1, Sign::plus, ordered, polynomial(c1, i), isa);
            }
        }
    }
    wide_sum(basis.fraction(), c0, kept, isa);
    WideSum rounded = basis.fraction();
    rounded.start = pieces(Fraction{{1, 0, 0}}.shifted_left(Fraction::bits - 1 - bits));
    rounded.right = Fraction::bits - bits;
    std::vector<Fraction> numbers(degree);
    wide_sum(rounded, c1, numbers, isa);
    write_numbers(numbers, bits, sent);
}

void phase(const Basis &basis, span<const u8> in, span<const u32> secret, span<const u32> positions, unsigned bits,
           span<Fraction> out, Isa isa) {
    const Numbers numbers(in, bits);
    const size_t used = positions.size();
    std::vector<u32> ordered(degree), transformed(degree), products(basis.size() * used);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        numbers.residues(p, 0, 0, ordered, isa);
        forward(p, polynomial(ordered, 0), polynomial(transformed, 0), isa);
        product(p, transformed, polynomial(secret, i), transformed, isa);
        backward(p, polynomial(transformed, 0), polynomial(ordered, 0), isa);
        pick(ordered, positions, span(products).subspan(i * used, used));
    }
    WideSum how = basis.centred();
    how.left = Fraction::bits - bits;
    wide_sum(how, products, out, isa);
}

} // namespace comet::rlwe
