// Convolutions of few channels, in all three directions, on pictures that lie batch-last, (C, H, W, N): a vector holds
// one pixel of kLanes pictures, so it is full however few channels there are, and each weight meets it as one number.
//
// For LeNet's first layer a vector along the 6 output channels would be full to 6 / 16. The windows are never copied
// together: neighbouring outputs in registers share what they read.
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

// A tile of outputs in registers: channels x columns accumulators, a vector of pixels for each column, and a weight.
// For the gradient of the weights: taps x channels accumulators, a gradient for each channel, and a pixel.
constexpr int kNarrowChannels = 6;
constexpr int kNarrowTaps = 5;
#if defined(__AVX512F__)
constexpr int kNarrowColumns = 4;
constexpr int kNarrowGradients = 4;
#else
constexpr int kNarrowColumns = 2;
constexpr int kNarrowGradients = 2;
#endif

// Which input position tap number `tap` of the window at each output position reads, in floats from the first
// (positions are `pitch` apart); -1 in the border. Backwards: which output position the window of which that tap lies
// on each input position belongs to; -1 if there is none.
class Reach {
 public:
  static Reach forward(Index in, Index out, Index taps, Index stride, Index pad, Index pitch) {
    return Reach(out, taps, [=](Index position, Index tap) {
      const Index source = position * stride - pad + tap;
      return source >= 0 && source < in ? source * pitch : -1;
    });
  }
  static Reach backward(Index in, Index out, Index taps, Index stride, Index pad, Index pitch) {
    return Reach(in, taps, [=](Index position, Index tap) {
      const Index steps = position + pad - tap;
      return steps >= 0 && steps % stride == 0 && steps / stride < out ? steps / stride * pitch : -1;
    });
  }

  Index positions() const { return positions_; }
  bool has_border() const { return has_border_; }
  const std::int32_t* of(Index tap) const {
    return reinterpret_cast<const std::int32_t*>(table_.data) + tap * positions_;
  }

 private:
  template <typename Source>
  Reach(Index positions, Index taps, const Source& source) : positions_(positions), table_(positions * taps) {
    std::int32_t* to = reinterpret_cast<std::int32_t*>(table_.data);
    for (Index tap = 0; tap < taps; ++tap) {
      for (Index position = 0; position < positions; ++position) {
        *to = std::int32_t(source(position, tap));
        has_border_ |= *to++ < 0;
      }
    }
  }

  Index positions_;
  bool has_border_ = false;
  Scratch table_;
};

// `count` things in as few equal parts of at most `most` as there can be.
struct Parts {
  Index count, parts;
  Parts(Index things, Index most) : count(things), parts(ceil_div(things, most)) {}
  Index begin(Index part) const { return part * count / parts; }
  Index size(Index part) const { return begin(part + 1) - begin(part); }
};

// ---- outputs, and gradients of inputs ------------------------------------------------------------------------------

// One sum of planes of taps: out[k] at (y, x) = bias[k] + sum over p, ky, kx of
// in[p] at (rows.of(ky)[y], columns.of(kx)[x]) * weights[k][p][ky][kx].
struct Sliding2d {
  const float* in;
  Index planes, in_plane, batch;  // a plane of the input, in floats
  Index kernel_h, kernel_w;
  const Reach& rows;
  const Reach& columns;
};

// The sums of `kOut` channels in `kColumns` columns of a row, of kLanes pictures. `in` points at the first of those.
template <int kOut, int kColumns, bool kBorder>
void slide_tile(const Sliding2d& s, const float* in, Index y, Index x, const float* weights, const float* bias,
                float* out, Index out_plane, Index lanes) {
  Vector sum[kOut][kColumns];
  for (int k = 0; k < kOut; ++k) {
    for (int t = 0; t < kColumns; ++t) sum[k][t] = Vector{} + bias[k];
  }
  for (Index plane = 0; plane < s.planes; ++plane) {
    for (Index ky = 0; ky < s.kernel_h; ++ky) {
      const Index row = s.rows.of(ky)[y];
      if (kBorder && row < 0) {
        weights += s.kernel_w * kOut;
        continue;
      }
      const float* from = in + plane * s.in_plane + row;
      for (Index kx = 0; kx < s.kernel_w; ++kx, weights += kOut) {
        const std::int32_t* column = s.columns.of(kx) + x;
        Vector pixel[kColumns];
        if (kBorder) {
          bool any = false;
          for (int t = 0; t < kColumns; ++t) any |= column[t] >= 0;
          if (!any) continue;
          for (int t = 0; t < kColumns; ++t) pixel[t] = column[t] < 0 ? Vector{} : load(from + column[t]);
        } else {
          for (int t = 0; t < kColumns; ++t) pixel[t] = load(from + column[t]);
        }
#pragma GCC unroll 6
        for (int k = 0; k < kOut; ++k) {
          const Vector weight = Vector{} + weights[k];
          for (int t = 0; t < kColumns; ++t) sum[k][t] += weight * pixel[t];
        }
      }
    }
  }
  for (int k = 0; k < kOut; ++k) {
    for (int t = 0; t < kColumns; ++t) store_part(out + k * out_plane + t * s.batch, sum[k][t], lanes);
  }
}

