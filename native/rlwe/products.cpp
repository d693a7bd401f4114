#include "rlwe/products.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "rlwe/packing.hpp"

namespace comet::rlwe {

namespace {

/// Integers of any size in pieces, [piece][count]: small ones are one piece, plus what makes them positive.
class CutIntegers {
public:
    CutIntegers(span<const i64> in, Isa isa) : count_(in.size()), isa_(isa) {
        constexpr i64 half = i64{1} << (piece_bits - 1);
        bool small = true;
        for (const i64 value : in) small &= value >= -half && value < half;
        offset_ = small ? piece_bits - 1 : 63;
        pieces_ = small ? 1 : 3;
        cut_.resize(pieces_ * count_);
        if (small) {
            for (size_t j = 0; j < count_; ++j) cut_[j] = static_cast<u32>(in[j] + half);
        } else {
            std::vector<u64> words(count_);
            for (size_t j = 0; j < count_; ++j) words[j] = static_cast<u64>(in[j]) + (u64{1} << 63);
            cut_words(words, cut_, isa);
        }
    }

    /// out = in·factor/2^32 mod q, of those from `first` on.
    void reduce(const Prime &p, u32 factor, size_t first, span<u32> out) const {
        u32 factors[3];
        for (size_t k = 0; k < pieces_; ++k) factors[k] = p.times(factor, p.power(2, k * piece_bits));
        const u32 start = p.minus(0, p.times_montgomery(p.power(2, offset_), factor));
        combine(p, cut_.data() + first, count_, span(factors).first(pieces_), start, out, isa_);
    }

private:
    size_t count_, pieces_;
    unsigned offset_;
    Isa isa_;
    std::vector<u32> cut_;
};

struct ShortProduct {
    const u32 *x; // [row][input][c0, c1][8]; those of other row blocks at x_stride
    size_t x_stride;
    const CutIntegers &y;
    const ShortShape &shape;
    u32 factor;
    u32 *out; // c0; c1 at `component`, other ciphertexts at 2·component
    size_t component;

    Left left(size_t r, size_t input, size_t row) const {
        const size_t width = shape.inputs * 2 * lanes;
        return {x + r * x_stride + row * width + input * 2 * lanes, width, 2 * lanes, lanes};
    }
    u32 *sum(size_t o, size_t r, size_t row) const {
        return out + (o * shape.row_blocks + r) * 2 * component + row * lanes;
    }
};

// Right factors of full length are transformed as a whole, one at a time.
void multiply_dense(const Prime &p, const ShortProduct &product, Isa isa) {
    const ShortShape &shape = product.shape;
    std::vector<u32> residues(degree), transformed(degree);
    for (size_t o = 0; o < shape.outputs; ++o)
        for (size_t i = 0; i < shape.inputs; ++i) {
            product.y.reduce(p, product.factor, (o * shape.inputs + i) * shape.live,
                             span(residues).first(shape.live)); // the rest stays zero
            forward(p, polynomial(residues, 0), polynomial(transformed, 0), isa);
            for (size_t r = 0; r < shape.row_blocks; ++r) {
                u32 *const acc[] = {product.sum(o, r, 0)};
                multiply_add(p, product.left(r, i, 0), {transformed.data(), lanes}, 1, rows, acc, product.component,
                             i == 0, isa);
            }
        }
}

// Block by block: the left factors' part stays in the second-level cache for all outputs, a few transformed right
// factors in the first.
void multiply_blocks(const Prime &p, const ShortProduct &product, Isa isa) {
    constexpr size_t chunk = fold;
    const ShortShape &shape = product.shape;
    const size_t live = shape.live;
    std::vector<u32> residues(shape.outputs * shape.inputs * live), work(live * lanes),
        right(wide * chunk * live * lanes);
    product.y.reduce(p, product.factor, 0, residues);
    for (size_t row = 0; row < rows; row += live)
        for (size_t o = 0, sets = 0; o < shape.outputs; o += sets) {
            sets = together(shape.outputs - o);
            for (size_t first = 0; first < shape.inputs; first += chunk) {
                const size_t terms = std::min(chunk, shape.inputs - first), width = terms * sets * lanes;
                for (size_t k = 0; k < terms * sets; ++k) {
                    const size_t factor = (o + k % sets) * shape.inputs + first + k / sets;
                    forward_short(p, span(residues).subspan(factor * live, live), row / live, work,
                                  span(right).subspan(k * lanes), width, isa);
                }
                for (size_t r = 0; r < shape.row_blocks; ++r) {
                    u32 *acc[wide];
                    for (size_t s = 0; s < sets; ++s) acc[s] = product.sum(o + s, r, row);
                    multiply_add(p, product.left(r, first, row), {right.data(), width}, terms, live,
                                 span(acc).first(sets), product.component, first == 0, isa);
                }
            }
        }
}

// s_S^-1 takes X^d to X^d·X^(h·2·8192/2^turns), and X^(2·8192/2^turns) is a root of unity of order 2^turns, c^e with e =
// 2·reverse(lane) + 1, wherever a transformed polynomial is looked at: lanes differ, rows do not. So w in a lane is
// Σ_m c^(m·u)·X^(m·d)·y[k + m·d] with u = e·h: one of 2^turns polynomials. s_S(w) is w at the powers of another root.
// Those of a few outputs and inputs at a time are made, so that they stay in the second-level cache while they are used.
class TurnedFactors {
public:
    static constexpr size_t most_outputs = 8, most_inputs = fold;

