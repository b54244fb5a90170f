#include "models/kernels/common/scratch.h"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace hyperion::kernels::cpu {

float* thread_scratch(int64_t floats) {
  constexpr size_t kCacheLine = 64;
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t size = 0;
  if (size < floats) {
    memory.reset();
    size = 0;
    memory.reset(static_cast<float*>(std::aligned_alloc(
        kCacheLine,
        (static_cast<size_t>(floats) * sizeof(float) + kCacheLine - 1) / kCacheLine * kCacheLine)));
    if (memory == nullptr) throw std::bad_alloc();
    size = floats;
  }
  return memory.get();
}

}  // namespace hyperion::kernels::cpu
