#include "functions.h"

#include <algorithm>
#include <stdexcept>

namespace mytensor {

namespace {

// As Python knows them, in the order of the enumerations.
constexpr const char* kBinaryNames[] = {"add",     "sub",     "mul",   "div",     "pow",
                                        "maximum", "minimum", "equal", "greater", "greater_equal"};
constexpr const char* kDerivativeNames[] = {"relu_backward", "sigmoid_backward", "tanh_backward"};

}  // namespace

void refuse(const std::string& text) { throw std::invalid_argument(text); }

void require_same_device(const char* function, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (tensor->device() != (*tensors.begin())->device()) {
      std::string shapes;
      for (const Tensor* each : tensors) shapes += (shapes.empty() ? "" : ", ") + each->shape().text();
      refuse(std::string(function) + ": tensors of shapes " + shapes + " lie on different devices");
    }
  }
}

void require_rank(const char* function, const char* name, const Tensor& tensor, int rank) {
  if (tensor.shape().rank() != rank) {
    refuse(std::string(function) + ": " + name + " must have " + std::to_string(rank) + " axes, not shape " +
           tensor.shape().text());
  }
}

Shape result_shape(const std::string& function, const std::vector<Index>& sizes, const std::string& from) {
  if (!Shape::fits(sizes)) refuse(function + ": " + from + " would give 2^31 elements or more, " + text_of(sizes));
  return Shape(sizes);
}

void require_shape(const char* function, const char* name, const Tensor& tensor, const Shape& shape) {
  if (tensor.shape() != shape) {
    refuse(std::string(function) + ": " + name + " must have shape " + shape.text() + ", not " +
           tensor.shape().text());
  }
}

Tensor full(const Shape& shape, float value, Device device) {
  Tensor result(shape, device);
  fill(result, value);
  return result;
}

void fill(Tensor& tensor, float value) { operators_of(tensor.device()).fill(tensor.data(), tensor.count(), value); }

void assign(Tensor& tensor, const Tensor& from) {
  require_same_device("copy_", {&tensor, &from});
  require_shape("copy_", "the other tensor", from, tensor.shape());
  const Tensor source = from.in_layout(tensor.layout());
  operators_of(tensor.device()).copy(source.data(), {{0, 0, 0, 1}}, tensor.data(), {{1, 1, 1, tensor.count()}});
}

Tensor unary(Unary operation, const Tensor& x) {
  Tensor result(x.shape(), x.device(), x.layout());
  operators_of(x.device()).unary(operation, x.data(), result.data(), x.count());
  return result;
}

Tensor derivative(Derivative operation, const Tensor& x, const Tensor& out_grad) {
  const char* function = kDerivativeNames[int(operation)];
  require_same_device(function, {&x, &out_grad});
  require_shape(function, "out_grad", out_grad, x.shape());
  const Tensor gradient = out_grad.in_layout(x.layout());
  Tensor result(x.shape(), x.device(), x.layout());
  operators_of(x.device()).derivative(operation, x.data(), gradient.data(), result.data(), x.count());
  return result;
}

namespace {

// Strides with which a tensor of `from` sizes is read at `to` sizes: 0 along axes that are repeated.
Axes repeated(Axes strides, const Axes& from, const Axes& to) {
  for (int axis = 0; axis < 4; ++axis) {
    if (from[axis] != to[axis]) strides[axis] = 0;
  }
  return strides;
}

// The sizes that both may be repeated to; none if there are no such.
std::optional<std::vector<Index>> broadcast_sizes(const std::vector<Index>& a, const std::vector<Index>& b) {
  const std::vector<Index>&longer = a.size() < b.size() ? b : a, &shorter = a.size() < b.size() ? a : b;
  std::vector<Index> sizes = longer;
  for (std::size_t axis = 0; axis < shorter.size(); ++axis) {
    Index& size = sizes[longer.size() - shorter.size() + axis];
    if (size == 1) size = shorter[axis];
    if (size != shorter[axis] && shorter[axis] != 1) return std::nullopt;
  }
  return sizes;
}

}  // namespace

