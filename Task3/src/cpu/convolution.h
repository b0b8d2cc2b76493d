// Convolutions as products of their windows with the weights, in all three directions.
#pragma once

#include "winograd.h"

namespace mytensor {
namespace {

// With fewer channels than this a tap's run is too short to be multiplied by itself: the whole window is copied
// together.
constexpr Index kShortRun = 16;

// Walks over `count` pixels from number `first` on, picture row by picture row: calls use(r, n, y, x, length) for the
// pixels r to r + length, which lie in row y of picture n from column x on.
template <typename Use>
void visit_rows(Index first, Index count, Index height, Index width, const Use& use) {
  Index x = first % width, y = first / width % height, n = first / width / height;
  for (Index r = 0; r < count;) {
    const Index length = min_of(width - x, count - r);
    use(r, n, y, x, length);
    r += length;
    x = 0;
    if (++y == height) y = 0, ++n;
  }
}

// A row for each output pixel; for each tap its channels, from channels-last pictures. Taps in the border read zeros.
struct WindowRows {
  const Window& w;
  const float* x;
  const float* zeros;
  Index depth;

  Index taps() const { return w.taps(); }
  Index patch_size() const { return 0; }
  void locate(Index first, Index count, Index tap, const float** rows, float*) const {
    const Index dy = tap / w.kernel_w - w.pad_h, dx = tap % w.kernel_w - w.pad_w;
    visit_rows(first, count, w.out_height, w.out_width, [&](Index r, Index n, Index oy, Index ox, Index length) {
      const Index iy = oy * w.stride_h + dy;
      const bool inside = iy >= 0 && iy < w.height;
      const float* row = x + (n * w.height + iy) * w.width * depth;
      for (Index i = 0, ix = ox * w.stride_w + dx; i < length; ++i, ix += w.stride_w) {
        rows[r + i] = inside && ix >= 0 && ix < w.width ? row + ix * depth : zeros;
      }
    });
  }
};

// A row for each output pixel: its whole window, copied together from row-major or channels-last pictures. What lies
// together in memory, a picture row's part of the window, stays together: its pixels with all their channels in
// channels-last pictures, its pixels of one channel else.
struct PatchRows {
  const Window& w;
  const float* x;
  Index planes, pixel;  // channels apart and together: 1 and C, or C and 1
  Axes strides;
  Index depth;

  PatchRows(const Window& window, const float* pictures, Axes x_strides)
      : w(window), x(pictures), planes(x_strides[1] == 1 ? 1 : window.channels), pixel(window.channels / planes),
        strides(x_strides), depth(window.taps() * window.channels) {}

  // Copies `run` floats, and some more: what is written beyond them is written over by the next run.
  static void copy_over(const float* from, float* to, Index run) {
    typedef float Part __attribute__((vector_size(16), aligned(4), may_alias));
    for (Index f = 0; f < run; f += 4) *reinterpret_cast<Part*>(to + f) = *reinterpret_cast<const Part*>(from + f);
  }

  Index taps() const { return 1; }
  Index patch_size() const { return depth + 4; }
  void locate(Index first, Index count, Index, const float** rows, float* patches) const {
    const Index run = w.kernel_w * pixel;
    visit_rows(first, count, w.out_height, w.out_width, [&](Index r, Index n, Index oy, Index ox, Index length) {
      const Index top = oy * w.stride_h - w.pad_h;
      for (Index i = 0; i < length; ++i) {
        const Index left = (ox + i) * w.stride_w - w.pad_w;
        const Index begin = max_of(-left, 0), end = min_of(w.width - left, w.kernel_w);  // columns in the picture
        float* to = patches + (r + i) * patch_size();
        rows[r + i] = to;
        const float* from = x + n * strides[0] + top * strides[2] + left * pixel;
        if (top >= 0 && top + w.kernel_h <= w.height && begin == 0 && end == w.kernel_w) {
          for (Index plane = 0; plane < planes; ++plane) {
            for (Index ky = 0; ky < w.kernel_h; ++ky, to += run) {
              copy_over(from + plane * strides[1] + ky * strides[2], to, run);
            }
          }
          continue;
        }
        for (Index plane = 0; plane < planes; ++plane) {
          for (Index ky = 0; ky < w.kernel_h; ++ky, to += run) {
            const bool inside = top + ky >= 0 && top + ky < w.height;
            for (Index f = 0; f < run; ++f) {
              const bool there = inside && f >= begin * pixel && f < end * pixel;
              to[f] = there ? from[plane * strides[1] + ky * strides[2] + f] : 0;
            }
          }
        }
      }
    });
  }
};

// A row for each input pixel; for each tap the gradient of the output pixel that this tap of its window reached from
// here, or zeros if there is none.
struct BackwardRows {
  const Window& w;
  const float* y_grad;
  const float* zeros;
  Index depth;

