#include "models/kernels/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "models/kernels/cpu/rows.h"
#include "models/kernels/fused.h"
#include "models/kernels/largest.h"
#include "models/kernels/operators.h"

namespace hyperion::kernels {
namespace {

constexpr int64_t kCacheBlock = 1024;  // elements worked on in cache at a time

// Runs work(first, count) over blocks of n elements, in parallel.
template <typename Work>
void for_blocks(int64_t n, Work work) {
  at::parallel_for(0, (n + kCacheBlock - 1) / kCacheBlock, 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      work(block * kCacheBlock, std::min(kCacheBlock, n - block * kCacheBlock));
  });
}

// Rounds a row to T and back, so that what follows sees what a stored tensor would hold.
template <typename T>
void round_to(float* row, int64_t n) {
  if constexpr (!std::is_same_v<T, float>) {
    T stored[kCacheBlock];
    rows::narrow(row, stored, n);
    rows::widen(stored, row, n);
  }
}

at::Tensor fused_forward(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor y = at::empty_like(gate);
  with_element_type(gate, [&]<typename T>(T) {
    for_blocks(gate.numel(), [&](int64_t first, int64_t n) {
      float *g = rows::scratch(0, kCacheBlock), *u = rows::scratch(1, kCacheBlock);
      rows::widen(gate.const_data_ptr<T>() + first, g, n);
      rows::widen(up.const_data_ptr<T>() + first, u, n);
      rows::silu(g, g, n);
      round_to<T>(g, n);
      rows::multiply(g, u, u, n);
      rows::narrow(u, y.mutable_data_ptr<T>() + first, n);
    });
  });
  return y;
}

std::pair<at::Tensor, at::Tensor> fused_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                 const at::Tensor& up) {
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  with_element_type(gate, [&]<typename T>(T) {
    for_blocks(gate.numel(), [&](int64_t first, int64_t n) {
      float *g = rows::scratch(0, kCacheBlock), *u = rows::scratch(1, kCacheBlock),
            *d = rows::scratch(2, kCacheBlock);
      float* a = rows::scratch(3, kCacheBlock);
      rows::widen(gate.const_data_ptr<T>() + first, g, n);
      rows::widen(up.const_data_ptr<T>() + first, u, n);
      rows::widen(grad.const_data_ptr<T>() + first, d, n);
      rows::multiply(d, u, u, n);
      round_to<T>(u, n);
      rows::silu(g, a, n);
      round_to<T>(a, n);
      rows::multiply(a, d, a, n);
      rows::narrow(a, dup.mutable_data_ptr<T>() + first, n);
      rows::silu_backward(g, u, u, n);
      rows::narrow(u, dgate.mutable_data_ptr<T>() + first, n);
    });
  });
  return {dgate, dup};
}

void raise_both(const at::Tensor& amaxes, const std::pair<at::Tensor, at::Tensor>& gradients) {
  if (!amaxes.defined()) return;
  raise_to_largest(amaxes[0], gradients.first);
  raise_to_largest(amaxes[1], gradients.second);
}

}  // namespace

at::Tensor swiglu_forward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& amax) {
  if (has_fused_on_gpu("SwiGLU", gate)) return operators::swiglu(gate, up, amax);
  if (!has_fused(gate)) return plain::swiglu_forward(gate, up, amax);
  at::Tensor y = fused_forward(gate.contiguous(), up.contiguous());
  if (amax.defined()) raise_to_largest(amax, y);
  return y;
}

std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                  const at::Tensor& up, const at::Tensor& amaxes) {
  if (has_fused_on_gpu("SwiGLU", gate)) return operators::swiglu_backward(grad, gate, up, amaxes);
  if (!has_fused(gate)) return plain::swiglu_backward(grad, gate, up, amaxes);
  auto both = fused_backward(grad.contiguous(), gate.contiguous(), up.contiguous());
  raise_both(amaxes, both);
  return both;
}

at::Tensor plain::swiglu_forward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& amax) {
  at::Tensor y = at::silu(gate).mul_(up);
  if (amax.defined()) raise_to_largest(amax, y);
  return y;
}

std::pair<at::Tensor, at::Tensor> plain::swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                         const at::Tensor& up, const at::Tensor& amaxes) {
  std::pair both = {at::silu_backward(grad * up, gate), at::silu(gate).mul_(grad)};
  raise_both(amaxes, both);
  return both;
}

}  // namespace hyperion::kernels