using SlideTile = void (*)(const Sliding2d&, const float*, Index, Index, const float*, const float*, float*, Index,
                           Index);

template <int kColumns, bool kBorder>
SlideTile slide_tile_of(Index channels) {
  static_assert(kNarrowChannels == 6);
  constexpr SlideTile tiles[] = {slide_tile<1, kColumns, kBorder>, slide_tile<2, kColumns, kBorder>,
                                 slide_tile<3, kColumns, kBorder>, slide_tile<4, kColumns, kBorder>,
                                 slide_tile<5, kColumns, kBorder>, slide_tile<6, kColumns, kBorder>};
  return tiles[channels - 1];
}

// All outputs (out_channels, rows, columns, N). The weight of output channel k and input plane p lies at
// weight + k * out_stride + p * in_stride.
void slide(const Sliding2d& s, const float* weight, Index out_stride, Index in_stride, const float* bias, float* out,
           Index out_channels) {
  const Index height = s.rows.positions(), width = s.columns.positions(), taps = s.kernel_h * s.kernel_w;
  const Parts groups(out_channels, kNarrowChannels);
  // Group by group, and in each plane by plane and tap by tap, the weights of the group's channels.
  Scratch packed(out_channels * s.planes * taps), padded_bias(out_channels);
  float* to = packed.data;
  for (Index group = 0; group < groups.parts; ++group) {
    for (Index plane = 0; plane < s.planes; ++plane) {
      for (Index tap = 0; tap < taps; ++tap) {
        for (Index k = groups.begin(group); k < groups.begin(group + 1); ++k) {
          *to++ = weight[k * out_stride + plane * in_stride + tap];
        }
      }
    }
  }
  for (Index k = 0; k < out_channels; ++k) padded_bias.data[k] = bias ? bias[k] : 0;

  const bool border = s.rows.has_border() || s.columns.has_border(), wide = width >= kNarrowColumns;
  const Index step = wide ? kNarrowColumns : 1, blocks = ceil_div(s.batch, kLanes);
  [[maybe_unused]] const Index work = out_channels * s.planes * taps * height * width * s.batch;
#pragma omp parallel for schedule(static) if (work > kParallelWork)
  for (Index task = 0; task < height * blocks; ++task) {
    const Index y = task / blocks, first = task % blocks * kLanes, lanes = min_of(kLanes, s.batch - first);
    for (Index group = 0; group < groups.parts; ++group) {
      const Index k = groups.begin(group), size = groups.size(group);
      const auto of_size = wide ? (border ? slide_tile_of<kNarrowColumns, true> : slide_tile_of<kNarrowColumns, false>)
                                : (border ? slide_tile_of<1, true> : slide_tile_of<1, false>);
      const SlideTile tile = of_size(size);
      for (Index left = 0; left < width; left += step) {
        const Index x = min_of(left, width - step);  // the last tile may do some columns again
        tile(s, s.in + first, y, x, packed.data + k * s.planes * taps, padded_bias.data + k,
             out + ((k * height + y) * width + x) * s.batch + first, height * width * s.batch, lanes);
      }
    }
  }
}

// ---- gradients of the weights --------------------------------------------------------------------------------------

