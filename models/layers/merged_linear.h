// Linear layers that read one input, of a block: one product where their weights lie side by side.
#pragma once

#include <string>
#include <vector>

#include "models/layers/linear_node.h"

namespace hyperion::models {

class MergedLinear {
 public:
  // name: of all their weights together, for messages.
  MergedLinear(const std::string& name, std::vector<Linear> layers);

  // x: the input once for each layer, or once. The results of the layers, as column_linear().
  std::vector<at::Tensor> forward(at::TensorList x, SelectiveCheckpoint* selective) const;

  const ParameterPtr& weight(size_t layer) const { return layers_[layer].weight(); }
  std::vector<Linear>& layers() { return layers_; }

 private:
  std::vector<Linear> layers_;
};

}  // namespace hyperion::models
