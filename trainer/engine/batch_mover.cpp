#include "trainer/engine/batch_mover.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ATen/ops/from_blob.h>

namespace hyperion::trainer {
namespace {

template <typename T>
at::Tensor matrix_view(std::span<const T> values, int64_t rows) {
  const auto dtype = sizeof(T) == 8 ? at::kLong : at::kInt;
  return at::from_blob(const_cast<T*>(values.data()), {rows, static_cast<int64_t>(values.size()) / rows},
                       at::TensorOptions(dtype));
}

at::Tensor to_device(const at::Tensor& view, at::Device device) {
  return device.is_cpu() ? view.clone() : view.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

int64_t valid_tokens(const data::Batch& batch) {
  return std::count_if(batch.labels.begin(), batch.labels.end(),
                       [](int64_t label) { return label != data::kIgnoreLabel; });
}

int64_t valid_tokens(const data::Batch& batch, const std::vector<models::SequenceRange>& parts) {
  int64_t valid = 0;
  for (int64_t row = 0; row < batch.rows; ++row)
    for (const models::SequenceRange& part : parts)
      valid += std::count_if(batch.labels.begin() + row * batch.seq_len + part.first,
                             batch.labels.begin() + row * batch.seq_len + part.end,
                             [](int64_t label) { return label != data::kIgnoreLabel; });
  return valid;
}

int64_t sequences_with_labels(const data::Batch& batch) {
  int64_t sequences = 0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto first = batch.labels.begin() + row * batch.seq_len;
    sequences +=
        std::any_of(first, first + batch.seq_len, [](int64_t label) { return label != data::kIgnoreLabel; });
  }
  return sequences;
}

models::Microbatch BatchMover::move(const data::Batch& batch, int64_t first, int64_t rows) {
  const auto view = [&]<typename T>(const std::vector<T>& values) {
    return matrix_view(std::span(values).subspan(first * batch.seq_len, rows * batch.seq_len), rows);
  };
  const bool shared = split_.ranks > 1;
  const std::vector<models::SequenceRange> own = parts(batch.seq_len);
  const auto moved_part = [&](const std::vector<int64_t>& values) {
    return to_device(shared ? models::columns_of_parts(view(values), own) : view(values), device_);
  };
  models::Microbatch moved{moved_part(batch.tokens), labels_ ? moved_part(batch.labels) : at::Tensor(), {}};
  if (plain_seq_len_ != batch.seq_len) {
    plain_ = model_.context(batch.seq_len, device_);
    if (shared) parts_ = models::context_of_parts(plain_, own, {});
    plain_seq_len_ = batch.seq_len;
  }
  if (batch.positions.empty())
    moved.context = shared ? parts_ : plain_;
  else if (shared)
    moved.context = models::context_of_parts(plain_, own, view(batch.positions));
  else
    moved.context = models::inside_documents(plain_, to_device(view(batch.positions), device_),
                                             kernels::document_mask(view(batch.positions), device_));
  return moved;
}

}  // namespace hyperion::trainer
