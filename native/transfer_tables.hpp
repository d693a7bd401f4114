#pragma once

#include "transfer.hpp"

namespace comet {

constexpr unsigned most_index_bits = 8;

/// One of 2^index_bits entries for the price of index_bits transfers with 128-bit messages (after Naor and Pinkas 1999).
///
/// Transfers i·index_bits … belong to table i; their choice bits spell an index r. Entry e has the key
/// K_e = Σ_l m_{l, bit l of e}, of which the receiver knows that of e = r and no other, and the pad H((table, e), K_e).
/// To have entry c the receiver says which bits of r to flip: the sender hides entry j with the pad of j + c + r.
struct Tables {
    const u8 *hash_key;
    u64 first;           // index of the first transfer
    size_t count;        // tables
    unsigned index_bits; // 1 to most_index_bits
    unsigned width;      // bits of an entry
};

/// message = entry + pad mod 2^width of every entry of every table, `width` bits each, without gaps.
void tables_sender(const Tables &t, const u64 *zeros, const u64 *ones, const u8 *flips, const u64 *entries, u8 *message,
                   const TransferIsa &isa);

/// out[i] = the entry of table i whose index the bits `chosen` spell; `choices` are the random bits of the transfers.
void tables_receiver(const Tables &t, const u64 *known, const u8 *choices, const u8 *chosen, const u8 *message, u64 *out,
                     const TransferIsa &isa);

} // namespace comet
