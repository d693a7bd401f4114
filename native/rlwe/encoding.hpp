#pragma once

// Messages mod 2^width or mod an odd t, as residues scaled to the modulus of the ciphertexts, and back.

#include "rlwe/basis.hpp"
#include "rlwe/transform.hpp"

namespace comet::rlwe {

/// out = round(q·m / 2^width) of words m mod 2^width, [prime][count].
void scale_power(const Basis &basis, span<const u64> words, unsigned width, span<u32> out, Isa isa);

/// out = round(q·m / t) of numbers m mod t = Π plain, given by their residues [plain prime][count].
void scale_odd(const Basis &basis, const Basis &plain, span<const u32> residues, span<u32> out, Isa isa);

/// The polynomial with coefficients m mod t, centred; transformed, in Montgomery form.
void transform_plain(const Basis &basis, const Basis &plain, span<const u32> residues, span<u32> out, Isa isa);

/// round(2^width·x) mod 2^width of every fraction x; width in 1..64.
void round_power(span<const Fraction> fractions, unsigned width, span<u64> out);

/// round(t·x) mod t = Π plain, as residues [plain prime][count].
void round_odd(const Basis &plain, span<const Fraction> fractions, span<u32> out, Isa isa);

/// v mod 2^64 and [2v >= P] for numbers v below P, the product of the basis, by exact comparison.
void split(const Basis &basis, span<const u32> residues, span<u64> words, span<u8> upper, Isa isa);

/// Residues as a string of bits, as many for each as its prime has; [prime][count], each prime's part in whole bytes.
size_t packed_residues(const Basis &basis, size_t count);
void pack_residues(const Basis &basis, span<const u32> in, span<u8> out);

/// The inverse. False if one is not below its prime or padding is not zero.
bool unpack_residues(const Basis &basis, span<const u8> in, span<u32> out);

} // namespace comet::rlwe
