// Calls packed_sums/cuda.cuh with tensors.
#pragma once

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/packed_sums/packed_sums.h"
#include "models/kernels/packed_sums/task.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
Tensor pack_row_sums(const Launch& launch, const Tensor& given_rows, const Tensor& row_of_assignment,
                     const Tensor& given_weights) {
  const Tensor rows = given_rows.contiguous(), weights = given_weights.contiguous();
  require_numbers(row_of_assignment, weights.numel(), "pack_row_sums: weights");
  Tensor out =
      at::empty({weights.size(0), bytes_of_packed_row(rows.size(1))}, rows.options().dtype(at::kByte));
  const PackRowSumsTask task{.in = rows.const_data_ptr(),
                             .out = out.mutable_data_ptr<uint8_t>(),
                             .rows = row_of_assignment.const_data_ptr<int32_t>(),
                             .weights = weights.const_data_ptr<float>(),
                             .tokens = out.size(0),
                             .n = rows.size(1),
                             .row_bytes = out.size(1),
                             .top_k = static_cast<int>(weights.size(1))};
  launch(task, element_of(rows, "pack_row_sums"));
  return out;
}

template <typename Launch>
Tensor sum_packed_rows(const Launch& launch, const Tensor& given_packed, const Tensor& row_of_assignment,
                       const Tensor& given_weights, const Tensor& given_added, int64_t n,
                       at::ScalarType dtype) {
  const Tensor packed = given_packed.contiguous(), weights = given_weights.contiguous(),
               added = given_added.defined() ? given_added.contiguous() : given_added;
  require_numbers(row_of_assignment, weights.numel(), "sum_packed_rows: weights");
  require_numbers(packed, packed.size(0) * bytes_of_packed_row(n), "sum_packed_rows: packed");
  Tensor out = at::empty({weights.size(0), n}, packed.options().dtype(dtype));
  if (added.defined()) {
    require_alike(added, out, "sum_packed_rows: added");
    require_numbers(added, out.numel(), "sum_packed_rows: added");
  }
  const SumPackedRowsTask task{.in = packed.const_data_ptr<uint8_t>(),
                               .added = added.defined() ? added.const_data_ptr() : nullptr,
                               .out = out.mutable_data_ptr(),
                               .rows = row_of_assignment.const_data_ptr<int32_t>(),
                               .weights = weights.const_data_ptr<float>(),
                               .tokens = out.size(0),
                               .n = n,
                               .row_bytes = packed.size(1),
                               .top_k = static_cast<int>(weights.size(1))};
  launch(task, element_of(out, "sum_packed_rows"));
  return out;
}

}  // namespace hyperion::kernels::cuda
