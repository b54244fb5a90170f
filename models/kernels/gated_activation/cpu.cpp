#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/gated_activation/gated_activation.h"

namespace hyperion::kernels::cpu {
namespace {

// [..., n] as rows [count, n], each contiguous; a copy where they do not lie at equal distances.
at::Tensor rows_of(const at::Tensor& t) {
  const at::Tensor rows = t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, -2);
  return rows.stride(1) == 1 || rows.size(1) == 1 ? rows : rows.contiguous();
}

// Calls work(row) for each row of n elements, in parallel.
template <typename Work>
void for_rows(int64_t count, int64_t n, const Work& work) {
  constexpr int64_t kElements = 8192;  // of a thread, at least
  parallel_for(0, count, std::max<int64_t>(1, kElements / std::max<int64_t>(1, n)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) work(row);
               });
}

// Returns whether they are the halves of one tensor [..., 2 n].
bool are_halves(const at::Tensor& first, const at::Tensor& second) {
  const int64_t n = first.size(-1);
  return first.dim() > 1 && first.is_alias_of(second) && first.strides() == second.strides() &&
         second.storage_offset() == first.storage_offset() + n && first.stride(-1) == 1 &&
         first.stride(-2) == 2 * n;
}

}  // namespace

at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up, models::Activation activation) {
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  const at::Tensor gates = rows_of(gate), ups = rows_of(up);
  const int64_t n = gates.size(1);
  with_element_type(gate, [&]<typename T>(T) {
    for_rows(gates.size(0), n, [&](int64_t row) {
      rows::gated_activation(activation, gates.const_data_ptr<T>() + row * gates.stride(0),
                             ups.const_data_ptr<T>() + row * ups.stride(0), y.mutable_data_ptr<T>() + row * n,
                             n);
    });
  });
  return y;
}

std::pair<at::Tensor, at::Tensor> gated_activation_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                            const at::Tensor& up,
                                                            models::Activation activation) {
  at::Tensor dgate, dup;
  const int64_t n = gate.size(-1);
  if (are_halves(gate, up)) {
    std::vector<int64_t> shape(gate.sizes().begin(), gate.sizes().end());
    shape.back() = 2 * n;
    const at::Tensor both = at::empty(shape, gate.options());
    dgate = both.narrow(-1, 0, n);
    dup = both.narrow(-1, n, n);
  } else {
    dgate = at::empty(gate.sizes(), gate.options());
    dup = at::empty(up.sizes(), up.options());
  }
  const at::Tensor grads = rows_of(grad), gates = rows_of(gate), ups = rows_of(up),
                   gate_rows = rows_of(dgate), up_rows = rows_of(dup);
  with_element_type(gate, [&]<typename T>(T) {
    for_rows(gates.size(0), n, [&](int64_t row) {
      rows::gated_activation_backward(activation, grads.const_data_ptr<T>() + row * grads.stride(0),
                                      gates.const_data_ptr<T>() + row * gates.stride(0),
                                      ups.const_data_ptr<T>() + row * ups.stride(0),
                                      gate_rows.mutable_data_ptr<T>() + row * gate_rows.stride(0),
                                      up_rows.mutable_data_ptr<T>() + row * up_rows.stride(0), n);
    });
  });
  return {dgate, dup};
}

}  // namespace hyperion::kernels::cpu
