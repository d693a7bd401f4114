// Bindings of the ring kernels, for comet_mpc/engine/kernels.py.

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings/arguments.hpp"
#include "ring/cut.hpp"
#include "ring/matmul.hpp"
#include "ring/odd.hpp"
#include "ring/polynomial.hpp"
#include "ring/truncate.hpp"
#include "ring/words.hpp"

namespace comet {

namespace {

void matmul(span<const u64> x, span<const u64> y, span<u64> out, size_t batch, size_t m, size_t k, size_t n,
            bool transposed, unsigned width, Isa isa) {
    for (size_t b = 0; b < batch; ++b)
        ring::matmul(x.subspan(b * m * k, m * k), y.subspan(b * k * n, k * n), out.subspan(b * m * n, m * n), {m, k, n},
                     transposed, width, isa);
}

void matmul_int32(span<const u64> x, span<const i32> w, span<u64> out, size_t m, size_t k, size_t n, unsigned width,
                  Isa isa) {
    ring::matmul_int32(x, w, out, {m, k, n}, width, isa);
}

using Term = std::tuple<u64, u32>;                   // coefficient, product
using Row = std::tuple<int, u64, std::vector<Term>>; // share (-1: one), constant, terms
using Plan = std::tuple<std::vector<std::tuple<u32, u32>>, std::vector<Row>>;

ring::PolynomialPlan planned(const Plan &description, const std::vector<span<const u64>> &factors) {
    ring::PolynomialPlan plan;
    for (const auto &[previous, variable] : std::get<0>(description)) plan.products.push_back({previous, variable});
    for (const auto &[share, constant, terms] : std::get<1>(description)) {
        auto &row = plan.rows.emplace_back();
        if (share >= 0) row.share = factors.at(static_cast<size_t>(share));
        row.constant = constant;
        for (const auto &[coefficient, product] : terms) row.terms.push_back({coefficient, product});
    }
    return plan;
}

void evaluate(const Plan &description, const std::vector<Array<const u64>> &opened,
              const std::vector<Array<const u64>> &shares, span<u64> out, Isa isa) {
    ring::evaluate(planned(description, spans(shares)), spans(opened), out, isa);
}

void odd_evaluate(u64 modulus, const Plan &description, const std::vector<Array<const u64>> &opened,
                  const std::vector<Array<const u64>> &shares, span<u64> out) {
    ring::odd_evaluate(ring::OddModulus(modulus), planned(description, spans(shares)), spans(opened), out);
}

void odd_multiply(u64 modulus, span<const u64> a, span<const u64> b, span<u64> out) {
    ring::odd_multiply(ring::OddModulus(modulus), a, b, out);
}

void odd_uniform(u64 modulus, span<const u64> words, span<u64> out) {
    ring::odd_uniform(ring::OddModulus(modulus), words, out);
}

// modulus, width, offset, half, scale (high, low), target, wrap, constant: see ring/odd.hpp
using Numbers = std::tuple<u64, unsigned, u64, u64, u64, u64, u64, u64, u64>;

ring::Conversion conversion(const Numbers &numbers, bool leader) {
    const auto [modulus, width, offset, half, high, low, target, wrap, constant] = numbers;
    return {modulus, width, offset, half, high, low, target, wrap, constant, leader};
}

void convert_mask(const Numbers &numbers, bool leader, span<const u64> x, span<const u8> bits, span<u8> out) {
    ring::convert_mask(x, bits, out, conversion(numbers, leader));
}

void convert_finish(const Numbers &numbers, bool leader, span<const u64> x, span<const u8> bits, span<const u8> mine,
                    span<const u8> theirs, span<const u64> product, span<u64> out) {
    ring::convert_finish(x, {bits, mine, theirs, product}, out, conversion(numbers, leader));
}

// the source as above; scale, target, P, j, step and constant: see ring/cut.hpp
using CutNumbers = std::tuple<u64, unsigned, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64>;

ring::Cut cut(const CutNumbers &numbers, bool leader) {
    return std::apply([leader](auto... each) { return ring::Cut{each..., leader}; }, numbers);
}

void cut_finish(const CutNumbers &numbers, bool leader, span<const u64> x, span<const u8> bits, span<const u8> mine,
                span<const u8> theirs, span<const u64> product, span<u64> out) {
    ring::cut_finish(x, {bits, mine, theirs, product}, out, cut(numbers, leader));
}

void cut_free(const CutNumbers &numbers, bool leader, span<const u64> x, span<u64> out) {
    ring::cut_free(x, out, cut(numbers, leader));
}

void truncate_mask(span<const u64> x, span<const u8> bits, span<u8> out, unsigned width, bool leader, Isa isa) {
    ring::truncate_mask(x, bits, out, {width, 0, leader}, isa);
}

void truncate_finish(span<const u64> x, span<const u8> bits, span<const u8> mine, span<const u8> theirs,
                     span<const u64> product, span<u64> out, unsigned width, unsigned shift, bool leader, Isa isa) {
    ring::truncate_finish(x, {bits, mine, theirs, product}, out, {width, shift, leader}, isa);
}

} // namespace

void bind_ring(nb::module_ &m) {
    m.def("isa_names", [] { return available_names({Isa::portable, Isa::avx2}); });
    m.def("matmul", &matmul, Release());
    m.def("matmul_int32", &matmul_int32, Release());
    m.def("evaluate", &evaluate, Release());
    m.def("truncate_mask", &truncate_mask, Release());
    m.def("truncate_finish", &truncate_finish, Release());
    m.def("pack_words", &ring::pack_words, Release());
    m.def("unpack_words", &ring::unpack_words, Release());
    m.def("pack_bits", &ring::pack_bits, Release());
    m.def("unpack_bits", &ring::unpack_bits, Release());
    m.def("odd_multiply", &odd_multiply, Release());
    m.def("odd_evaluate", &odd_evaluate, Release());
    m.def("odd_uniform", &odd_uniform, Release());
    m.def("convert_mask", &convert_mask, Release());
    m.def("convert_finish", &convert_finish, Release());
    m.def("cut_finish", &cut_finish, Release());
    m.def("cut_free", &cut_free, Release());
}

} // namespace comet
