#include "ring/polynomial.hpp"

#include <algorithm>

namespace comet::ring {

namespace {

COMET_INLINE void evaluate_body(const PolynomialPlan &plan, span<const span<const u64>> opened, span<u64> out) {
    // All products of one block, the row's coefficient and the block of `out` should stay in L1.
    constexpr size_t cache_words = 4096;
    const size_t block = std::clamp<size_t>(cache_words / (plan.products.size() + 2) / 64 * 64, 64, 1024);
    std::vector<u64> table(plan.products.size() * block), sum(block);
    std::vector<const u64 *> values(plan.products.size());
    for (size_t start = 0; start < out.size(); start += block) {
        const size_t count = std::min(block, out.size() - start);
        for (size_t p = 0; p < plan.products.size(); ++p) {
            const u64 *right = opened[plan.products[p].variable].data() + start;
            if (plan.products[p].previous == 0) {
                values[p] = right;
                continue;
            }
            const u64 *left = values[plan.products[p].previous - 1];
            u64 *__restrict target = table.data() + p * block;
            for (size_t i = 0; i < count; ++i) target[i] = left[i] * right[i];
            values[p] = target;
        }
        u64 *__restrict target = out.data() + start;
        std::fill_n(target, count, u64{0});
        for (const auto &row : plan.rows) {
            const u64 constant = row.constant;
            const u64 *share = row.share.empty() ? nullptr : row.share.data() + start;
            const size_t terms = row.terms.size();
            // Fused forms of the common cases; the general one accumulates the coefficient aside.
            if (share != nullptr && terms == 0) {
                for (size_t i = 0; i < count; ++i) target[i] += constant * share[i];
            } else if (share != nullptr && terms == 1) {
                const u64 c = row.terms[0].coefficient;
                const u64 *value = values[row.terms[0].product];
                for (size_t i = 0; i < count; ++i) target[i] += (constant + c * value[i]) * share[i];
            } else if (share != nullptr && terms == 2) {
                const u64 c0 = row.terms[0].coefficient, c1 = row.terms[1].coefficient;
                const u64 *v0 = values[row.terms[0].product], *v1 = values[row.terms[1].product];
                for (size_t i = 0; i < count; ++i) target[i] += (constant + c0 * v0[i] + c1 * v1[i]) * share[i];
            } else {
                u64 *__restrict coefficient = share == nullptr ? target : sum.data();
                if (share == nullptr) {
                    for (size_t i = 0; i < count; ++i) coefficient[i] += constant;
                } else {
                    std::fill_n(coefficient, count, constant);
                }
                for (const auto &term : row.terms) {
                    const u64 c = term.coefficient;
                    const u64 *value = values[term.product];
                    for (size_t i = 0; i < count; ++i) coefficient[i] += c * value[i];
                }
                if (share != nullptr)
                    for (size_t i = 0; i < count; ++i) target[i] += coefficient[i] * share[i];
            }
        }
    }
}

COMET_AVX2 void evaluate_avx2(const PolynomialPlan &plan, span<const span<const u64>> opened, span<u64> out) {
    evaluate_body(plan, opened, out);
}

constexpr Dispatch kernels{Variant{Isa::portable, evaluate_body}, Variant{Isa::avx2, evaluate_avx2}};

} // namespace

void evaluate(const PolynomialPlan &plan, span<const span<const u64>> opened, span<u64> out, Isa isa) {
    kernels[isa](plan, opened, out);
}

} // namespace comet::ring
