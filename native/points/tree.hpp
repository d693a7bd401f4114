#pragma once

#include "ot/aes.hpp"

namespace comet::points {

using ot::Block;

/// Distributed point functions (Boyle, Gilboa and Ishai 2016) by half-trees (Guo, Yang, Wang, Zhang, Xie, Liu and Zhao
/// 2023, "Half-Tree: halving the cost of tree expansion in COT and DPF").
///
/// Two keys give shares of the vector that is `payload` at place α of 2^index_bits cells and zero elsewhere. A key is a
/// root, which its party alone knows, and corrections, which both know. A node has 128 bits, of which bit 0 is also its
/// control bit. The two roots differ by Δ, bit 0 of which is set: it is clear in the client's root and set in the
/// server's. With π = AES under a key of its own for every row and level, and σ(low, high) = (high, low + high),
///
///     H(s) = π(σ(s)) + σ(s),    left = H(s),    right = H(s) + s,
///
/// each plus the level's correction where the node's control bit is set. On the way to α the parties' nodes differ by Δ,
/// elsewhere they are equal: the correction of a level is H(s_client) + H(s_server) + (1 - α_level)·Δ for the nodes on
/// the way. The tree ends `early` levels above the cells: a leaf stands for 2^early of them, and block i of its numbers
/// is π(σ(s) + i) + σ(s) + i, plus the last correction where the control bit is set. The server's numbers count
/// negative. Numbers are words mod 2^64, two a block, or, modulo an odd M, ⌊block·M/2^128⌋.
struct Shape {
    unsigned index_bits; // 1 or more
    unsigned early;      // at most index_bits
    unsigned words;      // of a payload
    u64 modulus;         // M, or 0 for 2^64

    unsigned levels() const { return index_bits - early; }
    size_t leaf_words() const { return (size_t{1} << early) * words; }
    size_t leaf_blocks() const { return modulus != 0 ? leaf_words() : (leaf_words() + 1) / 2; }
};

/// Names the keys of π: (table, row, level) never comes twice with the same roots.
struct Rows {
    u64 table, first;             // number of the first row
    span<const u64> numbers = {}; // of the rows, if they are some of a table's
};

/// One party's keys: its root, the same for all rows, and row by row `corrections` (a block of two words for every
/// level) and `last` (leaf_words).
struct Keys {
    Rows rows;
    bool server;
    span<const u64> root;
    span<const u64> corrections, last;
};

/// A dealer's side, row by row: `corrections` and `last` from both roots, places α and payloads.
void make_points(const Shape &shape, Rows rows, span<const u64> client_root, span<const u64> server_root,
                 span<const u64> places, span<const u64> payloads, span<u64> corrections, span<u64> last, Isa isa);

/// Two parties without a dealer, who find the corrections level by level. With those of all levels above `level`, for
/// every row: the sum of H over all nodes of that level. The two parties' sums differ as their nodes on the way to α do.
void level_sums(const Shape &shape, const Keys &keys, unsigned level, span<u64> sums, Isa isa);

/// With the corrections of all levels: the sum of all leaves' numbers, before the last correction, and how many of the
/// leaves have the control bit.
void leaf_sums(const Shape &shape, const Keys &keys, span<u64> sums, span<u64> controls, Isa isa);

/// Lines at secret places. For every row r, with e_j the payload's share at cell j and c = starts[r],
///
///     out[r, q] = Σ_j A_q[c+j]·e_j0 + B_q[c+j]·(points[r]·e_j0 + e_j1 + factors[r]·e_j2),
///
/// q counting `columns` pairs of tables, each given twice in a row (2·2^index_bits words of A, then as many of B) so
/// that c + j needs no reduction; the second A may be another one. c may be the place in a later one of several such
/// sets of tables, one after the other. Without a third payload word the factors are not looked at.
struct Lines {
    span<const u64> tables;
    size_t columns;
    span<const u64> starts, points, factors;
};

void evaluate_lines(const Shape &shape, const Keys &keys, const Lines &lines, span<u64> out, Isa isa);

/// All cells of every row, for tests: (rows, cells, words).
void evaluate_all(const Shape &shape, const Keys &keys, span<u64> out, Isa isa);

} // namespace comet::points
