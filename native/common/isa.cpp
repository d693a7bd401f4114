#include "common/isa.hpp"

#include <stdexcept>

namespace comet {

namespace {

bool has_avx2() {
#if defined(__x86_64__)
    static const bool found = __builtin_cpu_supports("avx2");
    return found;
#else
    return false;
#endif
}

} // namespace

std::vector<std::string> isa_names() {
    std::vector<std::string> names{"portable"};
    if (has_avx2()) names.emplace_back("avx2");
    return names;
}

Isa isa_from_name(const std::string &name) {
    if (name.empty()) return has_avx2() ? Isa::avx2 : Isa::portable;
    if (name == "portable") return Isa::portable;
    if (name == "avx2" && has_avx2()) return Isa::avx2;
    throw std::invalid_argument("unknown or unavailable instruction set: " + name);
}

} // namespace comet
