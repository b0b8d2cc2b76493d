#include "tensor.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "allocator.h"
#include "cpu/variants.h"

namespace mytensor {

bool Shape::fits(const std::vector<Index>& sizes) {
  if (sizes.size() > std::size_t(kMaxRank)) return false;
  Index room = (Index(1) << 31) - 1;
  for (Index size : sizes) {
    if (size < 1 || size > room) return false;
    room /= size;
  }
  return true;
}

Shape::Shape(const std::vector<Index>& sizes) : rank_(int(sizes.size())) {
  if (!fits(sizes)) {
    throw std::invalid_argument("a tensor has 0 to 4 axes, each of size 1 or more, and fewer than 2^31 elements; not " +
                                text_of(sizes));
  }
  std::copy(sizes.begin(), sizes.end(), sizes_);
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

std::string Shape::text() const { return text_of(sizes()); }

std::string text_of(const std::vector<Index>& sizes) {
  constexpr std::size_t kMostShown = 8;
  std::string text = "(";
  for (std::size_t axis = 0; axis < std::min(sizes.size(), kMostShown); ++axis) {
    text += (axis ? ", " : "") + std::to_string(sizes[axis]);
  }
  if (sizes.size() > kMostShown) text += ", and " + std::to_string(sizes.size() - kMostShown) + " more";
  return text + (sizes.size() == 1 ? ",)" : ")");
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
  if (device != Device::CPU) {
    throw std::invalid_argument("there is no GPU: this build of mytensor has the CPU back end alone");
  }
  return cpu_operators();
}

}  // namespace mytensor
