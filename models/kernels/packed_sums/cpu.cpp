#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/packed_sums/packed_sums.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kPackedRows = 16;  // of a thread, at least

// Packs a row of whole blocks.
void pack_row(const float* sums, int64_t blocks, uint8_t* to) {
  auto* number = reinterpret_cast<int16_t*>(to);
  auto* scales = reinterpret_cast<float*>(number + blocks * kPackedBlock);
  for (int64_t block = 0; block < blocks; ++block) {
    float largest = 0;
    for (int64_t i = 0; i < kPackedBlock; ++i) largest = larger_or_nan(largest, std::abs(sums[i]));
    const PackedScale scale(largest);
    for (int64_t i = 0; i < kPackedBlock; ++i) *number++ = scale.packed(*sums++);
    scales[block] = scale.scale;
  }
}

// Adds a packed row of n elements times `weight`.
void add_packed(const uint8_t* row, float weight, float* sums, int64_t n) {
  const auto* number = reinterpret_cast<const int16_t*>(row);
  const auto* scale =
      reinterpret_cast<const float*>(number + (n + kPackedBlock - 1) / kPackedBlock * kPackedBlock);
  for (int64_t first = 0; first < n; first += kPackedBlock, ++scale)
    for (int64_t i = first; i < std::min(first + kPackedBlock, n); ++i)
      sums[i] += weight * (*scale * static_cast<float>(number[i]));
}

}  // namespace

Tensor pack_row_sums(const Tensor& given_rows, const Tensor& row_of_assignment, const Tensor& given_weights) {
  const Tensor rows = given_rows.contiguous(), weights = given_weights.contiguous();
  const int64_t n = rows.size(1), k = weights.size(1), tokens = weights.size(0),
                blocks = (n + kPackedBlock - 1) / kPackedBlock, bytes = bytes_of_packed_row(n);
  Tensor out = at::empty({tokens, bytes}, rows.options().dtype(at::kByte));
  const auto* row_of = row_of_assignment.const_data_ptr<int32_t>();
  const auto* weight = weights.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<uint8_t>();
  with_element_type(rows, [&]<typename T>(T) {
    const T* from = rows.const_data_ptr<T>();
    parallel_for(0, tokens, kPackedRows, [&](int64_t begin, int64_t end) {
      float* sums = thread_scratch(blocks * kPackedBlock);
      for (int64_t token = begin; token < end; ++token) {
        std::fill_n(sums, blocks * kPackedBlock, 0.0F);
        for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment)
          if (weight[assignment] != 0)
            rows::add_scaled(from + row_of[assignment] * n, weight[assignment], sums, n);
        pack_row(sums, blocks, to + token * bytes);
      }
    });
  });
  return out;
}

Tensor sum_packed_rows(const Tensor& given_packed, const Tensor& row_of_assignment,
                       const Tensor& given_weights, const Tensor& given_added, int64_t n,
                       at::ScalarType dtype) {
  const Tensor packed = given_packed.contiguous(), weights = given_weights.contiguous(),
               added = given_added.defined() ? given_added.contiguous() : given_added;
  const int64_t k = weights.size(1), tokens = weights.size(0), bytes = packed.size(1);
  Tensor out = at::empty({tokens, n}, packed.options().dtype(dtype));
  const auto* row_of = row_of_assignment.const_data_ptr<int32_t>();
  const auto* weight = weights.const_data_ptr<float>();
  const auto* from = packed.const_data_ptr<uint8_t>();
  with_element_type(out, [&]<typename T>(T) {
    const T* more = added.defined() ? added.const_data_ptr<T>() : nullptr;
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, tokens, kPackedRows, [&](int64_t begin, int64_t end) {
      float* sums = thread_scratch(n);
      for (int64_t token = begin; token < end; ++token) {
        std::fill_n(sums, n, 0.0F);
        for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment)
          if (weight[assignment] != 0)
            add_packed(from + row_of[assignment] * bytes, weight[assignment], sums, n);
        if (more != nullptr) rows::add_scaled(more + token * n, 1.0F, sums, n);
        rows::narrow(sums, to + token * n, n);
      }
    });
  });
  return out;
}

}  // namespace hyperion::kernels::cpu
