// What a back end can do: one table of functions that take sizes and raw memory and know nothing of tensors.
//
// Pictures lie channels-last here, (N, H, W, C) in memory, or batch-last, (C, H, W, N), whatever order of axes Python
// sees; weights of convolutions lie as PyTorch has them, (K, C, KH, KW). Every result is summed in a fixed order, so it
// does not depend on the number of threads.
#pragma once

#include <cstdint>

namespace mytensor {

using Index = std::int64_t;

enum class Unary { Neg, Exp, Log, Sqrt, Abs, Relu, Sigmoid, Tanh };
enum class Binary { Add, Sub, Mul, Div, Pow, Maximum, Minimum, Equal, Greater, GreaterEqual };
enum class Derivative { Relu, Sigmoid, Tanh };  // Relu in terms of its input, the others of their result
enum class Reduction { Sum, Max };

// Four axes always; a tensor of fewer has leading axes of size 1. Strides count elements; 0 repeats an element.
struct Axes {
  Index at[4];
  Index operator[](int axis) const { return at[axis]; }
  Index& operator[](int axis) { return at[axis]; }
};

// A convolution or pooling: the pictures, the window that slides over them, and what comes out.
struct Window {
  Index batch, channels, height, width;
  Index kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  Index out_channels, out_height, out_width;

  Index taps() const { return kernel_h * kernel_w; }
  Index pixels() const { return batch * height * width; }
  Index out_pixels() const { return batch * out_height * out_width; }
};

// Labels as class indices, or, where those are null, as a row of probabilities for each picture.
struct Targets {
  const std::int32_t* labels;
  const float* probabilities;
};

struct AdamSettings {
  float rate, beta1, beta2, epsilon, weight_decay;
  float share1, share2;            // 1 - beta, which float32 would round
  float correction1, correction2;  // 1 - beta^step
  bool decoupled;                  // AdamW
};

struct Operators {
  const char* name;

  // Elementwise. `binary` reads a and b through strides; the result is dense.
  void (*fill)(float* out, Index count, float value);
  void (*unary)(Unary, const float* x, float* out, Index count);
  void (*derivative)(Derivative, const float* x, const float* out_grad, float* x_grad, Index count);
  void (*binary)(Binary, const float* a, Axes a_strides, const float* b, Axes b_strides, float* out, Axes sizes);
  void (*copy)(const float* x, Axes strides, float* out, Axes sizes);
  // out (dense, of `sizes`) = sum or maximum over `reduced` positions beside each position.
  void (*reduce)(Reduction, const float* x, Axes sizes, Axes strides, Axes reduced, Axes reduced_strides, float* out);

  // out (m, n) = a (m, k) b (k, n); with transpose_b, b is (n, k).
  void (*matmul)(const float* a, const float* b, float* out, Index m, Index n, Index k, bool transpose_b);
  // y (n, out) = x (n, in) weight^T (out, in) + bias; bias and x_grad may be null.
  void (*linear_forward)(const float* x, const float* weight, const float* bias, float* y, Index n, Index in,
                         Index out);
  void (*linear_backward)(const float* x, const float* weight, const float* y_grad, float* x_grad, float* weight_grad,
                          float* bias_grad, Index n, Index in, Index out);
  // `x_strides` are those of (N, C, H, W): pictures come row-major or channels-last. Null results are not wanted.
  void (*conv_forward)(const Window&, const float* x, Axes x_strides, const float* weight, const float* bias,
                       float* y);
  void (*conv_backward)(const Window&, const float* x, Axes x_strides, const float* weight, const float* y_grad,
                        float* x_grad, float* weight_grad, float* bias_grad);
  // The same for few channels, on pictures that lie batch-last, x, y and their gradients.
  void (*narrow_conv_forward)(const Window&, const float* x, const float* weight, const float* bias, float* y);
  void (*narrow_conv_backward)(const Window&, const float* x, const float* weight, const float* y_grad, float* x_grad,
                               float* weight_grad, float* bias_grad);
  // Pooling takes channels-last pictures; of batch-last ones batch and channels are exchanged.
  void (*max_pool_forward)(const Window&, const float* x, float* y);
  void (*max_pool_backward)(const Window&, const float* x, const float* y_grad, float* x_grad);
  void (*average_pool_forward)(const Window&, const float* x, float* y);
  void (*average_pool_backward)(const Window&, const float* y_grad, float* x_grad);

  // Rows of `channels` values, each channel normalised over the rows.
  void (*batch_norm_statistics)(const float* x, Index rows, Index channels, float* mean, float* variance);
  void (*batch_norm_apply)(const float* x, Index rows, Index channels, const float* mean, const float* rstd,
                           const float* weight, const float* bias, float* y);
  // With `through_statistics` the mean and variance depend on x (training), else they are constants.
  void (*batch_norm_backward)(const float* x, const float* y_grad, Index rows, Index channels, const float* mean,
                              const float* rstd, const float* weight, bool through_statistics, float* x_grad,
                              float* weight_grad, float* bias_grad);

  // Rows of `classes` values. `logarithm` chooses log-softmax.
  void (*softmax_forward)(const float* x, float* y, Index rows, Index classes, bool logarithm);
  void (*softmax_backward)(const float* y, const float* y_grad, float* x_grad, Index rows, Index classes,
                           bool logarithm);
  void (*cross_entropy_forward)(const float* logits, Targets, float smoothing, Index rows, Index classes, float* loss);
  void (*cross_entropy_backward)(const float* logits, Targets, float smoothing, Index rows, Index classes,
                                 const float* loss_grad, float* logits_grad);

  void (*dropout)(const float* x, float* y, Index count, float share, std::uint64_t seed, std::uint64_t offset);
  void (*sgd)(float* parameter, const float* gradient, float* momentum_buffer, Index count, float rate, float momentum,
              float weight_decay, bool nesterov);
  void (*adam)(float* parameter, const float* gradient, float* first, float* second, Index count, AdamSettings);
};

}  // namespace mytensor
