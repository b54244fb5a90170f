#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/flavors/registry.h"
#include "models/loss_head.h"

namespace hyperion::models {

using at::Tensor;

namespace {

struct Head {
  explicit Head(int64_t chunk_bytes, double z_loss = 0)
      : args(model_args("llama3", "debugmodel", {.dim = 16, .n_heads = 2, .vocab_size = 11})),
        norm(make_parameter("norm.weight", {16}, Init::ones()), args.norm_eps),
        output(make_parameter("output.weight", {11, 16}, Init::normal(1))),
        head(norm, output, chunk_bytes, {}, z_loss) {
    at::manual_seed(5);
    norm.weight()->weight = at::rand({16}, at::kDouble).requires_grad_();
    output->weight = at::randn({11, 16}, at::kDouble).requires_grad_();
    x = at::randn({2, 7, 16}, at::kDouble);
    labels = at::randint(0, 11, {2, 7});
    labels.index_put_({0, 3}, -100);
    labels.index_put_({1, at::indexing::Slice(5)}, -100);
  }
  ModelArgs args;
  Norm norm;
  ParameterPtr output;
  LossHead head;
  Tensor x, labels;
};

}  // namespace

TEST_CASE("loss and gradients equal plain cross entropy for every chunk size") {
  const double z_loss = GENERATE(0.0, 0.03);
  for (int64_t rows : {1, 3, 5, 14}) {
    CAPTURE(rows);
    Head h(rows * 11 * 8, z_loss);
    const Tensor scale = at::full({}, 0.25, at::kDouble);
    const auto [loss, grad_x, z_loss_sum] = h.head.loss_and_grad(h.x, h.labels, scale);
    const Tensor x = h.x.clone().requires_grad_();
    const Tensor normed =
        x * at::rsqrt(x.square().mean(-1, true) + h.args.norm_eps) * h.norm.weight()->weight;
    const Tensor logits = at::linear(normed, h.output->weight).flatten(0, 1), labels = h.labels.flatten();
    const Tensor expected = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100);
    const Tensor z = z_loss * (logits.logsumexp(1).square() * labels.ne(-100)).sum();
    const auto grads =
        torch::autograd::grad({(expected + z) * 0.25}, {x, h.norm.weight()->weight, h.output->weight});
    CHECK(z_loss_sum.defined() == (z_loss > 0));
    if (z_loss > 0) CHECK(z_loss_sum.item<double>() == Approx(z.item<double>()).epsilon(1e-12));
    CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-12));
    CHECK(at::allclose(grad_x, grads[0], 1e-9, 1e-12));
    CHECK(at::allclose(h.norm.weight()->weight.grad(), grads[1], 1e-9, 1e-12));
    CHECK(at::allclose(h.output->weight.grad(), grads[2], 1e-9, 1e-12));
    CHECK(h.head.loss_sum(h.x, h.labels).item<double>() == Approx(loss.item<double>()).epsilon(1e-12));
  }
}

TEST_CASE("gradients of several microbatches add up") {
  Head h(1 << 20);
  const Tensor scale = at::ones({}, at::kDouble);
  h.head.loss_and_grad(h.x, h.labels, scale);
  const Tensor once = h.output->weight.grad().clone();
  h.head.loss_and_grad(h.x, h.labels, scale);
  CHECK(at::allclose(h.output->weight.grad(), once * 2));
}

}  // namespace hyperion::models