    TurnedFactors(const Prime &p, const CutIntegers &y, const TurnedShape &shape, Isa isa)
        : p_(p), shape_(shape), isa_(isa), fan_(size_t{1} << shape.turns), length_(2 * shape.live),
          distance_(size_t{1} << (shape.levels - shape.turns)), kept_(std::min(distance_, shape.outputs)),
          residues_(std::make_unique_for_overwrite<u32[]>(shape.outputs * shape.inputs * shape.live)),
          mixed_(std::make_unique_for_overwrite<u32[]>(most_outputs * most_inputs * length_ * columns)),
          apart_(fan_ * length_), difference_(length_), work_(length_ * lanes) {
        y.reduce(p, p.square, 0, span(residues_.get(), shape.outputs * shape.inputs * shape.live));
        for (size_t set = 0; set < fan_; ++set) add_set(set);
    }

    size_t kept() const { return kept_; }
    size_t length() const { return length_; }
    size_t fan() const { return fan_; }

    /// Makes w of these outputs and inputs, at most so many.
    void mix(size_t output, size_t outputs, size_t input, size_t inputs) {
        first_output_ = output, first_input_ = input;
        for (size_t k = output; k < output + outputs; ++k)
            for (size_t i = input; i < input + inputs; ++i) mix_one(k, i);
    }

    /// The rows of one block of s_S(w), of output k and input i, which have been mixed.
    void transform(size_t k, size_t i, size_t set, size_t block, span<u32> out, size_t stride) {
        forward_columns(*turned_[set], span(mixed(k, i), length_ * columns), picked_[set], block, work_, out, stride,
                        isa_);
    }

private:
    u32 *mixed(size_t k, size_t i) const {
        return &mixed_[((k - first_output_) * most_inputs + i - first_input_) * length_ * columns];
    }

    static size_t reversed(size_t x, unsigned bits) {
        size_t out = 0;
        for (unsigned i = 0; i < bits; ++i) out = out << 1 | (x >> i & 1);
        return out;
    }

    // s_S takes X to a power that is 1 mod `unit`; so is that of its inverse, 1 + h·unit.
    void add_set(size_t set) {
        const size_t unit = turn_step(0, shape_.levels);
        size_t step = 1, inverse = 1;
        for (unsigned j = 0; j < shape_.turns; ++j)
            if (set >> j & 1) step = step * (1 + turn_step(j, shape_.levels)) % (2 * degree);
        while (inverse * step % (2 * degree) != 1) inverse += unit;
        turned_.push_back(&turned_prime(p_.q, step));
        picked_.emplace_back();
        for (size_t lane = 0; lane < lanes; ++lane) {
            const size_t u = (2 * reversed(lane, 3) + 1) * (inverse / unit) % fan_;
            picked_.back()[lane] = static_cast<u32>(reversed(u, shape_.turns));
        }
    }

    // A transform over m, its results in reversed order.
    void mix_one(size_t k, size_t i) {
        std::ranges::fill(apart_, u32{0});
        for (size_t m = 0, o = k; m < fan_ && o < shape_.outputs; ++m, o += distance_)
            std::copy_n(&residues_[(o * shape_.inputs + i) * shape_.live], shape_.live,
                        &apart_[m * length_ + m * distance_]);
        for (size_t half = fan_ / 2; half > 0; half /= 2) {
            const u32 root = p_.power(p_.root, degree / half);
            for (size_t m = 0; m < fan_; ++m) {
                if (m & half) continue;
                const span<u32> x = span(apart_).subspan(m * length_, length_);
                const span<u32> y = span(apart_).subspan((m + half) * length_, length_);
                sum(p_, x, Sign::minus, y, difference_, isa_);
                sum(p_, x, Sign::plus, y, x, isa_);
                scale(p_, difference_, p_.lifted(p_.power(root, m % half)), y, isa_);
            }
        }
        u32 *to = mixed(k, i);
        for (size_t j = 0; j < length_; ++j)
            for (size_t u = 0; u < columns; ++u) to[j * columns + u] = apart_[u % fan_ * length_ + j];
    }

