#include "layers.h"

#include <cmath>

namespace mytensor {
namespace {

constexpr Index kTooLarge = Index(1) << 31;

// The number of a kernel's places along axis 2 or 3 of x.
Index out_size(const char* function, const Tensor& x, int axis, Index kernel, Index stride, Index pad) {
  const Index size = x.shape()[axis];
  if (kernel < 1 || stride < 1 || pad < 0 || kernel >= kTooLarge || stride >= kTooLarge || pad >= kTooLarge) {
    refuse(std::string(function) + ": kernel and stride must be 1 or more and padding 0 or more, below 2^31, not " +
           std::to_string(kernel) + ", " + std::to_string(stride) + " and " + std::to_string(pad));
  }
  if (kernel > size + 2 * pad) {
    refuse(std::string(function) + ": a window of " + std::to_string(kernel) + " does not fit into the " +
           std::to_string(size) + " of x of shape " + x.shape().text() + " with padding " + std::to_string(pad));
  }
  return (size + 2 * pad - kernel) / stride + 1;
}

Window window_of(const char* function, const Tensor& x, Index out_channels, Index kernel_h, Index kernel_w,
                 Sliding s) {
  require_rank(function, "x", x, 4);
  const Shape& shape = x.shape();
  const Window w = {shape[0], shape[1], shape[2], shape[3],
                    kernel_h, kernel_w, s.stride_h, s.stride_w, s.pad_h, s.pad_w,
                    out_channels, out_size(function, x, 2, kernel_h, s.stride_h, s.pad_h),
                    out_size(function, x, 3, kernel_w, s.stride_w, s.pad_w)};
  if (w.taps() >= kTooLarge) {
    refuse(std::string(function) + ": a window of " + std::to_string(kernel_h) + "x" + std::to_string(kernel_w) +
           " has 2^31 elements or more");
  }
  return w;
}

Window conv_window(const char* function, const Tensor& x, const Tensor& weight, Sliding sliding) {
  require_same_device(function, {&x, &weight});
  require_rank(function, "x", x, 4);
  require_rank(function, "weight", weight, 4);
  if (x.shape()[1] != weight.shape()[1]) {
    refuse(std::string(function) + ": x of shape " + x.shape().text() + " has not the channels of weight " +
           weight.shape().text());
  }
  return window_of(function, x, weight.shape()[0], weight.shape()[2], weight.shape()[3], sliding);
}

Shape out_shape(const char* function, const Tensor& x, const Window& w) {
  return result_shape(function, {w.batch, w.out_channels, w.out_height, w.out_width}, "x of shape " + x.shape().text());
}

// Where a convolution's result lies: batch-last if its channels are too few to fill the vectors of a processor, and the
// pictures are not.
Layout layout_for(const Window& w) {
  constexpr Index kFewChannels = 16, kManyPictures = 16, kLargeKernel = 32;
  const bool narrow = w.channels <= kFewChannels && w.out_channels <= kFewChannels && w.batch >= kManyPictures &&
                      w.kernel_h <= kLargeKernel && w.kernel_w <= kLargeKernel;
  return narrow ? Layout::BatchLast : Layout::ChannelsLast;
}

// What a wide convolution takes: row-major or channels-last.
Tensor readable(const Tensor& x) { return x.layout() == Layout::BatchLast ? x.in_layout(Layout::ChannelsLast) : x; }

void check_bias(const char* function, const Tensor& x, const std::optional<Tensor>& bias, Index count) {
  if (bias) {
    require_same_device(function, {&x, &*bias});
    require_shape(function, "bias", *bias, {count});
  }
}

float* data_of(std::optional<Tensor>& tensor) { return tensor ? tensor->data() : nullptr; }
const float* data_of(const std::optional<Tensor>& tensor) { return tensor ? tensor->data() : nullptr; }

void check_linear(const char* function, const Tensor& x, const Tensor& weight) {
  require_same_device(function, {&x, &weight});
  require_rank(function, "x", x, 2);
  require_rank(function, "weight", weight, 2);
  if (x.shape()[1] != weight.shape()[1]) {
    refuse(std::string(function) + ": x of shape " + x.shape().text() + " has not the features of weight " +
           weight.shape().text());
  }
}

}  // namespace

Tensor linear_forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_linear("linear", x, weight);
  const Index n = x.shape()[0], in = x.shape()[1], out = weight.shape()[0];
  check_bias("linear", x, bias, out);
  Tensor y({n, out}, x.device());
  operators_of(x.device()).linear_forward(x.data(), weight.data(), data_of(bias), y.data(), n, in, out);
  return y;
}

