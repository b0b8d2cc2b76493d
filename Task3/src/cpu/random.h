// Dropout with a generator that is a function of seed and position: forward and backward draw the same mask, and so do
// all numbers of threads.
#pragma once

#include "vector.h"

namespace mytensor {
namespace {

// Philox-4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): four random words for each
// counter.
inline void philox(std::uint64_t seed, std::uint64_t counter, std::uint32_t* out) {
  std::uint32_t c0 = std::uint32_t(counter), c1 = std::uint32_t(counter >> 32), c2 = 0, c3 = 0;
  std::uint32_t k0 = std::uint32_t(seed), k1 = std::uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t(0xD2511F53u) * c0, p1 = std::uint64_t(0xCD9E8D57u) * c2;
    c0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0;
    c2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = std::uint32_t(p1);
    c3 = std::uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// y = x / (1 - share) where the mask keeps, else 0; element i has the random word number offset + i.
void dropout(const float* x, float* y, Index count, float share, std::uint64_t seed, std::uint64_t offset) {
  const float scale = 1 / (1 - share);
  const double threshold = double(share) * 4294967296.0;
  const Index blocks = ceil_div(count + Index(offset % 4), 4);
#pragma omp parallel for schedule(static) if (count > kParallelWork / 8)
  for (Index block = 0; block < blocks; ++block) {
    std::uint32_t words[4];
    philox(seed, offset / 4 + std::uint64_t(block), words);
    for (Index lane = 0; lane < 4; ++lane) {
      const Index i = block * 4 + lane - Index(offset % 4);
      if (i >= 0 && i < count) y[i] = double(words[lane]) >= threshold ? x[i] * scale : 0;
    }
  }
}

}  // namespace
}  // namespace mytensor
