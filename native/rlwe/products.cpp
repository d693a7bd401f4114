#include "rlwe/products.hpp"

#include <algorithm>

namespace comet::rlwe {

namespace {

// out = in·factor/2^32 mod q, for integers of any size.
void reduce_integers(const Prime &p, span<const i64> in, u32 factor, span<u32> out) {
    const u32 high = p.times(factor, p.montgomery), lowest = p.times(p.power(2, 63), factor);
    for (size_t j = 0; j < in.size(); ++j) {
        const u64 value = static_cast<u64>(in[j]) + (u64{1} << 63); // minus what it stands for: 2^63
        const u64 sum = (value >> 32) * high + (value & low_mask(32)) * factor + static_cast<u64>(p.q - lowest);
        out[j] = p.reduce_montgomery(sum);
    }
}

struct ShortProduct {
    const u32 *x; // [row][input][c0, c1][8]; those of other row blocks at x_stride
    size_t x_stride;
    span<const i64> y;
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
            const span<const i64> integers = product.y.subspan((o * shape.inputs + i) * shape.live, shape.live);
            reduce_integers(p, integers, product.factor, residues);
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
    reduce_integers(p, product.y.first(residues.size()), product.factor, residues);
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
    for (size_t l = 0; l < limbs; ++l) {
        const Prime &p = basis[l];
        const u32 factor = p.times(p.square, p.invert(p.reduce(u64{shape.divisor}))); // in Montgomery form, twice
        const auto multiply = shape.live > rows ? multiply_dense : multiply_blocks;
        multiply(p, {&x[l * polynomials], limbs * polynomials, y, shape, factor, &out[l * degree], one}, isa);
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
