#include "models/layers/merged_linear.h"

#include <utility>

namespace hyperion::models {

MergedLinear::MergedLinear(const std::string& name, std::vector<Linear> layers) : layers_(std::move(layers)) {
  int64_t rows = 0;
  for (const Linear& layer : layers_) rows += layer.weight()->shape[0];
  const ParameterPtr all = make_parameter(name, {rows, layers_[0].weight()->shape[1]}, Init::ones());
  for (const Linear& layer : layers_) layer.weight()->pack = all;
}

std::vector<at::Tensor> MergedLinear::forward(at::TensorList x, SelectiveCheckpoint* selective) const {
  std::vector<const Linear*> layers;
  for (const Linear& layer : layers_) layers.push_back(&layer);
  return column_linear(x, layers, selective);
}

}  // namespace hyperion::models
