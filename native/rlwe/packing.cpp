#include "rlwe/packing.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace comet::rlwe {

namespace {

// divisor^-1 mod p, in Montgomery form.
u32 inverse_of(const Prime &p, u32 divisor) {
    if (divisor >= p.q) throw std::invalid_argument("a prime that is divided out must be smaller than those that stay");
    return p.times(p.invert(divisor), p.montgomery);
}

// Two ciphertexts [c0, c1][prime][8192] in order that become one, in the place of p; q may be missing.
struct Pair {
    span<u32> p;
    span<const u32> q;
};

class Packer {
public:
    Packer(const Basis &basis, const Prime &special, PackingKeys keys, Isa isa)
        : basis_(basis), special_(special), keys_(keys), isa_(isa), limbs_(basis.size()), difference_(degree),
          turned_(wide * limbs_ * degree), digits_(wide * limbs_ * degree), products_(wide * 2 * degree),
          rests_(wide * 2 * degree), sum_(degree), more_(degree) {
        for (size_t i = 0; i < limbs_; ++i) inverse_.push_back(inverse_of(basis[i], special.q));
    }

    // p = (p + X^t·q) + s(p - X^t·q), for a few pairs, which share the loads of the keys. At the first
    // level c0 counts as zero.
    void merge(span<const Pair> pairs, unsigned level, unsigned levels) {
        const size_t distance = size_t{1} << (levels - 1 - level), step = turn_step(level, levels);
        for (size_t s = 0; s < pairs.size(); ++s)
            for (size_t i = 0; i < limbs_; ++i)
                add_and_turn(pairs[s], limbs_ + i, distance, step, polynomial(turned_, s * limbs_ + i));
        change_keys(pairs, level, [&](const Pair &pair, size_t i) -> span<const u32> {
            if (level == 0) {
                std::ranges::fill(polynomial(pair.p, i), u32{0});
                return {};
            }
            add_and_turn(pair, i, distance, step, polynomial(more_, 0));
            return more_;
        });
    }

    // p = s(q), for a few pairs.
    void turn(span<const Pair> pairs, unsigned level, unsigned levels) {
        const size_t step = turn_step(level, levels);
        for (size_t s = 0; s < pairs.size(); ++s) {
            std::ranges::fill(pairs[s].p, u32{0});
            for (size_t i = 0; i < limbs_; ++i)
                rlwe::turn(basis_[i], polynomial(pairs[s].q, limbs_ + i), step, polynomial(turned_, s * limbs_ + i),
                           isa_);
        }
        change_keys(pairs, level, [&](const Pair &pair, size_t i) -> span<const u32> {
            rlwe::turn(basis_[i], polynomial(pair.q, i), step, polynomial(more_, 0), isa_);
            return more_;
        });
    }

private:
    // Each p += what `turned_` is under the other key; c0 also += what `more` gives for a pair and a prime.
    template <class More> void change_keys(span<const Pair> pairs, unsigned level, More more) {
        switch_key(special_, keys_.digits, level, pairs.size());
        for (size_t k = 0; k < pairs.size() * 2; ++k)
            backward(special_, polynomial(products_, k), polynomial(rests_, k), isa_);
        for (size_t i = 0; i < limbs_; ++i) {
            const Prime &prime = basis_[i];
            switch_key(prime, i, level, pairs.size());
            for (size_t k = 0; k < pairs.size() * 2; ++k) {
                const Pair &pair = pairs[k / 2];
                const bool first = k % 2 == 0; // component
                const span<const u32> beside = first ? more(pair, i) : span<const u32>{};
                backward(prime, polynomial(products_, k), polynomial(sum_, 0), isa_);
                divide(prime, special_.q, inverse_[i], polynomial(sum_, 0), polynomial(rests_, k), beside,
                       polynomial(pair.p, first ? i : limbs_ + i), isa_);
            }
        }
    }

