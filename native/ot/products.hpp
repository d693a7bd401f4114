#pragma once

// Products of bits and words from the messages m_0, m_1 of random transfers. What is sent is packed without gaps and
// zero-padded to whole bytes; there are as many products as `shares` has words.

#include "common/types.hpp"

namespace comet::ot {

/// Random bit times random bit, one known to each party, mod 2^width. D = m_0 - m_1 mod 2^width is uniform to the
/// receiver. The sender's bit is b = D mod 2, its share -m_0, and it sends (D + b) / 2: width - 1 bits each.
void products_sender(span<const u64> zeros, span<const u64> ones, span<u8> bits, span<u64> shares, span<u8> message,
                     unsigned width);

/// The receiver's share: m_c + c·(D + b), which is m_0 + c·b.
void products_receiver(span<const u64> words, span<const u8> bits, span<const u8> message, span<u64> shares,
                       unsigned width);

/// The same mod an odd M of `width` bits, from messages of 128 bits. The sender chooses its bit b and sends
/// m_0 - m_1 + b mod M: `width` bits each.
void odd_products_sender(span<const u64> zeros, span<const u64> ones, span<const u8> bits, span<u64> shares,
                         span<u8> message, unsigned width, u64 modulus);

/// Chosen bit c = choice xor flip times chosen word mod 2^width: the sender's shares and its message, `width` bits
/// each.
void correlate_sender(span<const u64> zeros, span<const u64> ones, span<const u8> flips, span<const u64> values,
                      span<u64> shares, span<u8> message, unsigned width);

/// The receiver's share for its chosen bits, from m_choice and the sender's message.
void correlate_receiver(span<const u64> words, span<const u8> chosen, span<const u8> message, span<u64> shares,
                        unsigned width);

} // namespace comet::ot
