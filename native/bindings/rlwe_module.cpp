// Bindings of the lattice arithmetic, for comet_mpc/offline/rlwe.

#include "bindings/arguments.hpp"
#include "rlwe/encoding.hpp"
#include "rlwe/packing.hpp"
#include "rlwe/products.hpp"
#include "rlwe/sampling.hpp"
#include "rlwe/scheme.hpp"

namespace comet {

namespace {

using namespace rlwe;

span<const i8, degree> small_polynomial(span<const i8> x) { return x.first<degree>(); }

// Fractions come as three words each, the lowest first.
static_assert(sizeof(Fraction) == 3 * sizeof(u64));
span<Fraction> fractions(span<u64> x) { return {reinterpret_cast<Fraction *>(x.data()), x.size() / 3}; }
span<const Fraction> fractions(span<const u64> x) {
    return {reinterpret_cast<const Fraction *>(x.data()), x.size() / 3};
}

void py_forward(const Basis &basis, span<const u32> x, span<u32> out, Isa isa) {
    for (size_t i = 0; i < basis.size(); ++i) forward(basis[i], polynomial(x, i), polynomial(out, i), isa);
}

void py_forward_short(const Basis &basis, span<const u32> x, size_t live, span<u32> out, Isa isa) {
    for (size_t i = 0; i < basis.size(); ++i)
        for (size_t block = 0; block < rows / live; ++block) {
            const span<u32> to = out.subspan(i * degree + block * live * lanes, live * lanes);
            forward_short(basis[i], x.subspan(i * live, live), block, to, to, lanes, isa);
        }
}

void py_backward(const Basis &basis, span<const u32> x, span<u32> out, Isa isa) {
    std::vector<u32> copy(x.begin(), x.end());
    for (size_t i = 0; i < basis.size(); ++i) backward(basis[i], polynomial(copy, i), polynomial(out, i), isa);
}

void to_montgomery(const Basis &basis, span<const u32> x, span<u32> out, Isa isa) {
    const size_t count = x.size() / basis.size();
    for (size_t i = 0; i < basis.size(); ++i)
        scale(basis[i], x.subspan(i * count, count), basis[i].square, out.subspan(i * count, count), isa);
}

void py_transform_small(const Basis &basis, span<const i8> x, span<u32> out, Isa isa) {
    transform_small(basis, small_polynomial(x), out, isa);
}

void py_encrypt(const Basis &basis, span<const u32> scaled, span<const i8> errors, span<const u32> c1,
                span<const u32> secret, span<u32> c0, Isa isa) {
    encrypt(basis, scaled, small_polynomial(errors), c1, secret, c0, isa);
}

void py_blind(const Basis &basis, span<const i8> errors, span<const u32> c1, span<const u32> secret, span<u32> w,
              span<u64> out, Isa isa) {
    blind(basis, small_polynomial(errors), c1, secret, w, fractions(out), isa);
}

void py_multiply_short(const Basis &basis, span<const u32> x, span<const i64> y, size_t row_blocks, size_t inputs,
                       size_t outputs, size_t live, u32 divisor, span<u32> out, Isa isa) {
    multiply_short(basis, x, y, {row_blocks, inputs, outputs, live, divisor}, out, isa);
}

void py_turn_all(const Basis &from, const Basis &to, u32 special, const std::vector<Array<const u32>> &ciphertexts,
                 unsigned levels, unsigned turns, span<const u32> keys, size_t key_digits, size_t key_step,
                 span<u32> out, size_t start, size_t next, size_t apart, size_t way, Isa isa) {
    turn_all(from, to, prime(special), spans(ciphertexts), levels, turns, {keys, key_digits}, key_step,
             {&out[start], next, apart, way}, isa);
}

void py_turned_places(size_t step, span<u32> out) { std::ranges::copy(turned_places(step), out.begin()); }

void py_multiply_turned(const Basis &basis, span<const u32> x, span<const i64> y, size_t row_blocks, size_t inputs,
                        size_t outputs, size_t live, unsigned levels, unsigned turns, size_t plain_limbs, span<u32> out,
                        Isa isa) {
    multiply_turned(basis, x, y, {row_blocks, inputs, outputs, live, levels, turns, plain_limbs}, out, isa);
}

void py_multiply_plain(const Basis &basis, const std::vector<Array<const u32>> &x,
                       const std::vector<Array<const u32>> &y, span<u32> out, Isa isa) {
    multiply_plain(basis, spans(x), spans(y), out, isa);
}

void py_pack(const Basis &from, const Basis &to, u32 special, span<u32> ciphertexts, unsigned levels,
             span<const u32> keys, size_t key_digits, span<u32> out, Isa isa) {
    pack(from, to, prime(special), ciphertexts, levels, {keys, key_digits}, out, isa);
}

void py_respond(const Basis &basis, span<u32> ciphertext, span<const u32> public_key, span<const i8> ephemeral,
                span<const i8> errors0, span<const i8> errors1, span<const u32> positions, unsigned bits, span<u8> sent,
                span<u64> kept, Isa isa) {
    const Blinding blinding{small_polynomial(ephemeral), errors0, small_polynomial(errors1)};
    respond(basis, ciphertext, public_key, blinding, positions, bits, sent, fractions(kept), isa);
}

void py_phase(const Basis &basis, span<const u8> in, span<const u32> secret, span<const u32> positions, unsigned bits,
              span<u64> out, Isa isa) {
    phase(basis, in, secret, positions, bits, fractions(out), isa);
}

bool py_pack_rest(const Basis &basis, span<const u32> w, span<const u32> base, unsigned bits, unsigned dropped,
                  span<const u64> largest, span<u8> out, Isa isa) {
    return pack_rest(basis, w, base, {bits, dropped}, fractions(largest)[0], out, isa);
}

void py_unpack_rest(const Basis &basis, span<const u8> in, span<const u32> base, unsigned bits, unsigned dropped,
                    span<u32> c0, Isa isa) {
    unpack_rest(basis, in, base, {bits, dropped}, c0, isa);
}

void py_round_power(span<const u64> numbers, unsigned width, span<u64> out) {
    round_power(fractions(numbers), width, out);
}

void py_round_odd(const Basis &plain, span<const u64> numbers, span<u32> out, Isa isa) {
    round_odd(plain, fractions(numbers), out, isa);
}

} // namespace

void bind_rlwe(nb::module_ &m) {
    using nb::literals::operator""_a;
    const auto isa = "isa"_a = "";
    m.def("lattice_isa_names", [] { return available_names({Isa::portable, Isa::avx2, Isa::avx512}); });
    nb::class_<Basis>(m, "Basis").def(nb::init<const std::vector<u32> &>());
    m.def("lattice_packed_residues", &packed_residues);
    m.def("lattice_forward", &py_forward, Release());
    m.def("lattice_forward_short", &py_forward_short, Release());
    m.def("lattice_backward", &py_backward, Release());
    m.def("lattice_to_montgomery", &to_montgomery, "basis"_a, "x"_a, "out"_a, isa, Release());
    m.def("lattice_sample_uniform", &sample_uniform, Release());
    m.def("lattice_sample_ternary", &sample_ternary, Release());
    m.def("lattice_sample_errors", &sample_errors, Release());
    m.def("lattice_transform_small", &py_transform_small, Release());
    m.def("lattice_scale_power", &scale_power, "basis"_a, "words"_a, "width"_a, "out"_a, isa, Release());
    m.def("lattice_scale_odd", &scale_odd, "basis"_a, "plain"_a, "residues"_a, "out"_a, isa, Release());
    m.def("lattice_transform_plain", &transform_plain, Release());
    m.def("lattice_encrypt", &py_encrypt, Release());
    m.def("lattice_blind", &py_blind, Release());
    m.def("lattice_pack_rest", &py_pack_rest, "basis"_a, "w"_a, "base"_a, "bits"_a, "dropped"_a, "largest"_a, "out"_a,
          isa, Release());
    m.def("lattice_unpack_rest", &py_unpack_rest, Release());
    m.def("lattice_multiply_short", &py_multiply_short, Release());
    m.def("lattice_turn_all", &py_turn_all, Release());
    m.def("lattice_turned_places", &py_turned_places, Release());
    m.def("lattice_multiply_turned", &py_multiply_turned, Release());
    m.def("lattice_multiply_plain", &py_multiply_plain, Release());
    m.def("lattice_pack", &py_pack, Release());
    m.def("lattice_respond", &py_respond, Release());
    m.def("lattice_phase", &py_phase, Release());
    m.def("lattice_round_power", &py_round_power, Release());
    m.def("lattice_round_odd", &py_round_odd, "plain"_a, "numbers"_a, "out"_a, isa, Release());
    m.def("lattice_split", &split, "basis"_a, "residues"_a, "words"_a, "upper"_a, isa, Release());
    m.def("lattice_pack_residues", &pack_residues, Release());
    m.def("lattice_unpack_residues", &unpack_residues, Release());
}

} // namespace comet
