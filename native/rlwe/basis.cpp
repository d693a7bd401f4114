#include "rlwe/basis.hpp"

#include <stdexcept>

namespace comet::rlwe {

namespace {

/// floor(2^192 / q), for an odd q above 1.
Fraction reciprocal(u32 q) {
    Fraction out;
    u64 rest = 0;
    for (size_t w = 3; w-- > 0;) {
        const u128 digit = u128{rest} << 64 | ~u64{0};
        out.words[w] = static_cast<u64>(digit / q);
        rest = static_cast<u64>(digit % q);
    }
    return out;
}

/// The product of all primes but one, mod 2^192.
Fraction product_without(span<const Prime *const> primes, size_t left_out) {
    Fraction product{{1, 0, 0}};
    for (size_t i = 0; i < primes.size(); ++i) {
        if (i == left_out) continue;
        Fraction next;
        next.add(product, primes[i]->q);
        product = next;
    }
    return product;
}

} // namespace

Basis::Basis(const std::vector<u32> &primes) {
    if (primes.empty() || primes.size() > most_primes) throw std::invalid_argument("a basis has 1 to 8 primes");
    for (const u32 q : primes) {
        for (const Prime *other : primes_)
            if (other->q == q) throw std::invalid_argument("the primes of a basis must differ");
        primes_.push_back(&prime(q));
        modulus_ *= q;
        low_ *= q;
    }
    garner_.assign(size() * size(), 0);
    for (size_t i = 0; i < size(); ++i) {
        const Prime &p = *primes_[i];
        u32 product = 1;
        for (size_t j = 0; j < size(); ++j) {
            if (j == i) continue;
            product = p.times(product, p.reduce(u64{primes_[j]->q}));
            if (j < i) garner_[i * size() + j] = p.lifted(p.invert(p.reduce(u64{primes_[j]->q})));
        }
        punctured_.push_back(p.lifted(p.invert(product)));
        reciprocals_.push_back(pieces(reciprocal(p.q)));
        cofactors_.push_back(pieces(product_without(primes_, i)));
        ones_.push_back(p.montgomery);
    }
    negative_ = pieces(product_without(primes_, size()).negated());
    zeros_.assign(size(), 0);
    middle_.assign(size(), 0);
    // (q - 1)/2 is (p - 1)/2 mod every prime p.
    std::vector<u32> residues, above(1);
    for (const Prime *p : primes_) residues.push_back((p->q - 1) / 2);
    std::vector<u32> digits(size());
    rlwe::mixed_radix(mixed_radix(), residues, digits, above, Isa::portable);
    middle_ = digits;
}

// x = Σ y_i·q/q_i - k·q with y_i = x·(q/q_i)^-1 mod q_i; for small x the sum of y_i/q_i is nearly the whole number k.
WideSum Basis::centred() const {
    WideSum sum{primes_, punctured_, cofactors_};
    sum.wrap = negative_;
    return sum;
}

u32 Basis::modulus_mod(u32 divisor) const {
    u64 rest = 1;
    for (const Prime *p : primes_) rest = rest * (p->q % divisor) % divisor;
    return static_cast<u32>(rest);
}

} // namespace comet::rlwe
