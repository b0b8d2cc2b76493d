// Memory that is kept when it is freed: after the first training step nothing is asked of the system any more.
#pragma once

#include <cstddef>

namespace mytensor {

// At least `bytes` at a multiple of 64, followed by `kSlack` bytes that may be read. Throws std::bad_alloc for what the
// machine has not got. `zero` asks for zeros; else the content is arbitrary.
void* allocate(std::size_t bytes, bool zero);
void release(void* memory);

// Bytes handed out, bytes held in all, and blocks handed out to tensors and kernels.
std::size_t memory_allocated();
std::size_t memory_reserved();
// Gives back to the system what is not in use.
void empty_cache();

constexpr std::size_t kSlack = 128;  // kernels load whole vectors, up to two, from the last element on

}  // namespace mytensor
