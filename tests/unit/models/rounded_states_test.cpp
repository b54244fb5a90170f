// Optimizer states in bf16: the CPU's form and the source of the CUDA kernel on CPU threads, against the
// plain form; and their rounding.
#include <cmath>
#include <tuple>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"

// The kernels come after what stands in for CUDA.
// clang-format off
#include "tests/unit/models/cuda_on_cpu.h"
#include "models/kernels/adam/cuda.cuh"
#include "models/kernels/adam/cuda.h"
// clang-format on

namespace hyperion::models {
namespace {

using at::Tensor;

Tensor as_bits(const Tensor& x) {
  return x.view(x.element_size() == 2 ? at::kShort : at::kInt);
}

// Equal bytes, except that a NaN equals every other.
bool equal_bits(const Tensor& a, const Tensor& b) {
  return (as_bits(a).eq(as_bits(b)) | (a.isnan() & b.isnan())).all().item<bool>();
}

}  // namespace

TEST_CASE("optimizer states in bf16 are the plain form's bits on a CPU and in the CUDA source") {
  // More tensors than a launch takes, with tails, in parts with gaps in the whole tensor, and unaligned.
  const auto make = [](bool shifted) {
    at::manual_seed(3);
    kernels::RoundedAdamTensors t;
    const auto random = [&](int64_t n) { return at::randn({n + 1}).narrow(0, shifted ? 1 : 0, n); };
    const auto half = [&](int64_t n) { return random(n).abs().to(at::kBFloat16); };
    for (int64_t i = 0; i < 27; ++i) {
      const int64_t rows = i == 0 ? 90 : 3 + i % 3, columns = i == 0 ? 100 : 1 + 5 * (i % 4);
      const Box box{{1, 2, 3}, {2, rows, columns}};
      const int64_t n = box.numel();
      t.weights.push_back(random(n));
      t.grads.push_back(random(n));
      t.exp_avgs.push_back(half(n));
      t.exp_avg_sqs.push_back(half(n));
      t.copies.push_back(i % 2 == 0 ? half(n) : Tensor());
      t.keys.push_back(77 + static_cast<uint64_t>(i));
      t.indices.push_back(
          kernels::indices_of({5, rows + (i % 2 == 0 ? 2 : 7), columns + 3 * (1 + i % 2)}, box));
    }
    t.grads[1][0] = NAN;
    t.grads[2][0] = INFINITY;
    return t;
  };
  const auto [shifted, decoupled, beta1] =
      GENERATE(std::tuple(false, true, 0.9), std::tuple(true, false, 0.9), std::tuple(false, true, 0.3));
  const auto step = [&, decoupled = decoupled, beta1 = beta1](float skip) {
    return kernels::RoundedAdamStep{.lr = 1e-2,
                                    .beta1 = beta1,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .decoupled = decoupled,
                                    .updates = at::full({}, 3.0F),
                                    .skip = at::full({}, skip),
                                    .divisor = decoupled ? at::full({}, 1.7F) : Tensor()};
  };
  // Names the tensors that differ.
  const auto differences = [](const kernels::RoundedAdamTensors& a, const kernels::RoundedAdamTensors& b) {
    std::string text;
    const auto compare = [&](const char* name, const std::vector<Tensor>& x, const std::vector<Tensor>& y) {
      for (size_t i = 0; i < x.size(); ++i)
        if (x[i].defined() && !equal_bits(x[i], y[i]))
          text += fmt::format("{} {}: {} of {}; ", name, i,
                              as_bits(x[i]).ne(as_bits(y[i])).sum().item<int64_t>(), x[i].numel());
    };
    compare("weights", a.weights, b.weights);
    compare("grads", a.grads, b.grads);
    compare("exp_avgs", a.exp_avgs, b.exp_avgs);
    compare("exp_avg_sqs", a.exp_avg_sqs, b.exp_avg_sqs);
    compare("copies", a.copies, b.copies);
    return text;
  };
  const kernels::RoundedAdamTensors expected = make(shifted), on_cpu = make(shifted), on_gpu = make(shifted);
  for (const float skip : {0.0F, 1.0F, 0.0F}) {
    kernels::plain::rounded_adam(step(skip), expected);
    kernels::cpu::rounded_adam(step(skip), on_cpu);
    kernels::cuda::rounded_adam(kOnThreads, step(skip), on_gpu);
    CHECK(differences(on_cpu, expected) == "");
    CHECK(differences(on_gpu, expected) == "");
    const kernels::RoundedMomentumStep momentum{
        .momentum = beta1, .nesterov = decoupled, .updates = at::full({}, 3.0F), .skip = at::full({}, skip)};
    const auto of = [](const kernels::RoundedAdamTensors& t) {
      return kernels::RoundedMomentumTensors{t.grads, t.exp_avgs, t.keys, t.indices};
    };
    kernels::plain::rounded_momentum(momentum, of(expected));
    kernels::cpu::rounded_momentum(momentum, of(on_cpu));
    kernels::cuda::rounded_momentum(kOnThreads, momentum, of(on_gpu));
    CHECK(differences(on_cpu, expected) == "");
    CHECK(differences(on_gpu, expected) == "");
  }
}

TEST_CASE("stochastic rounding leaves the mean as it is and other moments other bits") {
  constexpr int64_t kCount = 1 << 16;
  const auto after = [&](uint64_t key, float updates) {
    kernels::RoundedMomentumTensors t{{at::full({kCount}, 1.0F + 0.3F / 128)},
                                      {at::zeros({kCount}, at::kBFloat16)},
                                      {key},
                                      {{.run = kCount}}};
    kernels::table().rounded_momentum(
        {.momentum = 0, .nesterov = false, .updates = at::full({}, updates), .skip = at::zeros({})}, t);
    return t.momenta[0].to(at::kFloat);
  };
  const Tensor first = after(5, 1);  // of neighbours 1 and 1 + 1/128, the upper one with probability 0.3
  CHECK((first.eq(1) | first.eq(1 + 1.0 / 128)).all().item<bool>());
  CHECK(std::abs(first.ne(1).to(at::kDouble).mean().item<double>() - 0.3) < 4 * std::sqrt(0.21 / kCount));
  CHECK(first.equal(after(5, 1)));
  for (const Tensor& other : {after(6, 1), after(5, 2)})  // independent
    CHECK(std::abs(first.ne(other).to(at::kDouble).mean().item<double>() - 0.42) < 0.01);
}

}  // namespace hyperion::models
