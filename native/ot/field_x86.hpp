#pragma once

#include "ot/block.hpp"

namespace comet::ot {

#if COMET_X86
void hash_clmul(Block key, span<const Block> rows, span<Block> digests);
#endif

} // namespace comet::ot
