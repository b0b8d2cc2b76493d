// One value in, one value out; two values with broadcasting; and copies that change the order of axes.
//
// The loops do not ask for vectors (`omp simd`): the compilers make them of what can be, and clang would warn of the
// others, those that call expf or powf.
#pragma once

#include <utility>

#include "vector.h"

namespace mytensor {
namespace {

template <typename Function>
void map(const float* x, float* out, Index count, const Function& function) {
#pragma omp parallel for schedule(static) if (count > kParallelWork)
  for (Index i = 0; i < count; ++i) out[i] = function(x[i]);
}

void fill(float* out, Index count, float value) {
#pragma omp parallel for schedule(static) if (count > kParallelWork)
  for (Index i = 0; i < count; ++i) out[i] = value;
}

inline float sigmoid(float x) {  // never the exponential of a large number
  const float e = expf(-fabsf(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

void unary(Unary operation, const float* x, float* out, Index count) {
  switch (operation) {
    case Unary::Neg: return map(x, out, count, [](float v) { return -v; });
    case Unary::Exp: return map(x, out, count, [](float v) { return expf(v); });
    case Unary::Log: return map(x, out, count, [](float v) { return logf(v); });
    case Unary::Sqrt: return map(x, out, count, [](float v) { return sqrtf(v); });
    case Unary::Abs: return map(x, out, count, [](float v) { return fabsf(v); });
    case Unary::Relu: return map(x, out, count, [](float v) { return v < 0 ? 0 : v; });  // NaN stays NaN
    case Unary::Sigmoid: return map(x, out, count, sigmoid);
    case Unary::Tanh: return map(x, out, count, [](float v) { return tanhf(v); });
  }
}

template <typename Function>
void map2(const float* x, const float* y, float* out, Index count, const Function& function) {
#pragma omp parallel for schedule(static) if (count > kParallelWork)
  for (Index i = 0; i < count; ++i) out[i] = function(x[i], y[i]);
}

void derivative(Derivative operation, const float* x, const float* out_grad, float* x_grad, Index count) {
  switch (operation) {
    case Derivative::Relu: return map2(x, out_grad, x_grad, count, [](float v, float g) { return v <= 0 ? 0 : g; });
    case Derivative::Sigmoid:
      return map2(x, out_grad, x_grad, count, [](float y, float g) { return g * y * (1 - y); });
    case Derivative::Tanh: return map2(x, out_grad, x_grad, count, [](float y, float g) { return g * (1 - y * y); });
  }
}

inline bool dense(const Axes& strides, const Axes& sizes) {
  Index expected = 1;
  for (int axis = 3; axis >= 0; --axis) {
    if (sizes[axis] != 1 && strides[axis] != expected) return false;
    expected *= sizes[axis];
  }
  return true;
}

inline bool single(const Axes& strides, const Axes& sizes) {
  for (int axis = 0; axis < 4; ++axis) {
    if (sizes[axis] != 1 && strides[axis] != 0) return false;
  }
  return true;
}

template <typename Function>
void broadcast(const float* a, Axes as, const float* b, Axes bs, float* out, Axes sizes, const Function& function) {
  const Index count = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  const bool dense_a = dense(as, sizes), dense_b = dense(bs, sizes);
  if (dense_a && dense_b) return map2(a, b, out, count, function);
  if (dense_a && single(bs, sizes)) return map(a, out, count, [=](float v) { return function(v, *b); });
  if (dense_b && single(as, sizes)) return map(b, out, count, [=](float v) { return function(*a, v); });
  const Index outer = sizes[0] * sizes[1] * sizes[2];
#pragma omp parallel for schedule(static) if (count > kParallelWork)
  for (Index i = 0; i < outer; ++i) {
    const Index i0 = i / sizes[2] / sizes[1], i1 = i / sizes[2] % sizes[1], i2 = i % sizes[2];
    const float* from_a = a + i0 * as[0] + i1 * as[1] + i2 * as[2];
    const float* from_b = b + i0 * bs[0] + i1 * bs[1] + i2 * bs[2];
    for (Index j = 0; j < sizes[3]; ++j) out[i * sizes[3] + j] = function(from_a[j * as[3]], from_b[j * bs[3]]);
  }
}

void binary(Binary operation, const float* a, Axes as, const float* b, Axes bs, float* out, Axes sizes) {
  const auto apply = [&](const auto& function) { broadcast(a, as, b, bs, out, sizes, function); };
  switch (operation) {
    case Binary::Add: return apply([](float x, float y) { return x + y; });
    case Binary::Sub: return apply([](float x, float y) { return x - y; });
    case Binary::Mul: return apply([](float x, float y) { return x * y; });
    case Binary::Div: return apply([](float x, float y) { return x / y; });
    case Binary::Pow: return apply([](float x, float y) { return powf(x, y); });
    case Binary::Maximum: return apply([](float x, float y) { return x > y || x != x ? x : y; });  // NaN wins
    case Binary::Minimum: return apply([](float x, float y) { return x < y || x != x ? x : y; });
    case Binary::Equal: return apply([](float x, float y) { return x == y ? 1.0f : 0.0f; });
    case Binary::Greater: return apply([](float x, float y) { return x > y ? 1.0f : 0.0f; });
    case Binary::GreaterEqual: return apply([](float x, float y) { return x >= y ? 1.0f : 0.0f; });
  }
}

// Joins axes that lie evenly one after the other, so that they are walked as one; those that are left come last.
inline void join_axes(Axes& sizes, Axes& strides) {
  Axes joined = {{1, 1, 1, 1}}, joined_strides = {{0, 0, 0, 0}};
  int place = 4;
  for (int axis = 3; axis >= 0; --axis) {
    if (sizes[axis] == 1) continue;
    if (place < 4 && strides[axis] == joined_strides[place] * joined[place]) {
      joined[place] *= sizes[axis];
    } else {
      --place;
      joined[place] = sizes[axis];
      joined_strides[place] = strides[axis];
    }
  }
  sizes = joined;
  strides = joined_strides;
}

// Lane l of the result is lane l of a, or, where bit kStep of l is set, lane l - kStep of b.
template <int kStep, int... kLane>
Vector lower_half(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane - kStep : kLane)...);
#else
  return __builtin_shuffle(a, b, Places{(kLane & kStep ? kLanes + kLane - kStep : kLane)...});
#endif
}

// Lane l of the result is lane l of b, or, where bit kStep of l is not set, lane l + kStep of a.
template <int kStep, int... kLane>
Vector upper_half(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane : kLane + kStep)...);
#else
  return __builtin_shuffle(a, b, Places{(kLane & kStep ? kLanes + kLane : kLane + kStep)...});
#endif
}

// rows[i][j] = rows[j][i]: blocks of kStep x kStep off the diagonal are exchanged, then those within them (Eklundh
// 1972, "A Fast Computer Method for Matrix Transposing").
template <int kStep = kLanes / 2>
void transpose_lanes(Vector (&rows)[kLanes]) {
  constexpr std::make_integer_sequence<int, kLanes> lanes;
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Vector a = rows[i], b = rows[i + kStep];
    rows[i] = lower_half<kStep>(a, b, lanes);
    rows[i + kStep] = upper_half<kStep>(a, b, lanes);
  }
  if constexpr (kStep > 1) transpose_lanes<kStep / 2>(rows);
}

