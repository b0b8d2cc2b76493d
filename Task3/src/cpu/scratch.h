// The caching allocator as kernels see it: plain functions, so that no allocator code is compiled into a variant.
#pragma once

#include <cstddef>

namespace mytensor {

void* scratch_allocate(std::size_t bytes);
void scratch_release(void* memory);

}  // namespace mytensor
