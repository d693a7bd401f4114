#pragma once

#include <string>
#include <vector>

namespace comet {

enum class Isa { portable, avx2 };

/// Instruction sets this machine can run, best last.
std::vector<std::string> isa_names();

/// The instruction set called `name`; an empty name means the best one. Throws std::invalid_argument.
Isa isa_from_name(const std::string &name);

} // namespace comet