    // Polynomial k of the pair: p becomes p + X^t·q, and turned = s(p - X^t·q).
    void add_and_turn(const Pair &pair, size_t k, size_t distance, size_t step, Polynomial turned) {
        const Prime &prime = basis_[k % limbs_];
        const Polynomial own = polynomial(pair.p, k), difference = polynomial(difference_, 0);
        if (!pair.q.empty()) shift(prime, own, polynomial(pair.q, k), distance, own, difference, isa_);
        rlwe::turn(prime, pair.q.empty() ? own : difference, step, turned, isa_);
    }

    // products_ = Σ_i digit_i(turned)·key_i for one prime of the keys, [set][c0, c1][8192]. Digit i is c1 mod prime i,
    // centred: what all digits have in common would add up from one merge to the next.
    void switch_key(const Prime &prime, size_t key_limb, unsigned level, size_t sets) {
        const size_t key_row = keys_.digits * 2 * lanes, width = limbs_ * sets * lanes;
        for (size_t i = 0; i < limbs_; ++i)
            for (size_t s = 0; s < sets; ++s)
                forward_foreign(prime, basis_[i].q, polynomial(turned_, s * limbs_ + i), polynomial(difference_, 0),
                                span(digits_).subspan((i * sets + s) * lanes), width, isa_);
        const u32 *key = &keys_.data[(level * (keys_.digits + 1) + key_limb) * rows * key_row];
        u32 *acc[wide];
        for (size_t s = 0; s < sets; ++s) acc[s] = &products_[s * 2 * degree];
        multiply_add(prime, {key, key_row, 2 * lanes, lanes}, {digits_.data(), width}, limbs_, rows,
                     span(acc).first(sets), degree, true, isa_);
    }

    const Basis &basis_;
    const Prime &special_;
    PackingKeys keys_;
    Isa isa_;
    size_t limbs_;
    std::vector<u32> difference_, turned_, digits_, products_, rests_, sum_, more_, inverse_;
};

// Takes the ciphertexts to a smaller modulus: x becomes (x - centred x mod prime) / prime for every prime that goes,
// the last one first.
class Starter {
public:
    Starter(const Basis &from, const Basis &to, Isa isa)
        : from_(from), limbs_(from.size()), kept_(to.size()), isa_(isa), ordered_(limbs_ * degree),
          rounded_(limbs_ * degree) {}

    // c1 in order, [prime][8192].
    span<const u32> whole(span<u32> transformed) {
        for (size_t i = 0; i < limbs_; ++i)
            backward(from_[i], polynomial(transformed, i), polynomial(ordered_, i), isa_);
        for (size_t last = limbs_; last-- > kept_;) {
            std::ranges::fill(rounded_, u32{0});
            for (size_t i = 0; i < last; ++i)
                divide(from_[i], from_[last].q, inverse_of(from_[i], from_[last].q), polynomial(ordered_, i),
                       polynomial(ordered_, last), {}, polynomial(rounded_, i), isa_);
            ordered_.swap(rounded_);
        }
        return span(ordered_).first(kept_ * degree);
    }

    // Of c0 the coefficients at multiples of `step`, [prime][8192/step].
    span<const u32> wanted(span<u32> transformed, size_t step) {
        const size_t few = degree / step;
        for (size_t i = 0; i < limbs_; ++i)
            backward_sparse(from_[i], polynomial(transformed, i), step, span(ordered_).subspan(i * few, few), isa_);
        for (size_t last = limbs_; last-- > kept_;)
            for (size_t i = 0; i < last; ++i) {
                const Prime &p = from_[i];
                const u32 q = from_[last].q, inverse = inverse_of(p, q);
                for (size_t k = 0; k < few; ++k) {
                    const u32 rest = ordered_[last * few + k];
                    u32 &x = ordered_[i * few + k];
                    x = p.times_montgomery(p.minus(x, rest > q / 2 ? rest + (p.q - q) : rest), inverse);
                }
            }
        return span(ordered_).first(kept_ * few);
    }

private:
    const Basis &from_;
    size_t limbs_, kept_;
    Isa isa_;
    std::vector<u32> ordered_, rounded_;
};

} // namespace

size_t turn_step(unsigned level, unsigned levels) { return (degree >> (levels - 1)) << level; }