Tensor binary(Binary operation, const Tensor& a, const Tensor& b) {
  const std::string function = kBinaryNames[int(operation)];
  require_same_device(function.c_str(), {&a, &b});
  const auto sizes = broadcast_sizes(a.shape().sizes(), b.shape().sizes());
  if (!sizes) refuse(function + ": " + a.shape().text() + " and " + b.shape().text() + " cannot be broadcast together");
  const Shape shape = result_shape(function, *sizes, a.shape().text() + " and " + b.shape().text());
  const Operators& table = operators_of(a.device());
  if (a.shape() == b.shape() || a.shape().rank() == 0 || b.shape().rank() == 0) {  // in whatever order memory has
    const Tensor& leading = a.shape().rank() ? a : b;
    const Tensor right = a.shape() == b.shape() ? b.in_layout(a.layout()) : b;
    Tensor result(shape, a.device(), leading.layout());
    const Axes flat = {{0, 0, 0, 1}}, single = {{0, 0, 0, 0}};
    table.binary(operation, a.data(), a.shape().rank() ? flat : single, right.data(), b.shape().rank() ? flat : single,
                 result.data(), {{1, 1, 1, result.count()}});
    return result;
  }
  Tensor result(shape, a.device());
  table.binary(operation, a.data(), repeated(a.strides(), a.sizes(), result.sizes()), b.data(),
               repeated(b.strides(), b.sizes(), result.sizes()), result.data(), result.sizes());
  return result;
}

namespace {

// Which of the tensor's axes are named; refuses axes that it has not, or that are named twice.
std::vector<bool> named_axes(const char* function, const Tensor& x, const std::optional<std::vector<Index>>& axes) {
  const int rank = x.shape().rank();
  std::vector<bool> named(rank, !axes);
  for (Index axis : axes.value_or(std::vector<Index>{})) {
    const Index counted = axis < 0 ? axis + rank : axis;
    if (counted < 0 || counted >= rank || named[counted]) {
      refuse(std::string(function) + ": axis " + std::to_string(axis) + " is not one of shape " + x.shape().text() +
             ", or is named twice");
    }
    named[counted] = true;
  }
  return named;
}

}  // namespace

Tensor reduce(const char* function, Reduction operation, const Tensor& x, const std::optional<std::vector<Index>>& axes,
              bool keepdims) {
  const std::vector<bool> named = named_axes(function, x, axes);
  std::vector<Index> shape;
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    if (!named[axis]) shape.push_back(x.shape()[axis]);
    if (named[axis] && keepdims) shape.push_back(1);
  }
  Tensor result(Shape(shape), x.device());
  Axes kept = x.sizes(), reduced = {{1, 1, 1, 1}};
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    if (named[axis]) std::swap(kept[4 - x.shape().rank() + axis], reduced[4 - x.shape().rank() + axis]);
  }
  operators_of(x.device()).reduce(operation, x.data(), kept, x.strides(), reduced, x.strides(), result.data());
  return result;
}

Tensor mean(const Tensor& x, const std::optional<std::vector<Index>>& axes, bool keepdims) {
  const Tensor sum = reduce("mean", Reduction::Sum, x, axes, keepdims);
  return binary(Binary::Mul, sum, full(Shape{}, float(sum.count()) / float(x.count()), x.device()));
}

Tensor reshape(const Tensor& x, std::vector<Index> sizes) {
  const std::string wanted = text_of(sizes);
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    if (std::find(open + 1, sizes.end(), -1) != sizes.end()) {
      refuse("reshape: only one size may be -1, not two of " + wanted);
    }
    *open = 1;
    if (Shape::fits(sizes)) *open = x.count() / Shape(sizes).count();
  }
  if (!Shape::fits(sizes) || Shape(sizes).count() != x.count()) {
    refuse("reshape: " + x.shape().text() + " cannot become " + wanted);
  }
  const Shape shape(sizes);
  if (shape == x.shape()) return x;
  return x.in_layout(Layout::RowMajor).viewed_as(shape);
}

