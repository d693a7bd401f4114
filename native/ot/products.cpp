#include "ot/products.hpp"

#include "common/bits.hpp"

namespace comet::ot {

void products_sender(span<const u64> zeros, span<const u64> ones, span<u8> bits, span<u64> shares, span<u8> message,
                     unsigned width) {
    const u64 mask = low_mask(width);
    BitWriter own(bits), sent(message);
    for (size_t i = 0; i < shares.size(); ++i) {
        const u64 difference = zeros[i] - ones[i], b = difference & 1;
        own.put(b, 1);
        sent.put(((difference + b) & mask) >> 1, width - 1);
        shares[i] = -zeros[i] & mask;
    }
    own.finish();
    sent.finish();
}

void products_receiver(span<const u64> words, span<const u8> bits, span<const u8> message, span<u64> shares,
                       unsigned width) {
    const u64 mask = low_mask(width);
    BitReader received(message);
    for (size_t i = 0; i < shares.size(); ++i)
        shares[i] = (words[i] + ((received.get(width - 1) << 1) & -bit(bits, i))) & mask;
}

namespace {

// Words of 128 bits, the low half first, as numbers mod M, uniform but for less than M/2^128.
u64 spread(span<const u64> words, size_t i, u64 modulus) {
    const u64 carry = static_cast<u64>((u128{words[2 * i]} * modulus) >> 64);
    return static_cast<u64>((u128{words[2 * i + 1]} * modulus + carry) >> 64);
}

u64 reduced(u64 value, u64 modulus) { return value >= modulus ? value - modulus : value; }

} // namespace

void odd_products_sender(span<const u64> zeros, span<const u64> ones, span<const u8> bits, span<u64> shares,
                         span<u8> message, unsigned width, u64 modulus) {
    BitWriter sent(message);
    for (size_t i = 0; i < shares.size(); ++i) {
        const u64 zero = spread(zeros, i, modulus), one = spread(ones, i, modulus);
        sent.put(reduced(reduced(zero + modulus - one, modulus) + bit(bits, i), modulus), width);
        shares[i] = reduced(modulus - zero, modulus);
    }
    sent.finish();
}

void correlate_sender(span<const u64> zeros, span<const u64> ones, span<const u8> flips, span<const u64> values,
                      span<u64> shares, span<u8> message, unsigned width) {
    const u64 mask = low_mask(width);
    BitWriter sent(message);
    for (size_t i = 0; i < shares.size(); ++i) {
        const u64 swap = (zeros[i] ^ ones[i]) & -bit(flips, i), zero = zeros[i] ^ swap, one = ones[i] ^ swap;
        sent.put((zero - one + values[i]) & mask, width);
        shares[i] = -zero & mask;
    }
    sent.finish();
}

void correlate_receiver(span<const u64> words, span<const u8> chosen, span<const u8> message, span<u64> shares,
                        unsigned width) {
    const u64 mask = low_mask(width);
    BitReader received(message);
    for (size_t i = 0; i < shares.size(); ++i) shares[i] = (words[i] + (received.get(width) & -bit(chosen, i))) & mask;
}

} // namespace comet::ot
