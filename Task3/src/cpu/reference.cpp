// The kernels as their formulas read, one loop an axis, sums in double precision: what the tests compare the fast ones
// with. Selected with mytensor.set_cpu_variant("reference").
#include <vector>

#include "../operators.h"

namespace mytensor {

extern const Operators operators_baseline, operators_reference;

namespace {

Index at(const Axes& strides, Index n, Index c, Index y, Index x) {
  return n * strides[0] + c * strides[1] + y * strides[2] + x * strides[3];
}

Axes batch_last(Index batch, Index height, Index width) { return {{1, height * width * batch, width * batch, batch}}; }

Axes channels_last(Index channels, Index height, Index width) {
  return {{height * width * channels, 1, width * channels, channels}};
}

bool inside(Index position, Index size) { return position >= 0 && position < size; }

// Calls use(n, oy, ox, iy, ix, ky, kx) for every tap of every window that lies in its picture.
template <typename Use>
void visit(const Window& w, const Use& use) {
  for (Index n = 0; n < w.batch; ++n)
    for (Index oy = 0; oy < w.out_height; ++oy)
      for (Index ox = 0; ox < w.out_width; ++ox)
        for (Index ky = 0; ky < w.kernel_h; ++ky)
          for (Index kx = 0; kx < w.kernel_w; ++kx) {
            const Index iy = oy * w.stride_h + ky - w.pad_h, ix = ox * w.stride_w + kx - w.pad_w;
            if (inside(iy, w.height) && inside(ix, w.width)) use(n, oy, ox, iy, ix, ky, kx);
          }
}

// out[i][j] = sum over l of a[i][l] b[l][j]
void matmul(const float* a, const float* b, float* out, Index m, Index n, Index k, bool transpose_b) {
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double sum = 0;
      for (Index l = 0; l < k; ++l) sum += double(a[i * k + l]) * (transpose_b ? b[j * k + l] : b[l * n + j]);
      out[i * n + j] = float(sum);
    }
}

void linear_forward(const float* x, const float* weight, const float* bias, float* y, Index n, Index in, Index out) {
  matmul(x, weight, y, n, out, in, true);
  for (Index i = 0; bias && i < n * out; ++i) y[i] += bias[i % out];
}

void linear_backward(const float* x, const float* weight, const float* y_grad, float* x_grad, float* weight_grad,
                     float* bias_grad, Index n, Index in, Index out) {
  if (x_grad) matmul(y_grad, weight, x_grad, n, in, out, false);
  for (Index j = 0; j < out; ++j) {
    double bias_sum = 0;
    for (Index i = 0; i < n; ++i) bias_sum += y_grad[i * out + j];
    if (bias_grad) bias_grad[j] = float(bias_sum);
    for (Index l = 0; weight_grad && l < in; ++l) {
      double sum = 0;
      for (Index i = 0; i < n; ++i) sum += double(y_grad[i * out + j]) * x[i * in + l];
      weight_grad[j * in + l] = float(sum);
    }
  }
}

// y[n, k, oy, ox] = bias[k] + sum over c, ky, kx of x[n, c, oy * stride + ky - pad, ...] weight[k, c, ky, kx]
void convolve(const Window& w, const float* x, Axes x_strides, const float* weight, const float* bias, float* y,
              Axes y_strides) {
  std::vector<double> sums(w.out_pixels() * w.out_channels);
  for (Index n = 0; n < w.batch; ++n)
    for (Index k = 0; k < w.out_channels; ++k)
      for (Index oy = 0; oy < w.out_height; ++oy)
        for (Index ox = 0; ox < w.out_width; ++ox) sums[at(y_strides, n, k, oy, ox)] = bias ? bias[k] : 0;
  const Axes weight_strides = {{w.channels * w.taps(), w.taps(), w.kernel_w, 1}};
  visit(w, [&](Index n, Index oy, Index ox, Index iy, Index ix, Index ky, Index kx) {
    for (Index k = 0; k < w.out_channels; ++k)
      for (Index c = 0; c < w.channels; ++c)
        sums[at(y_strides, n, k, oy, ox)] +=
            double(x[at(x_strides, n, c, iy, ix)]) * weight[at(weight_strides, k, c, ky, kx)];
  });
  for (std::size_t i = 0; i < sums.size(); ++i) y[i] = float(sums[i]);
}

void convolve_back(const Window& w, const float* x, Axes x_strides, const float* weight, const float* y_grad,
                   Axes y_strides, float* x_grad, Axes grad_strides, float* weight_grad, float* bias_grad) {
  const Axes weight_strides = {{w.channels * w.taps(), w.taps(), w.kernel_w, 1}};
  std::vector<double> x_sums(x_grad ? w.pixels() * w.channels : 0);
  std::vector<double> weight_sums(weight_grad ? w.out_channels * w.channels * w.taps() : 0);
  for (Index k = 0; bias_grad && k < w.out_channels; ++k) {
    double sum = 0;
    for (Index n = 0; n < w.batch; ++n)
      for (Index oy = 0; oy < w.out_height; ++oy)
        for (Index ox = 0; ox < w.out_width; ++ox) sum += y_grad[at(y_strides, n, k, oy, ox)];
    bias_grad[k] = float(sum);
  }
  visit(w, [&](Index n, Index oy, Index ox, Index iy, Index ix, Index ky, Index kx) {
    for (Index k = 0; k < w.out_channels; ++k) {
      const double gradient = y_grad[at(y_strides, n, k, oy, ox)];
      for (Index c = 0; c < w.channels; ++c) {
        const Index tap = at(weight_strides, k, c, ky, kx);
        if (x_grad) x_sums[at(grad_strides, n, c, iy, ix)] += gradient * weight[tap];
        if (weight_grad) weight_sums[tap] += gradient * x[at(x_strides, n, c, iy, ix)];
      }
    }
  });
  for (std::size_t i = 0; i < x_sums.size(); ++i) x_grad[i] = float(x_sums[i]);
  for (std::size_t i = 0; i < weight_sums.size(); ++i) weight_grad[i] = float(weight_sums[i]);
}

void conv_forward(const Window& w, const float* x, Axes x_strides, const float* weight, const float* bias, float* y) {
  convolve(w, x, x_strides, weight, bias, y, channels_last(w.out_channels, w.out_height, w.out_width));
}

void conv_backward(const Window& w, const float* x, Axes x_strides, const float* weight, const float* y_grad,
                   float* x_grad, float* weight_grad, float* bias_grad) {
  convolve_back(w, x, x_strides, weight, y_grad, channels_last(w.out_channels, w.out_height, w.out_width), x_grad,
                channels_last(w.channels, w.height, w.width), weight_grad, bias_grad);
}

void narrow_conv_forward(const Window& w, const float* x, const float* weight, const float* bias, float* y) {
  convolve(w, x, batch_last(w.batch, w.height, w.width), weight, bias, y,
           batch_last(w.batch, w.out_height, w.out_width));
}

void narrow_conv_backward(const Window& w, const float* x, const float* weight, const float* y_grad, float* x_grad,
                          float* weight_grad, float* bias_grad) {
  const Axes strides = batch_last(w.batch, w.height, w.width);
  convolve_back(w, x, strides, weight, y_grad, batch_last(w.batch, w.out_height, w.out_width), x_grad, strides,
                weight_grad, bias_grad);
}

void batch_norm_statistics(const float* x, Index rows, Index channels, float* mean, float* variance) {
  for (Index c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (Index row = 0; row < rows; ++row) sum += x[row * channels + c];
    const double average = sum / double(rows);
    for (Index row = 0; row < rows; ++row) {
      const double difference = x[row * channels + c] - average;
      squares += difference * difference;
    }
    mean[c] = float(average);
    variance[c] = float(squares / double(rows));
  }
}

}  // namespace

// What is not listed is one line already where it stands.
const Operators operators_reference = [] {
  Operators table = operators_baseline;
  table.name = "reference";
  table.matmul = matmul;
  table.linear_forward = linear_forward;
  table.linear_backward = linear_backward;
  table.conv_forward = conv_forward;
  table.conv_backward = conv_backward;
  table.narrow_conv_forward = narrow_conv_forward;
  table.narrow_conv_backward = narrow_conv_backward;
  table.batch_norm_statistics = batch_norm_statistics;
  return table;
}();

}  // namespace mytensor
