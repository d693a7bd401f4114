// Bindings of the lattice arithmetic. The Python side (comet_mpc/lattice.py) checks shapes and allocates the results.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "rlwe/packing.hpp"
#include "rlwe/scheme.hpp"

namespace nb = nanobind;
using namespace comet;
using namespace comet::lattice;

namespace {

template <class T> using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Residues = Flat<const u32>;
using ResiduesOut = Flat<u32>;
using Release = nb::call_guard<nb::gil_scoped_release>;

u128 *wide(const Flat<u64> &x) { return reinterpret_cast<u128 *>(x.data()); }
const u128 *wide(const Flat<const u64> &x) { return reinterpret_cast<const u128 *>(x.data()); }

void py_forward(const Basis &basis, const Residues &x, const ResiduesOut &out, const std::string &isa) {
    const Isa chosen = isa_from_name(isa);
    for (size_t i = 0; i < basis.size(); ++i) forward(basis[i], x.data() + i * degree, out.data() + i * degree, chosen);
}

void py_forward_short(const Basis &basis, const Residues &x, size_t live, const ResiduesOut &out,
                      const std::string &isa) {
    const Isa chosen = isa_from_name(isa);
    for (size_t i = 0; i < basis.size(); ++i)
        for (size_t block = 0; block < rows / live; ++block) {
            u32 *to = out.data() + i * degree + block * live * lanes;
            forward_short(basis[i], x.data() + i * live, live, block, to, to, lanes, chosen);
        }
}

void py_backward(const Basis &basis, const Residues &x, const ResiduesOut &out, const std::string &isa) {
    const Isa chosen = isa_from_name(isa);
    std::vector<u32> copy(x.data(), x.data() + basis.size() * degree);
    for (size_t i = 0; i < basis.size(); ++i)
        backward(basis[i], copy.data() + i * degree, out.data() + i * degree, chosen);
}

void py_to_montgomery(const Basis &basis, const Residues &x, const ResiduesOut &out) {
    const size_t count = x.size() / basis.size();
    for (size_t i = 0; i < basis.size(); ++i)
        for (size_t j = i * count; j < (i + 1) * count; ++j)
            out.data()[j] = basis[i].times(x.data()[j], basis[i].montgomery);
}

bool py_sample_uniform(const Basis &basis, const Residues &words, const ResiduesOut &out) {
    return sample_uniform(basis, words.data(), words.size() / basis.size(), out.size() / basis.size(), out.data());
}

bool py_sample_ternary(const Flat<const u8> &bytes, const Flat<i8> &out) {
    return sample_ternary(bytes.data(), bytes.size(), out.data());
}

void py_sample_errors(const Flat<const u64> &words, const Flat<i8> &out) {
    sample_errors(words.data(), out.size(), out.data());
}

void py_transform_small(const Basis &basis, const Flat<const i8> &x, const ResiduesOut &out, const std::string &isa) {
    transform_small(basis, x.data(), out.data(), isa_from_name(isa));
}

void py_scale_power(const Basis &basis, const Flat<const u64> &words, unsigned width, const ResiduesOut &out) {
    scale_power(basis, words.data(), words.size(), width, out.data());
}

void py_scale_odd(const Basis &basis, const Basis &plain, const Residues &residues, const ResiduesOut &out) {
    scale_odd(basis, plain, residues.data(), residues.size() / plain.size(), out.data());
}

void py_transform_plain(const Basis &basis, const Basis &plain, const Residues &residues, const ResiduesOut &out,
                        const std::string &isa) {
    transform_plain(basis, plain, residues.data(), out.data(), isa_from_name(isa));
}

void py_encrypt(const Basis &basis, const Residues &scaled, const Flat<const i8> &errors, const Residues &c1,
                const Residues &secret, const ResiduesOut &c0, const std::string &isa) {
    encrypt(basis, scaled.data(), errors.data(), c1.data(), secret.data(), c0.data(), isa_from_name(isa));
}

void py_multiply_short(const Basis &basis, const Residues &x, const Flat<const i64> &y, size_t row_blocks,
                       size_t inputs, size_t outputs, size_t live, u32 divisor, const ResiduesOut &out,
                       const std::string &isa) {
    const ShortShape shape{row_blocks, inputs, outputs, live, divisor};
    multiply_short(basis, x.data(), y.data(), shape, out.data(), isa_from_name(isa));
}

void py_multiply_plain(const Basis &basis, const std::vector<Residues> &x, const std::vector<Residues> &y,
                       const ResiduesOut &out, const std::string &isa) {
    const Isa chosen = isa_from_name(isa);
    std::vector<const u32 *> left, right;
    for (const auto &entry : x) left.push_back(entry.data());
    for (const auto &entry : y) right.push_back(entry.data());
    nb::gil_scoped_release release;
    multiply_plain(basis, left.data(), right.data(), left.size(), out.data(), chosen);
}

void py_pack(const Basis &basis, u32 special, const ResiduesOut &ciphertexts, size_t count, unsigned levels,
             const Residues &keys, size_t key_digits, const ResiduesOut &out, const std::string &isa) {
    pack(basis, prime(special), ciphertexts.data(), count, levels, {keys.data(), key_digits}, out.data(),
         isa_from_name(isa));
}

void py_respond(const Basis &basis, const ResiduesOut &ciphertext, const Residues &public_key,
                const Flat<const i8> &ephemeral, const Flat<const i8> &errors0, const Flat<const i8> &errors1,
                const Flat<const u64> &flood, unsigned flood_bits, const Residues &masks, const Residues &positions,
                unsigned bits0, unsigned bits1, const Flat<u8> &out0, const Flat<u8> &out1, const std::string &isa) {
    const Response response{ephemeral.data(),       errors0.data(), errors1.data(), flood.data(),
                            (flood_bits + 63) / 64, flood_bits,     masks.data(),   positions.data(),
                            positions.size(),       bits0,          bits1};
    respond(basis, ciphertext.data(), public_key.data(), response, out0.data(), out1.data(), isa_from_name(isa));
}

void py_phase(const Basis &basis, const Flat<const u8> &in0, const Flat<const u8> &in1, const Residues &secret,
              const Residues &positions, unsigned bits0, unsigned bits1, const Flat<u64> &out, const std::string &isa) {
    phase(basis, in0.data(), in1.data(), secret.data(), positions.data(), positions.size(), bits0, bits1, wide(out),
          isa_from_name(isa));
}

u64 py_round_power(const Flat<const u64> &phases, unsigned width, const Flat<u64> &out) {
    return round_power(wide(phases), out.size(), width, out.data());
}

u64 py_round_odd(const Basis &plain, const Flat<const u64> &phases, const ResiduesOut &out) {
    return round_odd(plain, wide(phases), phases.size() / 2, out.data());
}

void py_split(const Basis &basis, const Residues &residues, const Flat<u64> &words, const Flat<u8> &upper) {
    split(basis, residues.data(), words.size(), words.data(), upper.data());
}

void py_pack_residues(const Basis &basis, const Residues &x, const Flat<u8> &out) {
    pack_residues(basis, x.data(), x.size() / basis.size(), out.data());
}

bool py_unpack_residues(const Basis &basis, const Flat<const u8> &data, const ResiduesOut &out) {
    return unpack_residues(basis, data.data(), out.size() / basis.size(), out.data());
}

} // namespace

