#pragma once

#include "rlwe/pointwise.hpp"
#include "rlwe/prime.hpp"

namespace comet::rlwe {

constexpr size_t most_primes = 8;

/// Several primes together: q is their product.
class Basis {
public:
    explicit Basis(const std::vector<u32> &primes);

    size_t size() const { return primes_.size(); }
    const Prime &operator[](size_t i) const { return *primes_[i]; }
    span<const Prime *const> primes() const { return primes_; }

    /// x / q from the residues of x; too small by less than size()·2^-162.
    WideSum fraction() const { return {primes_, punctured_, reciprocals_}; }

    /// The integer with given residues that is nearest to zero, mod 2^192; it must be below q/4 in size.
    WideSum centred() const;

    /// Mixed radix digits of the number below q with given residues, and whether it is above (q - 1)/2.
    MixedRadix mixed_radix() const { return {primes_, ones_, zeros_, garner_, middle_}; }

    /// The product of all primes; only for bases below 2^128.
    u128 modulus() const { return modulus_; }
    u32 modulus_mod(u32 divisor) const;
    u64 modulus_low() const { return low_; }

private:
    std::vector<const Prime *> primes_;
    std::vector<u32> ones_, zeros_;
    std::vector<u32> punctured_;      // (q/q_i)^-1 mod q_i, in Montgomery form
    std::vector<Pieces> reciprocals_; // floor(2^192 / q_i)
    std::vector<Pieces> cofactors_;   // q/q_i mod 2^192
    Pieces negative_;                 // -q mod 2^192
    std::vector<u32> garner_;         // [i][j]: q_j^-1 mod q_i, j < i, in Montgomery form
    std::vector<u32> middle_;         // digits of (q - 1)/2
    u128 modulus_ = 1;
    u64 low_ = 1;
};

} // namespace comet::rlwe
