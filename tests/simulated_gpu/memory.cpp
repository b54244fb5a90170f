#include "tests/simulated_gpu/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include <sys/mman.h>

namespace simulated_gpu {
namespace {

struct Part {
  size_t bytes;
  MemoryKind kind;
};

std::mutex g_mutex;
size_t g_in_use = 0;
std::map<const std::byte*, Part>& parts() {
  static auto* const all = new std::map<const std::byte*, Part>;
  return *all;
}

// Larger pieces are left as they come (zeros), for they may never be touched.
constexpr size_t kFilled = size_t{64} << 20;

}  // namespace

bool computing() {
  static const char* const given = std::getenv("HYPERION_SIMULATED_COMPUTE");
  return given == nullptr || std::strcmp(given, "off") != 0;
}

size_t device_memory() {
  static const size_t bytes = [] {
    const char* given = std::getenv("HYPERION_SIMULATED_MEMORY");
    return given == nullptr ? size_t{80} << 30 : std::strtoull(given, nullptr, 10);
  }();
  return bytes;
}

void* allocate(size_t bytes, MemoryKind kind) {
  const std::lock_guard lock(g_mutex);
  if (kind == MemoryKind::kDevice && g_in_use + bytes > device_memory()) return nullptr;
  void* memory = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (kind == MemoryKind::kDevice) {
    g_in_use += bytes;
    if (computing()) std::memset(memory, 0xff, std::min(bytes, kFilled));
  }
  parts()[static_cast<const std::byte*>(memory)] = {bytes, kind};
  return memory;
}

void release(void* memory) {
  const std::lock_guard lock(g_mutex);
  const auto found = parts().find(static_cast<const std::byte*>(memory));
  if (found == parts().end()) return;
  if (found->second.kind == MemoryKind::kDevice) g_in_use -= found->second.bytes;
  munmap(memory, std::max<size_t>(found->second.bytes, 1));
  parts().erase(found);
}

bool make_pages(size_t bytes) {
  const std::lock_guard lock(g_mutex);
  if (g_in_use + bytes > device_memory()) return false;
  g_in_use += bytes;
  return true;
}

void drop_pages(size_t bytes) {
  const std::lock_guard lock(g_mutex);
  g_in_use -= bytes;
}

void map_pages(void* address, size_t bytes) {
  const std::lock_guard lock(g_mutex);
  mprotect(address, bytes, PROT_READ | PROT_WRITE);
  if (computing()) std::memset(address, 0xff, std::min(bytes, kFilled));
  parts()[static_cast<const std::byte*>(address)] = {bytes, MemoryKind::kDevice};
}

void unmap_pages(void* address, size_t bytes) {
  const std::lock_guard lock(g_mutex);
  const auto* const first = static_cast<const std::byte*>(address);
  parts().erase(parts().lower_bound(first), parts().lower_bound(first + bytes));
  madvise(address, bytes, MADV_DONTNEED);
  mprotect(address, bytes, PROT_NONE);
}

MemoryKind kind_of(const void* memory) {
  const std::lock_guard lock(g_mutex);
  const auto* const at = static_cast<const std::byte*>(memory);
  const auto after = parts().upper_bound(at);
  if (after == parts().begin()) return MemoryKind::kPageable;
  const auto& [start, part] = *std::prev(after);
  return at < start + part.bytes ? part.kind : MemoryKind::kPageable;
}

size_t device_memory_in_use() {
  const std::lock_guard lock(g_mutex);
  return g_in_use;
}

}  // namespace simulated_gpu
