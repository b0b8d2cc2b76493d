// Matrix products. Their left rows are found through pointers, so that the same code multiplies dense matrices and the
// windows of a convolution (indirect convolution: Dukhan 2019, "The Indirect Convolution Algorithm").
//
// The right matrix is packed into panels of kVectors * kLanes columns: panel[(tap * depth + d) * width + column].
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

// How many vectors wide a panel of `columns` columns is.
inline int panel_vectors(Index columns) { return columns > kLanes ? 2 : 1; }

inline Index panel_width(Index columns) { return Index(panel_vectors(columns)) * kLanes; }

inline Index packed_size(Index columns, Index taps, Index depth) {
  return ceil_div(columns, panel_width(columns)) * panel_width(columns) * taps * depth;
}

// Packs element (column, tap, d) = from[column * column_stride + tap * tap_stride + d * depth_stride]; columns beyond
// the last are zero.
void pack(const float* from, Index columns, Index taps, Index depth, Index column_stride, Index tap_stride,
          Index depth_stride, float* panels) {
  const Index width = panel_width(columns);
#pragma omp parallel for schedule(static) if (columns * taps * depth > kParallelWork)
  for (Index first = 0; first < columns; first += width) {
    float* to = panels + first * taps * depth;
    const Index filled = min_of(width, columns - first);
    for (Index tap = 0; tap < taps; ++tap) {
      for (Index d = 0; d < depth; ++d, to += width) {
        const float* source = from + first * column_stride + tap * tap_stride + d * depth_stride;
        for (Index column = 0; column < filled; ++column) to[column] = source[column * column_stride];
        for (Index column = filled; column < width; ++column) to[column] = 0;
      }
    }
  }
}

// The function of a tile that is `rows` high, one of those that are compiled for each height.
template <template <int, int> class Tile, int kVectors, int kRows = kTileRows>
auto tile_of(Index rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<Tile, kVectors, kRows - 1>(rows);
  }
  return Tile<kRows, kVectors>::run;
}

// ---- rows times a panel ---------------------------------------------------------------------------------------------

// A sum of more products than this is made of partial sums: its rounding errors then grow with the number of those and
// of this, not with their product.
constexpr Index kPartialSum = 128;

// out[r][column] = bias[column] + sum over tap and d of rows[tap * tap_stride + r][d] * panel[tap][d][column]
template <int kRows, int kVectors>
struct MultiplyTile {
  static void run(const float* const* rows, Index tap_stride, Index taps, Index depth, const float* panel,
                  const float* bias, float* out, Index out_stride, Index columns) {
    constexpr Index width = Index(kVectors) * kLanes;
    Vector sum[kRows][kVectors], total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(bias + v * kLanes), total[r][v] = Vector{};
    }
    Index products = 0;  // in the partial sum
    for (Index tap = 0; tap < taps; ++tap) {
      const float* row[kRows];
      for (int r = 0; r < kRows; ++r) row[r] = rows[tap * tap_stride + r];
      for (Index first = 0; first < depth; first += kPartialSum) {
        const Index last = min_of(depth, first + kPartialSum);
        if (products + last - first > kPartialSum) {
          for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVectors; ++v) total[r][v] += sum[r][v], sum[r][v] = Vector{};
          }
          products = 0;
        }
        products += last - first;
        for (Index d = first; d < last; ++d, panel += width) {
          Vector right[kVectors];
          for (int v = 0; v < kVectors; ++v) right[v] = load(panel + v * kLanes);
#pragma GCC unroll 12
          for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVectors; ++v) sum[r][v] += row[r][d] * right[v];
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] += total[r][v];
    }
    for (int r = 0; r < kRows; ++r) {
      if (columns == width) {
        for (int v = 0; v < kVectors; ++v) store(out + r * out_stride + v * kLanes, sum[r][v]);
      } else {
        std::memcpy(out + r * out_stride, sum[r], columns * sizeof(float));
      }
    }
  }
};

// The rows of a dense matrix: one tap.
struct DenseRows {
  const float* matrix;
  Index depth;

  Index taps() const { return 1; }
  Index patch_size() const { return 0; }
  void locate(Index first, Index count, Index, const float** rows, float*) const {
    for (Index r = 0; r < count; ++r) rows[r] = matrix + (first + r) * depth;
  }
};

