#pragma once

#include "rlwe/fraction.hpp"
#include "rlwe/prime.hpp"

namespace comet::rlwe {

constexpr size_t most_primes = 8;

/// Several primes together: q is their product.
class Basis {
public:
    explicit Basis(const std::vector<u32> &primes);

    size_t size() const { return primes_.size(); }
    const Prime &operator[](size_t i) const { return *primes_[i]; }

    /// x / q for the residues residues[i·stride]; too small by less than size()·2^-162.
    Fraction fraction(span<const u32> residues, size_t stride) const;

    /// The integer with these residues that is nearest to zero, mod 2^192; it must be below q/4 in size.
    Fraction centred(span<const u32> residues, size_t stride) const;

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
    std::vector<u32> punctured_;        // (q/q_i)^-1 mod q_i
    std::vector<Fraction> reciprocals_; // floor(2^192 / q_i)
    std::vector<Fraction> cofactors_;   // q/q_i mod 2^192
    Fraction negative_;                 // -q mod 2^192
    std::vector<u32> garner_;           // [i][j]: q_j^-1 mod q_i, j < i
    u128 modulus_ = 1;
    u64 low_ = 1;
};

} // namespace comet::rlwe
