// Packed linear layers: layers that read the same input and whose weights lie side by side (Parameter::pack),
// so that one product serves all of them. Also the wgrad of layers, packed or not.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/linear.h"

namespace hyperion::models {

using Layers = std::vector<const Linear*>;

// Returns the layer of the packed weight and of the packed biases; nullopt if the layers are not packed, or
// multiply in FP8.
std::optional<Linear> packed_layer(const Layers& layers);

// Returns whether layers that SAC saves in part (saves[i]) are one product: at most a quarter of it, or all
// of it, is then recomputed by the rule for each layer.
bool saved_as_one(const Layers& layers, const std::vector<bool>& saves);

// Splits `packed` along `dim` into one view for each layer. Autograd does not see the views, so a node can
// return them as separate tensors.
std::vector<at::Tensor> split_by_layers(const at::Tensor& packed, const Layers& layers, int64_t dim);

// Concatenates tensors [.., n_i] to [m, sum of n_i]. It copies nothing if they are views of such a matrix.
at::Tensor side_by_side(const std::vector<at::Tensor>& columns);

// Returns the wgrad of each layer from x and the gradients of the products' outputs: one for the packed
// layer, or one for each layer. A wgrad is undefined if the weight is frozen, or if the product has added it
// to .grad().
std::vector<at::Tensor> weight_gradients(const Layers& layers, std::vector<Operand>& grads, Operand& x);
// Returns the gradient of each layer's bias, likewise; undefined if it is frozen, or the layer has none.
// grads: with their values.
std::vector<at::Tensor> bias_gradients(const Layers& layers, const std::vector<Operand>& grads);

}  // namespace hyperion::models
