// BatchMover turns batches of the loader into the model's tensors on the device.
#pragma once

#include <vector>

#include "data/loader.h"
#include "models/transformer.h"

namespace hyperion::trainer {

// Counts the labels that are not -100.
int64_t valid_tokens(const data::Batch& batch);
// Counts them in the given parts of each sequence only.
int64_t valid_tokens(const data::Batch& batch, const std::vector<models::SequenceRange>& parts);

// Counts the rows that have a valid label.
int64_t sequences_with_labels(const data::Batch& batch);

// Moves batches to the device; with context parallelism it moves only this rank's parts of each sequence. It
// caches the RoPE tables, which are equal for all batches without document masks.
class BatchMover {
 public:
  // `labels` is false on a rank without the head, which needs none.
  BatchMover(const models::Transformer& model, at::Device device, bool labels = true,
             models::SequenceSplit split = {})
      : model_(model), device_(device), labels_(labels), split_(split) {}
  // Moves rows `first` to `first` + `rows` - 1.
  models::Microbatch move(const data::Batch& batch, int64_t first, int64_t rows);
  // Returns this rank's parts of a sequence of `seq_len` tokens.
  std::vector<models::SequenceRange> parts(int64_t seq_len) const { return sequence_parts(seq_len, split_); }

 private:
  const models::Transformer& model_;
  at::Device device_;
  bool labels_;
  models::SequenceSplit split_;
  models::SequenceContext plain_;  // for complete sequences
  models::SequenceContext parts_;  // for this rank's parts, without document masks
  int64_t plain_seq_len_ = 0;
};

}  // namespace hyperion::trainer
