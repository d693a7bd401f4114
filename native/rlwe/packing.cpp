#include "rlwe/packing.hpp"

#include <algorithm>
#include <stdexcept>

namespace comet::rlwe {

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

    // p = (p + X^t·q) + s(p - X^t·q), ciphertexts in order; q may be missing. At the first level c0 is zero.
    void merge(span<u32> p, span<const u32> q, unsigned level, unsigned levels) {
        const size_t distance = size_t{1} << (levels - 1 - level);
        const size_t step = (degree >> (levels - 1)) << level;
        const Polynomial difference = polynomial(difference_, 0);
        for (size_t k = level == 0 ? limbs_ : 0; k < 2 * limbs_; ++k) {
            const Prime &prime = basis_[k % limbs_];
            const Polynomial own = polynomial(p, k);
            if (!q.empty()) shift(prime, own, polynomial(q, k), distance, own, difference, isa_);
            turn(prime, q.empty() ? own : difference, step, polynomial(turned_, k), isa_);
        }
        switch_key(span(turned_).subspan(one_), level);
        for (size_t k = 0; k < 2 * limbs_; ++k) {
            const size_t component = k / limbs_, i = k % limbs_, first = component * (limbs_ + 1);
            span<const u32> more;
            if (component == 0 && level > 0) more = polynomial(turned_, i);
            divide(basis_[i], special_.q, inverse_[i], polynomial(sums_, first + i), polynomial(sums_, first + limbs_),
                   more, polynomial(p, k), isa_);
        }
    }

private:
    // sums_ = Σ_i digit_i(c1)·key_i for every prime and the special one, in order. Digit i is c1 mod prime i,
    // centred: what all digits have in common would add up from one merge to the next.
    void switch_key(span<const u32> c1, unsigned level) {
        const size_t key_row = keys_.digits * 2 * lanes;
        for (size_t target = 0; target <= limbs_; ++target) {
            const Prime &prime = target == limbs_ ? special_ : basis_[target];
            const size_t key_limb = target == limbs_ ? keys_.digits : target;
            for (size_t i = 0; i < limbs_; ++i)
                forward_foreign(prime, basis_[i].q, polynomial(c1, i), polynomial(difference_, 0),
                                span(digits_).subspan(i * lanes), limbs_ * lanes, isa_);
            const u32 *key = &keys_.data[(level * (keys_.digits + 1) + key_limb) * rows * key_row];
            u32 *const products[] = {products_.data()};
            multiply_add(prime, {key, key_row, 2 * lanes, lanes}, {digits_.data(), limbs_ * lanes}, limbs_, rows,
                         products, degree, true, isa_);
            for (size_t component = 0; component < 2; ++component)
                backward(prime, polynomial(products_, component), polynomial(sums_, component * (limbs_ + 1) + target),
                         isa_);
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

void pack(const Basis &basis, const Prime &special, span<u32> ciphertexts, unsigned levels, PackingKeys keys,
          span<u32> out, Isa isa) {
    const size_t limbs = basis.size(), both = 2 * limbs * degree, count = ciphertexts.size() / both;
    const size_t step = size_t{1} << levels, few = degree >> levels;
    std::vector<u32> wanted(count * limbs * few), ordered(degree);
    for (size_t k = 0; k < count * 2 * limbs; ++k) {
        const Prime &p = basis[k % limbs];
        const Polynomial in = polynomial(ciphertexts, k);
        if (k / limbs % 2 == 0) {
            const size_t place = k / (2 * limbs) * limbs + k % limbs;
            backward_sparse(p, in, step, span(wanted).subspan(place * few, few), isa);
            std::ranges::fill(in, u32{0});
        } else {
            backward(p, in, polynomial(ordered, 0), isa);
            std::ranges::copy(ordered, in.begin());
        }
    }
    Packer packer(basis, special, keys, isa);
    for (unsigned level = 0; level < levels; ++level) {
        const size_t half = size_t{1} << (levels - 1 - level);
        for (size_t k = 0; k < std::min(half, count); ++k) {
            span<const u32> other;
            if (k + half < count) other = ciphertexts.subspan((k + half) * both, both);
            packer.merge(ciphertexts.subspan(k * both, both), other, level, levels);
        }
    }
    for (size_t i = 0; i < count; ++i)
        for (size_t l = 0; l < limbs; ++l)
            for (size_t k = 0; k < few; ++k) {
                u32 &place = ciphertexts[l * degree + k * step + i];
                place = basis[l].plus(place, basis[l].times(wanted[(i * limbs + l) * few + k], static_cast<u32>(step)));
            }
    for (size_t k = 0; k < 2 * limbs; ++k)
        forward(basis[k % limbs], polynomial(ciphertexts, k), polynomial(out, k), isa);
}

} // namespace comet::rlwe