// sums[j][k] (a vector, each picture for itself) += sum over `height` rows and their columns of
// x at (rows[row], columns[j][column]) * gradient[k] at (row, column).
template <int kTaps, int kOut, bool kCareful>
void outer_rows(const float* x, const std::int32_t* rows, Index height, const std::int32_t* columns, Index width,
                const float* gradient, Index gradient_plane, Index batch, Index lanes, float* sums) {
  Vector sum[kTaps][kOut] = {};
  for (Index row = 0; row < height; ++row, gradient += width * batch) {
    if (rows[row] < 0) continue;
    const float* x_row = x + rows[row];
    for (Index column = 0; column < width; ++column) {
      Vector across[kOut];
      for (int k = 0; k < kOut; ++k) {
        const float* from = gradient + k * gradient_plane + column * batch;
        across[k] = kCareful ? load_part(from, lanes) : load(from);
      }
#pragma GCC unroll 5
      for (int j = 0; j < kTaps; ++j) {
        const Index source = columns[j * width + column];
        if (kCareful && source < 0) continue;
        const Vector pixel = kCareful ? load_part(x_row + source, lanes) : load(x_row + source);
        for (int k = 0; k < kOut; ++k) sum[j][k] += pixel * across[k];
      }
    }
  }
  for (int j = 0; j < kTaps; ++j) {
    for (int k = 0; k < kOut; ++k) {
      float* to = sums + (j * kOut + k) * kLanes;
      store(to, load(to) + sum[j][k]);
    }
  }
}

using OuterRows = void (*)(const float*, const std::int32_t*, Index, const std::int32_t*, Index, const float*, Index,
                           Index, Index, float*);

template <int kOut, bool kCareful>
OuterRows outer_rows_of_taps(Index taps) {
  static_assert(kNarrowTaps == 5);
  constexpr OuterRows functions[] = {outer_rows<1, kOut, kCareful>, outer_rows<2, kOut, kCareful>,
                                     outer_rows<3, kOut, kCareful>, outer_rows<4, kOut, kCareful>,
                                     outer_rows<5, kOut, kCareful>};
  return functions[taps - 1];
}

template <bool kCareful>
OuterRows outer_rows_of(Index taps, Index out) {
#if defined(__AVX512F__)
  if (out == 4) return outer_rows_of_taps<4, kCareful>(taps);
  if (out == 3) return outer_rows_of_taps<3, kCareful>(taps);
#endif
  return out == 2 ? outer_rows_of_taps<2, kCareful>(taps) : outer_rows_of_taps<1, kCareful>(taps);
}

// weight_grad[k][c][ky][kx]. A unit of work is some taps of a kernel row for one input channel and some output
// channels; threads share the units, and each adds up its own over all pictures and rows: every sum has one order.
void narrow_weight_gradient(const Window& w, const Reach& rows, const Reach& columns, const float* x,
                            const float* y_grad, float* weight_grad) {
  const Parts tap_parts(w.kernel_w, kNarrowTaps), out_parts(w.out_channels, kNarrowGradients);
  const Index units = w.channels * w.kernel_h * tap_parts.parts * out_parts.parts;
  constexpr Index kUnitFloats = kNarrowTaps * kNarrowGradients * kLanes;
  Scratch sums(units * kUnitFloats);
  // As many rows at once as, of kLanes pictures, a unit's gradients and pixels stay in the first-level cache.
  constexpr Index kCachedFloats = 1 << 13;
  const Index row_floats = (kNarrowGradients * w.out_width + w.width) * kLanes;
  const Index chunk = max_of(1, min_of(w.out_height, kCachedFloats / row_floats));
  const Index shares = min_of(units, thread_limit());
#pragma omp parallel for schedule(static) if (w.taps() * w.channels * w.out_pixels() * w.out_channels > kParallelWork)
  for (Index share = 0; share < shares; ++share) {
    const Index begin = share * units / shares, end = (share + 1) * units / shares;
    std::memset(sums.data + begin * kUnitFloats, 0, (end - begin) * kUnitFloats * sizeof(float));
    for (Index first = 0; first < w.batch; first += kLanes) {
      const Index lanes = min_of(kLanes, w.batch - first);
      const bool careful = columns.has_border() || lanes < kLanes;
      for (Index y = 0; y < w.out_height; y += chunk) {
        for (Index unit = begin; unit < end; ++unit) {
          const Index out_part = unit % out_parts.parts, tap_part = unit / out_parts.parts % tap_parts.parts;
          const Index kernel_row = unit / out_parts.parts / tap_parts.parts;
          const Index ky = kernel_row % w.kernel_h, c = kernel_row / w.kernel_h, k = out_parts.begin(out_part);
          const auto add = (careful ? outer_rows_of<true> : outer_rows_of<false>)(tap_parts.size(tap_part),
                                                                                out_parts.size(out_part));
          add(x + c * w.height * w.width * w.batch + first, rows.of(ky) + y, min_of(chunk, w.out_height - y),
              columns.of(tap_parts.begin(tap_part)), w.out_width,
              y_grad + (k * w.out_height + y) * w.out_width * w.batch + first, w.out_height * w.out_width * w.batch,
              w.batch, lanes, sums.data + unit * kUnitFloats);
        }
      }
    }
    for (Index unit = begin; unit < end; ++unit) {
      const Index out_part = unit % out_parts.parts, tap_part = unit / out_parts.parts % tap_parts.parts;
      const Index kernel_row = unit / out_parts.parts / tap_parts.parts;
      const float* from = sums.data + unit * kUnitFloats;
      for (Index j = 0; j < tap_parts.size(tap_part); ++j) {
        for (Index k = 0; k < out_parts.size(out_part); ++k, from += kLanes) {
          const Index tap = kernel_row % w.kernel_h * w.kernel_w + tap_parts.begin(tap_part) + j;
          weight_grad[((out_parts.begin(out_part) + k) * w.channels + kernel_row / w.kernel_h) * w.taps() + tap] =
              sum_of_lanes(load(from));
        }
      }
    }
  }
}

