#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/group_bias/group_bias.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kColumns = 256;  // of a thread that sums rows

}  // namespace

void add_group_bias(const Tensor& rows, const Tensor& given, const Tensor& ends) {
  if (rows.stride(1) != 1 && rows.size(1) != 1) return plain::add_group_bias(rows, given, ends);
  const Tensor bias = given.contiguous();
  const auto* end_of = ends.const_data_ptr<int32_t>();
  const int64_t n = rows.size(1), groups = ends.size(0);
  with_element_type(rows, [&]<typename T>(T) {
    T* to = rows.mutable_data_ptr<T>();
    const T* added = bias.const_data_ptr<T>();
    parallel_for(0, std::min<int64_t>(rows.size(0), end_of[groups - 1]), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t group = std::upper_bound(end_of, end_of + groups, row) - end_of;
        rows::add_to(added + group * n, to + row * rows.stride(0), n);
      }
    });
  });
}

Tensor sum_groups(const Tensor& given, const Tensor& ends) {
  const Tensor grad = given.stride(1) == 1 ? given : given.contiguous();
  const auto* end_of = ends.const_data_ptr<int32_t>();
  const int64_t n = grad.size(1), groups = ends.size(0), parts = (n + kColumns - 1) / kColumns;
  Tensor sums = at::empty({groups, n}, grad.options());
  with_element_type(grad, [&]<typename T>(T) {
    const T* from = grad.const_data_ptr<T>();
    T* to = sums.mutable_data_ptr<T>();
    parallel_for(0, groups * parts, 1, [&](int64_t begin, int64_t end) {
      float* sum = thread_scratch(kColumns);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = i / parts, column = i % parts * kColumns,
                      count = std::min(kColumns, n - column);
        std::fill_n(sum, count, 0.0F);
        for (int64_t row = group == 0 ? 0 : end_of[group - 1]; row < end_of[group]; ++row)
          rows::add_scaled(from + row * grad.stride(0) + column, 1.0F, sum, count);
        rows::narrow(sum, to + group * n + column, count);
      }
    });
  });
  return sums;
}

}  // namespace hyperion::kernels::cpu
