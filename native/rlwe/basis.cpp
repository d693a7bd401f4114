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
            if (j < i) garner_[i * size() + j] = p.invert(p.reduce(u64{primes_[j]->q}));
        }
        punctured_.push_back(p.invert(product));
        reciprocals_.push_back(reciprocal(p.q));
        cofactors_.push_back(product_without(primes_, i));
    }
    negative_ = product_without(primes_, size()).negated();
}

Fraction Basis::fraction(span<const u32> residues, size_t stride) const {
    Fraction sum;
    for (size_t i = 0; i < size(); ++i)
        sum.add(reciprocals_[i], primes_[i]->times(residues[i * stride], punctured_[i]));
    return sum;
}

// x = Σ y_i·q/q_i - k·q with y_i = x·(q/q_i)^-1 mod q_i; for small x the sum of y_i/q_i is nearly the whole number k.
Fraction Basis::centred(span<const u32> residues, size_t stride) const {
    Fraction sum;
    double wraps = 0.5;
    for (size_t i = 0; i < size(); ++i) {
        const u32 y = primes_[i]->times(residues[i * stride], punctured_[i]);
        sum.add(cofactors_[i], y);
        wraps += static_cast<double>(y) / static_cast<double>(primes_[i]->q);
    }
    sum.add(negative_, static_cast<u64>(wraps));
    return sum;
}

void Basis::digits(span<const u32> residues, size_t stride, span<u32> out) const {
    for (size_t i = 0; i < size(); ++i) {
        const Prime &p = *primes_[i];
        u32 digit = residues[i * stride];
        for (size_t j = 0; j < i; ++j) digit = p.times(p.minus(digit, p.reduce(u64{out[j]})), garner_[i * size() + j]);
        out[i] = digit;
    }
}

u128 Basis::lift(span<const u32> residues, size_t stride) const {
    u32 out[most_primes];
    digits(residues, stride, out);
    u128 x = 0;
    for (size_t i = size(); i-- > 0;) x = x * primes_[i]->q + out[i];
    return x;
}

u32 Basis::modulus_mod(u32 divisor) const {
    u64 rest = 1;
    for (const Prime *p : primes_) rest = rest * (p->q % divisor) % divisor;
    return static_cast<u32>(rest);
}

} // namespace comet::rlwe
