#include "rlwe/packing.hpp"

#include <algorithm>
#include <map>
#include <mutex>
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
        switch_key(special_, keys_.digits, level, pairs.size());
        for (size_t k = 0; k < pairs.size() * 2; ++k)
            backward(special_, polynomial(products_, k), polynomial(rests_, k), isa_);
        for (size_t i = 0; i < limbs_; ++i) {
            const Prime &prime = basis_[i];
            switch_key(prime, i, level, pairs.size());
            for (size_t k = 0; k < pairs.size() * 2; ++k) {
                const Pair &pair = pairs[k / 2];
                const size_t place = k % 2 * limbs_ + i;
                span<const u32> more;
                if (place == i && level == 0) {
                    std::ranges::fill(polynomial(pair.p, i), u32{0});
                } else if (place == i) {
                    add_and_turn(pair, i, distance, step, polynomial(more_, 0));
                    more = more_;
                }
                backward(prime, polynomial(products_, k), polynomial(sum_, 0), isa_);
                divide(prime, special_.q, inverse_[i], polynomial(sum_, 0), polynomial(rests_, k), more,
                       polynomial(pair.p, place), isa_);
            }
        }
    }

private:
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

// Element n, in place (n mod 1024)·8 + n/1024, is the value at the root's power 2·reversed(n) + 1.
span<const u32> turned_places(size_t step) {
    const auto reversed = [](size_t n) {
        size_t out = 0;
        for (size_t bit = 1; bit < degree; bit *= 2, n /= 2) out = out * 2 + n % 2;
        return out;
    };
    static std::mutex mutex;
    static std::map<size_t, std::vector<u32>> known;
    const std::lock_guard<std::mutex> guard(mutex);
    std::vector<u32> &places = known[step];
    for (size_t k = places.size(); k < degree; ++k) {
        const size_t power = 2 * reversed(k % lanes * rows + k / lanes) + 1, n = reversed(power * step / 2 % degree);
        places.push_back(static_cast<u32>(n % rows * lanes + n / rows));
    }
    return places;
}

void turn_all(const Basis &from, const Basis &to, const Prime &special, span<const span<const u32>> ciphertexts,
              unsigned levels, unsigned turns, PackingKeys keys, size_t key_step, const TurnedPlaces &out, Isa isa) {
    const size_t limbs = to.size(), digits = from.size(), sets = ciphertexts.size(), width = digits * sets * lanes;
    const size_t ways = size_t{1} << turns, both = 2 * digits;
    // Divided by 2^levels and multiplied by the further primes, modulo which they vanish; c1 also in order.
    std::vector<u32> scaled(sets * both * degree), ordered(sets * digits * degree), work(degree);
    for (size_t i = 0; i < digits; ++i) {
        const Prime &p = from[i];
        u32 factor = p.invert(u32{1} << levels);
        for (size_t k = digits; k < limbs; ++k) factor = p.times(factor, p.reduce(u64{to[k].q}));
        for (size_t s = 0; s < sets; ++s) {
            for (size_t k = i; k < both; k += digits)
                scale(p, polynomial(ciphertexts[s], k), p.lifted(factor), polynomial(scaled, s * both + k), isa);
            std::ranges::copy(polynomial(scaled, s * both + digits + i), work.begin());
            backward(p, polynomial(work, 0), polynomial(ordered, s * digits + i), isa);
        }
    }
    std::vector<u32> digit(sets * digits * degree), products(sets * 2 * degree), rests(ways * sets * 2 * degree);
    // Digit i is c1 mod prime i, centred; the same for every way of turning.
    const auto decompose = [&](const Prime &p) {
        for (size_t i = 0; i < digits; ++i)
            for (size_t s = 0; s < sets; ++s)
                forward_foreign(p, from[i].q, polynomial(ordered, s * digits + i), polynomial(work, 0),
                                span(digit).subspan((i * sets + s) * lanes), width, isa);
    };
    const auto change_key = [&](const Prime &p, size_t key_limb, size_t way) {
        const size_t key_row = keys.digits * 2 * lanes;
        const u32 *key = &keys.data[((way * key_step - 1) * (keys.digits + 1) + key_limb) * rows * key_row];
        u32 *acc[wide];
        for (size_t s = 0; s < sets; ++s) acc[s] = &products[s * 2 * degree];
        multiply_add(p, {key, key_row, 2 * lanes, lanes}, {digit.data(), width}, digits, rows, span(acc).first(sets),
                     degree, true, isa);
    };
    decompose(special);
    for (size_t way = 1; way < ways; ++way) {
        change_key(special, keys.digits, way);
        for (size_t k = 0; k < sets * 2; ++k)
            backward(special, polynomial(products, k), polynomial(rests, way * sets * 2 + k), isa);
    }
    std::vector<span<const u32>> places;
    for (size_t way = 0; way < ways; ++way) {
        size_t step = 1;
        for (unsigned j = 0; j < turns; ++j)
            if (way >> j & 1) step = step * (1 + turn_step(j, levels)) % (2 * degree);
        places.push_back(turned_places(step));
    }
    std::vector<u32> changed(degree);
    for (size_t i = 0; i < limbs; ++i) {
        const Prime &p = to[i];
        const u32 inverse = inverse_of(p, special.q);
        const auto put = [&](span<const u32> x, size_t k, size_t way) { // k: of [set][c0, c1]
            u32 *to_place = out.data + k / 2 * out.next + i * out.prime + way * out.way + k % 2 * lanes;
            for (size_t j = 0; j < degree; ++j) to_place[j / lanes * 2 * lanes + j % lanes] = x[places[way][j]];
        };
        decompose(p);
        std::ranges::fill(changed, u32{0});
        for (size_t k = 0; k < sets * 2; ++k)
            put(i < digits ? polynomial(scaled, k * digits + i) : polynomial(changed, 0), k, 0);
        for (size_t way = 1; way < ways; ++way) {
            change_key(p, i, way);
            for (size_t k = 0; k < sets * 2; ++k) {
                forward_foreign(p, special.q, polynomial(rests, way * sets * 2 + k), polynomial(work, 0), changed,
                                lanes, isa);
                sum(p, polynomial(products, k), Sign::minus, changed, changed, isa);
                scale(p, changed, inverse, changed, isa);
                if (k % 2 == 0 && i < digits) sum(p, changed, Sign::plus, polynomial(scaled, k * digits + i), changed, isa);
                put(changed, k, way);
            }
        }
    }
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
