#pragma once

// What is done to every coefficient by itself: residues of numbers, numbers from residues, products of transforms.
// Vectors may have any length. Several that belong together follow each other: [k][count].

#include "common/isa.hpp"
#include "rlwe/fraction.hpp"
#include "rlwe/prime.hpp"

namespace comet::rlwe {

constexpr unsigned piece_bits = 28; // so that sums of products of pieces and residues fit into 64 bits
constexpr size_t most_pieces = (Fraction::bits + piece_bits - 1) / piece_bits;
using Pieces = std::array<u32, most_pieces>; // of a number of 192 bits, the lowest first

/// Of a number mod 2^192.
Pieces pieces(const Fraction &number);

enum class Sign { plus, minus };

/// out = x ± y.
void sum(const Prime &p, span<const u32> x, Sign sign, span<const u32> y, span<u32> out, Isa isa);

/// out = x·factor/2^32, x below 2^32.
void scale(const Prime &p, span<const u32> x, u32 factor, span<u32> out, Isa isa);

/// out = x·y/2^32.
void product(const Prime &p, span<const u32> x, span<const u32> y, span<u32> out, Isa isa);

/// out = start ± x·y/2^32.
void product(const Prime &p, span<const u32> start, Sign sign, span<const u32> x, span<const u32> y, span<u32> out,
             Isa isa);

/// out = small·factor/2^32.
void scale_small(const Prime &p, span<const i8> small, u32 factor, span<u32> out, Isa isa);

/// out = small ± x.
void add_small(const Prime &p, span<const i8> small, Sign sign, span<const u32> x, span<u32> out, Isa isa);

/// out = start + Σ_k in[k]·factors[k]/2^32 mod p, where in[k] lies at in + k·stride; the sum of all in[k] is below 2^32.
void combine(const Prime &p, const u32 *in, size_t stride, span<const u32> factors, u32 start, span<u32> out, Isa isa);

/// Σ_i y_i·factors[i] + start mod 2^192 with y_i = x_i·multipliers[i]/2^32 mod primes[i], shifted afterwards; the
/// pieces of `wrap` are taken Σ_i y_i/q_i times, rounded.
struct WideSum {
    span<const Prime *const> primes;
    span<const u32> multipliers;
    span<const Pieces> factors;
    Pieces start{}, wrap{};
    unsigned left = 0, right = 0; // places
};
void wide_sum(const WideSum &sum, span<const u32> residues, span<Fraction> out, Isa isa);

/// Mixed radix digits of numbers given by their residues: d0 + d1·q0 + d2·q0·q1 + …; of x_i·multipliers[i]/2^32 +
/// starts[i] mod primes[i] instead of x_i. garner[i·size + j] is 1/q_j mod q_i in Montgomery form. `above` tells
/// whether the number exceeds the one with the digits `middle`.
struct MixedRadix {
    span<const Prime *const> primes;
    span<const u32> multipliers, starts, garner, middle;
};
void mixed_radix(const MixedRadix &how, span<const u32> residues, span<u32> digits, span<u32> above, Isa isa);

/// out = Σ_k digits[k]·factors[k] mod 2^64.
void join(span<const u32> digits, span<const u64> factors, span<u64> out, Isa isa);

/// round(t·x) as residues [prime][count] of every fraction x; `factor` has the pieces of t below 2^128, and
/// powers[k·most_whole + c] is 2^(28·c) mod primes[k] in Montgomery form.
constexpr size_t most_whole = 5;
void round_product(span<const Prime *const> primes, const Pieces &factor, span<const u32> powers,
                   span<const Fraction> x, span<u32> out, Isa isa);

/// Pieces [piece][count] of words and of numbers of `bits` bits in a row; out has ⌈64/28⌉ or ⌈bits/28⌉ times as many.
void cut_words(span<const u64> words, span<u32> out, Isa isa);
void cut_bits(span<const u8> in, unsigned bits, size_t count, span<u32> out);

} // namespace comet::rlwe