Gradients linear_backward(const Tensor& x, const Tensor& weight, bool has_bias, const Tensor& out_grad, bool need_x) {
  check_linear("linear_backward", x, weight);
  const Index n = x.shape()[0], in = x.shape()[1], out = weight.shape()[0];
  require_same_device("linear_backward", {&x, &out_grad});
  require_shape("linear_backward", "out_grad", out_grad, {n, out});
  std::optional<Tensor> x_grad, bias_grad;
  if (need_x) x_grad.emplace(x.shape(), x.device());
  if (has_bias) bias_grad.emplace(Shape{out}, x.device());
  Tensor weight_grad(weight.shape(), x.device());
  operators_of(x.device()).linear_backward(x.data(), weight.data(), out_grad.data(), data_of(x_grad),
                                           weight_grad.data(), data_of(bias_grad), n, in, out);
  return {x_grad, weight_grad, bias_grad};
}

Tensor conv_forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Sliding sliding) {
  const Window w = conv_window("conv2d", x, weight, sliding);
  check_bias("conv2d", x, bias, w.out_channels);
  const Operators& table = operators_of(x.device());
  const Tensor weights = weight.in_layout(Layout::RowMajor);
  Tensor y(out_shape("conv2d", x, w), x.device(), layout_for(w));
  if (y.layout() == Layout::BatchLast) {
    table.narrow_conv_forward(w, x.in_layout(Layout::BatchLast).data(), weights.data(), data_of(bias), y.data());
  } else {
    const Tensor pictures = readable(x);
    table.conv_forward(w, pictures.data(), pictures.strides(), weights.data(), data_of(bias), y.data());
  }
  return y;
}

Gradients conv_backward(const Tensor& x, const Tensor& weight, bool has_bias, const Tensor& out_grad, Sliding sliding,
                        bool need_x) {
  const Window w = conv_window("conv2d_backward", x, weight, sliding);
  require_same_device("conv2d_backward", {&x, &out_grad});
  require_shape("conv2d_backward", "out_grad", out_grad, out_shape("conv2d_backward", x, w));
  const Operators& table = operators_of(x.device());
  const Layout layout = layout_for(w);
  std::optional<Tensor> x_grad, bias_grad;
  if (need_x) x_grad.emplace(x.shape(), x.device(), layout);
  if (has_bias) bias_grad.emplace(Shape{w.out_channels}, x.device());
  Tensor weight_grad(weight.shape(), x.device());
  const Tensor weights = weight.in_layout(Layout::RowMajor), gradient = out_grad.in_layout(layout);
  if (layout == Layout::BatchLast) {
    table.narrow_conv_backward(w, x.in_layout(layout).data(), weights.data(), gradient.data(), data_of(x_grad),
                               weight_grad.data(), data_of(bias_grad));
  } else {
    const Tensor pictures = readable(x);
    table.conv_backward(w, pictures.data(), pictures.strides(), weights.data(), gradient.data(), data_of(x_grad),
                        weight_grad.data(), data_of(bias_grad));
  }
  return {x_grad, weight_grad, bias_grad};
}

namespace {

Window pool_window(const char* function, const Tensor& x, Index kernel_h, Index kernel_w, Sliding s) {
  const Window w = window_of(function, x, x.shape().rank() == 4 ? x.shape()[1] : 0, kernel_h, kernel_w, s);
  if (2 * s.pad_h > kernel_h || 2 * s.pad_w > kernel_w) {
    refuse(std::string(function) + ": padding " + std::to_string(s.pad_h) + "x" + std::to_string(s.pad_w) +
           " is more than half the window of " + std::to_string(kernel_h) + "x" + std::to_string(kernel_w));
  }
  return w;
}

Layout pool_layout(const Tensor& x) {
  return x.layout() == Layout::BatchLast ? Layout::BatchLast : Layout::ChannelsLast;
}

// The window with which a table's function, made for channels-last pictures, takes those of this layout: batch-last
// ones lie like channels-last pictures whose batch are the channels.
Window as_channels_last(Window w, Layout layout) {
  if (layout == Layout::BatchLast) {
    std::swap(w.batch, w.channels);
    w.out_channels = w.channels;
  }
  return w;
}

}  // namespace

