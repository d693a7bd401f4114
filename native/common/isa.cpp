#include "common/isa.hpp"

#include <stdexcept>

namespace comet {

namespace {

struct Set {
    Isa isa;
    const char *name;
};
constexpr std::array sets{Set{Isa::portable, "portable"}, Set{Isa::avx2, "avx2"}, Set{Isa::aesni, "aesni"},
                          Set{Isa::vaes, "vaes"}, Set{Isa::avx512, "avx512"}};

Isa find_best() {
#if COMET_X86
    if (!__builtin_cpu_supports("avx2")) return Isa::portable;
    if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("pclmul")) return Isa::avx2;
    if (!__builtin_cpu_supports("vaes")) return Isa::aesni;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vbmi");
    return wide ? Isa::avx512 : Isa::vaes;
#else
    return Isa::portable;
#endif
}

Isa best() {
    static const Isa found = find_best();
    return found;
}

} // namespace

Isa isa_from_name(std::string_view name) {
    if (name.empty()) return best();
    for (const Set &set : sets)
        if (name == set.name && set.isa <= best()) return set.isa;
    throw std::invalid_argument("unknown or unavailable instruction set: " + std::string(name));
}

std::vector<std::string> available_names(std::initializer_list<Isa> wanted) {
    std::vector<std::string> names;
    for (const Isa isa : wanted)
        if (isa <= best()) names.emplace_back(sets[static_cast<std::size_t>(isa)].name);
    return names;
}

} // namespace comet
