#pragma once

#include "ot/aes.hpp"

namespace comet::ot {

/// OT extension from all-but-one keys (SoftSpokenOT, Roy 2022; with fold = 1 it is IKNP 2003).
///
/// The 128 bits of a row are 128 / fold digits of `fold` bits. For digit j the receiver holds 2^fold keys, and with
/// r_x = AES_key(x)(counter), as vectors of one bit per transfer, it computes
///
///     u_j = Σ_x r_x,    v_j = Σ_x x·r_x  (a digit per transfer).
///
/// The sender lacks key Δ_j and computes w_j = Σ_x (x + Δ_j)·r_x = v_j + Δ_j·u_j. The receiver's choice bits are
/// c = u_0; it sends u_j + c for j >= 1, after which w = v + Δ·c in every digit. The two messages of transfer i are
/// H(i, w_i) and H(i, w_i + Δ), and the receiver knows H(i, v_i), which is message c_i.
///
///     H(i, x) = π(π(x) + i) + π(x),  all or the low 64 bits, π = AES under a public key
///
/// (TMMO; Guo, Katz, Wang, Yu 2020).
///
/// A receiver that does not use one c for all digits could learn Δ. Both sides get their matrix, v or w, by planes of
/// one bit of every row: plane b of w is that of v, plus c where bit b of Δ is set. Hashes of the planes that are
/// linear over F_2 (`field.hpp`) must do the same.
struct Extension {
    span<const u8> keys; // 128 / fold · 2^fold of 16 bytes; the sender's are in the order of x + Δ_j, key 0 is not used
    unsigned fold;       // 1, 2, 4 or 8
    AesKey hash_key;
    u64 first;       // index of the first transfer, a multiple of 128
    size_t count;    // a multiple of 128
    size_t halves;   // 64-bit words kept of every H: 1 or 2
    span<u8> planes; // 128 of `count` bits: where the matrix goes
};

/// The receiver: its choice bits, the message of (128 / fold - 1) · count bits that it sends, and message c_i of every
/// transfer.
void extend_receiver(const Extension &e, span<u8> bits, span<u8> message, span<u64> words, Isa isa);

/// The sender, given the receiver's message: both messages of every transfer.
void extend_sender(const Extension &e, AesKey delta, span<const u8> message, span<u64> zeros, span<u64> ones, Isa isa);

constexpr size_t hash_batch = 64;

/// x[i] = H(tweaks[i], x[i]) for at most hash_batch blocks.
void hash_blocks(const AesSchedule &key, span<Block> x, span<const Block> tweaks, Isa isa);

/// H above, for tests: rows of 16 bytes, low 64 bits.
void transfer_hash(AesKey key, u64 first, span<const u8> rows, span<u64> out, Isa isa);

} // namespace comet::ot
