// Biases of linear layers: their description, and layers with them against libtorch's own autograd.
#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/description.h"
#include "models/flavors/registry.h"
#include "models/layers/deferred_weights.h"
#include "models/layers/linear_node.h"
#include "models/layers/merged_linear.h"
#include "models/parts/description.h"

namespace hyperion::models {
namespace {

using at::Tensor;

ParameterPtr leaf_parameter(std::vector<int64_t> shape, at::ScalarType dtype = at::kDouble) {
  const ParameterPtr parameter = make_parameter("parameter", shape, Init::ones());
  parameter->weight = at::randn(shape, at::kDouble).to(dtype).requires_grad_();
  return parameter;
}

Linear biased_layer(int64_t out, int64_t in, at::ScalarType dtype = at::kDouble) {
  return Linear(leaf_parameter({out, in}, dtype), nullptr, nullptr, false, leaf_parameter({out}, dtype));
}

// Lays the layers' weights, and their biases, side by side.
void lay_in_packs(const std::vector<Linear>& layers) {
  std::vector<Tensor> weights, biases;
  for (const Linear& layer : layers) weights.push_back(layer.weight()->weight.detach());
  for (const Linear& layer : layers) biases.push_back(layer.bias()->weight.detach());
  const auto lay = [&](const ParameterPtr& pack, const std::vector<Tensor>& parts, const auto& parameter_of) {
    pack->weight = at::cat(parts);
    pack->local = pack->weight.sizes().vec();
    int64_t first = 0;
    for (const Linear& layer : layers) {
      const ParameterPtr& parameter = parameter_of(layer);
      parameter->weight =
          pack->weight.narrow(0, first, parameter->local[0]).detach().requires_grad_(parameter->trainable);
      first += parameter->local[0];
    }
  };
  lay(
      layers[0].weight()->pack, weights, [](const Linear& layer) -> auto& { return layer.weight(); });
  lay(
      layers[0].bias()->pack, biases, [](const Linear& layer) -> auto& { return layer.bias(); });
}

std::vector<Tensor> leaves_of(const std::vector<Linear>& layers) {
  std::vector<Tensor> leaves;
  for (const Linear& layer : layers)
    leaves.insert(leaves.end(), {layer.weight()->weight, layer.bias()->weight});
  return leaves;
}

}  // namespace

TEST_CASE("a bias is described by its weight") {
  const auto described = [](std::vector<int64_t> dims, std::optional<int> split, const char* name,
                            const char* theirs) {
    return bias_of({.name = name,
                    .dims = std::move(dims),
                    .split = split,
                    .domain = Domain::kExpert,
                    .hugging_face = {.name = theirs, .rotated = true}});
  };
  const ParameterShape column = described({6, 4}, kSplitByRows, "attention.wq.weight", "a.q_proj.weight");
  CHECK(column.name == "attention.wq.bias");
  CHECK(column.hugging_face.name == "a.q_proj.bias");
  CHECK(column.hugging_face.rotated);
  CHECK(column.dims == std::vector<int64_t>{6});
  CHECK(column.split == kSplitByRows);
  CHECK(column.draw == Draw::kZeros);
  const ParameterShape row = described({6, 4}, kSplitByColumns, "wo.weight", "");
  CHECK(row.split == std::nullopt);
  CHECK(row.hugging_face.name.empty());
  const ParameterShape stack = described({3, 6, 4}, 1, "moe.experts.w1", "experts.gate_up_proj");
  CHECK(stack.name == "moe.experts.w1_bias");
  CHECK(stack.hugging_face.name == "experts.gate_up_proj_bias");
  CHECK(stack.dims == std::vector<int64_t>{3, 6});
  CHECK(stack.split == 1);
  CHECK(stack.domain == Domain::kExpert);
  CHECK(described({3, 6, 4}, 2, "w2", "w2").split == std::nullopt);
}

TEST_CASE("attention has the biases that its arguments name and otherwise none") {
  const auto names = [](const ModelOverrides& changes) {
    std::vector<std::string> biases;
    describe_model(model_args("llama3", "debugmodel", changes))
        .block(0)
        .for_each_parameter([&](const ParameterShape& shape) {
          if (shape.name.ends_with("bias")) biases.push_back(shape.name);
        });
    return biases;
  };
  CHECK(names({}).empty());
  CHECK(names({.qkv_bias = true}) ==
        std::vector<std::string>{"attention.wq.bias", "attention.wk.bias", "attention.wv.bias"});
  CHECK(names({.output_bias = true}) == std::vector<std::string>{"attention.wo.bias"});
  const ModelArgs plain = model_args("qwen3", "debugmodel"),
                  biased = model_args("qwen3", "debugmodel", {.qkv_bias = true, .output_bias = true});
  CHECK(count_parameters(biased).total - count_parameters(plain).total == 8 * (2048 + 2 * 1024 + 256));
  CHECK(find_shape(biased, "layers.3.attention.wk.bias")->shape.dims == std::vector<int64_t>{1024});
  CHECK_FALSE(find_shape(plain, "layers.3.attention.wk.bias"));
}

TEST_CASE("layers with biases equal plain autograd, packed and not, of columns and of rows") {
  at::manual_seed(1);
  const bool packed = GENERATE(false, true);
  CAPTURE(packed);
  const Tensor x = at::randn({2, 3, 8}, at::kDouble).requires_grad_();
  std::vector<Linear> layers = {biased_layer(5, 8), biased_layer(4, 8), biased_layer(2, 8)};
  MergedLinear merged("merged", layers);
  if (packed) lay_in_packs(layers);
  const std::vector<Tensor> ours = merged.forward({x}, {});
  CHECK(ours[1].is_alias_of(ours[0]) == packed);
  std::vector<Tensor> theirs, seeds, leaves = leaves_of(layers);
  leaves.push_back(x);
  for (const Linear& layer : layers)
    theirs.push_back(at::linear(x, layer.weight()->weight, layer.bias()->weight));
  for (size_t i = 0; i < layers.size(); ++i) {
    CHECK(at::allclose(ours[i], theirs[i], 1e-12, 1e-13));
    seeds.push_back(at::randn(theirs[i].sizes(), at::kDouble));
  }
  const auto found = torch::autograd::grad(ours, leaves, seeds),
             expected = torch::autograd::grad(theirs, leaves, seeds);
  for (size_t i = 0; i < leaves.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-11, 1e-12));

