#pragma once

#include "ot/block.hpp"

namespace comet::ot {

/// Polynomial hashes in GF(2^128) = F_2[x]/(x^128 + x^7 + x^2 + x + 1), bit i of a block being the coefficient of x^i:
///
///     digests[p] = Σ_i rows[p][i] · key^(n-1-i)   for every row of n blocks, one after the other in `rows`.
///
/// Linear over F_2, and two different rows collide for at most n - 1 keys. Nothing branches on, or looks up by, the
/// data.
void hash_rows_by(Block key, span<const Block> rows, span<Block> digests, Isa isa);

} // namespace comet::ot
