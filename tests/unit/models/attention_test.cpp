// The CPU's attention for every instruction set that this processor has, against its plain twin; and the twin
// against finite differences.
#include "models/kernels/attention/attention.h"

#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "models/kernels/attention/cpu.h"

namespace hyperion::models {

using at::Tensor;
using kernels::AttentionMask, kernels::cpu::Instructions;

namespace {

constexpr Instructions kEach[] = {Instructions::kNone, Instructions::kAvx2, Instructions::kAvx512,
                                  Instructions::kAvx512Bf16};

struct AttentionInput {
  Tensor q, k, v, grad;
  AttentionMask mask;
};

// Laid out as a model's products leave them: [batch, seq, heads, head_dim], here as parts of one matrix.
AttentionInput input(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seq, int64_t head_dim,
                     at::ScalarType dtype) {
  const Tensor all = at::randn({batch, seq, heads + 2 * kv_heads, head_dim}).to(dtype);
  const auto part = [&](int64_t first, int64_t count) { return all.narrow(2, first, count).transpose(1, 2); };
  return {part(0, heads),
          part(heads, kv_heads),
          part(heads + kv_heads, kv_heads),
          at::randn({batch, seq, heads, head_dim}).to(dtype).transpose(1, 2),
          {}};
}

// Each row is documents of these lengths, and one of what is left.
AttentionMask documents_of(int64_t batch, int64_t seq, const std::vector<int64_t>& lengths) {
  std::vector<Tensor> parts;
  int64_t left = seq;
  for (const int64_t length : lengths) {
    parts.push_back(at::arange(std::min(length, left)));
    left -= parts.back().size(0);
  }
  parts.push_back(at::arange(left));
  return kernels::document_mask(at::cat(parts).to(at::kInt).expand({batch, seq}).contiguous(), at::kCPU);
}

struct Results {
  Tensor output, lse, dq, dk, dv;
  std::vector<Tensor> all() const { return {output, lse, dq, dk, dv}; }
};

Results by_kernel(const AttentionInput& in, Instructions instructions) {
  const auto result = kernels::cpu::attention_forward(in.q, in.k, in.v, in.mask, instructions);
  const auto grads =
      kernels::cpu::attention_backward(in.grad, in.q, in.k, in.v, in.mask, result, instructions);
  return {result.output, result.lse, grads.q, grads.k, grads.v};
}

// In fp64 from the same numbers.
Results by_twin(const AttentionInput& in) {
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const Tensor q = wide(in.q), k = wide(in.k), v = wide(in.v);
  const auto result = kernels::plain::attention_forward(q, k, v, in.mask);
  const auto grads = kernels::plain::attention_backward(wide(in.grad), q, k, v, in.mask, result);
  return {result.output, result.lse, grads.q, grads.k, grads.v};
}

// The largest difference in the norm of a whole tensor, relative to it. A gradient may be zero (one token
// attends to itself alone): then what is found is measured against the gradient that came in.
double largest_error(const Results& found, const Results& wanted, const Tensor& grad) {
  double largest = 0;
  for (size_t i = 0; i < found.all().size(); ++i) {
    const Tensor f = found.all()[i].to(at::kDouble), w = wanted.all()[i];
    const double scale = std::max(w.norm().item<double>(), 0.2 * grad.norm(2, at::kDouble).item<double>());
    const double error = (f - w).norm().item<double>() / scale;
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

// Measured: 1e-6; and 6e-3 in the gradients of two tokens, 3e-3 of more, where bf16 rounds by 4e-3.
double allowed_error(at::ScalarType dtype) {
  return dtype == at::kFloat ? 3e-6 : 1.2e-2;
}

template <typename Check>
void for_each_kernel(const Check& check) {
  for (const Instructions instructions : kEach)
    if (kernels::cpu::processor_has(instructions))
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) check(instructions, dtype);
}

}  // namespace

TEST_CASE("attention on a CPU equals its twin for every head size and length and instruction set") {
  at::manual_seed(21);
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    for (const int64_t seq : {1, 2, 17, 63, 64, 65, 200})
      for (const int64_t head_dim : {1, 6, 8, 16, 24, 48, 64, 80, 112, 128, 256}) {
        if (seq > 64 && head_dim != 16 && head_dim != 80) continue;  // what the twin needs long for
        const AttentionInput in = input(2, 4, seq % 2 == 0 ? 2 : 4, seq, head_dim, dtype);
        CAPTURE(kernels::cpu::text_of(instructions), dtype, seq, head_dim);
        CHECK(largest_error(by_kernel(in, instructions), by_twin(in), in.grad) < allowed_error(dtype));
      }
  });
}

