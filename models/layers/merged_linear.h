// MergedLinear is a set of linear layers that read the same input, such as wq, wk and wv. They are one matrix
// product if their weights are packed (Parameter::pack), and their biases, if they have any.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/layers/linear_node.h"

namespace hyperion::models {

class MergedLinear {
 public:
  // name: names the packed weight in messages. layers: all have a bias, or none has.
  MergedLinear(const std::string& name, std::vector<Linear> layers) : layers_(std::move(layers)) {
    int64_t rows = 0;
    for (const Linear& layer : layers_) rows += layer.weight()->shape[0];
    const ParameterPtr pack = make_parameter(name, {rows, layers_[0].weight()->shape[1]}, Init::ones());
    for (const Linear& layer : layers_) {
      layer.weight()->pack = pack;
      if ((layer.bias() == nullptr) != (layers_[0].bias() == nullptr))
        throw_bug("{}: only some of its layers have a bias", name);
    }
    if (layers_[0].bias() == nullptr) return;
    const ParameterPtr biases = make_parameter(name + " (biases)", {rows}, Init::ones());
    for (const Linear& layer : layers_) layer.bias()->pack = biases;
  }

  // Returns one output per layer, as column_linear() does. x: the input once, or once for each layer.
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
