// One update of a parameter, all of it in one pass over memory. The gradient itself is not changed.
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

// Momentum as PyTorch has it: v = momentum * v + g, p -= rate * v; Nesterov's p -= rate * (g + momentum * v).
void sgd(float* parameter, const float* gradient, float* momentum_buffer, Index count, float rate, float momentum,
         float weight_decay, bool nesterov) {
#pragma omp parallel for simd schedule(static) if (count > kParallelWork)
  for (Index i = 0; i < count; ++i) {
    float step = gradient[i] + weight_decay * parameter[i];
    if (momentum_buffer) {
      const float velocity = momentum * momentum_buffer[i] + step;
      momentum_buffer[i] = velocity;
      step = nesterov ? step + momentum * velocity : velocity;
    }
    parameter[i] -= rate * step;
  }
}

// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019).
void adam(float* parameter, const float* gradient, float* first, float* second, Index count, AdamSettings s) {
  const float shrink = s.decoupled ? 1 - s.rate * s.weight_decay : 1;
  const float penalty = s.decoupled ? 0 : s.weight_decay;
  const float rate = s.rate / s.correction1, root = sqrtf(s.correction2);
#pragma omp parallel for simd schedule(static) if (count > kParallelWork)
  for (Index i = 0; i < count; ++i) {
    const float g = gradient[i] + penalty * parameter[i];
    first[i] += s.share1 * (g - first[i]);
    second[i] = s.beta2 * second[i] + s.share2 * g * g;
    parameter[i] = parameter[i] * shrink - rate * first[i] / (sqrtf(second[i]) / root + s.epsilon);
  }
}

}  // namespace
}  // namespace mytensor
