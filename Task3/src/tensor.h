// A tensor: a shape, a device, and memory that may be shared with its reshaped copies.
#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "operators.h"

namespace mytensor {

enum class Device { CPU, GPU };

// How the axes of a tensor lie in memory. The last two are for four axes: (N, C, H, W) lies as N, H, W, C, or as
// C, H, W, N.
enum class Layout { RowMajor, ChannelsLast, BatchLast };

// Zero to four sizes, each at least 1; their product is known to fit.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<Index> sizes) : Shape(std::vector<Index>(sizes)) {}
  // Throws std::invalid_argument for sizes that do not fit.
  explicit Shape(const std::vector<Index>& sizes);
  // Not for more than four axes, a size below 1, or 2^31 elements or more.
  static bool fits(const std::vector<Index>& sizes);

  int rank() const { return rank_; }
  Index operator[](int axis) const { return sizes_[axis]; }
  Index count() const;
  bool operator==(const Shape& other) const;
  bool operator!=(const Shape& other) const { return !(*this == other); }
  std::vector<Index> sizes() const { return {sizes_, sizes_ + rank_}; }
  std::string text() const;

 private:
  int rank_ = 0;
  Index sizes_[kMaxRank] = {};
};

// "(64, 3, 32, 32)", whether these make a shape or not.
std::string text_of(const std::vector<Index>& sizes);

// The memory of one tensor and of all that share it. `live()` counts the storages that exist.
class Storage {
 public:
  Storage(Index count, Device device, bool zero);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  float* data() const { return data_; }
  Device device() const { return device_; }
  static Index live() { return live_; }

 private:
  float* data_;
  Device device_;
  static std::atomic<Index> live_;
};

class Tensor {
 public:
  // Of arbitrary content unless `zero`.
  explicit Tensor(const Shape& shape, Device device = Device::CPU, Layout layout = Layout::RowMajor, bool zero = false);

  const Shape& shape() const { return shape_; }
  Device device() const { return storage_->device(); }
  Layout layout() const { return layout_; }
  Index count() const { return shape_.count(); }
  float* data() const { return storage_->data(); }

  // Sizes and strides of all four axes, leading axes of size 1 before the tensor's own.
  Axes sizes() const;
  Axes strides() const;

  // The same values in another order of memory; the tensor itself if it lies so already.
  Tensor in_layout(Layout layout) const;
  // The same memory, which must lie row-major, under another shape of as many elements.
  Tensor viewed_as(const Shape& shape) const;

 private:
  Shape shape_;
  Layout layout_;
  std::shared_ptr<Storage> storage_;
};

// The table of the back end of a device. Throws std::invalid_argument for a GPU that this build or machine lacks.
const Operators& operators_of(Device device);

}  // namespace mytensor
