#include "models/kernels/common/scratch.h"

#include <array>
#include <memory>

namespace hyperion::kernels::cpu {

float* thread_scratch(int64_t floats, int slot) {
  constexpr size_t kCacheLine = 64;
  struct Memory {
    std::unique_ptr<float[]> floats;
    size_t bytes = 0;
  };
  thread_local std::array<Memory, 3> slots;
  Memory& memory = slots.at(static_cast<size_t>(slot));
  const size_t wanted = static_cast<size_t>(floats) * sizeof(float);
  if (memory.bytes < wanted + kCacheLine) {
    memory = {};
    memory = {
        std::make_unique_for_overwrite<float[]>(static_cast<size_t>(floats) + kCacheLine / sizeof(float)),
        wanted + kCacheLine};
  }
  void* first = memory.floats.get();
  size_t room = memory.bytes;
  return static_cast<float*>(std::align(kCacheLine, wanted, first, room));
}

}  // namespace hyperion::kernels::cpu
