#pragma once

#include "ot/aes.hpp"

namespace comet {

/// OT extension from all-but-one keys (SoftSpokenOT, Roy 2022; with fold = 1 it is IKNP 2003), semi-honest.
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
///     H(i, x) = π(π(x) + i) + π(x),  all or the low 64 bits, π = AES under a public key (TMMO; Guo, Katz, Wang, Yu 2020).
struct Extension {
    const u8 *keys; // 128 / fold · 2^fold · 16 bytes; the sender's are in the order of x + Δ_j, key 0 is not used
    unsigned fold;  // 1, 2, 4 or 8
    const u8 *hash_key;
    u64 first;     // index of the first transfer, a multiple of 128
    size_t count;  // a multiple of 128
    size_t halves; // 64-bit words kept of every H: 1 or 2
};

/// Bytes of the receiver's message: (128 / fold - 1) · count bits.
size_t extension_bytes(unsigned fold, size_t count);

/// The receiver: its choice bits, the message that it sends, and message c_i of every transfer.
void extend_receiver(const Extension &e, u8 *bits, u8 *message, u64 *words, const TransferIsa &isa);

/// The sender, given the receiver's message: both messages of every transfer.
void extend_sender(const Extension &e, const u8 *delta, const u8 *message, u64 *zeros, u64 *ones,
                   const TransferIsa &isa);

constexpr size_t hash_batch = 64;

/// x[i] = H(tweaks[i], x[i]) for at most hash_batch blocks.
void hash_blocks(const AesSchedule &key, Block *x, const Block *tweaks, size_t n, const TransferIsa &isa);

/// H above, for tests: rows of 16 bytes, low 64 bits.
void transfer_hash(const u8 *key, u64 first, const u8 *rows, u64 *out, size_t n, const TransferIsa &isa);

/// Random bit times random bit, one known to each party, mod 2^width. From the messages m_0, m_1 of a transfer
/// D = m_0 - m_1 mod 2^width is uniform to the receiver. The sender's bit is b = D mod 2, its share -m_0, and
/// it sends (D + b) / 2: width - 1 bits each, without gaps. bits and message are zero-padded to whole bytes.
void products_sender(const u64 *zeros, const u64 *ones, u8 *bits, u64 *shares, u8 *message, size_t n, unsigned width);

/// The receiver's share: m_c + c·(D + b), which is m_0 + c·b.
void products_receiver(const u64 *words, const u8 *bits, const u8 *message, u64 *shares, size_t n, unsigned width);

/// Chosen bit c = choice xor flip times chosen word mod 2^width: the sender's shares and its message, `width` bits each.
void correlate_sender(const u64 *zeros, const u64 *ones, const u8 *flips, const u64 *values, u64 *shares, u8 *message,
                      size_t n, unsigned width);

/// The receiver's share for its chosen bits, from m_choice and the sender's message.
void correlate_receiver(const u64 *words, const u8 *chosen, const u8 *message, u64 *shares, size_t n, unsigned width);

} // namespace comet