// A copy in which another axis than the last lies together in `x`: square tiles, which stay in the first-level cache.
inline void transpose_tiles(const float* x, Axes strides, float* out, Axes sizes, int together) {
  constexpr Index kTile = kLanes;
  const Axes out_strides = {{sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}};
  const int others[2] = {together == 0 ? 1 : 0, together == 2 ? 1 : 2};
  const Index tiles = ceil_div(sizes[together], kTile), inner = sizes[others[1]];
#pragma omp parallel for schedule(static) if (sizes[0] * out_strides[0] > kParallelWork)
  for (Index task = 0; task < sizes[others[0]] * inner * tiles; ++task) {
    const Index first = task % tiles * kTile, last = min_of(first + kTile, sizes[together]);
    const Index a = task / tiles / inner, b = task / tiles % inner;
    const float* from = x + a * strides[others[0]] + b * strides[others[1]];
    float* to = out + a * out_strides[others[0]] + b * out_strides[others[1]];
    for (Index left = 0; left < sizes[3]; left += kTile) {
      const Index right = min_of(left + kTile, sizes[3]);
      if (last - first == kTile && right - left == kTile) {
        Vector rows[kLanes];
        for (Index j = 0; j < kTile; ++j) rows[j] = load(from + first + (left + j) * strides[3]);
        transpose_lanes(rows);
        for (Index i = 0; i < kTile; ++i) store(to + (first + i) * out_strides[together] + left, rows[i]);
        continue;
      }
      for (Index i = first; i < last; ++i) {
        for (Index j = left; j < right; ++j) to[i * out_strides[together] + j] = from[i + j * strides[3]];
      }
    }
  }
}