Tensor pool_forward(Pooling kind, const Tensor& x, Index kernel_h, Index kernel_w, Sliding sliding) {
  const char* function = kind == Pooling::Max ? "max_pool2d" : "avg_pool2d";
  const Window w = pool_window(function, x, kernel_h, kernel_w, sliding);
  const Operators& table = operators_of(x.device());
  const Layout layout = pool_layout(x);
  Tensor y(out_shape(function, x, w), x.device(), layout);
  (kind == Pooling::Max ? table.max_pool_forward : table.average_pool_forward)(as_channels_last(w, layout),
                                                                               x.in_layout(layout).data(), y.data());
  return y;
}

Tensor pool_backward(Pooling kind, const Tensor& x, const Tensor& out_grad, Index kernel_h, Index kernel_w,
                     Sliding sliding) {
  const char* function = kind == Pooling::Max ? "max_pool2d_backward" : "avg_pool2d_backward";
  const Window w = pool_window(function, x, kernel_h, kernel_w, sliding);
  require_same_device(function, {&x, &out_grad});
  require_shape(function, "out_grad", out_grad, out_shape(function, x, w));
  const Operators& table = operators_of(x.device());
  const Layout layout = pool_layout(x);
  const Tensor gradient = out_grad.in_layout(layout);
  Tensor x_grad(x.shape(), x.device(), layout);
  if (kind == Pooling::Max) {
    table.max_pool_backward(as_channels_last(w, layout), x.in_layout(layout).data(), gradient.data(), x_grad.data());
  } else {
    table.average_pool_backward(as_channels_last(w, layout), gradient.data(), x_grad.data());
  }
  return x_grad;
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      Tensor& running_mean, Tensor& running_variance, bool training,
                                                      float momentum, float epsilon) {
  require_same_device("batch_norm", {&x, &weight, &bias, &running_mean, &running_variance});
  require_rank("batch_norm", "x", x, 4);
  const Index channels = x.shape()[1], rows = x.count() / channels;
  for (const auto& [name, tensor] : {std::pair{"weight", &weight}, {"bias", &bias},
                                     {"running_mean", static_cast<const Tensor*>(&running_mean)},
                                     {"running_var", static_cast<const Tensor*>(&running_variance)}}) {
    require_shape("batch_norm", name, *tensor, {channels});
  }
  if (training && rows == 1) {
    refuse("batch_norm: in training a channel needs more than one value, and x of shape " + x.shape().text() +
           " has one");
  }
  const Operators& table = operators_of(x.device());
  const Tensor pictures = x.in_layout(Layout::ChannelsLast);
  Tensor mean({channels}, x.device()), rstd({channels}, x.device()), y(x.shape(), x.device(), Layout::ChannelsLast);
  Tensor variance = running_variance;
  if (training) {
    variance = Tensor({channels}, x.device());
    table.batch_norm_statistics(pictures.data(), rows, channels, mean.data(), variance.data());
    const auto move = [&](Tensor& running, const Tensor& batch, float scale) {
      const auto times = [&](const Tensor& tensor, float factor) {
        return binary(Binary::Mul, tensor, full(Shape{}, factor, x.device()));
      };
      assign(running, binary(Binary::Add, times(running, 1 - momentum), times(batch, momentum * scale)));
    };
    move(running_mean, mean, 1);
    move(running_variance, variance, float(rows) / float(rows - 1));
  } else {
    assign(mean, running_mean);
  }
  assign(rstd, binary(Binary::Div, full(Shape{}, 1, x.device()),
                      unary(Unary::Sqrt, binary(Binary::Add, variance, full(Shape{}, epsilon, x.device())))));
  table.batch_norm_apply(pictures.data(), rows, channels, mean.data(), rstd.data(), weight.data(), bias.data(),
                         y.data());
  return {y, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                                       const Tensor& rstd, const Tensor& out_grad, bool training) {
  require_same_device("batch_norm_backward", {&x, &weight, &mean, &rstd, &out_grad});
  require_rank("batch_norm_backward", "x", x, 4);
  require_shape("batch_norm_backward", "out_grad", out_grad, x.shape());
  const Index channels = x.shape()[1];
  for (const auto& [name, tensor] : {std::pair{"weight", &weight}, {"mean", &mean}, {"rstd", &rstd}}) {
    require_shape("batch_norm_backward", name, *tensor, {channels});
  }
  Tensor x_grad(x.shape(), x.device(), Layout::ChannelsLast), weight_grad({channels}, x.device());
  Tensor bias_grad({channels}, x.device());
  operators_of(x.device()).batch_norm_backward(
      x.in_layout(Layout::ChannelsLast).data(), out_grad.in_layout(Layout::ChannelsLast).data(), x.count() / channels,
      channels, mean.data(), rstd.data(), weight.data(), training, x_grad.data(), weight_grad.data(), bias_grad.data());
  return {x_grad, weight_grad, bias_grad};
}

namespace {

// The order of axes that exchanges `axis` and the last one; none if it is the last.
std::optional<std::vector<Index>> to_the_end(const char* function, const Tensor& x, Index axis) {
  const Index rank = x.shape().rank(), counted = axis < 0 ? axis + rank : axis;
  if (counted < 0 || counted >= rank) {
    refuse(std::string(function) + ": axis " + std::to_string(axis) + " is not one of shape " + x.shape().text());
  }
  if (counted == rank - 1) return std::nullopt;
  std::vector<Index> order;
  for (Index each = 0; each < rank; ++each) order.push_back(each);
  std::swap(order[counted], order[rank - 1]);
  return order;
}

}  // namespace

Tensor softmax_forward(const Tensor& x, Index axis, bool logarithm) {
  if (const auto order = to_the_end(logarithm ? "log_softmax" : "softmax", x, axis)) {
    return transpose(softmax_forward(transpose(x, order), -1, logarithm), order);
  }
  const Index classes = x.shape()[x.shape().rank() - 1];
  const Tensor rows = x.in_layout(Layout::RowMajor);
  Tensor y(x.shape(), x.device());
  operators_of(x.device()).softmax_forward(rows.data(), y.data(), x.count() / classes, classes, logarithm);
  return y;
}

Tensor softmax_backward(const Tensor& y, const Tensor& out_grad, Index axis, bool logarithm) {
  const char* function = logarithm ? "log_softmax_backward" : "softmax_backward";
  require_same_device(function, {&y, &out_grad});
  require_shape(function, "out_grad", out_grad, y.shape());
  if (const auto order = to_the_end(function, y, axis)) {
    return transpose(softmax_backward(transpose(y, order), transpose(out_grad, order), -1, logarithm), order);
  }
  const Index classes = y.shape()[y.shape().rank() - 1];
  const Tensor rows = y.in_layout(Layout::RowMajor), gradient = out_grad.in_layout(Layout::RowMajor);
  Tensor x_grad(y.shape(), y.device());
  operators_of(y.device()).softmax_backward(rows.data(), gradient.data(), x_grad.data(), y.count() / classes, classes,
                                            logarithm);
  return x_grad;
}

void check_label_shape(const char* function, const std::vector<Index>& sizes, const Tensor& logits) {
  require_rank(function, "logits", logits, 2);
  if (sizes != std::vector<Index>{logits.shape()[0]}) {
    refuse(std::string(function) + ": labels must have shape (" + std::to_string(logits.shape()[0]) + ",) or " +
           logits.shape().text() + ", as the logits have, not " + text_of(sizes));
  }
}

Labels checked_labels(const char* function, const std::vector<double>& values, const Tensor& logits) {
  check_label_shape(function, {Index(values.size())}, logits);
  const Index classes = logits.shape()[1];
  Labels labels;
  labels.indices.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    if (!(value >= 0 && value < double(classes) && value == std::floor(value))) {
      std::string text = std::to_string(value);
      if (value == std::floor(value) && std::abs(value) < 1e18) text = std::to_string(Index(value));
      refuse(std::string(function) + ": label " + text + " at position " + std::to_string(i) +
             " is no class from 0 to " + std::to_string(classes - 1) + " (logits have shape " + logits.shape().text() +
             ")");
    }
    labels.indices.push_back(std::int32_t(value));
  }
  return labels;
}

