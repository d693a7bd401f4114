#pragma once

// RLWE encryption over a basis: c0 + c1·s = scaled message + noise. Ciphertexts are transformed, [c0, c1][prime][8192].
// Randomness always comes from the caller. Sizes are the caller's to check.

#include "rlwe/transform.hpp"

namespace comet::lattice {

/// Residues uniform below every prime, by rejection from `available` words a prime. False if they do not suffice.
bool sample_uniform(const Basis &basis, const u32 *words, size_t available, size_t count, u32 *out);

/// Uniform in {-1, 0, 1}, by rejection from bytes. False if they do not suffice.
bool sample_ternary(const u8 *bytes, size_t available, i8 *out);

/// Centred binomial of 2·21 bits: standard deviation sqrt(21/2) = 3.24, never above 21.
void sample_errors(const u64 *words, size_t count, i8 *out);

/// The transform of a polynomial of small coefficients, in Montgomery form.
void transform_small(const Basis &basis, const i8 *in, u32 *out, Isa isa);

/// out = round(q·m / 2^width) of words m mod 2^width, [prime][count].
void scale_power(const Basis &basis, const u64 *words, size_t count, unsigned width, u32 *out);

/// out = round(q·m / t) of numbers m mod t = Π plain, given by their residues [plain prime][count].
void scale_odd(const Basis &basis, const Basis &plain, const u32 *residues, size_t count, u32 *out);

/// The polynomial with coefficients m mod t, centred; transformed, in Montgomery form.
void transform_plain(const Basis &basis, const Basis &plain, const u32 *residues, u32 *out, Isa isa);

/// c0 = scaled + e - c1·s.
void encrypt(const Basis &basis, const u32 *scaled, const i8 *errors, const u32 *c1, const u32 *secret, u32 *c0,
             Isa isa);

struct ShortShape {
    size_t row_blocks, inputs, outputs, live;
    u32 divisor;
};

/// out[o][r] = Σ_i x[r][i] · y[o][i] / divisor mod q, for ciphertexts x, as [r][prime][row][i][c0, c1][8], and short integer
/// polynomials y[o][i][live].
void multiply_short(const Basis &basis, const u32 *x, const i64 *y, ShortShape shape, u32 *out, Isa isa);

/// out = Σ_k x[k] · y[k], for ciphertexts x and polynomials y from `transform_plain`.
void multiply_plain(const Basis &basis, const u32 *const *x, const u32 *const *y, size_t terms, u32 *out, Isa isa);

struct Response {
    const i8 *ephemeral; // [8192] ternary
    const i8 *errors0;   // [used]
    const i8 *errors1;   // [8192]
    const u64 *flood;    // [used][3 summands][flood_words]
    size_t flood_words;
    unsigned flood_bits;
    const u32 *masks;     // [prime][used], scaled
    const u32 *positions; // [used]
    size_t used;
    unsigned bits0, bits1;
};

/// Adds a fresh encryption of zero under the public key, drowning noise and a mask; rounds c1 to `bits1` bits a
/// coefficient and the coefficients of c0 at `positions` to `bits0`. `ciphertext` is destroyed.
void respond(const Basis &basis, u32 *ciphertext, const u32 *public_key, const Response &response, u8 *out0, u8 *out1,
             Isa isa);

/// c0 + c1·s at `positions`, as fractions of 2^128. The basis must exceed 2^(bits1 + 14).
void phase(const Basis &basis, const u8 *in0, const u8 *in1, const u32 *secret, const u32 *positions, size_t used,
           unsigned bits0, unsigned bits1, u128 *out, Isa isa);

/// The nearest message mod 2^width; returns the largest distance to it, in units of 2^-32 of a step.
u64 round_power(const u128 *phases, size_t count, unsigned width, u64 *out);

/// The same mod Π plain, as residues [plain prime][count].
u64 round_odd(const Basis &plain, const u128 *phases, size_t count, u32 *out);

/// v mod 2^64 and [2v >= P] for numbers v below P, the product of the basis, by exact comparison.
void split(const Basis &basis, const u32 *residues, size_t count, u64 *words, u8 *upper);

/// Residues as a string of bits, as many for each as its prime has; [prime][count], each prime's part in whole bytes.
size_t packed_residues(const Basis &basis, size_t count);
void pack_residues(const Basis &basis, const u32 *in, size_t count, u8 *out);

/// The inverse. False if one is not below its prime or padding is not zero.
bool unpack_residues(const Basis &basis, const u8 *in, size_t count, u32 *out);

} // namespace comet::lattice