  const Linear row = biased_layer(5, 8);
  const std::vector<Tensor> of_row = {x, row.weight()->weight, row.bias()->weight};
  const Tensor output = row_linear(x, row), plain = at::linear(x, of_row[1], of_row[2]);
  CHECK(at::allclose(output, plain, 1e-12, 1e-13));
  const Tensor seed = at::randn(output.sizes(), at::kDouble);
  const auto of_output = torch::autograd::grad({output}, of_row, {seed}),
             of_plain = torch::autograd::grad({plain}, of_row, {seed});
  for (size_t i = 0; i < of_row.size(); ++i) CHECK(at::allclose(of_output[i], of_plain[i], 1e-11, 1e-12));
}

TEST_CASE("a frozen bias has no gradient, and a bias of a frozen weight has one") {
  at::manual_seed(2);
  const bool packed = GENERATE(false, true), of_weights = GENERATE(false, true);
  CAPTURE(packed, of_weights);
  const Tensor x = at::randn({4, 8}, at::kDouble);
  std::vector<Linear> layers = {biased_layer(5, 8), biased_layer(4, 8)};
  MergedLinear merged("merged", layers);
  for (const Linear& layer : layers) {
    const ParameterPtr& frozen = of_weights ? layer.weight() : layer.bias();
    frozen->trainable = frozen->pack->trainable = false;
    frozen->weight.requires_grad_(false);
  }
  if (packed) lay_in_packs(layers);
  const std::vector<Tensor> out = merged.forward({x}, {});
  const std::vector<Tensor> seeds = {at::randn({4, 5}, at::kDouble), at::randn({4, 4}, at::kDouble)};
  torch::autograd::backward({out[0], out[1]}, seeds);
  for (size_t i = 0; i < layers.size(); ++i) {
    const Tensor weight = layers[i].weight()->weight.grad(), bias = layers[i].bias()->weight.grad();
    CHECK(weight.defined() == !of_weights);
    CHECK(bias.defined() == of_weights);
    if (of_weights) CHECK(at::allclose(bias, seeds[i].sum(0), 1e-12, 1e-13));
  }
}

TEST_CASE("the gradient of a bias comes in the dtype of its reduction, and is not deferred") {
  at::manual_seed(3);
  Linear layer = biased_layer(5, 8, at::kBFloat16);
  const bool wide = GENERATE(false, true);
  if (wide) layer.bias()->gradient_dtype = at::kFloat;
  DeferredWeights deferred;
  deferred.set_deferring(true);
  const Tensor seed = at::randn({64, 5}).to(at::kBFloat16), x = at::randn({64, 8}).to(at::kBFloat16);
  for (int microbatch = 1; microbatch <= 2; ++microbatch) {
    const Tensor out = column_linear(x, {&layer}, {.deferred = &deferred})[0];
    torch::autograd::backward({out}, {seed});
    const Tensor grad = layer.bias()->weight.grad(), sum = seed.to(at::kFloat).sum(0);
    CHECK(grad.scalar_type() == (wide ? at::kFloat : at::kBFloat16));
    CHECK(at::allclose(grad.to(at::kFloat), sum * microbatch, wide ? 1e-6 : 2e-2, wide ? 1e-6 : 2e-2));
  }
  CHECK_FALSE(layer.weight()->weight.grad().defined());
  deferred.make_all();
  CHECK(layer.weight()->weight.grad().defined());
}

}  // namespace hyperion::models