  Index taps() const { return w.taps(); }
  Index patch_size() const { return 0; }
  void locate(Index first, Index count, Index tap, const float** rows, float*) const {
    const Index dy = w.pad_h - tap / w.kernel_w, dx = w.pad_w - tap % w.kernel_w;
    visit_rows(first, count, w.height, w.width, [&](Index r, Index n, Index iy, Index ix, Index length) {
      const Index y = iy + dy;  // the output row, times the stride
      const bool inside = y >= 0 && y % w.stride_h == 0 && y / w.stride_h < w.out_height;
      const float* row = y_grad + (n * w.out_height + y / w.stride_h) * w.out_width * depth;
      for (Index i = 0, x = ix + dx; i < length; ++i, ++x) {
        const Index ox = w.stride_w == 1 ? x : x / w.stride_w;
        rows[r + i] = inside && x >= 0 && ox * w.stride_w == x && ox < w.out_width ? row + ox * depth : zeros;
      }
    });
  }
};

// The weights in the order of a product's depth: tap by tap, and in each the channels; or as a patch holds them.
struct WeightOrder {
  Index taps, depth, tap_stride, depth_stride;
};

// Calls `use` with the rows of the windows and the order of the weights that goes with them: by pointers where a tap's
// run of channels is long enough.
template <typename Use>
void with_window_rows(const Window& w, const float* x, Axes x_strides, const Use& use) {
  if (w.channels >= kShortRun && x_strides[1] == 1) {
    Scratch zeros(w.channels);
    std::memset(zeros.data, 0, w.channels * sizeof(float));
    use(WindowRows{w, x, zeros.data, w.channels}, WeightOrder{w.taps(), w.channels, 1, w.taps()});
  } else if (x_strides[1] == 1) {
    use(PatchRows(w, x, x_strides), WeightOrder{w.taps(), w.channels, 1, w.taps()});
  } else {
    use(PatchRows(w, x, x_strides), WeightOrder{1, w.taps() * w.channels, 0, 1});
  }
}

void conv_forward(const Window& w, const float* x, Axes x_strides, const float* weight, const float* bias, float* y) {
  if (winograd_enabled() && winograd_fits(w, x_strides)) return winograd_forward(w, x, weight, bias, y);
  const Index size = w.taps() * w.channels;
  Scratch panels(packed_size(w.out_channels, 1, size));
  with_window_rows(w, x, x_strides, [&](const auto& rows, WeightOrder order) {
    pack(weight, w.out_channels, order.taps, order.depth, size, order.tap_stride, order.depth_stride, panels.data);
    multiply(rows, w.out_pixels(), w.out_channels, panels.data, bias, y);
  });
}

void conv_backward(const Window& w, const float* x, Axes x_strides, const float* weight, const float* y_grad,
                   float* x_grad, float* weight_grad, float* bias_grad) {
  const Index taps = w.taps();
  const bool winograd = winograd_enabled() && winograd_fits(w, x_strides);
  if (x_grad && winograd) {
    winograd_input_gradient(w, weight, y_grad, x_grad);
  } else if (x_grad) {
    Scratch panels(packed_size(w.channels, taps, w.out_channels)), zeros(w.out_channels);
    pack(weight, w.channels, taps, w.out_channels, taps, 1, w.channels * taps, panels.data);
    std::memset(zeros.data, 0, w.out_channels * sizeof(float));
    multiply(BackwardRows{w, y_grad, zeros.data, w.out_channels}, w.pixels(), w.channels, panels.data, nullptr, x_grad);
  }
  if (weight_grad && winograd) {
    winograd_weight_gradient(w, x, y_grad, weight_grad);
  } else if (weight_grad) {
    const Index stride = padded_columns(w.out_channels), size = taps * w.channels;
    Scratch sums(size * stride);
    with_window_rows(w, x, x_strides, [&](const auto& rows, WeightOrder order) {
      sum_outer_products(rows, w.out_pixels(), y_grad, w.out_channels, sums.data);
      for (Index k = 0; k < w.out_channels; ++k) {
        for (Index i = 0; i < size; ++i) {
          const Index tap = i / order.depth, d = i % order.depth;
          weight_grad[k * size + tap * order.tap_stride + d * order.depth_stride] = sums.data[i * stride + k];
        }
      }
    });
  }
  if (bias_grad) sum_rows(y_grad, w.out_pixels(), w.out_channels, bias_grad);
}

}  // namespace
}  // namespace mytensor
