#include "rlwe/packing.hpp"

#include <algorithm>
#include <stdexcept>

namespace comet::lattice {

namespace {

class Packer {
public:
    Packer(const Basis &basis, const Prime &special, PackingKeys keys, Isa isa)
        : basis_(basis), special_(special), keys_(keys), isa_(isa), limbs_(basis.size()), one_(limbs_ * degree),
          difference_(degree), turned_(2 * one_), digits_(limbs_ * degree), products_(2 * degree),
          sums_(2 * (limbs_ + 1) * degree) {
        for (size_t i = 0; i < limbs_; ++i) {
            const Prime &p = basis[i];
            if (special.q >= p.q) throw std::invalid_argument("the special prime must be the smallest");
            inverse_.push_back(p.times(p.invert(special.q), p.montgomery));
        }
    }

    // p = (p + X^t·q) + s(p - X^t·q), polynomials in order; q may be missing. At the first level c0 is zero.
    void merge(u32 *p, const u32 *q, unsigned level, unsigned levels) {
        const size_t distance = size_t{1} << (levels - 1 - level);
        const size_t step = (degree >> (levels - 1)) << level;
        for (size_t k = level == 0 ? limbs_ : 0; k < 2 * limbs_; ++k) {
            const Prime &prime = basis_[k % limbs_];
            u32 *own = p + k * degree;
            if (q != nullptr) shift(prime, own, q + k * degree, distance, own, difference_.data(), isa_);
            turn(prime, q != nullptr ? difference_.data() : own, step, turned_.data() + k * degree, isa_);
        }
        switch_key(turned_.data() + one_, level);
        for (size_t k = 0; k < 2 * limbs_; ++k) {
            const size_t component = k / limbs_, i = k % limbs_;
            const u32 *sums = sums_.data() + component * (limbs_ + 1) * degree;
            const u32 *more = component == 0 && level > 0 ? turned_.data() + i * degree : nullptr;
            divide(basis_[i], special_.q, inverse_[i], sums + i * degree, sums + limbs_ * degree, more, p + k * degree,
                   isa_);
        }
    }

private:
    // sums_ = Σ_i digit_i(c1)·key_i for every prime and the special one, in order. Digit i is c1 mod prime i,
    // centred: what all digits have in common would add up from one merge to the next.
    void switch_key(const u32 *c1, unsigned level) {
        const size_t key_row = keys_.digits * 2 * lanes;
        for (size_t target = 0; target <= limbs_; ++target) {
            const Prime &prime = target == limbs_ ? special_ : basis_[target];
            const size_t key_limb = target == limbs_ ? keys_.digits : target;
            for (size_t i = 0; i < limbs_; ++i)
                forward_foreign(prime, basis_[i].q, c1 + i * degree, difference_.data(), digits_.data() + i * lanes,
                                limbs_ * lanes, isa_);
            const u32 *key = keys_.data + (level * (keys_.digits + 1) + key_limb) * rows * key_row;
            u32 *products = products_.data();
            multiply_add(prime, {key, key_row, 2 * lanes, lanes}, {digits_.data(), limbs_ * lanes}, limbs_, 1, rows,
                         &products, degree, true, isa_);
            for (size_t component = 0; component < 2; ++component)
                backward(prime, products_.data() + component * degree,
                         sums_.data() + (component * (limbs_ + 1) + target) * degree, isa_);
        }
    }

    const Basis &basis_;
    const Prime &special_;
    PackingKeys keys_;
    Isa isa_;
    size_t limbs_, one_;
    std::vector<u32> difference_, turned_, digits_, products_, sums_, inverse_;
};

} // namespace

void pack(const Basis &basis, const Prime &special, u32 *ciphertexts, size_t count, unsigned levels, PackingKeys keys,
          u32 *out, Isa isa) {
    const size_t limbs = basis.size(), both = 2 * limbs * degree, step = size_t{1} << levels, few = degree >> levels;
    std::vector<u32> wanted(count * limbs * few), ordered(degree);
    for (size_t k = 0; k < count * 2 * limbs; ++k) {
        const Prime &p = basis[k % limbs];
        u32 *polynomial = ciphertexts + k * degree;
        if (k / limbs % 2 == 0) {
            backward_sparse(p, polynomial, step, wanted.data() + (k / (2 * limbs) * limbs + k % limbs) * few, isa);
            std::fill_n(polynomial, degree, u32{0});
        } else {
            backward(p, polynomial, ordered.data(), isa);
            std::copy_n(ordered.data(), degree, polynomial);
        }
    }
    Packer packer(basis, special, keys, isa);
    for (unsigned level = 0; level < levels; ++level) {
        const size_t half = size_t{1} << (levels - 1 - level);
        for (size_t k = 0; k < std::min(half, count); ++k)
            packer.merge(ciphertexts + k * both, k + half < count ? ciphertexts + (k + half) * both : nullptr, level,
                         levels);
    }
    for (size_t i = 0; i < count; ++i)
        for (size_t l = 0; l < limbs; ++l)
            for (size_t k = 0; k < few; ++k) {
                u32 &place = ciphertexts[l * degree + k * step + i];
                place = basis[l].plus(place, basis[l].times(wanted[(i * limbs + l) * few + k], static_cast<u32>(step)));
            }
    for (size_t k = 0; k < 2 * limbs; ++k) forward(basis[k % limbs], ciphertexts + k * degree, out + k * degree, isa);
}

} // namespace comet::lattice
