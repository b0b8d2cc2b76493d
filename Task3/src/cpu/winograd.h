// Convolutions of 3x3 with stride 1 by Winograd's minimal filtering (Lavin & Gray 2016, "Fast Algorithms for
// Convolutional Neural Networks"): F(4x4, 3x3) for outputs and for gradients of inputs, F(3x3, 4x4) for gradients of
// weights. A tile of 4x4 outputs takes 36 products a pair of channels instead of 144.
//
// With the points 0, 1, -1, 2, -2 and infinity, in one dimension:
//   outputs (4) = A^T [(G weights (3)) * (B^T inputs (6))],   weights (3) = A'^T [(G' outputs (4)) * (B^T inputs (6))].
// In two dimensions every transform is applied to columns and then to rows. At each of the 36 points what is left is a
// product of matrices: (tiles, channels) x (channels, out channels), or of the first's transpose with gradients.
//
// The transforms' numbers are large beside their results, which costs a digit: results were measured to be off by up to
// 9e-6 of the largest, and 6e-7 without (tests/test_winograd.py). An infinite value becomes NaN in all of its tile, and
// values within a factor of some hundred of the largest float32 overflow.
#pragma once

#include "gemm.h"
#include "settings.h"

namespace mytensor {
namespace {

constexpr Index kOutput = 4, kPatch = 6, kPoints = kPatch * kPatch;

// Whether a convolution can be done so: its channels fill whole vectors.
inline bool winograd_fits(const Window& w, Axes x_strides) {
  return w.kernel_h == 3 && w.kernel_w == 3 && w.stride_h == 1 && w.stride_w == 1 && w.pad_h <= 2 && w.pad_w <= 2 &&
         w.channels % kLanes == 0 && w.out_channels % kLanes == 0 && x_strides[1] == 1;
}

// ---- the transforms in one dimension --------------------------------------------------------------------------------

// B^T: rows (4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0),
// (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1).
struct InputTransform {
  static constexpr int kFrom = 6, kTo = 6;
  static void apply(const Vector* d, Vector* out) {
    const Vector a = d[4] - 4 * d[2], b = d[3] - 4 * d[1], c = d[4] - d[2], e = 2 * (d[3] - d[1]);
    out[0] = 4 * d[0] - 5 * d[2] + d[4];
    out[1] = a + b;
    out[2] = a - b;
    out[3] = c + e;
    out[4] = c - e;
    out[5] = 4 * d[1] - 5 * d[3] + d[5];
  }
};

// A^T: rows (1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1).
struct OutputTransform {
  static constexpr int kFrom = 6, kTo = 4;
  static void apply(const Vector* m, Vector* out) {
    const Vector sum1 = m[1] + m[2], sum2 = m[3] + m[4], difference1 = m[1] - m[2], difference2 = m[3] - m[4];
    out[0] = m[0] + sum1 + sum2;
    out[1] = difference1 + 2 * difference2;
    out[2] = sum1 + 4 * sum2;
    out[3] = difference1 + 8 * difference2 + m[5];
  }
};

// G: rows (1, 0, 0) / 4, -(1, 1, 1) / 6, -(1, -1, 1) / 6, (1, 2, 4) / 24, (1, -2, 4) / 24, (0, 0, 1).
struct WeightTransform {
  static constexpr int kFrom = 3, kTo = 6;
  static void apply(const Vector* g, Vector* out) {
    const Vector even1 = (g[0] + g[2]) * (-1.0f / 6), odd1 = g[1] * (-1.0f / 6);
    const Vector even2 = (g[0] + 4 * g[2]) * (1.0f / 24), odd2 = g[1] * (1.0f / 12);
    out[0] = g[0] * 0.25f;
    out[1] = even1 + odd1;
    out[2] = even1 - odd1;
    out[3] = even2 + odd2;
    out[4] = even2 - odd2;
    out[5] = g[2];
  }
};

// G': rows (1, 0, 0, 0) / 4, -(1, 1, 1, 1) / 6, -(1, -1, 1, -1) / 6, (1, 2, 4, 8) / 24, (1, -2, 4, -8) / 24,
// (0, 0, 0, 1).
struct GradientTransform {
  static constexpr int kFrom = 4, kTo = 6;
  static void apply(const Vector* g, Vector* out) {
    const Vector even1 = (g[0] + g[2]) * (-1.0f / 6), odd1 = (g[1] + g[3]) * (-1.0f / 6);
    const Vector even2 = (g[0] + 4 * g[2]) * (1.0f / 24), odd2 = (g[1] + 4 * g[3]) * (1.0f / 12);
    out[0] = g[0] * 0.25f;
    out[1] = even1 + odd1;
    out[2] = even1 - odd1;
    out[3] = even2 + odd2;
    out[4] = even2 - odd2;
    out[5] = g[3];
  }
};

// A'^T: rows (1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 1).
struct WeightGradientTransform {
  static constexpr int kFrom = 6, kTo = 3;
  static void apply(const Vector* m, Vector* out) {
    const Vector sum1 = m[1] + m[2], sum2 = m[3] + m[4];
    out[0] = m[0] + sum1 + sum2;
    out[1] = m[1] - m[2] + 2 * (m[3] - m[4]);
    out[2] = sum1 + 4 * sum2 + m[5];
  }
};

// In two dimensions: `read(row, column)` gives what is transformed, and `write(row, column, value)` takes the result.
// Only what lies between the two directions is kept, so that nothing else goes through memory.
template <typename Transform, typename Read, typename Write>
inline void transform_2d(const Read& read, const Write& write) {
  Vector half[Transform::kFrom][Transform::kTo];
#pragma GCC unroll 6
  for (int row = 0; row < Transform::kFrom; ++row) {
    Vector from[Transform::kFrom];
#pragma GCC unroll 6
    for (int column = 0; column < Transform::kFrom; ++column) from[column] = read(row, column);
    Transform::apply(from, half[row]);
  }
#pragma GCC unroll 6
  for (int column = 0; column < Transform::kTo; ++column) {
    Vector from[Transform::kFrom], to[Transform::kTo];
#pragma GCC unroll 6
    for (int row = 0; row < Transform::kFrom; ++row) from[row] = half[row][column];
    Transform::apply(from, to);
#pragma GCC unroll 6
    for (int row = 0; row < Transform::kTo; ++row) write(row, column, to[row]);
  }
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

// A channels-last batch of pictures, cut into tiles: tile (y, x) covers rows 4 y + top to 4 y + top + size, and columns
// likewise. Outside the picture there are zeros, and nothing is written.
struct Tiled {
  Index batch, height, width, channels;
  Index rows, columns;  // of tiles
  Index top, left;

  Index count() const { return batch * rows * columns; }
};

// Where the pixels of a tile lie, kSize x kSize of them; `outside` stands for those that are not in the picture.
template <int kSize, typename Pointer>
void locate_tile(const Tiled& t, Index tile, Pointer pictures, Pointer outside, Pointer (&pixels)[kSize][kSize]) {
  const Index x0 = tile % t.columns * kOutput + t.left, y0 = tile / t.columns % t.rows * kOutput + t.top;
  const Index n = tile / t.columns / t.rows;
  for (int row = 0; row < kSize; ++row) {
    const Index y = y0 + row;
    for (int column = 0; column < kSize; ++column) {
      const Index x = x0 + column;
      const bool inside = y >= 0 && y < t.height && x >= 0 && x < t.width;
      pixels[row][column] = inside ? pictures + ((n * t.height + y) * t.width + x) * t.channels : outside;
    }
  }
}

// Floats from one point's matrix to the next. The odd line keeps the 36 points of a tile out of one set of the cache.
inline Index point_stride(Index floats) { return floats + 16; }

// points[p][channel] = Transform of the tile's pixels; `zeros`, as many as channels, are the pixels of the border.
template <typename Transform>
void transform_tile(const Tiled& t, Index tile, const float* pictures, const float* zeros, float* points,
                    Index stride) {
  const float* pixels[Transform::kFrom][Transform::kFrom];
  locate_tile(t, tile, pictures, zeros, pixels);
  for (Index c = 0; c < t.channels; c += kLanes) {
    transform_2d<Transform>([&](int row, int column) { return load(pixels[row][column] + c); },
                            [&](int row, int column, Vector value) {
                              store(points + (row * kPatch + column) * stride + c, value);
                            });
  }
}

// The tile's outputs from the products at its points, plus the bias; `spare`, as much memory as channels, takes those
// that are not in the picture.
inline void finish_tile(const Tiled& t, Index tile, const float* points, Index stride, const float* bias, float* y,
                        float* spare) {
  float* pixels[kOutput][kOutput];
  locate_tile(t, tile, y, spare, pixels);
  for (Index k = 0; k < t.channels; k += kLanes) {
    const Vector shift = load(bias + k);
    transform_2d<OutputTransform>(
        [&](int row, int column) { return load(points + (row * kPatch + column) * stride + k); },
        [&](int row, int column, Vector value) { store(pixels[row][column] + k, value + shift); });
  }
}

// ---- outputs, and gradients of inputs -------------------------------------------------------------------------------

// The transformed weights as panels of `multiply_rows`, one matrix (channels, out_channels) a point. The weight of
// input channel c and output channel k lies at weight + k * out_stride + c * in_stride; `flipped` turns the kernel by
// 180 degrees.
void transform_weights(const float* weight, Index out_channels, Index out_stride, Index channels, Index in_stride,
                       bool flipped, float* panels, Index stride) {
  const Index width = panel_width(out_channels);
  if (out_channels % width != 0) std::memset(panels, 0, kPoints * stride * sizeof(float));
#pragma omp parallel for schedule(static) if (out_channels * channels * kPoints > kParallelWork)
  for (Index k = 0; k < out_channels; k += kLanes) {
    float* to = panels + k / width * width * channels + k % width;
    for (Index c = 0; c < channels; ++c, to += width) {
      const float* from = weight + k * out_stride + c * in_stride;
      transform_2d<WeightTransform>(
          [&](int row, int column) {
            const int tap = row * 3 + column;
            float lanes[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = from[lane * out_stride + (flipped ? 8 - tap : tap)];
            return load(lanes);
          },
          [&](int row, int column, Vector value) { store(to + (row * kPatch + column) * stride, value); });
    }
  }
}

// out = the convolution of `in`, whose tiles start at (in.top, in.left), with the weights that `panels` hold.
void winograd_convolve(const Tiled& in, const float* x, const float* panels, Index panels_stride, const float* bias,
                       const Tiled& out, float* y) {
  // As many tiles at once as their transforms stay in the second-level cache, in whole tiles of the product; and at
  // least so many that the weights are worth being read.
  constexpr Index kCachedFloats = 1 << 18;
  const Index channels = max_of(in.channels, out.channels), fitting = kCachedFloats / (kPoints * channels);
  const Index block = kTileRows * max_of(24 / kTileRows, min_of(60, fitting) / kTileRows), tiles = in.count();
  const Index stride = point_stride(block * channels);
  static_assert(sizeof(float*) <= 2 * sizeof(float));
  const Index thread_floats = (kPoints + 1) * stride + 2 * block;
  Scratch scratch(thread_floats * thread_limit());
  Scratch zeros(channels), spare(out.channels * thread_limit());
  std::memset(zeros.data, 0, channels * sizeof(float));
#pragma omp parallel for schedule(static) if (tiles * in.channels * out.channels > kParallelWork)
  for (Index first = 0; first < tiles; first += block) {
    // The products of a point take the place of the inputs at the one before, which are no longer needed.
    float* products = scratch.data + thread_number() * thread_floats;
    float* transformed = products + stride;
    const float** rows = reinterpret_cast<const float**>(products + (kPoints + 1) * stride);
    const Index count = min_of(block, tiles - first);
    for (Index i = 0; i < count; ++i) {
      transform_tile<InputTransform>(in, first + i, x, zeros.data, transformed + i * in.channels, stride);
    }
    for (int p = 0; p < kPoints; ++p) {
      for (Index i = 0; i < count; ++i) rows[i] = transformed + p * stride + i * in.channels;
      multiply_rows(rows, count, count, 1, in.channels, panels + p * panels_stride, nullptr, products + p * stride,
                    out.channels);
    }
    for (Index i = 0; i < count; ++i) {
      finish_tile(out, first + i, products + i * out.channels, stride, bias ? bias : zeros.data, y,
                  spare.data + thread_number() * out.channels);
    }
  }
}

Tiled tiled(const Window& w, bool of_input, Index rows, Index columns, Index top, Index left) {
  return of_input ? Tiled{w.batch, w.height, w.width, w.channels, rows, columns, top, left}
                  : Tiled{w.batch, w.out_height, w.out_width, w.out_channels, rows, columns, top, left};
}

void winograd_forward(const Window& w, const float* x, const float* weight, const float* bias, float* y) {
  const Index rows = ceil_div(w.out_height, kOutput), columns = ceil_div(w.out_width, kOutput);
  const Index stride = point_stride(packed_size(w.out_channels, 1, w.channels));
  Scratch panels(kPoints * stride);
  transform_weights(weight, w.out_channels, w.channels * 9, w.channels, 9, false, panels.data, stride);
  winograd_convolve(tiled(w, true, rows, columns, -w.pad_h, -w.pad_w), x, panels.data, stride, bias,
                    tiled(w, false, rows, columns, 0, 0), y);
}

// The gradient of the input is the convolution of the output's gradient with the kernels turned, under a border of
// 2 - padding.
void winograd_input_gradient(const Window& w, const float* weight, const float* y_grad, float* x_grad) {
  const Index rows = ceil_div(w.height, kOutput), columns = ceil_div(w.width, kOutput);
  const Index stride = point_stride(packed_size(w.channels, 1, w.out_channels));
  Scratch panels(kPoints * stride);
  transform_weights(weight, w.channels, 9, w.out_channels, w.channels * 9, true, panels.data, stride);
  winograd_convolve(tiled(w, false, rows, columns, w.pad_h - 2, w.pad_w - 2), y_grad, panels.data, stride, nullptr,
                    tiled(w, true, rows, columns, 0, 0), x_grad);
}

// ---- gradients of the weights ---------------------------------------------------------------------------------------

// Block by block of tiles, first all threads transform pictures and gradients, then each adds up the products of its
// own points: every sum has one order, whatever the number of threads.
void winograd_weight_gradient(const Window& w, const float* x, const float* y_grad, float* weight_grad) {
  constexpr Index kBlock = 128;
  const Index rows = ceil_div(w.out_height, kOutput), columns = ceil_div(w.out_width, kOutput);
  const Tiled in = tiled(w, true, rows, columns, -w.pad_h, -w.pad_w), out = tiled(w, false, rows, columns, 0, 0);
  const Index in_stride = point_stride(kBlock * w.channels), out_stride = point_stride(kBlock * w.out_channels);
  const Index width = panel_width(w.out_channels), sums_row = padded_columns(w.out_channels);
  const Index sums_stride = point_stride(w.channels * sums_row);
  const bool wide = panel_vectors(w.out_channels) == 2;
  Scratch inputs(kPoints * in_stride), gradients(kPoints * out_stride), sums(kPoints * sums_stride);
  Scratch zeros(max_of(w.channels, w.out_channels));
  std::memset(sums.data, 0, kPoints * sums_stride * sizeof(float));
  std::memset(zeros.data, 0, max_of(w.channels, w.out_channels) * sizeof(float));
  for (Index first = 0; first < in.count(); first += kBlock) {
    const Index count = min_of(kBlock, in.count() - first), parts = ceil_div(w.channels, kTileRows);
#pragma omp parallel for schedule(static)
    for (Index i = 0; i < count; ++i) {
      transform_tile<InputTransform>(in, first + i, x, zeros.data, inputs.data + i * w.channels, in_stride);
      transform_tile<GradientTransform>(out, first + i, y_grad, zeros.data, gradients.data + i * w.out_channels,
                                        out_stride);
    }
#pragma omp parallel for schedule(static)
    for (int p = 0; p < kPoints; ++p) {
      const float* left[kBlock];
      for (Index i = 0; i < count; ++i) left[i] = inputs.data + p * in_stride + i * w.channels;
      for (Index part = 0; part < parts; ++part) {
        const Index top = part * w.channels / parts, height = (part + 1) * w.channels / parts - top;
        for (Index k = 0; k < w.out_channels; k += width) {
          (wide ? tile_of<OuterTile, 2> : tile_of<OuterTile, 1>)(height)(
              left, top, gradients.data + p * out_stride + k, w.out_channels, count,
              sums.data + p * sums_stride + top * sums_row + k, sums_row);
        }
      }
    }
  }
#pragma omp parallel for schedule(static)
  for (Index c = 0; c < w.channels; ++c) {
    for (Index k = 0; k < w.out_channels; k += kLanes) {
      const float* from = sums.data + c * sums_row + k;
      float* to = weight_grad + (k * w.channels + c) * 9;
      transform_2d<WeightGradientTransform>(
          [&](int row, int column) { return load(from + (row * kPatch + column) * sums_stride); },
          [&](int row, int column, Vector value) {
            for (int lane = 0; lane < kLanes; ++lane) to[lane * w.channels * 9 + row * 3 + column] = value[lane];
          });
    }
  }
}

}  // namespace
}  // namespace mytensor
