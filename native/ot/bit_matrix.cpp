#include "ot/bit_matrix.hpp"

namespace comet::ot {

namespace {

template <size_t lanes> COMET_INLINE void transpose_group(const u64 *planes, size_t stride, Block *rows) {
    u64 low[64][lanes], high[64][lanes];
    for (size_t r = 0; r < 64; ++r) {
        std::memcpy(low[r], planes + r * stride, sizeof low[r]);
        std::memcpy(high[r], planes + (64 + r) * stride, sizeof high[r]);
    }
    transpose_64(low);
    transpose_64(high);
    for (size_t lane = 0; lane < lanes; ++lane)
        for (size_t c = 0; c < 64; ++c) rows[64 * lane + c] = {low[c][lane], high[c][lane]};
}

COMET_INLINE void transpose_body(const u64 *planes, size_t stride, span<Block> rows) {
    size_t done = 0;
    for (; done + 256 <= rows.size(); done += 256) transpose_group<4>(planes + done / 64, stride, rows.data() + done);
    for (; done < rows.size(); done += 64) transpose_group<1>(planes + done / 64, stride, rows.data() + done);
}

COMET_INLINE void merge_body(Block *side, Block *right, span<const Block> left) {
    for (size_t i = 0; i < left.size(); ++i) {
        side[i] = side[i] ^ right[i];
        right[i] = right[i] ^ left[i];
    }
}

COMET_AVX2 void transpose_avx2(const u64 *planes, size_t stride, span<Block> rows) {
    transpose_body(planes, stride, rows);
}

COMET_AVX2 void merge_avx2(Block *side, Block *right, span<const Block> left) { merge_body(side, right, left); }

constexpr Dispatch dispatch{Variant{Isa::portable, BitMatrix{merge_body, transpose_body}},
                            Variant{Isa::avx2, BitMatrix{merge_avx2, transpose_avx2}}};

} // namespace

const BitMatrix &bit_matrix(Isa isa) { return dispatch[isa]; }

} // namespace comet::ot
