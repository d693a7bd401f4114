// Bindings. The Python side (comet_mpc/kernels.py) checks shapes and types and allocates the results.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "common/isa.hpp"
#include "ring/matmul.hpp"
#include "ring/polynomial.hpp"
#include "ring/truncate.hpp"
#include "ring/words.hpp"

namespace nb = nanobind;
using namespace comet;

void bind_transfer(nb::module_ &m); // ot_module.cpp
void bind_lattice(nb::module_ &m);  // rlwe_module.cpp

namespace {

template <class T> using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In = Flat<const u64>;
using Out = Flat<u64>;
using BytesIn = Flat<const u8>;
using BytesOut = Flat<u8>;

void py_matmul(const In &x, const In &y, const Out &out, size_t batch, size_t m, size_t k, size_t n, bool transposed,
               unsigned width, const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    const u64 *left = x.data(), *right = y.data();
    u64 *target = out.data();
    nb::gil_scoped_release release;
    for (size_t b = 0; b < batch; ++b)
        matmul(left + b * m * k, right + b * k * n, target + b * m * n, {m, k, n}, transposed, width, isa);
}

void py_matmul_int32(const In &x, const Flat<const i32> &w, const Out &out, size_t m, size_t k, size_t n,
                     unsigned width, const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    const u64 *left = x.data();
    const i32 *right = w.data();
    u64 *target = out.data();
    nb::gil_scoped_release release;
    matmul_int32(left, right, target, {m, k, n}, width, isa);
}

using PyTerm = std::tuple<u64, u32>;                     // coefficient, product
using PyRow = std::tuple<int, u64, std::vector<PyTerm>>; // share (-1: one), constant, terms
using PyPlan = std::tuple<std::vector<std::tuple<u32, u32>>, std::vector<PyRow>>;

void py_evaluate(const PyPlan &description, const std::vector<In> &opened, const std::vector<In> &shares,
                 const Out &out, const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    PolynomialPlan plan;
    for (const auto &[previous, variable] : std::get<0>(description)) plan.products.push_back({previous, variable});
    for (const auto &[share, constant, terms] : std::get<1>(description)) {
        auto &row = plan.rows.emplace_back();
        row.share = share < 0 ? nullptr : shares.at(static_cast<size_t>(share)).data();
        row.constant = constant;
        for (const auto &[coefficient, product] : terms) row.terms.push_back({coefficient, product});
    }
    std::vector<const u64 *> points;
    for (const auto &array : opened) points.push_back(array.data());
    u64 *target = out.data();
    const size_t n = out.shape(0);
    nb::gil_scoped_release release;
    evaluate(plan, points, target, n, isa);
}

void py_truncate_mask(const In &x, const BytesIn &bits, const BytesOut &out, unsigned width, bool leader,
                      const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    const u64 *values = x.data();
    const u8 *own = bits.data();
    u8 *target = out.data();
    const size_t n = x.shape(0);
    nb::gil_scoped_release release;
    truncate_mask(values, own, target, n, {width, 0, leader}, isa);
}

void py_truncate_finish(const In &x, const BytesIn &bits, const BytesIn &mine, const BytesIn &theirs, const In &product,
                        const Out &out, unsigned width, unsigned shift, bool leader, const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    const u64 *values = x.data(), *products = product.data();
    const u8 *own = bits.data(), *e_mine = mine.data(), *e_theirs = theirs.data();
    u64 *target = out.data();
    const size_t n = x.shape(0);
    nb::gil_scoped_release release;
    truncate_finish(values, own, e_mine, e_theirs, products, target, n, {width, shift, leader}, isa);
}

void py_pack_words(const In &x, const BytesOut &out, unsigned size, const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    const u64 *values = x.data();
    u8 *target = out.data();
    const size_t n = x.shape(0);
    nb::gil_scoped_release release;
    pack_words(values, target, n, size, isa);
}

void py_unpack_words(const BytesIn &data, const Out &out, unsigned size, const std::string &isa_name) {
    const Isa isa = isa_from_name(isa_name);
    const u8 *bytes = data.data();
    u64 *target = out.data();
    const size_t n = out.shape(0);
    nb::gil_scoped_release release;
    unpack_words(bytes, target, n, size, isa);
}

} // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false); // caches of the Python side live until the interpreter is gone
    m.def("isa_names", &isa_names);
    m.def("matmul", &py_matmul);
    m.def("matmul_int32", &py_matmul_int32);
    m.def("evaluate", &py_evaluate);
    m.def("truncate_mask", &py_truncate_mask);
    m.def("truncate_finish", &py_truncate_finish);
    m.def("pack_words", &py_pack_words);
    m.def("unpack_words", &py_unpack_words);
    bind_transfer(m);
    bind_lattice(m);
}
