// Bindings of distributed point functions, for comet_mpc/engine/tables.py.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include "bindings/arguments.hpp"
#include "points/tree.hpp"

namespace comet {

namespace {

using points::Keys;
using points::Rows;
using points::Shape;

using Described = std::tuple<unsigned, unsigned, unsigned, u64>; // index_bits, early, words, modulus
using Numbered = std::pair<u64, u64>;                            // table, first row

Shape shape_of(const Described &of) { return {std::get<0>(of), std::get<1>(of), std::get<2>(of), std::get<3>(of)}; }
Rows rows_of(const Numbered &of) { return {of.first, of.second}; }

void make_points(const Described &shape, const Numbered &rows, span<const u64> client_root,
                 span<const u64> server_root, span<const u64> places, span<const u64> payloads, span<u64> corrections,
                 span<u64> last, Isa isa) {
    points::make_points(shape_of(shape), rows_of(rows), client_root, server_root, places, payloads, corrections, last,
                        isa);
}

void level_sums(const Described &shape, const Numbered &rows, bool server, span<const u64> root,
                span<const u64> corrections, unsigned level, span<u64> sums, Isa isa) {
    points::level_sums(shape_of(shape), {rows_of(rows), server, root, corrections, {}}, level, sums, isa);
}

void leaf_sums(const Described &shape, const Numbered &rows, bool server, span<const u64> root,
               span<const u64> corrections, span<u64> sums, span<u64> controls, Isa isa) {
    points::leaf_sums(shape_of(shape), {rows_of(rows), server, root, corrections, {}}, sums, controls, isa);
}

void evaluate_lines(const Described &shape, const Numbered &rows, span<const u64> numbers, bool server,
                    span<const u64> root, span<const u64> corrections, span<const u64> last, span<const u64> tables, size_t columns,
                    span<const u64> starts, span<const u64> values, span<const u64> factors, span<u64> out, Isa isa) {
    points::evaluate_lines(shape_of(shape), {{rows.first, rows.second, numbers}, server, root, corrections, last},
                           {tables, columns, starts, values, factors}, out, isa);
}

void evaluate_all(const Described &shape, const Numbered &rows, bool server, span<const u64> root,
                  span<const u64> corrections, span<const u64> last, span<u64> out, Isa isa) {
    points::evaluate_all(shape_of(shape), {rows_of(rows), server, root, corrections, last}, out, isa);
}

} // namespace

void bind_points(nb::module_ &m) {
    m.def("make_points", &make_points, Release());
    m.def("point_level_sums", &level_sums, Release());
    m.def("point_leaf_sums", &leaf_sums, Release());
    m.def("evaluate_lines", &evaluate_lines, Release());
    m.def("evaluate_points", &evaluate_all, Release());
}

} // namespace comet
