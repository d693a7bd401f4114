#include "rlwe/scheme.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "rlwe/bits.hpp"

namespace comet::lattice {

namespace {

unsigned bits_of(u32 q) { return static_cast<unsigned>(std::bit_width(q)); }

// out = in·2^32 mod q, so that products with it by multiply_add come out right.
void to_montgomery(const Prime &p, u32 *x, size_t count) {
    for (size_t i = 0; i < count; ++i) x[i] = p.times(x[i], p.montgomery);
}

COMET_INLINE u32 montgomery_product(const Prime &p, u32 x, u32 y) {
    const u64 product = static_cast<u64>(x) * y;
    const u32 quotient = static_cast<u32>(product) * p.inverse;
    const u32 rest = static_cast<u32>(product >> 32) - static_cast<u32>((static_cast<u64>(quotient) * p.q) >> 32) + p.q;
    return std::min(rest, rest - p.q);
}

COMET_INLINE u32 small(const Prime &p, i8 value) {
    return value < 0 ? p.q - static_cast<u32>(-value) : static_cast<u32>(value);
}

} // namespace

bool sample_uniform(const Basis &basis, const u32 *words, size_t available, size_t count, u32 *out) {
    for (size_t i = 0; i < basis.size(); ++i, words += available, out += count) {
        const u32 q = basis[i].q, mask = static_cast<u32>(low_mask(bits_of(q)));
        size_t found = 0;
        for (size_t k = 0; k < available && found < count; ++k) {
            out[found] = words[k] & mask;
            found += out[found] < q;
        }
        if (found < count) return false;
    }
    return true;
}

bool sample_ternary(const u8 *bytes, size_t available, i8 *out) {
    size_t found = 0;
    for (size_t k = 0; k < available && found < degree; ++k) {
        out[found] = static_cast<i8>(bytes[k] % 3 - 1);
        found += bytes[k] < 255;
    }
    return found == degree;
}

void sample_errors(const u64 *words, size_t count, i8 *out) {
    constexpr u64 mask = low_mask(21);
    for (size_t i = 0; i < count; ++i)
        out[i] = static_cast<i8>(std::popcount(words[i] & mask) - std::popcount(words[i] >> 21 & mask));
}

void transform_small(const Basis &basis, const i8 *in, u32 *out, Isa isa) {
    std::vector<u32> residues(degree);
    for (size_t i = 0; i < basis.size(); ++i, out += degree) {
        for (size_t j = 0; j < degree; ++j) residues[j] = small(basis[i], in[j]);
        forward(basis[i], residues.data(), out, isa);
        to_montgomery(basis[i], out, degree);
    }
}

// q·m + 2^(w-1) = 2^w·y + r with y the rounded quotient, and q·m vanishes mod every prime of q: y = (2^(w-1) - r)/2^w.
void scale_power(const Basis &basis, const u64 *words, size_t count, unsigned width, u32 *out) {
    const u64 half = u64{1} << (width - 1), mask = low_mask(width);
    std::vector<u64> rests(count);
    for (size_t j = 0; j < count; ++j) rests[j] = (basis.modulus_low() * words[j] + half) & mask;
    for (size_t i = 0; i < basis.size(); ++i, out += count) {
        const Prime &p = basis[i];
        const u32 factor = p.invert(p.power(2, width)), top = p.reduce(half);
        for (size_t j = 0; j < count; ++j) out[j] = p.times(p.minus(top, p.reduce(rests[j])), factor);
    }
}

// The same with t for 2^w and (t-1)/2 for 2^(w-1); r is known by its residues mod the primes of t.
void scale_odd(const Basis &basis, const Basis &plain, const u32 *residues, size_t count, u32 *out) {
    const size_t parts = plain.size();
    const u128 half = plain.modulus() / 2;
    std::vector<u32> rests(parts * count), digit(parts * count), radix(parts);
    for (size_t k = 0; k < parts; ++k) {
        const Prime &p = plain[k];
        const u32 factor = basis.modulus_mod(p.q), top = p.reduce(half);
        for (size_t j = 0; j < count; ++j) rests[k * count + j] = p.plus(p.times(residues[k * count + j], factor), top);
    }
    for (size_t j = 0; j < count; ++j) {
        u32 d[8];
        plain.digits(rests.data() + j, count, d);
        for (size_t k = 0; k < parts; ++k) digit[k * count + j] = d[k];
    }
    for (size_t i = 0; i < basis.size(); ++i, out += count) {
        const Prime &p = basis[i];
        const u32 factor = p.invert(p.reduce(plain.modulus())), top = p.reduce(half);
        u32 product = 1;
        for (size_t k = 0; k < parts; ++k) radix[k] = product, product = p.times(product, p.reduce(u64{plain[k].q}));
        for (size_t j = 0; j < count; ++j) {
            u64 rest = 0;
            for (size_t k = 0; k < parts; ++k) rest += static_cast<u64>(digit[k * count + j]) * radix[k];
            out[j] = p.times(p.minus(top, p.reduce(rest)), factor);
        }
    }
}

void transform_plain(const Basis &basis, const Basis &plain, const u32 *residues, u32 *out, Isa isa) {
    const u128 half = plain.modulus() / 2;
    std::vector<u128> values(degree);
    std::vector<u32> reduced(degree);
    for (size_t j = 0; j < degree; ++j) values[j] = plain.lift(residues + j, degree);
    for (size_t i = 0; i < basis.size(); ++i, out += degree) {
        const Prime &p = basis[i];
        const u32 wrap = p.reduce(plain.modulus());
        for (size_t j = 0; j < degree; ++j) {
            const u32 rest = p.reduce(values[j]);
            reduced[j] = p.times(values[j] > half ? p.minus(rest, wrap) : rest, p.montgomery);
        }
        forward(p, reduced.data(), out, isa);
    }
}

void encrypt(const Basis &basis, const u32 *scaled, const i8 *errors, const u32 *c1, const u32 *secret, u32 *c0,
             Isa isa) {
    std::vector<u32> sum(degree);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const size_t start = i * degree;
        for (size_t j = 0; j < degree; ++j) sum[j] = p.plus(scaled[start + j], small(p, errors[j]));
        forward(p, sum.data(), c0 + start, isa);
        for (size_t j = start; j < start + degree; ++j) c0[j] = p.minus(c0[j], montgomery_product(p, c1[j], secret[j]));
    }
}

