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

/// Where a response has its useful coefficients, and to how many bits both components are rounded.
struct Rounding {
    span<const u32> positions;
    unsigned bits0, bits1;
};

/// What makes a response independent of how it was computed; `used` is the number of positions.
struct Blinding {
    span<const i8, degree> ephemeral; // ternary
    span<const i8> errors0;           // [used]
    span<const i8, degree> errors1;
    span<const u64> flood; // [used][3 summands][words of flood_bits bits]
    unsigned flood_bits;
    span<const u32> masks; // [prime][used], scaled
};

/// Adds a fresh encryption of zero under the public key, drowning noise and a mask; rounds c1 to `bits1` bits a
/// coefficient and the coefficients of c0 at `positions` to `bits0`. `ciphertext` is destroyed.
void respond(const Basis &basis, span<u32> ciphertext, span<const u32> public_key, const Blinding &blinding,
             const Rounding &rounding, span<u8> out0, span<u8> out1, Isa isa);

/// c0 + c1·s at `positions`, as fractions of 2^128. The basis must exceed 2^(bits1 + 14).
void phase(const Basis &basis, span<const u8> in0, span<const u8> in1, span<const u32> secret, const Rounding &rounding,
           span<u128> out, Isa isa);

} // namespace comet::rlwe
