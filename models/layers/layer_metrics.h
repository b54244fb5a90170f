// Numbers that layers report of one training step: the step's metrics have them by their tags.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::models {

struct LayerMetrics {
  // How the values of a tag become one number: over all calls of record() with it, in every microbatch and in
  // every layer that uses the tag, and over all ranks. A value is of what this rank computes: between the
  // layers of a tensor parallel group of its part of each sequence, inside them of its heads.
  enum class Reduction { kSum, kMean, kRootMeanSquare, kMax };

  struct Metric {
    Reduction reduction;
    std::vector<at::Tensor> values;
  };

  bool activations = false;                // whether blocks report their results
  std::map<std::string, Metric> by_tag{};  // the same tags, equally often, on every rank

  // value: 0-dim, of any device. It is read after the step: nothing is launched or waited for here.
  void record(const std::string& tag, Reduction reduction, const at::Tensor& value) {
    by_tag.try_emplace(tag, Metric{reduction, {}}).first->second.values.push_back(value.detach());
  }
};

}  // namespace hyperion::models