TEST_CASE("attention on a CPU stays inside documents of every length, of one token too") {
  at::manual_seed(22);
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    const std::vector<std::vector<int64_t>> packings = {
        std::vector<int64_t>(200, 1), {63, 1, 64, 1}, {130, 3, 7}, {1, 199}, {150, 1, 1, 1}, {64, 64, 64}};
    for (const auto& lengths : packings)
      for (const int64_t head_dim : {2, 16}) {
        AttentionInput in = input(2, 4, 2, 200, head_dim, dtype);
        in.mask = documents_of(2, 200, lengths);
        CAPTURE(kernels::cpu::text_of(instructions), dtype, lengths, head_dim);
        CHECK(largest_error(by_kernel(in, instructions), by_twin(in), in.grad) < allowed_error(dtype));
      }
  });
}

TEST_CASE("rows of different documents and a document alone have the same bits of attention") {
  at::manual_seed(23);
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    AttentionInput in = input(1, 2, 1, 192, 32, dtype);
    in.mask = documents_of(1, 192, {64, 128});  // which blocks of queries and keys divide
    const Results packed = by_kernel(in, instructions);
    const auto part = [&](const Tensor& t) { return t.narrow(2, 64, 128); };
    const Results alone = by_kernel({part(in.q), part(in.k), part(in.v), part(in.grad), {}}, instructions);
    CAPTURE(kernels::cpu::text_of(instructions), dtype);
    for (size_t i = 0; i < alone.all().size(); ++i) CHECK(part(packed.all()[i]).equal(alone.all()[i]));
  });
}

TEST_CASE("attention on a CPU takes scores whose exponentials overflow and keeps the smallest weights") {
  at::manual_seed(24);
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    for (const double factor : {30.0, 1e4}) {  // scores of thousands, and of 1e8
      AttentionInput in = input(1, 2, 2, 100, 16, dtype);
      in.q = in.q * factor;
      const Results found = by_kernel(in, instructions);
      CAPTURE(kernels::cpu::text_of(instructions), dtype, factor);
      for (const Tensor& t : found.all()) CHECK(t.isfinite().all().item<bool>());
      CHECK(largest_error(
                {found.output, found.lse, in.q, in.k, in.v},
                [&] {
                  const Results twin = by_twin(in);
                  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
                  return Results{twin.output, twin.lse, wide(in.q), wide(in.k), wide(in.v)};
                }(),
                in.grad) < (dtype == at::kFloat ? 1e-4 * factor : 1.2e-2));
    }
    // equal scores, and all weight on one key
    AttentionInput in = input(1, 1, 1, 70, 8, dtype);
    in.q = at::zeros_like(in.q);
    CHECK(largest_error(by_kernel(in, instructions), by_twin(in), in.grad) < allowed_error(dtype));
    in.q = at::full_like(in.q, -100);
    in.k = at::arange(70).view({1, 1, 70, 1}).expand({1, 1, 70, 8}).to(dtype);
    CHECK(by_kernel(in, instructions).output.sub(in.v.narrow(2, 0, 1)).abs().max().item<double>() == 0.0);
  });
}

TEST_CASE("a NaN reaches every token that attends to it and none of the queries before") {
  at::manual_seed(25);
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    for (const int64_t at : {0, 40, 99}) {
      AttentionInput in = input(1, 1, 1, 100, 16, dtype);
      in.k = in.k.clone();
      in.k[0][0][at][3] = NAN;
      const Results found = by_kernel(in, instructions);
      CAPTURE(kernels::cpu::text_of(instructions), dtype, at);
      const Tensor of_tokens = found.output.isnan().any(-1).flatten();
      CHECK(of_tokens.narrow(0, at, 100 - at).all().item<bool>());
      CHECK_FALSE(of_tokens.narrow(0, 0, at).any().item<bool>());
      CHECK(found.dv.isnan().any().item<bool>());
      in.v = in.v.clone();
      in.v[0][0][at][3] = NAN;
      CHECK(by_kernel(in, instructions).output.narrow(2, at, 100 - at).isnan().any(-1).all().item<bool>());
    }
  });
}

TEST_CASE("attention on a CPU has the same bits on any number of threads and again") {
  at::manual_seed(26);
  const int threads = at::get_num_threads();
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    for (const bool packed : {false, true}) {
      AttentionInput in = input(3, 6, 2, 300, 16, dtype);
      if (packed) in.mask = documents_of(3, 300, {90, 1, 120});
      at::set_num_threads(1);
      const Results one = by_kernel(in, instructions);
      for (const int count : {1, 2, 3}) {
        at::set_num_threads(count);
        const Results again = by_kernel(in, instructions);
        for (size_t i = 0; i < one.all().size(); ++i) CHECK(one.all()[i].equal(again.all()[i]));
      }
    }
  });
  at::set_num_threads(threads);
}

