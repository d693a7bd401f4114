#pragma once

#include "rlwe/prime.hpp"

namespace comet::rlwe {

constexpr size_t most_primes = 8;

/// Several primes together: q is their product.
class Basis {
public:
    explicit Basis(const std::vector<u32> &primes);

    size_t size() const { return primes_.size(); }
    const Prime &operator[](size_t i) const { return *primes_[i]; }

    /// x / q as a fraction of 2^128, for the residues residues[i·stride]; off by less than size()·2^-98 of the whole.
    u128 fraction(span<const u32> residues, size_t stride) const;

    /// The number below q with these residues, which must be below 2^128.
    u128 lift(span<const u32> residues, size_t stride) const;

    /// Mixed radix digits: x = d0 + d1·q0 + d2·q0·q1 + …
    void digits(span<const u32> residues, size_t stride, span<u32> out) const;

    /// The product of all primes; only for bases below 2^128.
    u128 modulus() const { return modulus_; }
    u32 modulus_mod(u32 divisor) const;
    u64 modulus_low() const { return low_; }

private:
    std::vector<const Prime *> primes_;
    std::vector<u32> punctured_;    // (q/q_i)^-1 mod q_i
    std::vector<u128> reciprocals_; // floor(2^128 / q_i)
    std::vector<u32> garner_;       // [i][j]: q_j^-1 mod q_i, j < i
    u128 modulus_ = 1;
    u64 low_ = 1;
};

} // namespace comet::rlwe