// out (count, columns) = rows x panels + bias, for `count` rows: row r of tap t is found at rows[t * tap_stride + r].
// `bias` may be null; its memory, and that of `out`, is as wide as whole panels where it is not.
inline void multiply_rows(const float* const* rows, Index count, Index tap_stride, Index taps, Index depth,
                          const float* panels, const float* bias, float* out, Index columns) {
  static const float zeros[2 * kLanes] = {};
  const Index width = panel_width(columns), tiles = ceil_div(count, kTileRows);
  const bool wide = panel_vectors(columns) == 2;
  for (Index column = 0; column < columns; column += width) {
    for (Index tile = 0; tile < tiles; ++tile) {  // tiles of equal height, give or take one row
      const Index top = tile * count / tiles, height = (tile + 1) * count / tiles - top;
      (wide ? tile_of<MultiplyTile, 2> : tile_of<MultiplyTile, 1>)(height)(
          rows + top, tap_stride, taps, depth, panels + column * taps * depth, bias ? bias + column : zeros,
          out + top * columns + column, columns, min_of(width, columns - column));
    }
  }
}

// out (m, columns), its rows `columns` apart, = rows x panels + bias.
//
// `Rows` tells where row m lies for each tap (`locate`); it may build the row in a patch of `patch_size()` floats.
template <typename Rows>
void multiply(const Rows& source, Index m, Index columns, const float* panels, const float* bias, float* out) {
  const Index taps = source.taps(), depth = source.depth, width = panel_width(columns);
  const Index tiles = ceil_div(m, kTileRows);
  // A block's rows are read once for each panel, so they should stay in the first-level cache; where there are few rows
  // a block is one tile, so that every thread has some.
  const Index block_rows = kTileRows * max_of(1, min_of(8, tiles / (4 * thread_limit())));
  const Index padded = ceil_div(columns, width) * width;
  Scratch padded_bias(padded);
  for (Index column = 0; column < padded; ++column) {
    padded_bias.data[column] = bias && column < columns ? bias[column] : 0;
  }
  const Index pointer_floats = ceil_div(block_rows * taps * Index(sizeof(float*)), Index(sizeof(float)));
  const Index thread_floats = ceil_div(pointer_floats + block_rows * source.patch_size(), 16) * 16;
  Scratch scratch(thread_floats * thread_limit());

#pragma omp parallel for schedule(static) if (m * columns * taps * depth > kParallelWork)
  for (Index first = 0; first < m; first += block_rows) {
    float* own = scratch.data + thread_number() * thread_floats;
    const float** rows = reinterpret_cast<const float**>(own);
    const Index count = min_of(block_rows, m - first);
    for (Index tap = 0; tap < taps; ++tap) {
      source.locate(first, count, tap, rows + tap * block_rows, own + pointer_floats);
    }
    multiply_rows(rows, count, block_rows, taps, depth, panels, padded_bias.data, out + first * columns, columns);
  }
}

// ---- sums of outer products -----------------------------------------------------------------------------------------

// sum[r][column] += sum over p of left[p][r] * right[p * right_stride + column]
template <int kRows, int kVectors>
struct OuterTile {
  static void run(const float* const* left, Index offset, const float* right, Index right_stride, Index count,
                  float* sums, Index sums_stride) {
    Vector sum[kRows][kVectors] = {};
    for (Index p = 0; p < count; ++p, right += right_stride) {
      const float* row = left[p] + offset;
      Vector across[kVectors];
      for (int v = 0; v < kVectors; ++v) across[v] = load(right + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] += row[r] * across[v];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        float* to = sums + r * sums_stride + v * kLanes;
        store(to, load(to) + sum[r][v]);
      }
    }
  }
};

// How far apart the rows of `sum_outer_products` lie.
inline Index padded_columns(Index columns) { return ceil_div(columns, panel_width(columns)) * panel_width(columns); }

