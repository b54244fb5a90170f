// A column and a row node of layers that tensor parallel ranks divide, on whole numbers so small that every
// product and sum is exact whatever its order: two ways to run the nodes must agree in every bit.
#pragma once

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/exchange.h"
#include "models/layers/linear_node.h"
#include "models/layers/ops.h"

namespace hyperion::models {

struct ExactNodes {
  bool packed = true;   // the column node's weights lie side by side
  bool chunked = true;  // as ParallelDims::chunked
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  // -2 to 2
  at::Tensor numbers(at::IntArrayRef shape, int64_t seed) const {
    const int64_t count = at::empty(shape, at::kMeta).numel();
    return at::arange(count).mul_(7).add_(seed).remainder_(5).sub_(2).to(dtype).to(device).view(shape);
  }

  // Results and gradients: of the column node its results, the gradients of its input and of its weights; the
  // same of the row node, and of its residual. The ranks' parts of weights differ in size.
  std::vector<at::Tensor> run(Exchange& ranks) const {
    constexpr int64_t kBatch = 3, kTokens = 5, kWidth = 7;
    const int64_t parts = ranks.size(), rank = ranks.rank();
    std::vector<Linear> layers;
    const ParameterPtr pack = make_parameter("pack", {11 * parts - 1, kWidth}, Init::ones());
    std::vector<at::Tensor> weights;
    for (const int64_t rows : {5 * parts - 1, 3 * parts, 3 * parts}) {
      const ParameterPtr weight = make_parameter("column", {rows, kWidth}, Init::ones(), 0);
      weight->shard(parts, rank);
      weights.push_back(numbers(weight->local, 3 * rank + rows));
      if (packed) weight->pack = pack;
      layers.emplace_back(weight, nullptr, &ranks, chunked);
    }
    const at::Tensor all = at::cat(weights);
    pack->local = all.sizes().vec();
    if (packed) pack->weight = all;
    int64_t first = 0;
    std::vector<const Linear*> pointers;
    for (const Linear& layer : layers) {
      layer.weight()->weight = all.narrow(0, first, layer.weight()->rows()).detach().requires_grad_();
      first += layer.weight()->rows();
      pointers.push_back(&layer);
    }

    const at::Tensor x = numbers({kBatch, kTokens, kWidth}, rank).requires_grad_();
    std::vector<at::Tensor> found = column_linear(x, pointers);
    const at::Tensor of_all = numbers({parts, kBatch, kTokens, all.size(0)}, 2 * rank);
    std::vector<at::Tensor> grads;
    first = 0;
    for (const at::Tensor& output : found) {
      grads.push_back(of_all.narrow(-1, first, output.size(-1)));
      first += output.size(-1);
    }
    torch::autograd::backward(found, grads);
    found.push_back(x.grad());
    for (const Linear& layer : layers) found.push_back(layer.weight()->weight.grad());

    const ParameterPtr weight = make_parameter("row", {kWidth, 5 * parts - 1}, Init::ones(), 1);
    weight->shard(parts, rank);
    weight->weight = numbers(weight->local, rank + 4).requires_grad_();
    const Linear layer(weight, nullptr, &ranks, chunked);
    const at::Tensor rows = numbers({parts, kBatch, kTokens, weight->local[1]}, 3 * rank).requires_grad_(),
                     residual = numbers(x.sizes(), rank + 1).requires_grad_();
    found.push_back(ops::residual_sum(residual, row_linear(rows, layer)));
    torch::autograd::backward({found.back()}, {numbers(x.sizes(), rank + 2)});
    for (const at::Tensor& leaf : {rows, weight->weight, residual}) found.push_back(leaf.grad());
    for (at::Tensor& tensor : found) tensor = tensor.detach();
    return found;
  }
};

}  // namespace hyperion::models
