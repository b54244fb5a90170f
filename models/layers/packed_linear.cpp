#include "models/layers/packed_linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>

#include "models/layers/row_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;

// Returns the .grad() that the layers' weights have from earlier microbatches, as one matrix; undefined if a
// weight has none, or if they do not lie side by side.
Tensor accumulated_gradient(const Layers& layers) {
  const Tensor first = layers.front()->weight()->weight.grad();
  if (layers.size() == 1 || !first.defined()) return first;
  int64_t rows = 0;
  for (const Linear* layer : layers) {
    const Tensor grad = layer->weight()->weight.grad();
    if (!grad.defined() || !grad.is_alias_of(first) || !grad.is_contiguous() ||
        grad.storage_offset() != first.storage_offset() + rows * first.size(1))
      return {};
    rows += grad.size(0);
  }
  return first.as_strided({rows, first.size(1)}, {first.size(1), 1});
}

// Returns the wgrad of `product`, which is the layer of `layers` or their packed layer; undefined as in
// weight_gradients().
Tensor weight_gradient_of(const Linear& product, const Layers& layers, Operand& grad, Operand& x) {
  if (!product.weight()->trainable) return {};
  Tensor accumulated = accumulated_gradient(layers);
  if (!product.multiplies_into(accumulated)) return product.weight_gradient(grad, x);
  product.add_weight_gradient(accumulated, grad, x);
  return {};
}

}  // namespace

std::optional<Linear> packed_layer(const Layers& layers) {
  const ParameterPtr& pack = layers.front()->weight()->pack;
  if (pack == nullptr || !pack->weight.defined()) return std::nullopt;
  const ParameterPtr biases = layers.front()->bias() ? layers.front()->bias()->pack : nullptr;
  int64_t rows = 0;
  for (const Linear* layer : layers) {
    if (layer->weight()->pack != pack || layer->float8() != nullptr) return std::nullopt;
    if (layer->bias() != nullptr && (biases == nullptr || layer->bias()->pack != biases)) return std::nullopt;
    rows += layer->weight()->rows();
  }
  if (rows != pack->rows() || (biases != nullptr && !biases->weight.defined())) return std::nullopt;
  return Linear(pack, nullptr, layers.front()->tp_group(), layers.front()->chunked(), biases);
}

bool saved_as_one(const Layers& layers, const std::vector<bool>& saves) {
  int64_t rows = 0, recomputed = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    rows += layers[i]->weight()->rows();
    if (!saves[i]) recomputed += layers[i]->weight()->rows();
  }
  return 4 * recomputed <= rows || recomputed == rows;
}

std::vector<Tensor> bias_gradients(const Layers& layers, const std::vector<Operand>& grads) {
  if (const std::optional<Linear> packed = packed_layer(layers)) {
    const Tensor gradient = packed->bias_gradient(grads[0].values);
    return gradient.defined() ? split_by_layers(gradient, layers, 0) : std::vector<Tensor>(layers.size());
  }
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < layers.size(); ++i) gradients.push_back(layers[i]->bias_gradient(grads[i].values));
  return gradients;
}

std::vector<Tensor> split_by_layers(const Tensor& packed, const Layers& layers, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Tensor> views;
  int64_t first = 0;
  for (const Linear* layer : layers) {
    views.push_back(packed.narrow(dim, first, layer->weight()->rows()));
    first += layer->weight()->rows();
  }
  return views;
}

Tensor side_by_side(const std::vector<Tensor>& columns) {
  std::vector<Tensor> matrices;
  int64_t width = 0;
  for (const Tensor& x : columns) {
    matrices.push_back(as_rows(x));
    width += x.size(-1);
  }
  int64_t offset = matrices[0].storage_offset();
  for (const Tensor& matrix : matrices) {
    if (!matrix.is_alias_of(matrices[0]) || matrix.storage_offset() != offset || matrix.stride(0) != width ||
        matrix.stride(1) != 1)
      return at::cat(matrices, 1);
    offset += matrix.size(1);
  }
  return matrices[0].as_strided({matrices[0].size(0), width}, {width, 1});
}

std::vector<Tensor> weight_gradients(const Layers& layers, std::vector<Operand>& grads, Operand& x) {
  if (const std::optional<Linear> packed = packed_layer(layers)) {
    const Tensor gradient = weight_gradient_of(*packed, layers, grads[0], x);
    return gradient.defined() ? split_by_layers(gradient, layers, 0) : std::vector<Tensor>(layers.size());
  }
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < layers.size(); ++i)
    gradients.push_back(weight_gradient_of(*layers[i], {layers[i]}, grads[i], x));
  return gradients;
}

}  // namespace hyperion::models
