// Functions of tensors: they check their arguments, make the result and call the back end. Every wrong argument is a
// std::invalid_argument with the shapes in its text.
#pragma once

#include <optional>
#include <vector>

#include "tensor.h"

namespace mytensor {

// Throws std::invalid_argument with this text.
[[noreturn]] void refuse(const std::string& text);
// Refuses tensors of different devices.
void require_same_device(const char* function, std::initializer_list<const Tensor*> tensors);
// Refuses a tensor that has not this rank.
void require_rank(const char* function, const char* name, const Tensor& tensor, int rank);
// Refuses a tensor that has not this shape.
void require_shape(const char* function, const char* name, const Tensor& tensor, const Shape& shape);

// The shape of what `function` makes of `from`, in words; refuses one of too many elements.
Shape result_shape(const std::string& function, const std::vector<Index>& sizes, const std::string& from);

Tensor full(const Shape& shape, float value, Device device);
void fill(Tensor& tensor, float value);
void assign(Tensor& tensor, const Tensor& from);

Tensor unary(Unary operation, const Tensor& x);
Tensor derivative(Derivative operation, const Tensor& x, const Tensor& out_grad);
Tensor binary(Binary operation, const Tensor& a, const Tensor& b);  // broadcasts as NumPy does

// Axes may be negative; none given means all. `function` is what errors call it.
Tensor reduce(const char* function, Reduction operation, const Tensor& x, const std::optional<std::vector<Index>>& axes,
              bool keepdims);
Tensor mean(const Tensor& x, const std::optional<std::vector<Index>>& axes, bool keepdims);

Tensor reshape(const Tensor& x, std::vector<Index> sizes);  // one size may be -1
Tensor transpose(const Tensor& x, const std::optional<std::vector<Index>>& axes);
Tensor broadcast_to(const Tensor& x, const Shape& shape);
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b);

}  // namespace mytensor
