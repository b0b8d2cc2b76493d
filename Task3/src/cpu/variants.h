// The CPU back end's variants, one for each instruction set, and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "../operators.h"

namespace mytensor {

// The table in use: at first the fastest that this processor can run.
const Operators& cpu_operators();
// Names of those that this processor can run, fastest first: "avx512", "avx2", "baseline", "reference".
std::vector<std::string> cpu_variants();
// Throws std::invalid_argument for a name that is not among them.
void set_cpu_variant(const std::string& name);

void enable_winograd(bool enabled);

}  // namespace mytensor
