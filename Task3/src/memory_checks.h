// What AddressSanitizer cannot see by itself, as it knows the system's blocks of memory and not those of our cache. In
// a build with it (-fsanitize=address) a block looks like one of the system: around it and once it is given back no
// access is allowed, what nobody has written is NaN, and the slack behind it, which may be read, stays as it was.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#define MYTENSOR_MEMORY_CHECKS
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MYTENSOR_MEMORY_CHECKS
#endif
#endif

#ifdef MYTENSOR_MEMORY_CHECKS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes) (void(memory), void(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) (void(memory), void(bytes))
#endif

namespace mytensor {

#ifdef MYTENSOR_MEMORY_CHECKS
constexpr bool kMemoryChecks = true;
#else
constexpr bool kMemoryChecks = false;
#endif

constexpr unsigned char kUnwritten = 0xFF;  // four of them are a NaN

inline void allow_access(void* memory, std::size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(memory, bytes); }
inline void forbid_access(void* memory, std::size_t bytes) { ASAN_POISON_MEMORY_REGION(memory, bytes); }

// Ends the process if one of these bytes, which lie behind a block of `size` bytes, was written.
inline void require_unwritten(const unsigned char* memory, std::size_t bytes, std::size_t size) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (memory[i] == kUnwritten) continue;
    std::fprintf(stderr, "mytensor: byte %zu behind a block of %zu bytes was written\n", i, size);
    std::abort();
  }
}

}  // namespace mytensor
