#include "models/transformer.h"

#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include "models/description.h"
#include "models/flavors/registry.h"
#include "models/init.h"
#include "tests/unit/models/finite_differences.h"

namespace hyperion::models {

using at::Tensor;

TEST_CASE("names and order of parameters are torchtitan's") {
  const Transformer model(model_args("llama3", "debugmodel", {.n_layers = 1}));
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : model.parameters()) names.push_back(parameter->fqn);
  CHECK(names == std::vector<std::string>{"tok_embeddings.weight", "layers.0.attention.wq.weight",
                                          "layers.0.attention.wk.weight", "layers.0.attention.wv.weight",
                                          "layers.0.attention.wo.weight", "layers.0.feed_forward.w1.weight",
                                          "layers.0.feed_forward.w2.weight",
                                          "layers.0.feed_forward.w3.weight", "layers.0.attention_norm.weight",
                                          "layers.0.ffn_norm.weight", "norm.weight", "output.weight"});
}

TEST_CASE("a tied head is the table and is saved under both names") {
  const Transformer model(model_args("qwen3", "debugmodel"));
  CHECK(model.units().front().parameters[0] == model.units().back().parameters[1]);
  CHECK(model.parameters()[0]->aliases == std::vector<std::string>{"output.weight"});
}

TEST_CASE("rope frequencies are scaled as llama 3.1 does") {
  const Tensor f = rope_frequencies(model_args("llama3", "8B"));
  ModelArgs plain = model_args("llama3", "8B");
  plain.rope.scaling = false;
  const Tensor base = rope_frequencies(plain);
  CHECK(base[0].item<double>() == 1.0);
  CHECK(f[0].item<double>() == 1.0);  // short waves are kept
  CHECK(f[63].item<double>() ==
        Approx(base[63].item<double>() / 8).epsilon(1e-6));      // long waves are stretched
  const double wavelength = 2 * M_PI / base[30].item<double>();  // and between them blended
  REQUIRE(wavelength > 2048);
  REQUIRE(wavelength < 8192);
  const double s = (8192 / wavelength - 1) / 3;
  CHECK(f[30].item<double>() == Approx(((1 - s) / 8 + s) * base[30].item<double>()).epsilon(1e-5));
}

TEST_CASE(
    "YaRN of plain attention scales cosines and sines, and its range of frequencies need not be rounded") {
  ModelArgs args = model_args("llama3", "debugmodel", {.n_heads = 4, .n_kv_heads = 4, .head_dim = 64});
  args.rope = {.theta = 150000, .factor = 32, .original_length = 4096, .yarn = true, .truncate = false};
  ModelArgs plain = args;
  plain.rope.yarn = plain.rope.scaling = false;
  const Tensor scaled = rope_frequencies(args), base = rope_frequencies(plain);
  const auto index_of = [](double rotations) {
    return 32 * std::log(4096 / (rotations * 2 * M_PI)) / std::log(150000.0);
  };
  const double low = index_of(32), high = index_of(1);
  for (int64_t i = 0; i < 32; ++i) {
    const double m = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0),
                 f = base[i].item<double>();
    CHECK(scaled[i].item<double>() == Approx((1 - m) * f / 32 + m * f).epsilon(1e-6));
  }
  const SequenceContext context = Transformer(args).context(5, at::kCPU);
  CHECK(context.attention_factor == 1);
  CHECK(context.cos[0][0].item<double>() == Approx(0.1 * std::log(32) + 1));
  args.rope.truncate = true;
  CHECK_FALSE(at::allclose(rope_frequencies(args), scaled));
}

TEST_CASE("layers with and without windows are kinds of their own, and sinks are parameters of heads") {
  const ModelArgs args = model_args("llama3", "debugmodel",
                                    {.n_layers = 7,
                                     .sinks = true,
                                     .sliding_window_size = 8,
                                     .sliding_window_first_layer = 2,
                                     .full_attention_every = 3});
  const ModelDescription model = describe_model(args);
  CHECK(model.kind_of_layer == std::vector<int>{0, 0, 0, 1, 1, 0, 1});
  CHECK(model.kinds[1].attention.attention->window == 8);
  const std::optional<NamedShape> sinks = find_shape(args, "layers.3.attention.sinks");
  REQUIRE(sinks);
  CHECK(sinks->shape.dims == std::vector<int64_t>{16});
  CHECK(sinks->shape.split == 0);
}

TEST_CASE("gradients of a two layer fp64 model equal finite differences") {
  for (const char* name : {"llama3", "qwen3"}) {
    ModelArgs args = model_args(name, "debugmodel",
                                {.dim = 16,
                                 .n_layers = 2,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 4,
                                 .vocab_size = 13,
                                 .hidden_dim = 24});
    const Transformer model(args);
    give_weights(model, at::kDouble, 0.3);
    const Tensor tokens = at::randint(0, 13, {2, 6}), labels = at::randint(0, 13, {2, 6});
    loss_and_backward(model, tokens, labels);
    std::vector<Tensor> grads;
    for (const ParameterPtr& parameter : model.parameters())
      grads.push_back(parameter->weight.grad().clone());
    const auto parameters = model.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      CAPTURE(parameters[i]->fqn);
      const Tensor direction = at::randn(parameters[i]->shape, at::kDouble);
      const double numeric = numeric_derivative(model, parameters[i], direction, 1e-5, tokens, labels);
      const double exact = (grads[i] * direction).sum().item<double>();
      CHECK(numeric == Approx(exact).epsilon(1e-5).margin(1e-7));
    }
  }
}

TEST_CASE("with document masks a packed row equals its documents alone") {
  ModelArgs args =
      model_args("llama3", "debugmodel", {.dim = 32, .n_layers = 2, .n_heads = 4, .vocab_size = 13});
  const Transformer model(args);
  give_weights(model, at::kFloat, 0.2);
  at::NoGradGuard no_grad;
  const Tensor tokens = at::randint(0, 13, {1, 9});
  const Tensor positions = at::tensor({0, 1, 2, 3, 0, 1, 2, 3, 4}, at::kInt).view({1, 9});
  auto logits = [&](const Tensor& part, const SequenceContext& context) {
    Tensor x = model.embedding().forward(part);
    for (const TransformerBlock& block : model.blocks()) x = block.forward(x, context);
    return model.head().logits(x);
  };
  const Tensor packed = logits(tokens, inside_documents(model.context(9, at::kCPU), positions,
                                                        kernels::document_mask(positions, at::kCPU)));
  CHECK(at::allclose(packed.narrow(1, 0, 4), logits(tokens.narrow(1, 0, 4), model.context(4, at::kCPU)), 1e-4,
                     1e-5));
  CHECK(at::allclose(packed.narrow(1, 4, 5), logits(tokens.narrow(1, 4, 5), model.context(5, at::kCPU)), 1e-4,
                     1e-5));
  CHECK_FALSE(at::allclose(packed.narrow(1, 4, 5), logits(tokens, model.context(9, at::kCPU)).narrow(1, 4, 5),
                           1e-3, 1e-4));
}

}  // namespace hyperion::models
