// Bindings of the OT extension. The Python side (comet_mpc/oblivious_transfer.py) checks sizes and allocates results.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "ot/tables.hpp"

namespace nb = nanobind;
using namespace comet;

namespace {

template <class T> using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In = Flat<const u64>;
using Out = Flat<u64>;
using BytesIn = Flat<const u8>;
using BytesOut = Flat<u8>;

void py_extend_receiver(const BytesIn &keys, unsigned fold, const BytesIn &hash_key, u64 first, const BytesOut &bits,
                        const BytesOut &message, const Out &words, size_t halves, const std::string &isa_name) {
    const TransferIsa &isa = transfer_isa(isa_name);
    const Extension e{keys.data(), fold, hash_key.data(), first, words.shape(0) / halves, halves};
    u8 *choices = bits.data(), *sent = message.data();
    u64 *known = words.data();
    nb::gil_scoped_release release;
    extend_receiver(e, choices, sent, known, isa);
}

void py_extend_sender(const BytesIn &keys, unsigned fold, const BytesIn &hash_key, u64 first, const BytesIn &delta,
                      const BytesIn &message, const Out &zeros, const Out &ones, size_t halves,
                      const std::string &isa_name) {
    const TransferIsa &isa = transfer_isa(isa_name);
    const Extension e{keys.data(), fold, hash_key.data(), first, zeros.shape(0) / halves, halves};
    const u8 *difference = delta.data(), *received = message.data();
    u64 *first_messages = zeros.data(), *second_messages = ones.data();
    nb::gil_scoped_release release;
    extend_sender(e, difference, received, first_messages, second_messages, isa);
}

void py_products_sender(const In &zeros, const In &ones, const BytesOut &bits, const Out &shares,
                        const BytesOut &message, unsigned width) {
    const u64 *m0 = zeros.data(), *m1 = ones.data();
    u8 *own = bits.data(), *sent = message.data();
    u64 *target = shares.data();
    const size_t n = shares.shape(0);
    nb::gil_scoped_release release;
    products_sender(m0, m1, own, target, sent, n, width);
}

void py_products_receiver(const In &words, const BytesIn &bits, const BytesIn &message, const Out &shares,
                          unsigned width) {
    const u64 *known = words.data();
    const u8 *own = bits.data(), *received = message.data();
    u64 *target = shares.data();
    const size_t n = shares.shape(0);
    nb::gil_scoped_release release;
    products_receiver(known, own, received, target, n, width);
}

void py_correlate_sender(const In &zeros, const In &ones, const BytesIn &flips, const In &values, const Out &shares,
                         const BytesOut &message, unsigned width) {
    const u64 *m0 = zeros.data(), *m1 = ones.data(), *factors = values.data();
    const u8 *swaps = flips.data();
    u64 *target = shares.data();
    u8 *sent = message.data();
    const size_t n = shares.shape(0);
    nb::gil_scoped_release release;
    correlate_sender(m0, m1, swaps, factors, target, sent, n, width);
}

void py_correlate_receiver(const In &words, const BytesIn &chosen, const BytesIn &message, const Out &shares,
                           unsigned width) {
    const u64 *known = words.data();
    const u8 *own = chosen.data(), *received = message.data();
    u64 *target = shares.data();
    const size_t n = shares.shape(0);
    nb::gil_scoped_release release;
    correlate_receiver(known, own, received, target, n, width);
}

void py_tables_sender(const BytesIn &hash_key, u64 first, unsigned index_bits, const In &zeros, const In &ones,
                      const Out &words, const std::string &isa_name) {
    const TransferIsa &isa = transfer_isa(isa_name);
    const Tables t{hash_key.data(), first, words.shape(0) >> index_bits, index_bits};
    const u64 *m0 = zeros.data(), *m1 = ones.data();
    u64 *target = words.data();
    nb::gil_scoped_release release;
    tables_sender(t, m0, m1, target, isa);
}

void py_tables_receiver(const BytesIn &hash_key, u64 first, unsigned index_bits, const In &known,
                        const BytesIn &choices, const Out &words, const std::string &isa_name) {
    const TransferIsa &isa = transfer_isa(isa_name);
    const Tables t{hash_key.data(), first, words.shape(0), index_bits};
    const u64 *keys = known.data();
    const u8 *random = choices.data();
    u64 *target = words.data();
    nb::gil_scoped_release release;
    tables_receiver(t, keys, random, target, isa);
}

std::vector<Block> blocks_of(const BytesIn &data) {
    std::vector<Block> blocks(data.shape(0) / 16);
    if (!blocks.empty()) std::memcpy(blocks.data(), data.data(), 16 * blocks.size());
    return blocks;
}

void py_transfer_aes(const BytesIn &key, const BytesIn &data, const BytesOut &out, const std::string &isa_name) {
    const TransferIsa &isa = transfer_isa(isa_name);
    AesSchedule schedule;
    isa.schedule(key.data(), schedule);
    auto blocks = blocks_of(data);
    isa.encrypt(schedule, blocks.data(), blocks.size());
    if (!blocks.empty()) std::memcpy(out.data(), blocks.data(), 16 * blocks.size());
}

void py_transfer_transpose(const In &planes, const BytesOut &rows, const std::string &isa_name) {
    const size_t stride = planes.shape(0) / 128;
    std::vector<Block> out(64 * stride);
    transfer_isa(isa_name).transpose(planes.data(), stride, out.data(), 64 * stride);
    if (!out.empty()) std::memcpy(rows.data(), out.data(), 16 * out.size());
}

void py_transfer_hash(const BytesIn &key, u64 first, const BytesIn &rows, const Out &out, const std::string &isa_name) {
    transfer_hash(key.data(), first, rows.data(), out.data(), out.shape(0), transfer_isa(isa_name));
}

} // namespace

void bind_transfer(nb::module_ &m) {
    m.def("transfer_isa_names", &transfer_isa_names);
    m.def("extend_receiver", &py_extend_receiver);
    m.def("extend_sender", &py_extend_sender);
    m.def("products_sender", &py_products_sender);
    m.def("products_receiver", &py_products_receiver);
    m.def("correlate_sender", &py_correlate_sender);
    m.def("correlate_receiver", &py_correlate_receiver);
    m.def("tables_sender", &py_tables_sender);
    m.def("tables_receiver", &py_tables_receiver);
    m.def("transfer_aes", &py_transfer_aes);
    m.def("transfer_transpose", &py_transfer_transpose);
    m.def("transfer_hash", &py_transfer_hash);
}
