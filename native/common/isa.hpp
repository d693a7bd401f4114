#pragma once

// Instruction sets, chosen at run time. A kernel is compiled once for each set that helps it; a `Dispatch` picks.

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

// Functions marked so are compiled for these instructions and must only be called through a `Dispatch`.
#if defined(__x86_64__)
#define COMET_X86 1
#define COMET_AVX2 __attribute__((target("avx2")))
#define COMET_AES __attribute__((target("avx2,aes")))
#define COMET_CLMUL __attribute__((target("avx2,pclmul")))
#define COMET_VAES __attribute__((target("avx2,aes,vaes")))
#define COMET_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512ifma,avx512vbmi")))
#else
#define COMET_X86 0
#define COMET_AVX2
#endif

// One body, compiled once for each instruction set: it must be inlined into its callers.
#define COMET_INLINE inline __attribute__((always_inline))

namespace comet {

/// Each has all that those before it have.
enum class Isa { portable, avx2, aesni, vaes, avx512 };

/// The instruction set called `name`; an empty name means the best one. Throws std::invalid_argument for one that is
/// unknown or that this machine lacks.
Isa isa_from_name(std::string_view name);

/// The names of those that this machine can run, in the given order.
std::vector<std::string> available_names(std::initializer_list<Isa> sets);

/// A function, or a structure of functions, compiled for an instruction set.
template <class Kernels> struct Variant {
    Isa isa;
    Kernels kernels;
};
template <class Kernels> Variant(Isa, Kernels) -> Variant<Kernels>;

/// Variants of the same kernels, the portable one first, better ones later.
template <class Kernels, std::size_t count> class Dispatch {
public:
    template <class... Rest>
    constexpr explicit Dispatch(Variant<Kernels> portable, Rest... better) : variants_{portable, better...} {}

    /// What `isa` runs: the last variant that asks for no more.
    constexpr const Kernels &operator[](Isa isa) const {
        std::size_t i = count - 1;
        while (variants_[i].isa > isa) --i;
        return variants_[i].kernels;
    }

private:
    std::array<Variant<Kernels>, count> variants_;
};
template <class Kernels, class... Rest> Dispatch(Variant<Kernels>, Rest...) -> Dispatch<Kernels, 1 + sizeof...(Rest)>;

} // namespace comet