TEST_CASE("attention's twin has the gradients of finite differences") {
  at::manual_seed(27);
  AttentionInput in = input(2, 4, 2, 7, 6, at::kDouble);
  for (const bool packed : {false, true}) {
    if (packed) in.mask = documents_of(2, 7, {3, 1});
    const Results twin = by_twin(in);
    const auto value = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return (kernels::plain::attention_forward(q, k, v, in.mask).output * in.grad).sum().item<double>();
    };
    constexpr double kStep = 1e-5;
    const auto numeric = [&](auto&& at_shift) { return (at_shift(kStep) - at_shift(-kStep)) / (2 * kStep); };
    const Tensor dq = at::randn_like(in.q), dk = at::randn_like(in.k), dv = at::randn_like(in.v);
    CHECK(numeric([&](double by) { return value(in.q + by * dq, in.k, in.v); }) ==
          Approx((twin.dq * dq).sum().item<double>()).epsilon(1e-7));
    CHECK(numeric([&](double by) { return value(in.q, in.k + by * dk, in.v); }) ==
          Approx((twin.dk * dk).sum().item<double>()).epsilon(1e-7));
    CHECK(numeric([&](double by) { return value(in.q, in.k, in.v + by * dv); }) ==
          Approx((twin.dv * dv).sum().item<double>()).epsilon(1e-7));
  }
}

TEST_CASE("attention without tokens is empty and inputs may lie in any order") {
  for_each_kernel([](Instructions instructions, at::ScalarType dtype) {
    const AttentionInput none = input(1, 2, 2, 0, 16, dtype);
    CHECK(by_kernel(none, instructions).dk.numel() == 0);
    const AttentionInput in = input(1, 2, 2, 20, 16, dtype);
    const auto turned = [](const Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
    const Results a = by_kernel(in, instructions),
                  b = by_kernel({turned(in.q), turned(in.k), turned(in.v), turned(in.grad), {}},
                                instructions);
    for (size_t i = 0; i < a.all().size(); ++i) CHECK(a.all()[i].equal(b.all()[i]));
  });
}

TEST_CASE("libtorch's attention serves a CPU where it is asked for and packed documents run ours") {
  at::manual_seed(9);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  AttentionInput in = input(2, 4, 2, 33, 16, dtype);
  const auto output = [&] { return kernels::attention_forward(in.q, in.k, in.v, in.mask).output; };
  const Tensor ours = output();
  kernels::use_libtorch_attention_on_cpu(true);
  const auto result = kernels::attention_forward(in.q, in.k, in.v, in.mask);
  const auto grads = kernels::attention_backward(in.grad, in.q, in.k, in.v, in.mask, result);
  const Tensor theirs = at::scaled_dot_product_attention(in.q, in.k, in.v, {}, 0.0, /*is_causal=*/true,
                                                         std::nullopt, /*enable_gqa=*/true);
  if (dtype == at::kFloat) CHECK_FALSE(result.output.equal(ours));  // rounded to bf16 they may be equal
  CHECK(largest_error({result.output, result.lse, grads.q, grads.k, grads.v}, by_twin(in), in.grad) <
        (dtype == at::kFloat ? 1e-5 : 2e-2));
  CHECK((result.output - theirs).abs().max().item<double>() < (dtype == at::kFloat ? 1e-6 : 1e-2));
  in.mask = documents_of(2, 33, {5, 1});
  const Tensor packed = output();
  kernels::use_libtorch_attention_on_cpu(false);
  CHECK(packed.equal(output()));
}

TEST_CASE("the kernels for CPUs take float32 and bfloat16 and heads of up to 256") {
  const auto serves = [](int64_t head_dim, at::ScalarType dtype) {
    return kernels::serves(kernels::AttentionKernel::kCpu, {dtype, head_dim, head_dim, 3, 3});
  };
  CHECK(serves(256, at::kFloat));
  CHECK(serves(1, at::kBFloat16));
  CHECK_FALSE(serves(257, at::kFloat));
  CHECK_FALSE(serves(16, at::kDouble));
  AttentionInput in = input(1, 2, 1, 9, 264, at::kBFloat16);  // the twin serves it
  const auto result = kernels::attention_forward(in.q, in.k, in.v, {});
  const auto grads = kernels::attention_backward(in.grad, in.q, in.k, in.v, {}, result);
  CHECK(largest_error({result.output, result.lse, grads.q, grads.k, grads.v}, by_twin(in), in.grad) <
        allowed_error(at::kBFloat16));
}

}  // namespace hyperion::models
