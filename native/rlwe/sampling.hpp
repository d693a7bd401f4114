#pragma once

// Random polynomials from uniform words of the caller.

#include "rlwe/basis.hpp"

namespace comet::rlwe {

/// Residues uniform below every prime, [prime][count], by rejection from words [prime][available]. False if they do not
/// suffice.
bool sample_uniform(const Basis &basis, span<const u32> words, span<u32> out);

/// Uniform in {-1, 0, 1}, by rejection from bytes. False if they do not suffice.
bool sample_ternary(span<const u8> bytes, span<i8> out);

/// Centred binomial of 2·21 bits: standard deviation sqrt(21/2) = 3.24, never above 21.
void sample_errors(span<const u64> words, span<i8> out);

} // namespace comet::rlwe
