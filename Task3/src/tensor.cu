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

Axes Tensor::strides() const {
  const Axes s = sizes();
  if (layout_ == Layout::ChannelsLast) return {{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]}};
  return {{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}};
}

Tensor Tensor::in_layout(Layout layout) const {
  if (layout == layout_) return *this;
  Tensor result(shape_, device(), layout);
  const Axes from = strides(), s = sizes();
  if (layout == Layout::RowMajor) {
    operators_of(device()).copy(data(), from, result.data(), s);
  } else {
    operators_of(device()).copy(data(), {{from[0], from[2], from[3], from[1]}}, result.data(),
                                {{s[0], s[2], s[3], s[1]}});
  }
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
