#pragma once

// The transforms for processors with 52-bit multiply-add (AVX-512 IFMA): a row of 8 residues is one register.

#include "rlwe/transform.hpp"

#if COMET_X86
namespace comet::rlwe::avx512 {

COMET_AVX512 void forward_kernel(const Prime &p, u32 from, const u32 *in, u32 *work, u32 *out, size_t stride);
COMET_AVX512 void forward_foreign_kernel(const Prime &p, u32 from, const u32 *in, u32 *work, u32 *out, size_t stride);
COMET_AVX512 void forward_short_kernel(const Prime &p, const u32 *in, size_t live, size_t block, u32 *work, u32 *out,
                                       size_t stride);
COMET_AVX512 void forward_columns_kernel(const Prime &p, const u32 *in, const u32 *picked, size_t live, size_t block,
                                         u32 *work, u32 *out, size_t stride);
COMET_AVX512 void backward_kernel(const Prime &p, u32 *in, size_t count, u32 *out);
template <size_t sets, bool fresh>
COMET_AVX512 void multiply_add_kernel(const Prime &p, Left x, Right y, size_t terms, size_t count, u32 *const *acc,
                                      size_t component);
COMET_AVX512 void shift_kernel(const Prime &p, const u32 *x, const u32 *y, size_t distance, u32 *sum, u32 *difference);
COMET_AVX512 void turn_kernel(const Prime &p, const u32 *in, size_t distance, u32 *out);
COMET_AVX512 void divide_kernel(const Prime &p, u32 special, u32 inverse, const u32 *x, const u32 *rest,
                                const u32 *more, u32 *out);

} // namespace comet::rlwe::avx512
#endif
