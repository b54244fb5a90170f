// From batches of the loader to tensors of the model.
#pragma once

#include "data/loader.h"
#include "models/transformer.h"

namespace hyperion::trainer {

// Labels that count (not -100).
int64_t valid_tokens(const data::Batch& batch);

// Rows with such a label.
int64_t sequences_with_labels(const data::Batch& batch);

// Moves batches to the device; keeps the RoPE tables, which are the same for every batch without document
// masks.
class BatchMover {
 public:
  // Without `labels` none are moved, for a rank without the head.
  BatchMover(const models::Transformer& model, at::Device device, bool labels = true)
      : model_(model), device_(device), labels_(labels) {}
  // Rows `first` to `first` + `rows` - 1.
  models::Microbatch move(const data::Batch& batch, int64_t first, int64_t rows);

 private:
  const models::Transformer& model_;
  at::Device device_;
  bool labels_;
  models::SequenceContext plain_;
  int64_t plain_seq_len_ = 0;
};

}  // namespace hyperion::trainer