// sums[(tap * depth + d) * padded_columns + column] = sum over m of source row m of that tap [d] * right[m][column]
//
// Threads share the pairs of tap and tile; where the rows must be copied together first, and the sums are few, they
// share the rows instead, in a number of shares that does not depend on the number of threads.
// Reads up to a panel's width beyond the last row of `right`: every tensor's memory has that much to spare.
template <typename Rows>
void sum_outer_products(const Rows& source, Index m, const float* right, Index columns, float* sums) {
  constexpr Index kBlock = 256;  // rows of left and right that stay in the second-level cache
  const Index taps = source.taps(), depth = source.depth, width = panel_width(columns);
  const Index stride = padded_columns(columns), size = taps * depth * stride;
  const bool wide = panel_vectors(columns) == 2;
  const Index tiles = ceil_div(depth, kTileRows);
  const Index row_shares = source.patch_size() ? min_of(8, ceil_div(m, kBlock)) : 1;
  const Index tile_shares = source.patch_size() ? 1 : min_of(thread_limit(), taps * tiles);
  const Index pointer_floats = kBlock * Index(sizeof(float*)) / Index(sizeof(float));
  const Index share_floats = pointer_floats + ceil_div(kBlock * source.patch_size(), 16) * 16;
  Scratch scratch(share_floats * row_shares * tile_shares), partial((row_shares - 1) * size + 1);
  std::memset(sums, 0, size * sizeof(float));
  std::memset(partial.data, 0, (row_shares - 1) * size * sizeof(float));

#pragma omp parallel for schedule(static) if (m * columns * depth > kParallelWork)
  for (Index share = 0; share < row_shares * tile_shares; ++share) {
    const Index row_share = share / tile_shares, tile_share = share % tile_shares;
    const float** rows = reinterpret_cast<const float**>(scratch.data + share * share_floats);
    float* patches = scratch.data + share * share_floats + pointer_floats;
    float* own = row_share ? partial.data + (row_share - 1) * size : sums;
    const Index begin = tile_share * taps * tiles / tile_shares, end = (tile_share + 1) * taps * tiles / tile_shares;
    const Index last_row = (row_share + 1) * m / row_shares;
    for (Index first = row_share * m / row_shares; first < last_row; first += kBlock) {
      const Index count = min_of(kBlock, last_row - first);
      Index located = -1;
      for (Index pair = begin; pair < end; ++pair) {
        const Index tap = pair / tiles, tile = pair % tiles;
        if (tap != located) source.locate(first, count, tap, rows, patches);
        located = tap;
        const Index top = tile * depth / tiles, height = (tile + 1) * depth / tiles - top;
        for (Index column = 0; column < columns; column += width) {
          (wide ? tile_of<OuterTile, 2> : tile_of<OuterTile, 1>)(height)(
              rows, top, right + first * columns + column, columns, count,
              own + (tap * depth + top) * stride + column, stride);
        }
      }
    }
  }
  for (Index share = 0; share < row_shares - 1; ++share) {
    for (Index i = 0; i < size; ++i) sums[i] += partial.data[share * size + i];
  }
}

// sums[column] = sum over the rows of x (rows, columns), in blocks of rows whose sums are added in double precision.
void sum_rows(const float* x, Index rows, Index columns, float* sums) {
  constexpr Index kBlock = 512;
  const Index blocks = ceil_div(rows, kBlock);
  Scratch partial(blocks * columns);
#pragma omp parallel for schedule(static) if (rows * columns > kParallelWork)
  for (Index block = 0; block < blocks; ++block) {
    float* sum = partial.data + block * columns;
    std::memset(sum, 0, columns * sizeof(float));
    for (Index row = block * kBlock; row < min_of(rows, (block + 1) * kBlock); ++row) {
      for (Index column = 0; column < columns; ++column) sum[column] += x[row * columns + column];
    }
  }
  for (Index column = 0; column < columns; ++column) {
    double sum = 0;
    for (Index block = 0; block < blocks; ++block) sum += partial.data[block * columns + column];
    sums[column] = float(sum);
  }
}

// ---- the operators --------------------------------------------------------------------------------------------------

void matmul(const float* a, const float* b, float* out, Index m, Index n, Index k, bool transpose_b) {
  Scratch panels(packed_size(n, 1, k));
  pack(b, n, 1, k, transpose_b ? k : 1, 0, transpose_b ? 1 : n, panels.data);
  multiply(DenseRows{a, k}, m, n, panels.data, nullptr, out);
}

void linear_forward(const float* x, const float* weight, const float* bias, float* y, Index n, Index in, Index out) {
  Scratch panels(packed_size(out, 1, in));
  pack(weight, out, 1, in, in, 0, 1, panels.data);
  multiply(DenseRows{x, in}, n, out, panels.data, bias, y);
}

void linear_backward(const float* x, const float* weight, const float* y_grad, float* x_grad, float* weight_grad,
                     float* bias_grad, Index n, Index in, Index out) {
  if (x_grad) matmul(y_grad, weight, x_grad, n, in, out, false);
  if (weight_grad) {
    const Index stride = padded_columns(in);
    Scratch sums(out * stride);
    sum_outer_products(DenseRows{y_grad, out}, n, x, in, sums.data);
    for (Index row = 0; row < out; ++row) {
      std::memcpy(weight_grad + row * in, sums.data + row * stride, in * sizeof(float));
    }
  }
  if (bias_grad) sum_rows(y_grad, n, out, bias_grad);
}

}  // namespace
}  // namespace mytensor