void bind_lattice(nb::module_ &m) {
    nb::class_<Basis>(m, "Basis").def(nb::init<const std::vector<u32> &>());
    m.def("lattice_packed_residues", &packed_residues);
    m.def("lattice_forward", &py_forward, Release());
    m.def("lattice_forward_short", &py_forward_short, Release());
    m.def("lattice_backward", &py_backward, Release());
    m.def("lattice_to_montgomery", &py_to_montgomery, Release());
    m.def("lattice_sample_uniform", &py_sample_uniform, Release());
    m.def("lattice_sample_ternary", &py_sample_ternary, Release());
    m.def("lattice_sample_errors", &py_sample_errors, Release());
    m.def("lattice_transform_small", &py_transform_small, Release());
    m.def("lattice_scale_power", &py_scale_power, Release());
    m.def("lattice_scale_odd", &py_scale_odd, Release());
    m.def("lattice_transform_plain", &py_transform_plain, Release());
    m.def("lattice_encrypt", &py_encrypt, Release());
    m.def("lattice_multiply_short", &py_multiply_short, Release());
    m.def("lattice_multiply_plain", &py_multiply_plain);
    m.def("lattice_pack", &py_pack, Release());
    m.def("lattice_respond", &py_respond, Release());
    m.def("lattice_phase", &py_phase, Release());
    m.def("lattice_round_power", &py_round_power, Release());
    m.def("lattice_round_odd", &py_round_odd, Release());
    m.def("lattice_split", &py_split, Release());
    m.def("lattice_pack_residues", &py_pack_residues, Release());
    m.def("lattice_unpack_residues", &py_unpack_residues, Release());
}
