#pragma once

// Negacyclic polynomials Z_q[X]/(X^8192 + 1) over primes below 2^30, and RLWE encryption over products of such primes.
//
// A polynomial "in order" has its coefficients in natural order. A "transformed" one is the number theoretic transform
// in an order of our own, the same for every prime: all that matters is that products are element by element. Over a
// basis of several primes the residues of one prime follow those of another: [prime][8192].
// All residues that leave a function are below their prime, so every instruction set gives the same bits.

#include <algorithm>
#include <vector>

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet::lattice {

using i8 = std::int8_t;
using i64 = std::int64_t;
__extension__ typedef unsigned __int128 u128;

constexpr size_t degree = 8192;
constexpr size_t lanes = 8;
constexpr size_t rows = degree / lanes;
constexpr size_t wide = 2;  // sets of factors that share the loads of a ciphertext
constexpr size_t fold = 16; // products of two residues that fit into 64 bits together

/// Tables for one prime q = 1 mod 2^14, q < 2^30. Twiddles are in Montgomery form (times 2^32), each with its companion
/// -w·q^-1 mod 2^32. Entries 1..7 serve the first three stages; vectors of 8 for the others start at entry 8.
struct Prime {
    u32 q;
    u32 inverse;    // q^-1 mod 2^32
    u32 montgomery; // 2^32 mod q
    u32 square;     // 2^64 mod q
    u32 scale;      // 8192^-1, in Montgomery form
    u64 barrett;    // floor(2^64 / q)
    std::vector<u32> forward, forward_companion, backward, backward_companion;

    u32 reduce(u64 x) const {
        const u64 quotient = static_cast<u64>((static_cast<u128>(x) * barrett) >> 64);
        const u64 rest = x - quotient * q;
        return static_cast<u32>(rest >= q ? rest - q : rest);
    }
    /// x / 2^32 mod q.
    u32 reduce_montgomery(u64 x) const {
        u32 high = static_cast<u32>(x >> 32);
        for (const u32 multiple : {2 * q, 2 * q, q}) high = std::min(high, high - multiple);
        const u32 quotient = static_cast<u32>(x) * inverse;
        const u32 rest = high - static_cast<u32>((static_cast<u64>(quotient) * q) >> 32) + q;
        return std::min(rest, rest - q);
    }
    u32 reduce(u128 x) const {
        const u64 high = reduce(static_cast<u64>(x >> 64)), low = reduce(static_cast<u64>(x));
        return reduce(high * square + low);
    }
    u32 reduce_signed(i64 x) const {
        const u32 rest = reduce(x < 0 ? -static_cast<u64>(x) : static_cast<u64>(x));
        return x < 0 && rest ? q - rest : rest;
    }
    u32 times(u32 x, u32 y) const { return reduce(static_cast<u64>(x) * y); }
    u32 plus(u32 x, u32 y) const { return x + y >= q ? x + y - q : x + y; }
    u32 minus(u32 x, u32 y) const { return x >= y ? x - y : x + q - y; }
    u32 power(u32 x, u64 exponent) const;
    u32 invert(u32 x) const { return power(x, q - 2); }
};

/// The tables for q, made once. Throws std::invalid_argument for a number that is not such a prime.
const Prime &prime(u32 q);

/// out = transform of a polynomial in order, its coefficients below 4q. In-place is not allowed.
void forward(const Prime &p, const u32 *in, u32 *out, Isa isa);

/// The same for residues mod another prime `from` of about the same size, which are centred first. Row r of 8 elements goes
/// to out + r·stride; `work` has 8192 entries.
void forward_foreign(const Prime &p, u32 from, const u32 *in, u32 *work, u32 *out, size_t stride, Isa isa);

/// The same for a polynomial in[live] below q, the other coefficients being zero; `live` is a power of two, 2..1024. The
/// shorter, the cheaper. Only the `live` rows of one of 1024/live blocks are made; `work` has live·8 entries.
void forward_short(const Prime &p, const u32 *in, size_t live, size_t block, u32 *work, u32 *out, size_t stride,
                   Isa isa);

/// The inverse of `forward`; destroys its input.
void backward(const Prime &p, u32 *in, u32 *out, Isa isa);

/// Of the same only the 8192/step coefficients at multiples of `step`, a power of two up to 128: far cheaper.
void backward_sparse(const Prime &p, u32 *in, size_t step, u32 *out, Isa isa);

/// Left factors of two components and right factors of several sets, in rows of 8 elements. Those that meet in one row lie
/// close together (at strides of whole polynomials they would share a few sets of the caches): row r of x_c[k] is at
/// data + r·row + k·term + c·component, row r of y[k][s] at data + r·row + (k·sets + s)·8.
struct Left {
    const u32 *data;
    size_t row, term, component;
};
struct Right {
    const u32 *data;
    size_t row;
};

/// acc_c[s] += Σ_k x_c[k] ⊙ y[k][s] in `count` rows, or `fresh` ones = it; acc_c[s] at acc[s] + c·component, y in Montgomery
/// form. One set or `wide` sets, at most `fold` terms.
void multiply_add(const Prime &p, Left x, Right y, size_t terms, size_t sets, size_t count, u32 *const *acc,
                  size_t component, bool fresh, Isa isa);

/// sum = x + X^distance·y and difference = x - X^distance·y, in order; x may be `sum` itself.
void shift(const Prime &p, const u32 *x, const u32 *y, size_t distance, u32 *sum, u32 *difference, Isa isa);

/// out(X) = in(X^(1 + distance)), in order, for a power of two 128..8192; a zero may come out as the prime itself.
void turn(const Prime &p, const u32 *in, size_t distance, u32 *out, Isa isa);

/// out += (x - centred rest) / special + more: a sum modulo q·special is rounded to q. `inverse` is special^-1 mod q in
/// Montgomery form, special < q, `more` may be null.
void divide(const Prime &p, u32 special, u32 inverse, const u32 *x, const u32 *rest, const u32 *more, u32 *out,
            Isa isa);

/// Several primes together: q is their product.
class Basis {
public:
    explicit Basis(const std::vector<u32> &primes);

    size_t size() const { return primes_.size(); }
    const Prime &operator[](size_t i) const { return *primes_[i]; }

    /// x / q as a fraction of 2^128, for residues at stride `stride`; off by less than size()·2^-98 of the whole.
    u128 fraction(const u32 *residues, size_t stride) const;

    /// The number below q with these residues, which must be below 2^128.
    u128 lift(const u32 *residues, size_t stride) const;

    /// Mixed radix digits: x = d0 + d1·q0 + d2·q0·q1 + …
    void digits(const u32 *residues, size_t stride, u32 *out) const;

    /// The product of all primes; only for bases below 2^128.
    u128 modulus() const { return modulus_; }
    u32 modulus_mod(u32 divisor) const;
    u64 modulus_low() const { return low_; }

private:
    std::vector<const Prime *> primes_;
    std::vector<u32> punctured_;    // (q/q_i)^-1 mod q_i
    std::vector<u128> reciprocals_; // floor(2^128 / q_i)
    std::vector<u32> garner_;       // [i][j]: q_j^-1 mod q_i, j < i
    u128 modulus_ = 1;
    u64 low_ = 1;
};

} // namespace comet::lattice
