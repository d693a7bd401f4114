#pragma once

#include "ot/extension.hpp"

namespace comet::ot {

constexpr unsigned most_index_bits = 8;

/// One of 2^index_bits random words for the price of index_bits transfers with 128-bit messages (after Naor and Pinkas
/// 1999).
///
/// Transfers i·index_bits … belong to table i; their choice bits spell a place r. Place e has the key K_e = Σ_l m_{l,
/// bit l of e}, of which the receiver knows that of e = r and no other, and the word H((table, e), K_e).
struct Tables {
    AesKey hash_key;
    u64 first;           // index of the first transfer
    size_t count;        // tables
    unsigned index_bits; // 1 to most_index_bits
};

/// The words of all places of all tables.
void tables_sender(const Tables &t, span<const u64> zeros, span<const u64> ones, span<u64> words, Isa isa);

/// The word of one place of every table; `choices` are the random bits of the transfers.
void tables_receiver(const Tables &t, span<const u64> known, span<const u8> choices, span<u64> words, Isa isa);

} // namespace comet::ot