namespace {

// out = in·factor/2^32 mod q, for integers of any size.
void reduce_integers(const Prime &p, const i64 *in, size_t count, u32 factor, u32 *out) {
    const u32 high = p.times(factor, p.montgomery), lowest = p.times(p.power(2, 63), factor);
    for (size_t j = 0; j < count; ++j) {
        const u64 value = static_cast<u64>(in[j]) + (u64{1} << 63); // minus what it stands for: 2^63
        const u64 sum = (value >> 32) * high + (value & low_mask(32)) * factor + static_cast<u64>(p.q - lowest);
        out[j] = p.reduce_montgomery(sum);
    }
}

struct ShortProduct {
    const u32 *x; // [row][input][c0, c1][8]; those of other row blocks at x_stride
    size_t x_stride;
    const i64 *y;
    ShortShape shape;
    u32 factor;
    u32 *out; // c0; c1 at `component`, other ciphertexts at 2·component
    size_t component;

    Left left(size_t r, size_t input, size_t row) const {
        const size_t width = shape.inputs * 2 * lanes;
        return {x + r * x_stride + row * width + input * 2 * lanes, width, 2 * lanes, lanes};
    }
    u32 *sum(size_t o, size_t r, size_t row) const {
        return out + (o * shape.row_blocks + r) * 2 * component + row * lanes;
    }
};

// Right factors of full length are transformed as a whole, one at a time.
void multiply_dense(const Prime &p, const ShortProduct &product, Isa isa) {
    const ShortShape &shape = product.shape;
    std::vector<u32> residues(degree), transformed(degree);
    for (size_t o = 0; o < shape.outputs; ++o)
        for (size_t i = 0; i < shape.inputs; ++i) {
            reduce_integers(p, product.y + (o * shape.inputs + i) * shape.live, shape.live, product.factor,
                            residues.data());
            forward(p, residues.data(), transformed.data(), isa);
            for (size_t r = 0; r < shape.row_blocks; ++r) {
                u32 *acc = product.sum(o, r, 0);
                multiply_add(p, product.left(r, i, 0), {transformed.data(), lanes}, 1, 1, rows, &acc, product.component,
                             i == 0, isa);
            }
        }
}

// Block by block: the left factors' part stays in the second-level cache for all outputs, a few transformed right factors in
// the first.
void multiply_blocks(const Prime &p, const ShortProduct &product, Isa isa) {
    constexpr size_t chunk = 12; // at most `fold`
    const ShortShape &shape = product.shape;
    const size_t live = shape.live;
    std::vector<u32> residues(shape.outputs * shape.inputs * live), work(live * lanes),
        right(wide * chunk * live * lanes);
    reduce_integers(p, product.y, residues.size(), product.factor, residues.data());
    for (size_t row = 0; row < rows; row += live)
        for (size_t o = 0, sets = 0; o < shape.outputs; o += sets) {
            sets = shape.outputs - o >= wide ? wide : 1;
            for (size_t first = 0; first < shape.inputs; first += chunk) {
                const size_t terms = std::min(chunk, shape.inputs - first), width = terms * sets * lanes;
                for (size_t k = 0; k < terms * sets; ++k) {
                    const size_t factor = (o + k % sets) * shape.inputs + first + k / sets;
                    forward_short(p, residues.data() + factor * live, live, row / live, work.data(),
                                  right.data() + k * lanes, width, isa);
                }
                for (size_t r = 0; r < shape.row_blocks; ++r) {
                    u32 *acc[wide];
                    for (size_t s = 0; s < sets; ++s) acc[s] = product.sum(o + s, r, row);
                    multiply_add(p, product.left(r, first, row), {right.data(), width}, terms, sets, live, acc,
                                 product.component, first == 0, isa);
                }
            }
        }
}

} // namespace

