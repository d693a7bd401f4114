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

u64 round_power(span<const u128> phases, unsigned width, span<u64> out) {
    u64 worst = 0;
    for (size_t j = 0; j < out.size(); ++j) {
        const u128 step = u128{1} << (128 - width), rest = (phases[j] + step / 2) & (step - 1);
        out[j] = static_cast<u64>((phases[j] + step / 2) >> (128 - width)) & low_mask(width);
        const u128 distance = rest > step / 2 ? rest - step / 2 : step / 2 - rest;
        worst = std::max(worst, static_cast<u64>(distance >> (96 - width)));
    }
    return worst;
}

u64 round_odd(const Basis &plain, span<const u128> phases, span<u32> out) {
    const u128 t = plain.modulus();
    const u64 t0 = static_cast<u64>(t), t1 = static_cast<u64>(t >> 64);
    u64 worst = 0;
    for (size_t j = 0; j < phases.size(); ++j) {
        const u64 p0 = static_cast<u64>(phases[j]), p1 = static_cast<u64>(phases[j] >> 64);
        const u128 a = u128{t0} * p0, b = u128{t1} * p0, c = u128{t0} * p1;
        const u128 middle = (a >> 64) + static_cast<u64>(b) + static_cast<u64>(c);
        u128 whole = (middle >> 64) + (b >> 64) + (c >> 64) + u128{t1} * p1;
        const u64 rest = static_cast<u64>(middle);
        const bool up = rest >> 63;
        whole += up;
        if (whole == t) whole = 0;
        worst = std::max(worst, (up ? ~rest : rest) >> 32);
        for (size_t k = 0; k < plain.size(); ++k) out[k * phases.size() + j] = plain[k].reduce(whole);
    }
    return worst;
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