void turn_all(const Basis &from, const Basis &to, const Prime &special, span<const u32> ciphertext, unsigned levels,
              unsigned turns, PackingKeys keys, span<u32> out, size_t stride, size_t apart, Isa isa) {
    const size_t limbs = to.size(), both = 2 * limbs * degree, count = size_t{1} << turns;
    const auto ordered = std::make_unique_for_overwrite<u32[]>(count * both);
    std::vector<u32> scaled(degree);
    const auto one = [&](size_t k) { return span(&ordered[k * both], both); };
    std::ranges::fill(one(0), u32{0});
    for (size_t i = 0; i < from.size(); ++i) {
        const Prime &p = from[i];
        u32 factor = p.invert(u32{1} << levels);
        for (size_t k = from.size(); k < limbs; ++k) factor = p.times(factor, p.reduce(u64{to[k].q}));
        for (size_t c = 0; c < 2; ++c) {
            scale(p, polynomial(ciphertext, c * from.size() + i), p.lifted(factor), scaled, isa);
            backward(p, polynomial(scaled, 0), polynomial(one(0), c * limbs + i), isa);
        }
    }
    Packer packer(to, special, keys, isa);
    for (unsigned level = 0; level < turns; ++level) {
        const size_t half = size_t{1} << level, sets = together(half);
        for (size_t k = 0; k < half; k += sets) {
            Pair pairs[wide];
            for (size_t s = 0; s < sets; ++s) pairs[s] = {one(half + k + s), one(k + s)};
            packer.turn(span(pairs).first(sets), level, levels);
        }
    }
    for (size_t k = 0; k < count; ++k)
        for (size_t c = 0; c < 2; ++c)
            for (size_t i = 0; i < limbs; ++i)
                forward(to[i], polynomial(one(k), c * limbs + i), polynomial(scaled, 0),
                        out.subspan(i * stride + k * apart + c * lanes), 2 * lanes, isa);
}

void pack(const Basis &from, const Basis &to, const Prime &special, span<u32> ciphertexts, unsigned levels,
          PackingKeys keys, span<u32> out, Isa isa) {
    const size_t limbs = from.size(), kept = to.size(), both = 2 * limbs * degree, count = ciphertexts.size() / both;
    const size_t step = size_t{1} << levels, few = degree >> levels;
    // [c0, c1][prime][8192] of the primes that are kept, in order, at the beginning of where a ciphertext was.
    const auto ciphertext = [&](size_t k) { return ciphertexts.subspan(k * both, 2 * kept * degree); };
    std::vector<u32> wanted(count * kept * few);
    Starter starter(from, to, isa);
    for (size_t k = 0; k < count; ++k) {
        const span<u32> one = ciphertexts.subspan(k * both, both);
        std::ranges::copy(starter.wanted(one.first(limbs * degree), step), wanted.begin() + k * kept * few);
        std::ranges::copy(starter.whole(one.last(limbs * degree)), ciphertext(k).begin() + kept * degree);
    }
    Packer packer(to, special, keys, isa);
    for (unsigned level = 0; level < levels; ++level) {
        const size_t half = size_t{1} << (levels - 1 - level), merges = std::min(half, count);
        for (size_t k = 0, sets = 0; k < merges; k += sets) {
            sets = together(merges - k);
            Pair pairs[wide];
            for (size_t s = 0; s < sets; ++s) {
                pairs[s].p = ciphertext(k + s);
                if (k + s + half < count) pairs[s].q = ciphertext(k + s + half);
            }
            packer.merge(span(pairs).first(sets), level, levels);
        }
    }
    for (size_t i = 0; i < count; ++i)
        for (size_t l = 0; l < kept; ++l)
            for (size_t k = 0; k < few; ++k) {
                u32 &place = ciphertexts[l * degree + k * step + i];
                place = to[l].plus(place, to[l].times(wanted[(i * kept + l) * few + k], static_cast<u32>(step)));
            }
    for (size_t k = 0; k < 2 * kept; ++k) forward(to[k % kept], polynomial(ciphertexts, k), polynomial(out, k), isa);
}

} // namespace comet::rlwe
