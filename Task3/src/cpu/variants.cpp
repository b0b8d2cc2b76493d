#include "variants.h"

#include <atomic>
#include <stdexcept>

#include "settings.h"

namespace mytensor {

extern const Operators operators_baseline;
extern const Operators operators_reference;
#ifdef HAVE_X86_VARIANTS
extern const Operators operators_avx2;
extern const Operators operators_avx512;
#endif

namespace {

std::vector<const Operators*> usable() {
  std::vector<const Operators*> tables;
#ifdef HAVE_X86_VARIANTS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    tables.push_back(&operators_avx512);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&operators_avx2);
#endif
  tables.push_back(&operators_baseline);
  tables.push_back(&operators_reference);
  return tables;
}

std::atomic<bool> winograd{true};

const Operators*& chosen() {
  static const Operators* table = usable().front();
  return table;
}

}  // namespace

bool winograd_enabled() { return winograd; }
void enable_winograd(bool enabled) { winograd = enabled; }

const Operators& cpu_operators() { return *chosen(); }

std::vector<std::string> cpu_variants() {
  std::vector<std::string> names;
  for (const Operators* table : usable()) names.emplace_back(table->name);
  return names;
}

void set_cpu_variant(const std::string& name) {
  for (const Operators* table : usable()) {
    if (name == table->name) {
      chosen() = table;
      return;
    }
  }
  std::string names;
  for (const std::string& usable_name : cpu_variants()) names += " " + usable_name;
  throw std::invalid_argument("this processor has no variant '" + name + "'; it has:" + names);
}

}  // namespace mytensor
