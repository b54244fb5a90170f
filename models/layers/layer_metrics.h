// LayerMetrics collects scalars that layers record in one training step. Each becomes a metric of the step
// under its tag.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::models {

struct LayerMetrics {
  // The reduction of the values of a tag to one number: over all record() calls, that is all microbatches and
  // all layers that use the tag, and over all ranks. A value describes the local shard: between tensor
  // parallel layers this rank's part of each sequence, inside them its heads.
  enum class Reduction { kSum, kMean, kRootMeanSquare, kMax };

  struct Metric {
    Reduction reduction;
    std::vector<at::Tensor> values;
  };

  bool activations = false;     // whether blocks record their outputs
  bool losses_of_rows = false;  // whether the head records the loss of each row too
  // The summed cross-entropy of each row of a microbatch, [rows], over the tokens of this rank.
  std::map<size_t, at::Tensor> row_losses{};
  std::map<std::string, Metric> by_tag{};  // every rank has the same tags and as many values of each

  // Records a 0-dim tensor of any device. Launches nothing and does not wait: the value is read after the
  // step.
  void record(const std::string& tag, Reduction reduction, const at::Tensor& value) {
    by_tag.try_emplace(tag, Metric{reduction, {}}).first->second.values.push_back(value.detach());
  }
};

}  // namespace hyperion::models
