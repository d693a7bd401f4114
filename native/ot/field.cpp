#include "ot/field.hpp"

#include <algorithm>

#include "ot/field_x86.hpp"

namespace comet::ot {

namespace {

Block multiply(Block x, Block y) {
    Block sum{0, 0};
    for (unsigned i = 0; i < 128; ++i) {
        const u64 take = -(((i < 64 ? y.low : y.high) >> (i % 64)) & 1), carry = -(x.high >> 63);
        sum = sum ^ Block{x.low & take, x.high & take};
        x = {(x.low << 1) ^ (carry & 0x87), x.high << 1 | x.low >> 63};
    }
    return sum;
}

void hash_portable(Block key, span<const Block> rows, span<Block> digests) {
    const size_t length = rows.size() / digests.size();
    for (size_t p = 0; p < digests.size(); ++p) {
        Block sum{0, 0};
        for (const Block &block : rows.subspan(p * length, length)) sum = multiply(sum, key) ^ block;
        digests[p] = sum;
    }
}

using Kernel = void (*)(Block, span<const Block>, span<Block>);

#if COMET_X86
constexpr Dispatch kernels{Variant<Kernel>{Isa::portable, hash_portable}, Variant<Kernel>{Isa::aesni, hash_clmul}};
#else
constexpr Dispatch kernels{Variant<Kernel>{Isa::portable, hash_portable}};
#endif

} // namespace

void hash_rows_by(Block key, span<const Block> rows, span<Block> digests, Isa isa) {
    if (!digests.empty()) kernels[isa](key, rows, digests);
}

} // namespace comet::ot