    const Prime &p_;
    const TurnedShape &shape_;
    Isa isa_;
    size_t fan_, length_, distance_, kept_, first_output_ = 0, first_input_ = 0;
    std::unique_ptr<u32[]> residues_, mixed_; // [o][i][coefficient], [k][i][coefficient][u, reversed]
    std::vector<u32> apart_, difference_, work_;
    std::vector<const Prime *> turned_;
    std::vector<std::array<u32, lanes>> picked_; // [S][lane]: the place of u
};

} // namespace

void multiply_short(const Basis &basis, span<const u32> x, span<const i64> y, const ShortShape &shape, span<u32> out,
                    Isa isa) {
    const size_t limbs = basis.size(), one = limbs * degree, polynomials = shape.inputs * 2 * degree;
    const CutIntegers integers(y, isa);
    for (size_t l = 0; l < limbs; ++l) {
        const Prime &p = basis[l];
        const u32 factor = p.times(p.square, p.invert(p.reduce(u64{shape.divisor}))); // in Montgomery form, twice
        const auto multiply = shape.live > rows ? multiply_dense : multiply_blocks;
        multiply(p, {&x[l * polynomials], limbs * polynomials, integers, shape, factor, &out[l * degree], one}, isa);
    }
}

void multiply_turned(const Basis &basis, span<const u32> x, span<const i64> y, const TurnedShape &shape, span<u32> out,
                     Isa isa) {
    constexpr size_t width = (rows + 1) * 2 * lanes; // a ciphertext modulo one prime
    const size_t limbs = basis.size(), one = limbs * degree;
    const CutIntegers integers(y, isa);
    std::vector<u32> right(2 * fold * 2 * shape.live * lanes);
    for (size_t l = 0; l < limbs; ++l) {
        const Prime &p = basis[l];
        TurnedFactors factors(p, integers, shape, isa);
        const size_t length = factors.length(), fan = factors.fan(), kept = factors.kept();
        const size_t start = l < shape.plain_limbs ? 0 : 1;
        // Some outputs and inputs, and one S or, with few inputs, several: as many terms as one sum takes.
        const auto some = [&](size_t k, size_t outputs, size_t i, size_t inputs, size_t row, size_t set, size_t ways) {
            const size_t terms = ways * inputs;
            for (size_t o = k, sets = 0; o < k + outputs; o += sets) {
                sets = together(std::min(2 * fold / terms, k + outputs - o)); // stays in the second-level cache
                const size_t stride = terms * sets * lanes;
                for (size_t t = 0; t < terms * sets; ++t)
                    factors.transform(o + t % sets, i + t / sets % inputs, set + t / sets / inputs, row / length,
                                      span(right).subspan(t * lanes), stride);
                for (size_t r = 0; r < shape.row_blocks; ++r) {
                    u32 *acc[wide];
                    for (size_t s = 0; s < sets; ++s)
                        acc[s] = &out[(r * kept + o + s) * 2 * one + l * degree + row * lanes];
                    const u32 *left = &x[(((r * limbs + l) * fan + set) * shape.inputs + i) * width + row * 2 * lanes];
                    multiply_add(p, {left, 2 * lanes, width, lanes}, {right.data(), stride}, terms, length,
                                 span(acc).first(sets), one, i == 0 && set == start, isa);
                }
            }
        };
        const size_t ways = shape.inputs > fold / 2 ? 1 : fold / shape.inputs;
        for (size_t k = 0; k < kept; k += TurnedFactors::most_outputs)
            for (size_t i = 0; i < shape.inputs; i += TurnedFactors::most_inputs) {
                const size_t outputs = std::min(TurnedFactors::most_outputs, kept - k);
                const size_t inputs = std::min(TurnedFactors::most_inputs, shape.inputs - i);
                factors.mix(k, outputs, i, inputs);
                for (size_t row = 0; row < rows; row += length)
                    for (size_t set = start; set < fan; set += ways)
                        some(k, outputs, i, inputs, row, set, std::min(ways, fan - set));
            }
    }
}

void multiply_plain(const Basis &basis, span<const span<const u32>> x, span<const span<const u32>> y, span<u32> out,
                    Isa isa) {
    const size_t one = basis.size() * degree;
    for (size_t l = 0; l < basis.size(); ++l)
        for (size_t k = 0; k < x.size(); ++k) {
            u32 *const acc[] = {&out[l * degree]};
            const Left left{&x[k][l * degree], lanes, 0, one};
            multiply_add(basis[l], left, {&y[k][l * degree], lanes}, 1, rows, acc, one, k == 0, isa);
        }
}

} // namespace comet::rlwe
