#include "tensor.h"

#include <new>
#include <stdexcept>

#include "allocator.h"
#include "cpu/variants.h"

namespace mytensor {

Shape::Shape(const std::vector<Index>& sizes) {
  constexpr Index kMostElements = (Index(1) << 31) - 1;
  rank_ = int(sizes.size());
  Index count = 1;
  bool fits = sizes.size() <= std::size_t(kMaxRank);
  for (std::size_t axis = 0; fits && axis < sizes.size(); ++axis) {
    fits = sizes[axis] >= 1 && sizes[axis] <= kMostElements / count;
    if (fits) count *= sizes[axis];
    sizes_[axis] = sizes[axis];
  }
  if (!fits) {
    std::string text;
    for (Index size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    throw std::invalid_argument("a tensor has 0 to 4 axes, each of size 1 or more, and fewer than 2^31 elements; not (" +
                                text + ")");
  }
}

Index Shape::count() const {
  Index count = 1;
  for (int axis = 0; axis < rank_; ++axis) count *= sizes_[axis];
  return count;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int axis = 0; axis < rank_; ++axis) {
    if (sizes_[axis] != other.sizes_[axis]) return false;
  }
  return true;
}

std::string Shape::text() const {
  std::string text = "(";
  for (int axis = 0; axis < rank_; ++axis) text += (axis ? ", " : "") + std::to_string(sizes_[axis]);
  return text + (rank_ == 1 ? ",)" : ")");
}

std::atomic<Index> Storage::live_{0};

Storage::Storage(Index count, Device device, bool zero) : device_(device) {
  operators_of(device);  // an error if there is no such device
  data_ = static_cast<float*>(allocate(std::size_t(count) * sizeof(float), zero));
  ++live_;
}

Storage::~Storage() {
  release(data_);
  --live_;
}

Tensor::Tensor(const Shape& shape, Device device, Layout layout, bool zero)
    : shape_(shape), layout_(layout), storage_(std::make_shared<Storage>(shape.count(), device, zero)) {}

Axes Tensor::sizes() const {
  Axes sizes{{1, 1, 1, 1}};
  for (int axis = 0; axis < shape_.rank(); ++axis) sizes[4 - shape_.rank() + axis] = shape_[axis];
  return sizes;
}

namespace {

// The axes from the outermost to the innermost in memory.
Axes order_of(Layout layout) {
  switch (layout) {
    case Layout::ChannelsLast: return {{0, 2, 3, 1}};
    case Layout::BatchLast: return {{1, 2, 3, 0}};
    default: return {{0, 1, 2, 3}};
  }
}

// The values of the axes in the order in which they lie in memory.
Axes in_order(const Axes& values, const Axes& order) {
  return {{values[int(order[0])], values[int(order[1])], values[int(order[2])], values[int(order[3])]}};
}

}  // namespace

Axes Tensor::strides() const {
  const Axes s = sizes(), order = order_of(layout_);
  Axes strides{};
  Index stride = 1;
  for (int place = 3; place >= 0; --place) {
    strides[int(order[place])] = stride;
    stride *= s[int(order[place])];
  }
  return strides;
}

Tensor Tensor::in_layout(Layout layout) const {
  if (layout == layout_) return *this;
  Tensor result(shape_, device(), layout);
  const Axes order = order_of(layout);
  operators_of(device()).copy(data(), in_order(strides(), order), result.data(), in_order(sizes(), order));
  return result;
}

Tensor Tensor::viewed_as(const Shape& shape) const {
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

const Operators& operators_of(Device device) {
  if (device == Device::GPU) {
    throw std::invalid_argument("there is no GPU: this build of mytensor has the CPU back end alone");
  }
  return cpu_operators();
}

}  // namespace mytensor
