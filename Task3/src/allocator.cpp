#include "allocator.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "cpu/scratch.h"
#include "memory_checks.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace mytensor {
namespace {

constexpr std::size_t kAlignment = 64;

// In front of every block: its size, the part of it that is lent, and what `calloc` returned.
struct Header {
  std::size_t size, lent;
  void* origin;
};
static_assert(sizeof(Header) <= kAlignment, "the header lies in the alignment's gap");

struct Cache {
  std::mutex mutex;
  std::map<std::size_t, std::vector<void*>> free_blocks;  // by size
  std::size_t allocated = 0, reserved = 0;
};

Cache& cache() {
  static Cache* const only = new Cache;  // never destroyed: tensors may outlive static objects
  return *only;
}

Header* header_of(void* memory) { return reinterpret_cast<Header*>(static_cast<char*>(memory) - kAlignment); }

// Sizes in eighths of a power of two: blocks of slightly different tensors serve each other.
std::size_t rounded(std::size_t bytes) {
  std::size_t step = kAlignment;
  while (step * 16 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

std::size_t physical_memory() {
#if defined(_SC_PHYS_PAGES)
  static const std::size_t bytes = std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGESIZE));
  return bytes;
#else
  return static_cast<std::size_t>(-1);
#endif
}

void release_free_blocks(Cache& all) {
  for (auto& [size, blocks] : all.free_blocks) {
    for (void* memory : blocks) {
      all.reserved -= size;
      allow_access(header_of(memory), kAlignment);
      std::free(header_of(memory)->origin);
    }
  }
  all.free_blocks.clear();
}

// A new block of zeros; null if there is no memory. Large ones are not touched here: the system gives zeros.
void* new_block(std::size_t size) {
  char* origin = static_cast<char*>(std::calloc(1, size + 2 * kAlignment + kSlack));
  if (!origin) return nullptr;
  const std::size_t misplaced = reinterpret_cast<std::size_t>(origin) % kAlignment;
  char* memory = origin - misplaced + 2 * kAlignment;
  *header_of(memory) = {size, 0, origin};
  return memory;
}

}  // namespace

void* allocate(std::size_t bytes, bool zero) {
  if (bytes > physical_memory()) throw std::bad_alloc();
  const std::size_t size = rounded(bytes ? bytes : 1);
  Cache& all = cache();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.free_blocks.find(size);
  const bool reused = found != all.free_blocks.end() && !found->second.empty();
  void* memory;
  if (reused) {
    memory = found->second.back();
    found->second.pop_back();
  } else {
    memory = new_block(size);
    if (!memory) {
      release_free_blocks(all);
      memory = new_block(size);
    }
    if (!memory) throw std::bad_alloc();
    all.reserved += size;
  }
  all.allocated += size;
  allow_access(header_of(memory), kAlignment);
  header_of(memory)->lent = bytes;
  forbid_access(header_of(memory), size + kAlignment + kSlack);
  allow_access(memory, bytes + kSlack);
  if (kMemoryChecks) std::memset(memory, kUnwritten, bytes + kSlack);
  if (zero && (reused || kMemoryChecks)) std::memset(memory, 0, bytes);
  return memory;
}

void release(void* memory) {
  Cache& all = cache();
  const std::lock_guard<std::mutex> lock(all.mutex);
  allow_access(header_of(memory), kAlignment);
  const std::size_t size = header_of(memory)->size, lent = header_of(memory)->lent;
  if (kMemoryChecks) require_unwritten(static_cast<unsigned char*>(memory) + lent, kSlack, lent);
  forbid_access(header_of(memory), size + kAlignment + kSlack);
  all.free_blocks[size].push_back(memory);
  all.allocated -= size;
}

std::size_t memory_allocated() { return cache().allocated; }
std::size_t memory_reserved() { return cache().reserved; }

void empty_cache() {
  Cache& all = cache();
  const std::lock_guard<std::mutex> lock(all.mutex);
  release_free_blocks(all);
}

void* scratch_allocate(std::size_t bytes) { return allocate(bytes, false); }
void scratch_release(void* memory) { release(memory); }

}  // namespace mytensor
