// The layers of networks and their gradients, checked as in functions.h. Pictures are (N, C, H, W).
#pragma once

#include <tuple>
#include <variant>

#include "functions.h"

namespace mytensor {

// The window of a convolution or pooling, as Python gives it.
struct Sliding {
  Index stride_h, stride_w, pad_h, pad_w;
};

using Gradients = std::tuple<std::optional<Tensor>, Tensor, std::optional<Tensor>>;  // of x, weight and bias

Tensor linear_forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);
Gradients linear_backward(const Tensor& x, const Tensor& weight, bool has_bias, const Tensor& out_grad, bool need_x);

Tensor conv_forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Sliding sliding);
Gradients conv_backward(const Tensor& x, const Tensor& weight, bool has_bias, const Tensor& out_grad, Sliding sliding,
                        bool need_x);

enum class Pooling { Max, Average };
Tensor pool_forward(Pooling kind, const Tensor& x, Index kernel_h, Index kernel_w, Sliding sliding);
Tensor pool_backward(Pooling kind, const Tensor& x, const Tensor& out_grad, Index kernel_h, Index kernel_w,
                     Sliding sliding);

// Returns y, and the mean and 1 / sqrt(variance + epsilon) that it used. In training these are the batch's, and the
// running ones move towards them (the variance unbiased); else they are the running ones.
std::tuple<Tensor, Tensor, Tensor> batch_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      Tensor& running_mean, Tensor& running_variance, bool training,
                                                      float momentum, float epsilon);
std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                                       const Tensor& rstd, const Tensor& out_grad, bool training);

Tensor softmax_forward(const Tensor& x, Index axis, bool logarithm);
Tensor softmax_backward(const Tensor& y, const Tensor& out_grad, Index axis, bool logarithm);

// Class indices, checked against the number of classes, or one row of probabilities for each row of logits.
struct Labels {
  std::vector<std::int32_t> indices;
  std::optional<Tensor> probabilities;
};
// Refuses labels that are not one for each row of logits.
void check_label_shape(const char* function, const std::vector<Index>& sizes, const Tensor& logits);
// Refuses indices outside the classes, naming the first and its position.
Labels checked_labels(const char* function, const std::vector<double>& values, const Tensor& logits);

Tensor cross_entropy_forward(const Tensor& logits, const Labels& labels, float smoothing);
Tensor cross_entropy_backward(const Tensor& logits, const Labels& labels, const Tensor& out_grad, float smoothing);

// Forward and backward alike: the mask is a function of seed and offset.
Tensor dropout(const Tensor& x, float share, std::uint64_t seed, std::uint64_t offset);

// Update parameters in place. `momentums` is empty where momentum is 0.
void sgd_step(std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients, std::vector<Tensor>& momentums,
              float rate, float momentum, float weight_decay, bool nesterov);
void adam_step(std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients, std::vector<Tensor>& firsts,
               std::vector<Tensor>& seconds, double rate, double beta1, double beta2, double epsilon,
               double weight_decay, bool decoupled, Index step);

}  // namespace mytensor
