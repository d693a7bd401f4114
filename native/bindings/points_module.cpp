// Bindings of distributed point functions, for comet_mpc/engine/tables.py.

#include "bindings/arguments.hpp"
#include "points/tree.hpp"

namespace comet {

namespace {

void make_points(unsigned index_bits, unsigned early, unsigned words, span<const u64> client_roots,
                 span<const u64> server_roots, span<const u64> places, span<const u64> payloads, span<u64> corrections,
                 span<u64> last, Isa isa) {
    points::make_points({index_bits, early, words}, client_roots, server_roots, places, payloads, corrections, last,
                        isa);
}

void evaluate_lines(unsigned index_bits, unsigned early, unsigned words, bool server, span<const u64> roots,
                    span<const u64> corrections, span<const u64> last, span<const u64> tables, size_t columns,
                    span<const u64> starts, span<const u64> values, span<const u64> factors, span<u64> out, Isa isa) {
    points::evaluate_lines({index_bits, early, words}, server, roots, corrections, last,
                           {tables, columns, starts, values, factors}, out, isa);
}

void evaluate_all(unsigned index_bits, unsigned early, unsigned words, bool server, span<const u64> roots,
                  span<const u64> corrections, span<const u64> last, span<u64> out, Isa isa) {
    points::evaluate_all({index_bits, early, words}, server, roots, corrections, last, out, isa);
}

} // namespace

void bind_points(nb::module_ &m) {
    m.def("make_points", &make_points, Release());
    m.def("evaluate_lines", &evaluate_lines, Release());
    m.def("evaluate_points", &evaluate_all, Release());
}

} // namespace comet
