// From batches of the loader to tensors of the model.
#pragma once

#include <vector>

#include "data/loader.h"
#include "models/transformer.h"

namespace hyperion::trainer {

// Labels that count (not -100).
int64_t valid_tokens(const data::Batch& batch);
// The same of the parts of each sequence that are given.
int64_t valid_tokens(const data::Batch& batch, const std::vector<models::SequenceRange>& parts);

// Rows with such a label.
int64_t sequences_with_labels(const data::Batch& batch);

// Moves batches to the device, with context parallelism this rank's parts of their sequences; keeps the RoPE
// tables, which are the same for every batch without document masks.
class BatchMover {
 public:
  // Without `labels` none are moved, for a rank without the head.
  BatchMover(const models::Transformer& model, at::Device device, bool labels = true,
             models::SequenceSplit split = {})
      : model_(model), device_(device), labels_(labels), split_(split) {}
  // Rows `first` to `first` + `rows` - 1.
  models::Microbatch move(const data::Batch& batch, int64_t first, int64_t rows);
  // Of a sequence of so many tokens.
  std::vector<models::SequenceRange> parts(int64_t seq_len) const { return sequence_parts(seq_len, split_); }

 private:
  const models::Transformer& model_;
  at::Device device_;
  bool labels_;
  models::SequenceSplit split_;
  models::SequenceContext plain_;  // of complete sequences
  models::SequenceContext parts_;  // of this rank's, without document masks
  int64_t plain_seq_len_ = 0;
};

}  // namespace hyperion::trainer
