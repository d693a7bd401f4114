#pragma once

#include "ot/aes.hpp"

namespace comet::points {

using ot::Block;

/// Distributed point functions (Boyle, Gilboa and Ishai 2016, "Function secret sharing: improvements and extensions").
///
/// Two keys give shares of the vector that is `payload` at place α of 2^index_bits cells and zero elsewhere. A key is a
/// root, which its party alone knows, and corrections, which both know. A node is 126 bits of seed above two zero bits,
/// and a control bit. Its children are, with π_k = AES under a fixed public key k,
///
///     left = π_0(s) + s,    right = π_1(s) + s,    plus the level's correction where the control bit is set;
///
/// bit 0 of a child is its control bit, bit 1 is cleared. A correction is 128 bits: those of the seed, bit 0 for the
/// left child's control bit, bit 1 for the right one's. The tree ends `early` levels above the cells: a leaf stands for
/// 2^early of them, and block i of its numbers is π_2(s + i·2^64) + s + i·2^64, plus the last correction where the
/// control bit is set. The server's numbers count negative.
struct Shape {
    unsigned index_bits; // 1 or more
    unsigned early;      // at most index_bits; 2^early·words is even
    unsigned words;      // of 64 bits, of a payload

    unsigned levels() const { return index_bits - early; }
    size_t leaf_words() const { return (size_t{1} << early) * words; }
};

/// A dealer's side, row by row: `corrections` (levels blocks of two words) and `last` (leaf_words) from both roots
/// (two words each), places α and payloads.
void make_points(const Shape &shape, span<const u64> client_roots, span<const u64> server_roots,
                 span<const u64> places, span<const u64> payloads, span<u64> corrections, span<u64> last, Isa isa);

/// Lines at secret places. For every row r, with e_j the payload's share at cell j and c = starts[r],
///
///     out[r, q] = Σ_j A_q[c+j]·e_j0 + B_q[c+j]·(points[r]·e_j0 + e_j1 + factors[r]·e_j2),
///
/// q counting `columns` pairs of tables, each given twice in a row (2·2^index_bits words of A, then as many of B) so
/// that c + j needs no reduction. c may be the place in a later one of several such sets of tables, one after the other.
/// Without a third payload word the factors are not looked at.
struct Lines {
    span<const u64> tables;
    size_t columns;
    span<const u64> starts, points, factors;
};

void evaluate_lines(const Shape &shape, bool server, span<const u64> roots, span<const u64> corrections,
                    span<const u64> last, const Lines &lines, span<u64> out, Isa isa);

/// All cells of every row, for tests: (rows, cells, words).
void evaluate_all(const Shape &shape, bool server, span<const u64> roots, span<const u64> corrections,
                  span<const u64> last, span<u64> out, Isa isa);

} // namespace comet::points
