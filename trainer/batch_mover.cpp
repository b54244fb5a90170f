#include "trainer/batch_mover.h"

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
  models::Microbatch moved{to_device(view(batch.tokens), device_),
                           labels_ ? to_device(view(batch.labels), device_) : at::Tensor(),
                           {}};
  if (plain_seq_len_ != batch.seq_len) {
    plain_ = model_.context(batch.seq_len, device_);
    plain_seq_len_ = batch.seq_len;
  }
  moved.context = batch.positions.empty()
                      ? plain_
                      : models::inside_documents(plain_, to_device(view(batch.positions), device_),
                                                 kernels::documents_from(view(batch.positions), device_));
  return moved;
}

}  // namespace hyperion::trainer