void multiply_short(const Basis &basis, const u32 *x, const i64 *y, ShortShape shape, u32 *out, Isa isa) {
    const size_t limbs = basis.size(), one = limbs * degree, polynomials = shape.inputs * 2 * degree;
    for (size_t l = 0; l < limbs; ++l) {
        const Prime &p = basis[l];
        const u32 factor = p.times(p.square, p.invert(p.reduce(u64{shape.divisor}))); // in Montgomery form, twice
        const auto multiply = shape.live > rows ? multiply_dense : multiply_blocks;
        multiply(p, {x + l * polynomials, limbs * polynomials, y, shape, factor, out + l * degree, one}, isa);
    }
}

void multiply_plain(const Basis &basis, const u32 *const *x, const u32 *const *y, size_t terms, u32 *out, Isa isa) {
    const size_t one = basis.size() * degree;
    for (size_t l = 0; l < basis.size(); ++l)
        for (size_t k = 0; k < terms; ++k) {
            u32 *acc = out + l * degree;
            const Left left{x[k] + l * degree, lanes, 0, one};
            multiply_add(basis[l], left, {y[k] + l * degree, lanes}, 1, 1, rows, &acc, one, k == 0, isa);
        }
}

namespace {

// u1 + u2 + u3 of every flood, in flood_words + 1 words.
std::vector<u64> flood_sums(const Response &r) {
    const size_t digits = r.flood_words + 1;
    const u64 top = low_mask((r.flood_bits - 1) % 64 + 1);
    std::vector<u64> sums(r.used * digits);
    const u64 *summand = r.flood;
    for (size_t j = 0; j < r.used; ++j) {
        u64 *words = sums.data() + j * digits;
        for (size_t k = 0; k < 3; ++k, summand += r.flood_words) {
            u64 carry = 0;
            for (size_t w = 0; w < r.flood_words; ++w) {
                const u128 sum = u128{words[w]} + (w + 1 == r.flood_words ? summand[w] & top : summand[w]) + carry;
                words[w] = static_cast<u64>(sum);
                carry = static_cast<u64>(sum >> 64);
            }
            words[r.flood_words] += carry;
        }
    }
    return sums;
}

} // namespace

void respond(const Basis &basis, u32 *ciphertext, const u32 *public_key, const Response &r, u8 *out0, u8 *out1,
             Isa isa) {
    const size_t one = basis.size() * degree, digits = r.flood_words + 1;
    std::vector<u32> ephemeral(one), c0(basis.size() * r.used), c1(one), ordered(degree);
    const std::vector<u64> floods = flood_sums(r);
    transform_small(basis, r.ephemeral, ephemeral.data(), isa);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        const size_t start = i * degree;
        for (size_t component = 0; component < 2; ++component) {
            u32 *c = ciphertext + component * one + start;
            const u32 *key = public_key + component * one + start;
            for (size_t j = 0; j < degree; ++j)
                c[j] = p.plus(c[j], montgomery_product(p, ephemeral[start + j], key[j]));
        }
        backward(p, ciphertext + start, ordered.data(), isa);
        const u32 centre = p.times(3, p.power(2, r.flood_bits - 1));
        u32 radix[4] = {1, p.square};
        for (size_t w = 2; w < 4; ++w) radix[w] = p.times(radix[w - 1], p.square);
        for (size_t j = 0; j < r.used; ++j) {
            u64 flood = p.q - centre;
            for (size_t w = 0; w < digits; ++w) flood += static_cast<u64>(p.reduce(floods[j * digits + w])) * radix[w];
            const u32 sum = p.plus(ordered[r.positions[j]], r.masks[i * r.used + j]);
            c0[i * r.used + j] = p.plus(p.plus(sum, p.reduce(flood)), small(p, r.errors0[j]));
        }
        backward(p, ciphertext + one + start, c1.data() + start, isa);
        for (size_t j = 0; j < degree; ++j) c1[start + j] = p.plus(c1[start + j], small(p, r.errors1[j]));
    }
    const auto rounded = [](u128 fraction, unsigned bits) {
        return (fraction + (u128{1} << (127 - bits))) >> (128 - bits);
    };
    BitWriter low(out0), high(out1);
    for (size_t j = 0; j < r.used; ++j) low.put(rounded(basis.fraction(c0.data() + j, r.used), r.bits0), r.bits0);
    low.flush();
    for (size_t j = 0; j < degree; ++j) high.put(rounded(basis.fraction(c1.data() + j, degree), r.bits1), r.bits1);
    high.flush();
}

