// As many floats as a register of this variant holds, and what the kernels share. Included by variant.cpp alone: all of
// it lies in an unnamed namespace and calls nothing inline of the standard library, so that no function that was
// compiled for AVX can stand in for one of the same name elsewhere.
#pragma once

#include <cmath>
#include <cstring>

#include "../operators.h"
#include "scratch.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace mytensor {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // 24 accumulators, 2 vectors of the panel and 1 broadcast fit into 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 12 + 2 + 1 of 16 registers
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 6;
#endif

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef float UnalignedVector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

typedef std::int32_t Places __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

inline Vector load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<UnalignedVector*>(to) = value; }

// Loads `lanes` values, and zeros for the rest of the vector.
inline Vector load_part(const float* from, Index lanes) {
  if (lanes == kLanes) return load(from);
  Vector value = {};
  std::memcpy(&value, from, lanes * sizeof(float));
  return value;
}

inline void store_part(float* to, Vector value, Index lanes) {
  if (lanes == kLanes) {
    store(to, value);
  } else {
    std::memcpy(to, &value, lanes * sizeof(float));
  }
}

inline float sum_of_lanes(Vector value) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += value[lane];
  return sum;
}

inline Index min_of(Index a, Index b) { return a < b ? a : b; }
inline Index max_of(Index a, Index b) { return a > b ? a : b; }
inline Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// Loops shorter than this are not worth waking other threads for.
constexpr Index kParallelWork = 1 << 15;

// Memory of a kernel for the time of its call, from the caching allocator.
struct Scratch {
  float* data;
  explicit Scratch(Index floats) : data(static_cast<float*>(scratch_allocate(floats * sizeof(float)))) {}
  ~Scratch() { scratch_release(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

inline int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

inline int thread_limit() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace
}  // namespace mytensor
