// Softmax and cross-entropy. The largest value is taken off before anything is exponentiated, and sums are in double
// precision, so that large logits lose nothing.
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

inline float largest_of(const float* x, Index count) {
  float largest = x[0];
  for (Index i = 1; i < count; ++i) largest = x[i] > largest || x[i] != x[i] ? x[i] : largest;
  return largest;
}

// log(sum exp(x - largest))
inline double log_sum_exp(const float* x, Index count, float largest) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) sum += expf(x[i] - largest);
  return log(sum);
}

void softmax_forward(const float* x, float* y, Index rows, Index classes, bool logarithm) {
#pragma omp parallel for schedule(static) if (rows * classes > kParallelWork / 16)
  for (Index row = 0; row < rows; ++row) {
    const float* in = x + row * classes;
    float* out = y + row * classes;
    const float largest = largest_of(in, classes);
    const double log_sum = log_sum_exp(in, classes, largest);
    for (Index k = 0; k < classes; ++k) {
      const double value = double(in[k]) - largest - log_sum;
      out[k] = float(logarithm ? value : exp(value));
    }
  }
}

void softmax_backward(const float* y, const float* y_grad, float* x_grad, Index rows, Index classes, bool logarithm) {
  for (Index row = 0; row < rows; ++row) {
    const Index first = row * classes;
    double sum = 0;
    for (Index i = first; i < first + classes; ++i) sum += logarithm ? y_grad[i] : double(y_grad[i]) * y[i];
    for (Index i = first; i < first + classes; ++i) {
      x_grad[i] = float(logarithm ? y_grad[i] - exp(double(y[i])) * sum : y[i] * (y_grad[i] - sum));
    }
  }
}

// The share of class k in the target of a row, after label smoothing (Szegedy et al. 2016).
inline double target_of(const Targets& targets, Index row, Index k, Index classes, float smoothing) {
  const double share = targets.labels ? double(targets.labels[row] == k) : targets.probabilities[row * classes + k];
  return (1 - double(smoothing)) * share + double(smoothing) / double(classes);
}

void cross_entropy_forward(const float* logits, Targets targets, float smoothing, Index rows, Index classes,
                           float* loss) {
  double sum = 0;
  for (Index row = 0; row < rows; ++row) {
    const float* x = logits + row * classes;
    const float largest = largest_of(x, classes);
    const double log_sum = log_sum_exp(x, classes, largest);
    for (Index k = 0; k < classes; ++k) {
      const double share = target_of(targets, row, k, classes, smoothing);
      if (share != 0) sum += share * (log_sum - (double(x[k]) - largest));  // 0 * infinity would be NaN
    }
  }
  *loss = float(sum / double(rows));
}

void cross_entropy_backward(const float* logits, Targets targets, float smoothing, Index rows, Index classes,
                            const float* loss_grad, float* logits_grad) {
  const double scale = double(*loss_grad) / double(rows);
  for (Index row = 0; row < rows; ++row) {
    const float* x = logits + row * classes;
    const float largest = largest_of(x, classes);
    const double log_sum = log_sum_exp(x, classes, largest);
    double total = 0;
    for (Index k = 0; k < classes; ++k) total += target_of(targets, row, k, classes, smoothing);
    for (Index k = 0; k < classes; ++k) {
      const double probability = exp(double(x[k]) - largest - log_sum);
      const double target = target_of(targets, row, k, classes, smoothing);
      logits_grad[row * classes + k] = float(scale * (probability * total - target));
    }
  }
}

}  // namespace
}  // namespace mytensor
