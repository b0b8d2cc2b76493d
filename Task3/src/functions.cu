#include "functions.h"

#include <algorithm>
#include <stdexcept>

namespace mytensor {

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
  require_same_device("backward", {&x, &out_grad});
  require_shape("backward", "out_grad", out_grad, x.shape());
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

Shape broadcast_shape(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<Index> sizes(rank);
  for (int axis = 1; axis <= rank; ++axis) {  // from the last one
    const Index size_a = axis <= a.rank() ? a[a.rank() - axis] : 1, size_b = axis <= b.rank() ? b[b.rank() - axis] : 1;
    if (size_a != size_b && size_a != 1 && size_b != 1) {
      refuse("shapes " + a.text() + " and " + b.text() + " cannot be broadcast together");
    }
    sizes[rank - axis] = std::max(size_a, size_b);
  }
  return Shape(sizes);
}

}  // namespace

Tensor binary(Binary operation, const Tensor& a, const Tensor& b) {
  require_same_device("elementwise function", {&a, &b});
  const Shape shape = broadcast_shape(a.shape(), b.shape());
  const Operators& table = operators_of(a.device());
  if (a.shape() == b.shape() || a.shape().rank() == 0 || b.shape().rank() == 0) {  // in whatever order memory has
    const Tensor& leading = a.shape().rank() ? a : b;
    const Tensor right = a.shape() == b.shape() ? b.in_layout(a.layout()) : b;
    Tensor result(shape, a.device(), leading.layout());
    const Axes flat = {{0, 0, 0, 1}}, single = {{0, 0, 0, 0}}, sizes = {{1, 1, 1, result.count()}};
    table.binary(operation, a.data(), a.shape().rank() ? flat : single, right.data(), b.shape().rank() ? flat : single,
                 result.data(), sizes);
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

Tensor reduce(Reduction operation, const Tensor& x, const std::optional<std::vector<Index>>& axes, bool keepdims) {
  const char* function = operation == Reduction::Sum ? "sum" : "max";
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
  const Tensor sum = reduce(Reduction::Sum, x, axes, keepdims);
  return binary(Binary::Mul, sum, full(Shape{}, float(sum.count()) / float(x.count()), x.device()));
}

Tensor reshape(const Tensor& x, std::vector<Index> sizes) {
  Index known = 1;
  constexpr Index kTooMany = Index(1) << 31;
  for (Index size : sizes) {
    if (size != -1) known = std::min(known * std::clamp<Index>(size, 0, kTooMany), kTooMany);
  }
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end() && known > 0 && x.count() % known == 0) *open = x.count() / known;
  const Shape shape(sizes);
  if (shape.count() != x.count()) refuse("reshape: " + x.shape().text() + " cannot become " + shape.text());
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
  if (broadcast_shape(x.shape(), shape) != shape) {
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
  if (transpose_a) {  // rows must lie together
    std::vector<Index> order(rank_a);
    for (int axis = 0; axis < rank_a; ++axis) order[axis] = axis;
    std::swap(order[rank_a - 1], order[rank_a - 2]);
    return matmul(transpose(a, order), b, false, transpose_b);
  }
  const Tensor left = a.in_layout(Layout::RowMajor), right = b.in_layout(Layout::RowMajor);
  const Axes sizes_a = left.sizes(), sizes_b = right.sizes();
  const Index m = sizes_a[2], k = sizes_a[3];
  const Index n = transpose_b ? sizes_b[2] : sizes_b[3], k_of_b = transpose_b ? sizes_b[3] : sizes_b[2];
  if (k != k_of_b) refuse("matmul: inner sizes " + std::to_string(k) + " and " + std::to_string(k_of_b) + " differ, of " + shapes);

  std::vector<Index> batch_a = a.shape().sizes(), batch_b = b.shape().sizes();
  batch_a.resize(rank_a - 2);
  batch_b.resize(rank_b - 2);
  std::vector<Index> shape = broadcast_shape(Shape(batch_a), Shape(batch_b)).sizes();
  shape.insert(shape.end(), {m, n});
  Tensor result(Shape(shape), a.device());
  const Axes sizes = result.sizes();
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