Tensor transpose(const Tensor& x, const std::optional<std::vector<Index>>& axes) {
  const int rank = x.shape().rank();
  std::vector<Index> order;
  for (int axis = rank - 1; axis >= 0; --axis) order.push_back(axis);
  if (axes) order = *axes;
  if (int(order.size()) != rank) refuse("transpose: shape " + x.shape().text() + " needs an order of all its axes");
  named_axes("transpose", x, order);
  Axes strides = {{0, 0, 0, 0}};
  std::vector<Index> sizes(rank);
  for (int axis = 0; axis < rank; ++axis) {
    const Index from = order[axis] < 0 ? order[axis] + rank : order[axis];
    sizes[axis] = x.shape()[int(from)];
    strides[4 - rank + axis] = x.strides()[4 - rank + int(from)];
  }
  Tensor result(Shape(sizes), x.device());
  operators_of(x.device()).copy(x.data(), strides, result.data(), result.sizes());
  return result;
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (broadcast_sizes(x.shape().sizes(), shape.sizes()) != shape.sizes()) {
    refuse("broadcast_to: " + x.shape().text() + " cannot become " + shape.text());
  }
  Tensor result(shape, x.device());
  operators_of(x.device()).copy(x.data(), repeated(x.strides(), x.sizes(), result.sizes()), result.data(),
                                result.sizes());
  return result;
}

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  require_same_device("matmul", {&a, &b});
  const std::string shapes = a.shape().text() + (transpose_a ? " transposed and " : " and ") + b.shape().text() +
                             (transpose_b ? " transposed" : "");
  const int rank_a = a.shape().rank(), rank_b = b.shape().rank();
  if (rank_a < 2 || rank_b < 2) refuse("matmul: both need 2 axes or more, not " + shapes);
  const Axes own_a = a.sizes(), own_b = b.sizes();
  const Index m = own_a[transpose_a ? 3 : 2], k = own_a[transpose_a ? 2 : 3];
  const Index n = own_b[transpose_b ? 2 : 3], k_of_b = own_b[transpose_b ? 3 : 2];
  if (k != k_of_b) {
    refuse("matmul: inner sizes " + std::to_string(k) + " and " + std::to_string(k_of_b) + " differ, of " + shapes);
  }
  std::vector<Index> batch_a = a.shape().sizes(), batch_b = b.shape().sizes();
  batch_a.resize(rank_a - 2);
  batch_b.resize(rank_b - 2);
  auto batch = broadcast_sizes(batch_a, batch_b);
  if (!batch) refuse("matmul: the leading axes of " + shapes + " cannot be broadcast together");
  batch->insert(batch->end(), {m, n});
  Tensor result(result_shape("matmul", *batch, shapes), a.device());

  std::vector<Index> order(rank_a);  // of a's axes: in the kernel its rows lie together
  for (int axis = 0; axis < rank_a; ++axis) order[axis] = axis;
  if (transpose_a) std::swap(order[rank_a - 1], order[rank_a - 2]);
  const Tensor left = transpose_a ? transpose(a, order) : a.in_layout(Layout::RowMajor);
  const Tensor right = b.in_layout(Layout::RowMajor);
  const Axes sizes = result.sizes(), sizes_a = left.sizes(), sizes_b = right.sizes();
  const Axes strides_a = repeated(left.strides(), sizes_a, {{sizes[0], sizes[1], sizes_a[2], sizes_a[3]}});
  const Axes strides_b = repeated(right.strides(), sizes_b, {{sizes[0], sizes[1], sizes_b[2], sizes_b[3]}});
  for (Index i = 0; i < sizes[0]; ++i) {
    for (Index j = 0; j < sizes[1]; ++j) {
      operators_of(a.device()).matmul(left.data() + i * strides_a[0] + j * strides_a[1],
                                      right.data() + i * strides_b[0] + j * strides_b[1],
                                      result.data() + (i * sizes[1] + j) * m * n, m, n, k, transpose_b);
    }
  }
  return result;
}

}  // namespace mytensor
