#include "rlwe/encoding.hpp"

#include <algorithm>

#include "common/bits.hpp"

namespace comet::rlwe {

// q·m + 2^(w-1) = 2^w·y + r with y the rounded quotient, and q·m vanishes mod every prime of q: y = (2^(w-1) - r)/2^w.
void scale_power(const Basis &basis, span<const u64> words, unsigned width, span<u32> out) {
    const size_t count = words.size();
    const u64 half = u64{1} << (width - 1), mask = low_mask(width);
    std::vector<u64> rests(count);
    for (size_t j = 0; j < count; ++j) rests[j] = (basis.modulus_low() * words[j] + half) & mask;
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 factor = p.invert(p.power(2, width)), top = p.reduce(half);
        const span<u32> to = out.subspan(i * count, count);
        for (size_t j = 0; j < count; ++j) to[j] = p.times(p.minus(top, p.reduce(rests[j])), factor);
    }
}

// The same with t for 2^w and (t-1)/2 for 2^(w-1); r is known by its residues mod the primes of t.
void scale_odd(const Basis &basis, const Basis &plain, span<const u32> residues, span<u32> out) {
    const size_t parts = plain.size(), count = residues.size() / parts;
    const u128 half = plain.modulus() / 2;
    std::vector<u32> rests(parts * count), digit(parts * count), radix(parts);
    for (size_t k = 0; k < parts; ++k) {
        const Prime &p = plain[k];
        const u32 factor = basis.modulus_mod(p.q), top = p.reduce(half);
        for (size_t j = 0; j < count; ++j) rests[k * count + j] = p.plus(p.times(residues[k * count + j], factor), top);
    }
    for (size_t j = 0; j < count; ++j) {
        u32 d[most_primes];
        plain.digits(span(rests).subspan(j), count, d);
        for (size_t k = 0; k < parts; ++k) digit[k * count + j] = d[k];
    }
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 factor = p.invert(p.reduce(plain.modulus())), top = p.reduce(half);
        const span<u32> to = out.subspan(i * count, count);
        u32 product = 1;
        for (size_t k = 0; k < parts; ++k) radix[k] = product, product = p.times(product, p.reduce(u64{plain[k].q}));
        for (size_t j = 0; j < count; ++j) {
            u64 rest = 0;
            for (size_t k = 0; k < parts; ++k) rest += static_cast<u64>(digit[k * count + j]) * radix[k];
            to[j] = p.times(p.minus(top, p.reduce(rest)), factor);
        }
    }
}

void transform_plain(const Basis &basis, const Basis &plain, span<const u32> residues, span<u32> out, Isa isa) {
    const u128 half = plain.modulus() / 2;
    std::vector<u128> values(degree);
    std::vector<u32> reduced(degree);
    for (size_t j = 0; j < degree; ++j) values[j] = plain.lift(residues.subspan(j), degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 wrap = p.reduce(plain.modulus());
        for (size_t j = 0; j < degree; ++j) {
            const u32 rest = p.reduce(values[j]);
            reduced[j] = p.times(values[j] > half ? p.minus(rest, wrap) : rest, p.montgomery);
        }
        forward(p, polynomial(reduced, 0), polynomial(out, i), isa);
    }
}

void round_power(span<const Fraction> fractions, unsigned width, span<u64> out) {
    for (size_t j = 0; j < out.size(); ++j) out[j] = fractions[j].rounded(width).words[0];
}

void round_odd(const Basis &plain, span<const Fraction> fractions, span<u32> out) {
    const u128 t = plain.modulus();
    const std::array<u64, 2> factor{static_cast<u64>(t), static_cast<u64>(t >> 64)};
    for (size_t j = 0; j < fractions.size(); ++j) {
        std::array<u64, 5> product{0, 0, u64{1} << 63}; // begins with a half
        for (size_t a = 0; a < 2; ++a) {
            u128 carry = 0;
            for (size_t b = 0; b < 3; ++b) {
                carry += u128{factor[a]} * fractions[j].words[b] + product[a + b];
                product[a + b] = static_cast<u64>(carry);
                carry >>= 64;
            }
            for (size_t k = a + 3; k < 5; ++k) {
                carry += product[k];
                product[k] = static_cast<u64>(carry);
                carry >>= 64;
            }
        }
        const u128 whole = u128{product[4]} << 64 | product[3]; // t itself is 0
        for (size_t k = 0; k < plain.size(); ++k) out[k * fractions.size() + j] = plain[k].reduce(whole);
    }
}

// (P - 1)/2 is (p - 1)/2 mod every prime p of P; numbers in mixed radix compare digit by digit, the last one first.
void split(const Basis &basis, span<const u32> residues, span<u64> words, span<u8> upper) {
    const size_t parts = basis.size(), count = words.size();
    u32 middle[most_primes], half[most_primes], digits[most_primes];
    for (size_t k = 0; k < parts; ++k) middle[k] = (basis[k].q - 1) / 2;
    basis.digits(middle, 1, half);
    for (size_t j = 0; j < count; ++j) {
        basis.digits(residues.subspan(j), count, digits);
        u64 word = 0;
        bool above = false; // v > (P - 1)/2 as far as the digits up to here say
        for (size_t k = 0; k < parts; ++k) above = digits[k] > half[k] || (digits[k] == half[k] && above);
        for (size_t k = parts; k-- > 0;) word = word * basis[k].q + digits[k];
        words[j] = word;
        upper[j] = above;
    }
}

size_t packed_residues(const Basis &basis, size_t count) {
    size_t size = 0;
    for (size_t i = 0; i < basis.size(); ++i) size += packed_bytes(count, basis[i].bits());
    return size;
}

void pack_residues(const Basis &basis, span<const u32> in, span<u8> out) {
    const size_t count = in.size() / basis.size();
    BitWriter writer(out);
    for (size_t i = 0; i < basis.size(); ++i) {
        const unsigned width = basis[i].bits();
        for (const u32 residue : in.subspan(i * count, count)) writer.put(residue, width);
        writer.finish();
    }
}

bool unpack_residues(const Basis &basis, span<const u8> in, span<u32> out) {
    const size_t count = out.size() / basis.size();
    BitReader reader(in);
    bool valid = true;
    for (size_t i = 0; i < basis.size(); ++i) {
        const unsigned width = basis[i].bits();
        for (u32 &residue : out.subspan(i * count, count)) {
            residue = static_cast<u32>(reader.get(width));
            valid &= residue < basis[i].q;
        }
        valid &= reader.align() == 0;
    }
    return valid;
}

} // namespace comet::rlwe
