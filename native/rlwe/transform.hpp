#pragma once

// Negacyclic polynomials Z_q[X]/(X^8192 + 1): transforms, products, automorphisms.
//
// A polynomial "in order" has its coefficients in natural order. A "transformed" one is the number theoretic transform
// in an order of our own, the same for every prime: all that matters is that products are element by element. Over a
// basis of several primes the residues of one prime follow those of another: [prime][8192].
// All residues that leave a function are below their prime, so every instruction set gives the same bits.

#include "common/isa.hpp"
#include "rlwe/prime.hpp"

namespace comet::rlwe {

constexpr size_t wide = 4;     // sets of factors that share the loads of a ciphertext, at most
constexpr size_t columns = 16; // short polynomials that lanes may pick from
constexpr size_t fold = 12;    // products of two residues that, with 2^32 times a residue, fit into 64 bits together

/// How many of so many sets go together: 1, 2 or 4.
constexpr size_t together(size_t left) { return left >= wide ? wide : left >= 2 ? 2 : 1; }

using Polynomial = span<u32, degree>;
using ConstPolynomial = span<const u32, degree>;

/// Polynomial i of several that follow each other.
template <class Range> auto polynomial(Range &&all, size_t i) {
    return span(all).subspan(i * degree).template first<degree>();
}

/// out = transform of a polynomial in order, its coefficients below 4q. In-place is not allowed.
void forward(const Prime &p, ConstPolynomial in, Polynomial out, Isa isa);

/// The same; row r of 8 elements goes to out[r·stride …].
void forward(const Prime &p, ConstPolynomial in, Polynomial work, span<u32> out, size_t stride, Isa isa);

/// The same for residues mod another prime `from` of about the same size, which are centred first.
void forward_foreign(const Prime &p, u32 from, ConstPolynomial in, Polynomial work, span<u32> out, size_t stride,
                     Isa isa);

/// The same for a short polynomial below q, the other coefficients being zero; its length is a power of two, 2..1024.
/// The shorter, the cheaper. Only the rows of one block are made, as many as `in` is long; `work` has 8 times as many
/// entries.
void forward_short(const Prime &p, span<const u32> in, size_t block, span<u32> work, span<u32> out, size_t stride,
                   Isa isa);

/// The same for several polynomials side by side, [coefficient][16], of which each lane transforms the one `picked`.
void forward_columns(const Prime &p, span<const u32> in, span<const u32, lanes> picked, size_t block, span<u32> work,
                     span<u32> out, size_t stride, Isa isa);

/// The inverse of `forward`; destroys its input.
void backward(const Prime &p, Polynomial in, Polynomial out, Isa isa);

/// Of the same only the 8192/step coefficients at multiples of `step`, a power of two up to 128: far cheaper.
void backward_sparse(const Prime &p, Polynomial in, size_t step, span<u32> out, Isa isa);

/// Left factors of two components and right factors of several sets, in rows of 8 elements. Those that meet in one row
/// lie close together (at strides of whole polynomials they would share a few sets of the caches): row r of x_c[k] is
/// at data + r·row + k·term + c·component, row r of y[k][s] at data + r·row + (k·sets + s)·8.
struct Left {
    const u32 *data;
    size_t row, term, component;
};
struct Right {
    const u32 *data;
    size_t row;
};

/// acc_c[s] += Σ_k x_c[k] ⊙ y[k][s] in `count` rows, or `fresh` ones = it; acc_c[s] at acc[s] + c·component, y in
/// Montgomery form. As many sets as `together` allows, at most `fold` terms.
void multiply_add(const Prime &p, Left x, Right y, size_t terms, size_t count, span<u32 *const> acc, size_t component,
                  bool fresh, Isa isa);

/// sum = x + X^distance·y and difference = x - X^distance·y, in order; x may be `sum` itself.
void shift(const Prime &p, ConstPolynomial x, ConstPolynomial y, size_t distance, Polynomial sum, Polynomial difference,
           Isa isa);

/// out(X) = in(X^(1 + distance)), in order, for a power of two 128..8192; a zero may come out as the prime itself.
void turn(const Prime &p, ConstPolynomial in, size_t distance, Polynomial out, Isa isa);

/// out += (x - centred rest) / special + more: a sum modulo q·special is rounded to q. `inverse` is special^-1 mod q in
/// Montgomery form, special < q, `more` may be empty.
void divide(const Prime &p, u32 special, u32 inverse, ConstPolynomial x, ConstPolynomial rest, span<const u32> more,
            Polynomial out, Isa isa);

} // namespace comet::rlwe
