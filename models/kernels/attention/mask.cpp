#include "models/kernels/attention/mask.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

namespace hyperion::kernels {

AttentionMask document_mask(const at::Tensor& positions, at::Device device) {
  return document_mask(positions, 0, positions.size(1), device);
}

DocumentBounds document_bounds(const at::Tensor& positions, int64_t first, int64_t end) {
  const int64_t rows = positions.size(0), seq = positions.size(1), queries = end - first;
  const int32_t* position = positions.const_data_ptr<int32_t>();
  DocumentBounds bounds;
  const auto begin_document = [&](int64_t query, int64_t key) {
    bounds.queries.push_back(static_cast<int32_t>(query));
    bounds.keys.push_back(static_cast<int32_t>(key));
  };
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query_row = row * queries, key_row = row * end;
    const int32_t* of_row = position + row * seq;
    const int64_t first_key = first - of_row[first];
    if (first_key > 0) begin_document(query_row, key_row);  // keys that no query sees
    begin_document(query_row, key_row + first_key);
    for (int64_t i = first + 1; i < end; ++i)
      if (of_row[i] == 0) begin_document(query_row + i - first, key_row + i);
  }
  begin_document(rows * queries, rows * end);
  return bounds;
}

AttentionMask document_mask(const at::Tensor& positions, int64_t first, int64_t end, at::Device device) {
  const auto options = at::TensorOptions(at::kInt);
  AttentionMask mask{.kind = MaskKind::kDocuments};
  if (device.is_cpu()) {
    mask.first_keys = at::arange(first, end, options) - positions.narrow(1, first, end - first);
    return mask;
  }
  const DocumentBounds bounds = document_bounds(positions, first, end);
  const auto longest = [](const std::vector<int32_t>& begins) {
    int64_t longest_document = 0;
    for (size_t i = 1; i < begins.size(); ++i)
      longest_document = std::max<int64_t>(longest_document, begins[i] - begins[i - 1]);
    return longest_document;
  };
  const auto to_device = [&](const std::vector<int32_t>& begins) {
    const at::Tensor on_host = at::empty({static_cast<int64_t>(begins.size())}, options.pinned_memory(true));
    std::ranges::copy(begins, on_host.mutable_data_ptr<int32_t>());
    return on_host.to(device, /*non_blocking=*/true);
  };
  mask.query_bounds = to_device(bounds.queries);
  mask.key_bounds = first == 0 ? mask.query_bounds : to_device(bounds.keys);
  mask.max_queries = longest(bounds.queries);
  mask.max_keys = longest(bounds.keys);
  return mask;
}

}  // namespace hyperion::kernels