void copy(const float* x, Axes strides, float* out, Axes sizes) {
  join_axes(sizes, strides);
  const Index outer = sizes[0] * sizes[1] * sizes[2];
  if (dense(strides, sizes)) {
    std::memcpy(out, x, outer * sizes[3] * sizeof(float));
    return;
  }
  for (int axis = 2; axis >= 0 && strides[3] != 1; --axis) {
    if (sizes[axis] > 1 && strides[axis] == 1) return transpose_tiles(x, strides, out, sizes, axis);
  }
#pragma omp parallel for schedule(static) if (outer * sizes[3] > kParallelWork)
  for (Index i = 0; i < outer; ++i) {
    const Index i0 = i / sizes[2] / sizes[1], i1 = i / sizes[2] % sizes[1], i2 = i % sizes[2];
    const float* from = x + i0 * strides[0] + i1 * strides[1] + i2 * strides[2];
    for (Index j = 0; j < sizes[3]; ++j) out[i * sizes[3] + j] = from[j * strides[3]];
  }
}

// Sums run in double precision, position by position, so that neither their order nor their length costs accuracy.
void reduce(Reduction operation, const float* x, Axes sizes, Axes strides, Axes reduced, Axes reduced_strides,
            float* out) {
  const Index count = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  [[maybe_unused]] const Index length = reduced[0] * reduced[1] * reduced[2] * reduced[3];
#pragma omp parallel for schedule(static) if (count > 1 && count * length > kParallelWork)
  for (Index i = 0; i < count; ++i) {
    const Index i3 = i % sizes[3], i2 = i / sizes[3] % sizes[2], i1 = i / sizes[3] / sizes[2] % sizes[1];
    const Index i0 = i / sizes[3] / sizes[2] / sizes[1];
    const float* from = x + i0 * strides[0] + i1 * strides[1] + i2 * strides[2] + i3 * strides[3];
    double sum = 0;
    float largest = *from;
    for (Index j0 = 0; j0 < reduced[0]; ++j0) {
      for (Index j1 = 0; j1 < reduced[1]; ++j1) {
        for (Index j2 = 0; j2 < reduced[2]; ++j2) {
          const float* run = from + j0 * reduced_strides[0] + j1 * reduced_strides[1] + j2 * reduced_strides[2];
          for (Index j3 = 0; j3 < reduced[3]; ++j3) {
            const float value = run[j3 * reduced_strides[3]];
            sum += value;
            largest = value > largest || value != value ? value : largest;
          }
        }
      }
    }
    out[i] = operation == Reduction::Sum ? float(sum) : largest;
  }
}

}  // namespace
}  // namespace mytensor
