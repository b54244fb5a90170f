#include "models/parts/dense/feed_forward.h"

#include <fmt/format.h>

namespace hyperion::models {

GatedFeedForward::GatedFeedForward(const PartParameters& parameters, const std::string& name,
                                   Activation activation, const ParallelDims& dims)
    : activation_(activation),
      gate_up_(fmt::format("{}{}.w1 and w3", parameters.prefix(), name),
               {parameters.linear(name + ".w1", dims), parameters.linear(name + ".w3", dims)}),
      w2_(parameters.linear(name + ".w2", dims)) {}

std::vector<Linear*> GatedFeedForward::linears() {
  std::vector<Linear>& gate_up = gate_up_.layers();
  return {&gate_up[0], &gate_up[1], &w2_};
}

at::Tensor GatedFeedForward::forward(at::TensorList x, const BlockRun& run) const {
  const std::vector<at::Tensor> gate_up = gate_up_.forward(x, run);
  const OutputUse use = run.recomputes() ? OutputUse::kUnused : OutputUse::kForwardOnly;
  return row_linear(ops::gated_activation(gate_up[0], gate_up[1], activation_), w2_, use, run);
}

}  // namespace hyperion::models
