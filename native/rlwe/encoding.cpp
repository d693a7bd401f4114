#include "rlwe/encoding.hpp"

#include <algorithm>

#include "common/bits.hpp"

namespace comet::rlwe {

namespace {

/// Weights of mixed radix digits, 1, q0, q0·q1, …, mod p.
std::vector<u32> radices(const Prime &p, const Basis &plain) {
    std::vector<u32> out;
    u32 product = 1;
    for (size_t k = 0; k < plain.size(); ++k) {
        out.push_back(product);
        product = p.times(product, p.reduce(u64{plain[k].q}));
    }
    return out;
}

} // namespace

// q·m + 2^(w-1) = 2^w·y + r with y the rounded quotient, and q·m vanishes mod every prime of q: y = (2^(w-1) - r)/2^w.
void scale_power(const Basis &basis, span<const u64> words, unsigned width, span<u32> out, Isa isa) {
    constexpr size_t parts = 3;
    const size_t count = words.size();
    const u64 half = u64{1} << (width - 1), mask = low_mask(width), low = basis.modulus_low();
    std::vector<u64> rests(count);
    for (size_t j = 0; j < count; ++j) rests[j] = (low * words[j] + half) & mask;
    std::vector<u32> cut(parts * count);
    cut_words(rests, cut, isa);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 factor = p.invert(p.power(2, width));
        u32 factors[parts];
        for (size_t k = 0; k < parts; ++k)
            factors[k] = p.lifted(p.minus(0, p.times(factor, p.power(2, k * piece_bits))));
        combine(p, cut.data(), count, factors, p.times(p.reduce(half), factor), out.subspan(i * count, count), isa);
    }
}

// The same with t for 2^w and (t-1)/2 for 2^(w-1); r is known by its residues mod the primes of t.
void scale_odd(const Basis &basis, const Basis &plain, span<const u32> residues, span<u32> out, Isa isa) {
    const size_t parts = plain.size(), count = residues.size() / parts;
    const u128 half = plain.modulus() / 2;
    std::vector<u32> digits(parts * count), above(count), multipliers, starts;
    for (size_t k = 0; k < parts; ++k) {
        multipliers.push_back(plain[k].lifted(basis.modulus_mod(plain[k].q)));
        starts.push_back(plain[k].reduce(half));
    }
    MixedRadix how = plain.mixed_radix();
    how.multipliers = multipliers;
    how.starts = starts;
    mixed_radix(how, residues, digits, above, isa);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const u32 factor = p.invert(p.reduce(plain.modulus()));
        std::vector<u32> factors = radices(p, plain);
        for (u32 &radix : factors) radix = p.lifted(p.minus(0, p.times(radix, factor)));
        combine(p, digits.data(), count, factors, p.times(p.reduce(half), factor), out.subspan(i * count, count), isa);
    }
}

void transform_plain(const Basis &basis, const Basis &plain, span<const u32> residues, span<u32> out, Isa isa) {
    const size_t parts = plain.size();
    std::vector<u32> digits((parts + 1) * degree), reduced(degree); // the last digit stands for -t
    mixed_radix(plain.mixed_radix(), residues, digits, polynomial(digits, parts), isa);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        std::vector<u32> factors = radices(p, plain);
        factors.push_back(p.minus(0, p.reduce(plain.modulus())));
        for (u32 &radix : factors) radix = p.times(radix, p.square); // twice: the result is in Montgomery form too
        combine(p, digits.data(), degree, factors, 0, reduced, isa);
        forward(p, polynomial(reduced, 0), polynomial(out, i), isa);
    }
}

// What is below the word that holds the half never changes the result.
void round_power(span<const Fraction> fractions, unsigned width, span<u64> out) {
    if (width == 64)
        for (size_t j = 0; j < out.size(); ++j) out[j] = fractions[j].words[2] + (fractions[j].words[1] >> 63);
    else
        for (size_t j = 0; j < out.size(); ++j)
            out[j] = (fractions[j].words[2] + (u64{1} << (63 - width))) >> (64 - width);
}

void round_odd(const Basis &plain, span<const Fraction> fractions, span<u32> out, Isa isa) {
    const u128 t = plain.modulus();
    const Pieces factor = pieces({{static_cast<u64>(t), static_cast<u64>(t >> 64), 0}});
    std::vector<u32> powers;
    for (size_t k = 0; k < plain.size(); ++k)
        for (size_t c = 0; c < most_whole; ++c) powers.push_back(plain[k].lifted(plain[k].power(2, c * piece_bits)));
    round_product(plain.primes(), factor, powers, fractions, out, isa);
}

void split(const Basis &basis, span<const u32> residues, span<u64> words, span<u8> upper, Isa isa) {
    const size_t parts = basis.size(), count = words.size();
    std::vector<u32> digits(parts * count), above(count);
    mixed_radix(basis.mixed_radix(), residues, digits, above, isa);
    std::vector<u64> factors;
    u64 product = 1;
    for (size_t k = 0; k < parts; ++k) {
        factors.push_back(product);
        product *= basis[k].q;
    }
    join(digits, factors, words, isa);
    for (size_t j = 0; j < count; ++j) upper[j] = static_cast<u8>(above[j]);
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
