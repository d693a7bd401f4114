#include "rlwe/products.hpp"

#include <algorithm>

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
    constexpr size_t chunk = 12; // at most `fold`
    const ShortShape &shape = product.shape;
    const size_t live = shape.live;
    std::vector<u32> residues(shape.outputs * shape.inputs * live), work(live * lanes),
        right(wide * chunk * live * lanes);
    product.y.reduce(p, product.factor, 0, residues);
    for (size_t row = 0; row < rows; row += live)
        for (size_t o = 0, sets = 0; o < shape.outputs; o += sets) {
            sets = shape.outputs - o >= wide ? wide : 1;
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
