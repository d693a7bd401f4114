#pragma once

// Many responses of few useful coefficients each, packed into one.
//
// Of 2^l ciphertexts the coefficients at multiples of 2^l are wanted. The automorphisms s_j: X -> X^(1 +
// 2^j·N/2^(l-1)), j = 0..l-1, fix X^(2^l), and s_j negates X^(2^(l-1-j)). Merging two ciphertexts P, Q into
//
//     (P + X^t·Q) + s_j(P - X^t·Q),   t = 2^(l-1-j),
//
// for j = 0, 1, … in turn doubles what is wanted of P, puts that of Q at distance t, and after the last j everything
// else has cancelled (Chen, Dai, Kim and Song 2021; interleaved as in BumbleBee, Lu et al. 2025). The factor 2^l is
// divided out beforehand, mod q. Of the inputs' c0 only what is wanted ever enters the result, so c0 starts with
// nothing but the changes of keys, and what is wanted is put in its place in the end. An automorphism changes the
// secret to s_j(s); keys that encrypt special·s_j(s) change it back.
//
// A merge takes L·(L + 1) + 2·(L + 1) transforms with L primes. The products' noise needs a large modulus, that of
// packing a smaller one: primes that are not needed any more are divided out first.

#include "rlwe/basis.hpp"
#include "rlwe/transform.hpp"

namespace comet::rlwe {

/// Keys [key][prime][row][digit][c0, c1][8] in Montgomery form; the primes are `digits` ones and then the special one.
struct PackingKeys {
    span<const u32> data;
    size_t digits;
};

/// Level j of l turns X into X^(1 + this).
size_t turn_step(unsigned level, unsigned levels);

/// Where the elements of a transformed x(X^step) stand in the transformed x.
span<const u32> turned_places(size_t step);

/// Where turned ciphertexts go: prime i of ciphertext k, turned in way S, begins at data + k·next + i·prime + S·way, as
/// [row][c0, c1][8], transformed.
struct TurnedPlaces {
    u32 *data;
    size_t next, prime, way;
};

/// s_S(x)·2^-levels of each ciphertext x, for all sets S of the first `turns` levels (bit j of S for level j), s_S all of
/// theirs after each other; keys changed. Ciphertexts are [c0, c1][prime][8192], modulo `from`, as many as `together`
/// allows: they share the loads of the keys. If `to` has a prime more, results are modulo `to` and so many times larger:
/// changes of keys then add that much less to them.
///
/// All S share the digits of c1: key S·key_step - 1 changes s to s_S^-1(s), and s_S comes after that (Halevi and Shoup
/// 2018). With L primes that takes L·(L + 2) transforms, and 2·(L + 1) more for every S.
void turn_all(const Basis &from, const Basis &to, const Prime &special, span<const span<const u32>> ciphertexts,
              unsigned levels, unsigned turns, PackingKeys keys, size_t key_step, const TurnedPlaces &out, Isa isa);

/// out = one ciphertext from `count` <= 2^levels, that is [count][c0, c1][prime][8192]; missing ones count as zero. All
/// transformed; the inputs are destroyed. They are taken from the modulus of `from` to that of `to` before they are
/// merged, so `out` is modulo `to`. Its primes are the first ones of `from` and of the keys' digits; all are in falling
/// order. Keys are one a level.
void pack(const Basis &from, const Basis &to, const Prime &special, span<u32> ciphertexts, unsigned levels,
          PackingKeys keys, span<u32> out, Isa isa);

} // namespace comet::rlwe
