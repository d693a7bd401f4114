#pragma once

#include <vector>

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet::ring {

/// A mask polynomial, prepared for evaluation at n points:
///
///     out = Σ_E share_E · q_E(P),   q_E(P) = constant_E + Σ coefficient · product   mod 2^64,
///
/// where the products are monomials in the opened values P, each made from an earlier one by one multiplication.
struct PolynomialPlan {
    struct Product {
        u32 previous; // 0 stands for 1; i > 0 for products[i - 1]
        u32 variable; // index into `opened`
    };
    struct Term {
        u64 coefficient;
        u32 product; // index into products
    };
    struct Row {
        span<const u64> share; // empty: the share is 1
        u64 constant;
        std::vector<Term> terms;
    };
    std::vector<Product> products;
    std::vector<Row> rows;
};

void evaluate(const PolynomialPlan &plan, span<const span<const u64>> opened, span<u64> out, Isa isa);

} // namespace comet::ring
