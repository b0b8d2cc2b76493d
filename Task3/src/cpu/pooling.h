// Max-pooling and average pooling of channels-last pictures, with windows that may overlap and reach into the border.
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

// The part of a window that lies in the picture: rows y0 to y1, columns x0 to x1.
struct Clipped {
  Index y0, y1, x0, x1;
  Clipped(const Window& w, Index out) {  // of the output pixel number `out` of a picture
    const Index top = out / w.out_width * w.stride_h - w.pad_h, left = out % w.out_width * w.stride_w - w.pad_w;
    y0 = max_of(top, 0), y1 = min_of(top + w.kernel_h, w.height);
    x0 = max_of(left, 0), x1 = min_of(left + w.kernel_w, w.width);
  }
};

// Takes the larger value, NaN before all; the first of equal ones stays, as in PyTorch.
inline Places beats(Vector value, Vector best) { return (value > best) | ((value != value) & (best == best)); }

void max_pool_forward(const Window& w, const float* x, float* y) {
  const Index channels = w.channels, out_pixels = w.out_height * w.out_width;
#pragma omp parallel for schedule(static) if (w.out_pixels() * w.taps() * channels > kParallelWork)
  for (Index n = 0; n < w.batch; ++n) {
    const float* picture = x + n * w.height * w.width * channels;
    for (Index out = 0; out < out_pixels; ++out) {
      const Clipped in(w, out);
      for (Index c = 0; c < channels; c += kLanes) {
        Vector best = load(picture + (in.y0 * w.width + in.x0) * channels + c);
        for (Index iy = in.y0; iy < in.y1; ++iy) {
          for (Index ix = in.x0; ix < in.x1; ++ix) {
            const Vector value = load(picture + (iy * w.width + ix) * channels + c);
            best = beats(value, best) ? value : best;
          }
        }
        store_part(y + (n * out_pixels + out) * channels + c, best, min_of(kLanes, channels - c));
      }
    }
  }
}

// The gradient goes to the first maximum of each window. It is found anew: cheaper than keeping its place.
void max_pool_backward(const Window& w, const float* x, const float* y_grad, float* x_grad) {
  const Index channels = w.channels, out_pixels = w.out_height * w.out_width;
  const Index picture_floats = w.height * w.width * channels;
  // Whole vectors are added to, which reach into the next pixel where channels do not fill them, and beyond the last
  // pixel into the next picture, another thread's: so the gradient is made in memory of the thread's own.
  const Index thread_floats = ceil_div(picture_floats + kLanes, 16) * 16;
  Scratch scratch(thread_floats * thread_limit());
#pragma omp parallel for schedule(static) if (w.out_pixels() * w.taps() * channels > kParallelWork)
  for (Index n = 0; n < w.batch; ++n) {
    const float* picture = x + n * picture_floats;
    float* gradient = scratch.data + thread_number() * thread_floats;
    std::memset(gradient, 0, thread_floats * sizeof(float));
    for (Index out = 0; out < out_pixels; ++out) {
      const Clipped in(w, out);
      for (Index c = 0; c < channels; c += kLanes) {
        const Index first = in.y0 * w.width + in.x0;
        Vector best = load(picture + first * channels + c);
        Places place = Places{} + std::int32_t(first);
        for (Index iy = in.y0; iy < in.y1; ++iy) {
          for (Index ix = in.x0; ix < in.x1; ++ix) {
            const Index here = iy * w.width + ix;
            const Vector value = load(picture + here * channels + c);
            const Places larger = beats(value, best);
            best = larger ? value : best;
            place = larger ? Places{} + std::int32_t(here) : place;
          }
        }
        const Vector from = load_part(y_grad + (n * out_pixels + out) * channels + c, min_of(kLanes, channels - c));
        for (Index iy = in.y0; iy < in.y1; ++iy) {
          for (Index ix = in.x0; ix < in.x1; ++ix) {
            const Index here = iy * w.width + ix;
            float* to = gradient + here * channels + c;
            store(to, load(to) + (place == Places{} + std::int32_t(here) ? from : Vector{}));
          }
        }
      }
    }
    std::memcpy(x_grad + n * picture_floats, gradient, picture_floats * sizeof(float));
  }
}

// The border counts as zeros, as PyTorch's count_include_pad=True.
void average_pool_forward(const Window& w, const float* x, float* y) {
  const Index channels = w.channels, out_pixels = w.out_height * w.out_width;
  const float share = 1 / float(w.taps());
#pragma omp parallel for schedule(static) if (w.out_pixels() * w.taps() * channels > kParallelWork)
  for (Index n = 0; n < w.batch; ++n) {
    const float* picture = x + n * w.height * w.width * channels;
    for (Index out = 0; out < out_pixels; ++out) {
      const Clipped in(w, out);
      for (Index c = 0; c < channels; c += kLanes) {
        Vector sum = {};
        for (Index iy = in.y0; iy < in.y1; ++iy) {
          for (Index ix = in.x0; ix < in.x1; ++ix) sum += load(picture + (iy * w.width + ix) * channels + c);
        }
        store_part(y + (n * out_pixels + out) * channels + c, sum * share, min_of(kLanes, channels - c));
      }
    }
  }
}

void average_pool_backward(const Window& w, const float* y_grad, float* x_grad) {
  const Index channels = w.channels, out_pixels = w.out_height * w.out_width;
  const Index picture_floats = w.height * w.width * channels;
  const float share = 1 / float(w.taps());
#pragma omp parallel for schedule(static) if (w.out_pixels() * w.taps() * channels > kParallelWork)
  for (Index n = 0; n < w.batch; ++n) {
    float* gradient = x_grad + n * picture_floats;
    std::memset(gradient, 0, picture_floats * sizeof(float));
    for (Index out = 0; out < out_pixels; ++out) {
      const Clipped in(w, out);
      const float* from = y_grad + (n * out_pixels + out) * channels;
      for (Index iy = in.y0; iy < in.y1; ++iy) {
        for (Index ix = in.x0; ix < in.x1; ++ix) {
          for (Index c = 0; c < channels; ++c) gradient[(iy * w.width + ix) * channels + c] += share * from[c];
        }
      }
    }
  }
}

}  // namespace
}  // namespace mytensor