namespace {

Targets targets_of(const char* function, const Tensor& logits, const Labels& labels, float smoothing) {
  require_rank(function, "logits", logits, 2);
  if (!(smoothing >= 0 && smoothing <= 1)) {
    refuse(std::string(function) + ": label_smoothing must be from 0 to 1, not " + std::to_string(smoothing));
  }
  if (!labels.probabilities) return {labels.indices.data(), nullptr};
  require_same_device(function, {&logits, &*labels.probabilities});
  require_shape(function, "labels", *labels.probabilities, logits.shape());
  return {nullptr, labels.probabilities->data()};
}

}  // namespace

Tensor cross_entropy_forward(const Tensor& logits, const Labels& labels, float smoothing) {
  const Targets targets = targets_of("cross_entropy", logits, labels, smoothing);
  Tensor loss(Shape{}, logits.device());
  operators_of(logits.device()).cross_entropy_forward(logits.data(), targets, smoothing, logits.shape()[0],
                                                      logits.shape()[1], loss.data());
  return loss;
}

Tensor cross_entropy_backward(const Tensor& logits, const Labels& labels, const Tensor& out_grad, float smoothing) {
  const Targets targets = targets_of("cross_entropy_backward", logits, labels, smoothing);
  require_same_device("cross_entropy_backward", {&logits, &out_grad});
  if (out_grad.count() != 1) {
    refuse("cross_entropy_backward: out_grad is one number, not of shape " + out_grad.shape().text());
  }
  Tensor result(logits.shape(), logits.device());
  operators_of(logits.device()).cross_entropy_backward(logits.data(), targets, smoothing, logits.shape()[0],
                                                       logits.shape()[1], out_grad.data(), result.data());
  return result;
}

