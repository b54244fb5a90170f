#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/device/parallel_for.h"
#include "models/kernels/clamped_gate/clamped_gate.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kPairs = 8192;  // of a thread, at least

}  // namespace

Tensor clamped_gate(const Tensor& given) {
  const Tensor h = given.contiguous();
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() /= 2;
  Tensor out = at::empty(shape, h.options());
  with_element_type(h, [&]<typename T>(T) {
    const T* from = h.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, out.numel(), kPairs, [&](int64_t begin, int64_t end) {
      rows::clamped_gate(from + 2 * begin, to + begin, end - begin);
    });
  });
  return out;
}

Tensor clamped_gate_backward(const Tensor& given_grad, const Tensor& given) {
  const Tensor grad = given_grad.contiguous(), h = given.contiguous();
  Tensor out = at::empty_like(h);
  with_element_type(h, [&]<typename T>(T) {
    const T *of_output = grad.const_data_ptr<T>(), *from = h.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, grad.numel(), kPairs, [&](int64_t begin, int64_t end) {
      rows::clamped_gate_backward(of_output + begin, from + 2 * begin, to + 2 * begin, end - begin);
    });
  });
  return out;
}

}  // namespace hyperion::kernels::cpu