void phase(const Basis &basis, const u8 *in0, const u8 *in1, const u32 *secret, const u32 *positions, size_t used,
           unsigned bits0, unsigned bits1, u128 *out, Isa isa) {
    std::vector<u128> values(degree);
    std::vector<u32> ordered(degree), transformed(degree), products(basis.size() * degree);
    BitReader high(in1, (degree * bits1 + 7) / 8);
    for (u128 &value : values) value = high.get(bits1);
    for (size_t i = 0; i < basis.size(); ++i) {
        const Prime &p = basis[i];
        for (size_t j = 0; j < degree; ++j) ordered[j] = p.reduce(values[j]);
        forward(p, ordered.data(), transformed.data(), isa);
        for (size_t j = 0; j < degree; ++j)
            transformed[j] = montgomery_product(p, transformed[j], secret[i * degree + j]);
        backward(p, transformed.data(), products.data() + i * degree, isa);
    }
    BitReader low(in0, (used * bits0 + 7) / 8);
    const u128 half = basis.modulus() / 2;
    for (size_t j = 0; j < used; ++j) {
        u128 product = basis.lift(products.data() + positions[j], degree);
        if (product > half) product -= basis.modulus();
        out[j] = (low.get(bits0) << (128 - bits0)) + (product << (128 - bits1));
    }
}

u64 round_power(const u128 *phases, size_t count, unsigned width, u64 *out) {
    u64 worst = 0;
    for (size_t j = 0; j < count; ++j) {
        const u128 step = u128{1} << (128 - width), rest = (phases[j] + step / 2) & (step - 1);
        out[j] = static_cast<u64>((phases[j] + step / 2) >> (128 - width)) & low_mask(width);
        const u128 distance = rest > step / 2 ? rest - step / 2 : step / 2 - rest;
        worst = std::max(worst, static_cast<u64>(distance >> (96 - width)));
    }
    return worst;
}

u64 round_odd(const Basis &plain, const u128 *phases, size_t count, u32 *out) {
    const u128 t = plain.modulus();
    const u64 t0 = static_cast<u64>(t), t1 = static_cast<u64>(t >> 64);
    u64 worst = 0;
    for (size_t j = 0; j < count; ++j) {
        const u64 p0 = static_cast<u64>(phases[j]), p1 = static_cast<u64>(phases[j] >> 64);
        const u128 a = u128{t0} * p0, b = u128{t1} * p0, c = u128{t0} * p1;
        const u128 middle = (a >> 64) + static_cast<u64>(b) + static_cast<u64>(c);
        u128 whole = (middle >> 64) + (b >> 64) + (c >> 64) + u128{t1} * p1;
        const u64 rest = static_cast<u64>(middle);
        const bool up = rest >> 63;
        whole += up;
        if (whole == t) whole = 0;
        worst = std::max(worst, (up ? ~rest : rest) >> 32);
        for (size_t k = 0; k < plain.size(); ++k) out[k * count + j] = plain[k].reduce(whole);
    }
    return worst;
}

// (P - 1)/2 is (p - 1)/2 mod every prime p of P; numbers in mixed radix compare digit by digit, the last one first.
void split(const Basis &basis, const u32 *residues, size_t count, u64 *words, u8 *upper) {
    const size_t parts = basis.size();
    u32 middle[8], half[8], digits[8];
    for (size_t k = 0; k < parts; ++k) middle[k] = (basis[k].q - 1) / 2;
    basis.digits(middle, 1, half);
    for (size_t j = 0; j < count; ++j) {
        basis.digits(residues + j, count, digits);
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
    for (size_t i = 0; i < basis.size(); ++i) size += (count * bits_of(basis[i].q) + 7) / 8;
    return size;
}

void pack_residues(const Basis &basis, const u32 *in, size_t count, u8 *out) {
    BitWriter writer(out);
    for (size_t i = 0; i < basis.size(); ++i, in += count) {
        for (size_t j = 0; j < count; ++j) writer.put(in[j], bits_of(basis[i].q));
        writer.flush();
    }
}

bool unpack_residues(const Basis &basis, const u8 *in, size_t count, u32 *out) {
    BitReader reader(in, packed_residues(basis, count));
    bool valid = true;
    for (size_t i = 0; i < basis.size(); ++i, out += count) {
        for (size_t j = 0; j < count; ++j) {
            out[j] = static_cast<u32>(reader.get(bits_of(basis[i].q)));
            valid &= out[j] < basis[i].q;
        }
        valid &= reader.align() == 0;
    }
    return valid;
}

} // namespace comet::lattice
