#include "rlwe/basis.hpp"

#include <stdexcept>

namespace comet::rlwe {

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
        reciprocals_.push_back(~u128{0} / p.q); // q is odd and above 1, so this is floor(2^128 / q)
    }
}

u128 Basis::fraction(span<const u32> residues, size_t stride) const {
    u128 sum = 0;
    for (size_t i = 0; i < size(); ++i) sum += reciprocals_[i] * primes_[i]->times(residues[i * stride], punctured_[i]);
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
