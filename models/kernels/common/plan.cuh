// Launch plans. The plan() of a task chooses the variant of the kernel and the numbers of blocks and threads,
// and calls `run(kernel, task, blocks, threads)`, which launches it, or in tests runs it on CPU threads.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "models/kernels/common/chunks.cuh"
#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// Returns the number of elements in 16 bytes.
constexpr int chunk_of(Element element) {
  return element == Element::kFloat ? 4 : 8;
}

inline bool divides(int64_t chunk, std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents)
    if (extent % chunk != 0) return false;
  return true;
}

inline bool aligned(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses)
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  return true;
}

// A kernel has two variants for each element type: with chunks of 16 bytes, and element by element.
template <typename Task>
struct Variants {
  using Kernel = void (*)(Task);
  Kernel float_chunks, float_single, bf16_chunks, bf16_single;

  Kernel of(Element element, int chunk) const {
    if (element == Element::kFloat) return chunk > 1 ? float_chunks : float_single;
    return chunk > 1 ? bf16_chunks : bf16_single;
  }
};
// Makes the variants. kernel(x, chunk) returns the one for the type of x with chunks of
// decltype(chunk)::value elements.
template <typename Task, typename F>
Variants<Task> variants_of(const F& kernel) {
  const std::integral_constant<int, 1> single;
  return {kernel(float(), std::integral_constant<int, 4>()), kernel(float(), single),
          kernel(__nv_bfloat16(), std::integral_constant<int, 8>()), kernel(__nv_bfloat16(), single)};
}

}  // namespace hyperion::kernels
