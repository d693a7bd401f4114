// Bindings of oblivious transfer, for comet_mpc/offline/ot.

#include <cstring>

#include "bindings/arguments.hpp"
#include "ot/bit_matrix.hpp"
#include "ot/extension.hpp"
#include "ot/field.hpp"
#include "ot/products.hpp"
#include "ot/tables.hpp"

namespace comet {

namespace {

using ot::AesKey;
using ot::Block;

AesKey key_of(span<const u8> key) { return key.first<16>(); }

void extend_receiver(span<const u8> keys, unsigned fold, span<const u8> hash_key, u64 first, span<u8> bits,
                     span<u8> message, span<u64> words, size_t halves, span<u8> planes, Isa isa) {
    ot::extend_receiver({keys, fold, key_of(hash_key), first, words.size() / halves, halves, planes}, bits, message,
                        words, isa);
}

void extend_sender(span<const u8> keys, unsigned fold, span<const u8> hash_key, u64 first, span<const u8> delta,
                   span<const u8> message, span<u64> zeros, span<u64> ones, size_t halves, span<u8> planes, Isa isa) {
    ot::extend_sender({keys, fold, key_of(hash_key), first, zeros.size() / halves, halves, planes}, key_of(delta),
                      message, zeros, ones, isa);
}

void hash_planes(span<const u8> key, span<const u8> planes, span<u8> digests, Isa isa) {
    std::vector<Block> rows(planes.size() / sizeof(Block)), out(digests.size() / sizeof(Block));
    Block factor;
    std::memcpy(&factor, key.data(), sizeof factor);
    std::memcpy(rows.data(), planes.data(), planes.size());
    ot::hash_rows_by(factor, rows, out, isa);
    std::memcpy(digests.data(), out.data(), digests.size());
}

void tables_sender(span<const u8> hash_key, u64 first, unsigned index_bits, span<const u64> zeros, span<const u64> ones,
                   span<u64> words, Isa isa) {
    ot::tables_sender({key_of(hash_key), first, words.size() >> index_bits, index_bits}, zeros, ones, words, isa);
}

void tables_receiver(span<const u8> hash_key, u64 first, unsigned index_bits, span<const u64> known,
                     span<const u8> choices, span<u64> words, Isa isa) {
    ot::tables_receiver({key_of(hash_key), first, words.size(), index_bits}, known, choices, words, isa);
}

void encrypt(span<const u8> key, span<const u8> data, span<u8> out, Isa isa) {
    std::vector<Block> blocks(data.size() / sizeof(Block));
    if (blocks.empty()) return;
    std::memcpy(blocks.data(), data.data(), sizeof(Block) * blocks.size());
    ot::AesSchedule schedule;
    ot::aes(isa).schedule(key_of(key), schedule);
    ot::aes(isa).encrypt(schedule, blocks);
    std::memcpy(out.data(), blocks.data(), sizeof(Block) * blocks.size());
}

void transpose(span<const u64> planes, span<u8> rows, Isa isa) {
    const size_t stride = planes.size() / 128;
    std::vector<Block> out(64 * stride);
    ot::bit_matrix(isa).transpose(planes.data(), stride, out);
    if (!out.empty()) std::memcpy(rows.data(), out.data(), sizeof(Block) * out.size());
}

void hash(span<const u8> key, u64 first, span<const u8> rows, span<u64> out, Isa isa) {
    ot::transfer_hash(key_of(key), first, rows, out, isa);
}

} // namespace

void bind_ot(nb::module_ &m) {
    m.def("transfer_isa_names", [] { return available_names({Isa::portable, Isa::aesni, Isa::vaes}); });
    m.def("extend_receiver", &extend_receiver, Release());
    m.def("extend_sender", &extend_sender, Release());
    m.def("transfer_hash_planes", &hash_planes, Release());
    m.def("products_sender", &ot::products_sender, Release());
    m.def("products_receiver", &ot::products_receiver, Release());
    m.def("odd_products_sender", &ot::odd_products_sender, Release());
    m.def("correlate_sender", &ot::correlate_sender, Release());
    m.def("correlate_receiver", &ot::correlate_receiver, Release());
    m.def("tables_sender", &tables_sender, Release());
    m.def("tables_receiver", &tables_receiver, Release());
    m.def("transfer_aes", &encrypt, Release());
    m.def("transfer_transpose", &transpose, Release());
    m.def("transfer_hash", &hash, Release());
}

} // namespace comet