Tensor dropout(const Tensor& x, float share, std::uint64_t seed, std::uint64_t offset) {
  if (!(share >= 0 && share <= 1)) refuse("dropout: the share must be from 0 to 1, not " + std::to_string(share));
  const Tensor in = x.in_layout(Layout::RowMajor);  // the mask goes by the position that Python sees
  Tensor y(x.shape(), x.device());
  operators_of(x.device()).dropout(in.data(), y.data(), x.count(), share, seed, offset);
  return y;
}

namespace {

// Each list fits the parameters, one by one; gradients may lie in either layout.
void check_lists(const char* function, const std::vector<Tensor>& parameters,
                 std::initializer_list<const std::vector<Tensor>*> lists) {
  for (const std::vector<Tensor>* list : lists) {
    if (list->size() != parameters.size()) {
      refuse(std::string(function) + ": " + std::to_string(parameters.size()) + " parameters but a list of " +
             std::to_string(list->size()));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      require_same_device(function, {&parameters[i], &(*list)[i]});
      require_shape(function, "a gradient or state", (*list)[i], parameters[i].shape());
    }
  }
}

}  // namespace

namespace {

// What is updated in place together must lie in one order: a copy where a tensor lies otherwise, which is put back.
Tensor in_rows(const Tensor& tensor) { return tensor.in_layout(Layout::RowMajor); }

void put_back(Tensor& tensor, const Tensor& rows) {
  if (rows.data() != tensor.data()) assign(tensor, rows);
}

}  // namespace

void sgd_step(std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients, std::vector<Tensor>& momentums,
              float rate, float momentum, float weight_decay, bool nesterov) {
  check_lists("sgd_step", parameters, {&gradients});
  if (momentum != 0) check_lists("sgd_step", parameters, {&momentums});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor parameter = in_rows(parameters[i]), gradient = in_rows(gradients[i]);
    const Tensor buffer = momentum != 0 ? in_rows(momentums[i]) : parameter;
    operators_of(parameter.device()).sgd(parameter.data(), gradient.data(), momentum != 0 ? buffer.data() : nullptr,
                                         parameter.count(), rate, momentum, weight_decay, nesterov);
    put_back(parameters[i], parameter);
    if (momentum != 0) put_back(momentums[i], buffer);
  }
}

void adam_step(std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients, std::vector<Tensor>& firsts,
               std::vector<Tensor>& seconds, double rate, double beta1, double beta2, double epsilon,
               double weight_decay, bool decoupled, Index step) {
  check_lists("adam_step", parameters, {&gradients, &firsts, &seconds});
  if (step < 1) refuse("adam_step: steps count from 1, not " + std::to_string(step));
  const AdamSettings settings = {float(rate), float(beta1), float(beta2), float(epsilon), float(weight_decay),
                                 float(1 - beta1), float(1 - beta2),
                                 float(1 - std::pow(beta1, double(step))), float(1 - std::pow(beta2, double(step))),
                                 decoupled};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor parameter = in_rows(parameters[i]), gradient = in_rows(gradients[i]);
    const Tensor first = in_rows(firsts[i]), second = in_rows(seconds[i]);
    operators_of(parameter.device()).adam(parameter.data(), gradient.data(), first.data(), second.data(),
                                          parameter.count(), settings);
    put_back(parameters[i], parameter);
    put_back(firsts[i], first);
    put_back(seconds[i], second);
  }
}

}  // namespace mytensor
