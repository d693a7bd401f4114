#pragma once

// Arguments of bound functions: flat contiguous arrays come as spans, names of instruction sets as `Isa`. The Python
// side checks shapes and allocates the results; sizes are not checked here.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/isa.hpp"
#include "common/types.hpp"

namespace comet {

namespace nb = nanobind;
using Release = nb::call_guard<nb::gil_scoped_release>;

template <class T> using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The arrays of a list, which must outlive the result. Lists have no caster of their own: a span does not keep its
/// array alive.
template <class T> std::vector<span<T>> spans(const std::vector<Array<T>> &arrays) {
    std::vector<span<T>> out;
    for (const Array<T> &array : arrays) out.emplace_back(array.data(), array.size());
    return out;
}

void bind_ring(nb::module_ &m);
void bind_ot(nb::module_ &m);
void bind_points(nb::module_ &m);
void bind_rlwe(nb::module_ &m);

} // namespace comet

namespace nanobind::detail {

/// An array of exactly this type: a converted copy would swallow what is written to it.
template <class T> struct type_caster<std::span<T>> {
    using Caster = make_caster<comet::Array<T>>;
    NB_TYPE_CASTER(std::span<T>, Caster::Name)

    bool from_python(handle source, uint8_t flags, cleanup_list *cleanup) noexcept {
        const auto exact = static_cast<uint8_t>(flags & ~static_cast<uint8_t>(cast_flags::convert));
        if (!array_.from_python(source, exact, cleanup)) return false;
        value = std::span<T>(array_.value.data(), array_.value.size());
        return true;
    }

private:
    Caster array_; // holds the array during the call
};

template <> struct type_caster<comet::Isa> {
    NB_TYPE_CASTER(comet::Isa, const_name("str"))

    bool from_python(handle source, uint8_t flags, cleanup_list *cleanup) {
        make_caster<std::string> name;
        if (!name.from_python(source, flags, cleanup)) return false;
        value = comet::isa_from_name(name.value);
        return true;
    }
};

} // namespace nanobind::detail
