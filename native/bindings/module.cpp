#include "bindings/arguments.hpp"

NB_MODULE(_native, m) {
    nanobind::set_leak_warnings(false); // caches of the Python side live until the interpreter is gone
    comet::bind_ring(m);
    comet::bind_ot(m);
    comet::bind_points(m);
    comet::bind_rlwe(m);
}