// sums[plane] = sum of a plane of `size` values, in blocks whose sums are added in double precision.
void sum_planes(const float* x, Index planes, Index size, float* sums) {
  constexpr Index kBlock = 64 * kLanes;
#pragma omp parallel for schedule(static) if (planes * size > kParallelWork)
  for (Index plane = 0; plane < planes; ++plane) {
    double total = 0;
    for (Index first = 0; first < size; first += kBlock) {
      const float* from = x + plane * size + first;
      const Index count = min_of(kBlock, size - first);
      Vector sum = {};
      for (Index i = 0; i < count; i += kLanes) sum += load_part(from + i, min_of(kLanes, count - i));
      total += sum_of_lanes(sum);
    }
    sums[plane] = float(total);
  }
}

// ---- the operators -------------------------------------------------------------------------------------------------

void narrow_conv_forward(const Window& w, const float* x, const float* weight, const float* bias, float* y) {
  const Reach rows = Reach::forward(w.height, w.out_height, w.kernel_h, w.stride_h, w.pad_h, w.width * w.batch);
  const Reach columns = Reach::forward(w.width, w.out_width, w.kernel_w, w.stride_w, w.pad_w, w.batch);
  slide({x, w.channels, w.height * w.width * w.batch, w.batch, w.kernel_h, w.kernel_w, rows, columns}, weight,
        w.channels * w.taps(), w.taps(), bias, y, w.out_channels);
}

void narrow_conv_backward(const Window& w, const float* x, const float* weight, const float* y_grad, float* x_grad,
                          float* weight_grad, float* bias_grad) {
  if (x_grad) {
    const Index row = w.out_width * w.batch;
    const Reach rows = Reach::backward(w.height, w.out_height, w.kernel_h, w.stride_h, w.pad_h, row);
    const Reach columns = Reach::backward(w.width, w.out_width, w.kernel_w, w.stride_w, w.pad_w, w.batch);
    slide({y_grad, w.out_channels, w.out_height * row, w.batch, w.kernel_h, w.kernel_w, rows, columns},
          weight, w.taps(), w.channels * w.taps(), nullptr, x_grad, w.channels);
  }
  if (weight_grad) {
    const Reach rows = Reach::forward(w.height, w.out_height, w.kernel_h, w.stride_h, w.pad_h, w.width * w.batch);
    const Reach columns = Reach::forward(w.width, w.out_width, w.kernel_w, w.stride_w, w.pad_w, w.batch);
    narrow_weight_gradient(w, rows, columns, x, y_grad, weight_grad);
  }
  if (bias_grad) sum_planes(y_grad, w.out_channels, w.out_height * w.out_width * w.batch, bias_grad);
}

}  // namespace
}  // namespace mytensor
