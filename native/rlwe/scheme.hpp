#pragma once

// RLWE encryption over a basis: c0 + c1·s = scaled message + noise. Ciphertexts are transformed, [c0, c1][prime][8192].
// Randomness always comes from the caller. Sizes are the caller's to check.

#include "rlwe/basis.hpp"
#include "rlwe/transform.hpp"

namespace comet::rlwe {

/// The transform of a polynomial of small coefficients, in Montgomery form.
void transform_small(const Basis &basis, span<const i8, degree> in, span<u32> out, Isa isa);

/// c0 = scaled + e - c1·s.
void encrypt(const Basis &basis, span<const u32> scaled, span<const i8, degree> errors, span<const u32> c1,
             span<const u32> secret, span<u32> c0, Isa isa);

/// w = e - c1·s, in order, and w/q.
void blind(const Basis &basis, span<const i8, degree> errors, span<const u32> c1, span<const u32> secret, span<u32> w,
           span<Fraction> fractions, Isa isa);

/// How a rest is sent: it lies within ±2^(bits-1), and its lowest `dropped` bits are not sent.
struct Rest {
    unsigned bits;
    unsigned dropped;
};

/// rest = w - base as numbers of bits - dropped bits: what is sent of w if the receiver knows another number to put it
/// on. Whether every |rest| <= largest.
bool pack_rest(const Basis &basis, span<const u32> w, span<const u32> base, Rest rest, const Fraction &largest,
               span<u8> out, Isa isa);

/// c0 = base + rest: what `pack_rest` packed, put on a number that both sides know; transformed. Any string is valid.
/// Of 2^dropped rests that look the same it takes the one in the middle.
void unpack_rest(const Basis &basis, span<const u8> in, span<const u32> base, Rest rest, span<u32> c0, Isa isa);

/// Fresh randomness that makes a response independent of how it was computed; `used` is the number of positions.
struct Blinding {
    span<const i8, degree> ephemeral; // ternary
    span<const i8> errors0;           // [used]
    span<const i8, degree> errors1;
};

/// Adds a fresh encryption of zero under the public key. c1, rounded to `bits` bits a coefficient, is what is sent; c0
/// at `positions`, as fractions of q, is what the server keeps. `ciphertext` is destroyed.
void respond(const Basis &basis, span<u32> ciphertext, span<const u32> public_key, const Blinding &blinding,
             span<const u32> positions, unsigned bits, span<u8> sent, span<Fraction> kept, Isa isa);

/// c1·s at `positions`, as fractions of q. The basis must exceed 2^(bits + 16).
void phase(const Basis &basis, span<const u8> in, span<const u32> secret, span<const u32> positions, unsigned bits,
           span<Fraction> out, Isa isa);

} // namespace comet::rlwe
