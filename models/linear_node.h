// What the nodes of linear layers, models/column_linear.h and models/row_linear.h, share: how the
// layers of a node are kept for its backward, what of the rows that they multiplied, and which FP8 casts
// serve all of them.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "models/tensor_region.h"

namespace hyperion::models {

inline at::Tensor as_rows(const at::Tensor& x) {
  return x.flatten(0, -2);
}

// The autograd node owns copies of the layers, which share their weights: the layers themselves may move or
// end while the graph lives.
struct LayersOfNode : torch::CustomClassHolder {
  std::vector<Linear> layers;

  std::vector<const Linear*> pointers() const {
    std::vector<const Linear*> all;
    for (const Linear& layer : layers) all.push_back(&layer);
    return all;
  }
};

void save_layers(torch::autograd::AutogradContext* context, const std::vector<const Linear*>& layers);
c10::intrusive_ptr<LayersOfNode> saved_layers(torch::autograd::AutogradContext* context);

// The scaling with which all of `layers` would cast the rows as one tensor; none where they do not agree.
std::optional<float8::Scaling> common_scaling(const std::vector<const Linear*>& layers,
                                              GatheredRows::Role role);

// Whether the rows that the layers read are gathered in pieces: their products of a part of the rows must be
// those parts of their products.
bool gathers_in_pieces(const std::vector<const Linear*>& layers, GatheredRows::Role role);

// The rows, of those of all ranks, that are `rank`'s.
Operand part_of_rank(const Operand& all, int rank, const Exchange& ranks);

// Whether one FP8 copy of the rows that the layers read serves all of their weight gradients: made in forward
// with the other one, by one cast, it is what the node keeps of them. Only where backward follows.
bool keeps_columns(const std::vector<const Linear*>& layers);

// Keeps what a node needs of the rows that its layers multiplied, for their weight gradients. values: what
// has rows.values, in any shape.
void keep(torch::autograd::AutogradContext* context, const Operand& rows, const at::Tensor& values);
Operand kept_rows(torch::autograd::AutogradContext* context);

// Whether the active SelectiveCheckpoint saves the layer's result.
bool saves_next_product(const Linear& layer);

// The layer of all their weights, where these lie side by side and are multiplied as they are.
std::optional<Linear> packed(const std::vector<const Linear*>& layers);

// A weight's gradient as a node returns it to autograd: undefined where it was added to .grad() here, because
// autograd would round it to the weight's dtype.
at::Tensor return_or_add_gradient(const Linear& layer, at::Tensor gradient);

}  // namespace hyperion::models
