// Batch normalisation (Ioffe & Szegedy 2015) of rows of channels.
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

// Rows are cut into this many shares whatever the number of threads, so that the sums have one order.
constexpr Index kShares = 64;

// Mean and biased variance of each channel. Each share takes its own mean first and the squares about that, then the
// shares are combined in double precision (Chan, Golub & LeVeque 1979): no difference of two large squares is taken.
void batch_norm_statistics(const float* x, Index rows, Index channels, float* mean, float* variance) {
  const Index shares = min_of(kShares, rows);
  Scratch scratch(2 * shares * channels);
  float *sums = scratch.data, *squares = scratch.data + shares * channels;
#pragma omp parallel for schedule(static) if (rows * channels > kParallelWork)
  for (Index share = 0; share < shares; ++share) {
    const Index begin = share * rows / shares, end = (share + 1) * rows / shares;
    float* sum = sums + share * channels;
    float* square = squares + share * channels;
    std::memset(sum, 0, channels * sizeof(float));
    std::memset(square, 0, channels * sizeof(float));
    // The sums are taken about the share's first row, so that a large common offset costs no digits.
    const float* origin = x + begin * channels;
    for (Index row = begin; row < end; ++row) {
#pragma omp simd
      for (Index c = 0; c < channels; ++c) sum[c] += x[row * channels + c] - origin[c];
    }
    const float scale = 1 / float(end - begin);
    for (Index c = 0; c < channels; ++c) sum[c] = origin[c] + sum[c] * scale;  // the share's mean
    for (Index row = begin; row < end; ++row) {
#pragma omp simd
      for (Index c = 0; c < channels; ++c) {
        const float difference = x[row * channels + c] - sum[c];
        square[c] += difference * difference;
      }
    }
  }
  for (Index c = 0; c < channels; ++c) {
    double total_mean = 0, total_squares = 0, count = 0;
    for (Index share = 0; share < shares; ++share) {
      const double size = double((share + 1) * rows / shares - share * rows / shares);
      const double difference = sums[share * channels + c] - total_mean;
      total_squares += squares[share * channels + c] + difference * difference * count * size / (count + size);
      total_mean += difference * size / (count + size);
      count += size;
    }
    mean[c] = float(total_mean);
    variance[c] = float(total_squares / count);
  }
}

void batch_norm_apply(const float* x, Index rows, Index channels, const float* mean, const float* rstd,
                      const float* weight, const float* bias, float* y) {
  Scratch scales(channels);
  for (Index c = 0; c < channels; ++c) scales.data[c] = rstd[c] * weight[c];
  const float* scale = scales.data;
#pragma omp parallel for schedule(static) if (rows * channels > kParallelWork)
  for (Index row = 0; row < rows; ++row) {
#pragma omp simd
    for (Index c = 0; c < channels; ++c) {
      y[row * channels + c] = (x[row * channels + c] - mean[c]) * scale[c] + bias[c];
    }
  }
}

void batch_norm_backward(const float* x, const float* y_grad, Index rows, Index channels, const float* mean,
                         const float* rstd, const float* weight, bool through_statistics, float* x_grad,
                         float* weight_grad, float* bias_grad) {
  const Index shares = min_of(kShares, rows);
  Scratch scratch((2 * shares + 2) * channels);
  float *products = scratch.data, *sums = products + shares * channels;
#pragma omp parallel for schedule(static) if (rows * channels > kParallelWork)
  for (Index share = 0; share < shares; ++share) {
    float* product = products + share * channels;
    float* sum = sums + share * channels;
    std::memset(product, 0, channels * sizeof(float));
    std::memset(sum, 0, channels * sizeof(float));
    for (Index row = share * rows / shares; row < (share + 1) * rows / shares; ++row) {
#pragma omp simd
      for (Index c = 0; c < channels; ++c) {
        const float gradient = y_grad[row * channels + c];
        product[c] += gradient * (x[row * channels + c] - mean[c]);
        sum[c] += gradient;
      }
    }
  }
  float *along = sums + shares * channels, *constant = along + channels;  // parts of the gradient that do not reach x
  for (Index c = 0; c < channels; ++c) {
    double product = 0, sum = 0;
    for (Index share = 0; share < shares; ++share) {
      product += products[share * channels + c];
      sum += sums[share * channels + c];
    }
    weight_grad[c] = float(product * rstd[c]);
    bias_grad[c] = float(sum);
    along[c] = through_statistics ? float(product * rstd[c] * rstd[c] / double(rows)) : 0;
    constant[c] = through_statistics ? float(sum / double(rows)) : 0;
  }
#pragma omp parallel for schedule(static) if (rows * channels > kParallelWork)
  for (Index row = 0; row < rows; ++row) {
#pragma omp simd
    for (Index c = 0; c < channels; ++c) {
      const Index i = row * channels + c;
      x_grad[i] = weight[c] * rstd[c] * (y_grad[i] - constant[c] - (x[i] - mean[c]) * along[c]);
    }
  }
}

}  // namespace
}  // namespace mytensor
