// Linear layers that read one input, of a block: one product where their weights lie side by side.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/layers/linear_node.h"

namespace hyperion::models {

class MergedLinear {
 public:
  // name: of all their weights together, for messages.
  MergedLinear(const std::string& name, std::vector<Linear> layers) : layers_(std::move(layers)) {
    int64_t rows = 0;
    for (const Linear& layer : layers_) rows += layer.weight()->shape[0];
    const ParameterPtr all = make_parameter(name, {rows, layers_[0].weight()->shape[1]}, Init::ones());
    for (const Linear& layer : layers_) layer.weight()->pack = all;
  }

  // x: the input once for each layer, or once. The results of the layers, as column_linear().
  std::vector<at::Tensor> forward(at::TensorList x, const BlockRun& run) const {
    std::vector<const Linear*> layers;
    for (const Linear& layer : layers_) layers.push_back(&layer);
    return column_linear(x, layers, run);
  }

  const ParameterPtr& weight(size_t layer) const { return layers_[layer].weight(); }
  std::vector<Linear>& layers() { return layers_; }

 private:
  std::vector<Linear> layers_;
};

}  // namespace hyperion::models
