#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.hpp"

NB_MODULE(_native, m) {
    m.def("isa_names", &comet::isa_names);
}
