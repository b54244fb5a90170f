// InferenceEngine runs an unsharded model on one device: logits of sequences and the loss on a data set. It
// knows no checkpoint format: weights come from a callback.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "models/transformer.h"
#include "trainer/data/job_data.h"
#include "trainer/engine/batch_mover.h"

namespace hyperion::inference {

// Fills `weight` (global shape, contiguous, on the CPU, fp32) with the parameter's values.
using LoadWeights = std::function<void(const Parameter& parameter, const at::Tensor& weight)>;

class InferenceEngine {
 public:
  // Loads one parameter at a time, so host memory beyond the model is that of the largest parameter. `dtype`
  // is the dtype of weights and arithmetic.
  InferenceEngine(const models::ModelArgs& args, at::Device device, at::ScalarType dtype,
                  const LoadWeights& load);

  const models::ModelArgs& args() const { return model_.args(); }

  // Returns the logits of the next token: [vocab], fp32, on the CPU. Recomputes the complete prefix.
  at::Tensor next_logits(std::span<const int64_t> tokens) const;
  // Returns the summed cross-entropy of one batch of the loader.
  double loss_sum(const data::Batch& batch);

 private:
  at::Tensor hidden(const at::Tensor& tokens, const models::SequenceContext& context) const;

  models::Transformer model_;
  at::Device device_;
  trainer::BatchMover mover_{model_, device_};
};

}  // namespace hyperion::inference
