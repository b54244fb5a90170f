// Windows and sinks of attention: the plain form against a softmax with every score in memory, and the
// kernels for CPUs against the plain form.
#include <algorithm>
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/attention/sinks.h"
#include "tests/support/error_of.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using kernels::AttentionMask, kernels::MaskKind, kernels::cpu::Instructions;

struct WindowCase {
  int64_t batch, heads, kv_heads, queries, keys, head_dim, window;
  std::vector<int64_t> documents{};  // where they begin in each row but the first; empty: there are none
  bool sinks = true;
};

const std::vector<WindowCase> kWindows = {
    {1, 1, 1, 1, 1, 1, 1},
    {2, 4, 2, 9, 9, 6, 1},   // itself alone
    {2, 4, 2, 9, 9, 6, 3},   //
    {1, 2, 1, 9, 9, 4, 9},   // the whole length
    {1, 2, 1, 9, 9, 4, 40},  // and more
    {1, 3, 1, 9, 9, 4, 0},   // none
    {2, 4, 4, 5, 13, 3, 4},  // more keys than queries
    {3, 4, 2, 6, 13, 4, 3, {0, 3, 9}},
    {2, 2, 1, 13, 13, 4, 5, {0, 1, 2, 10}},
    {2, 2, 1, 13, 13, 4, 5, {0, 1, 2, 10}, false},
};

Tensor positions_of(const WindowCase& c) {
  Tensor positions = at::arange(c.keys, at::kInt).expand({c.batch, c.keys}).clone();
  for (int64_t row = 1; row < c.batch; ++row)
    for (size_t i = 0; i < c.documents.size(); ++i) {
      const int64_t end = i + 1 < c.documents.size() ? c.documents[i + 1] : c.keys;
      positions[row].narrow(0, c.documents[i], end - c.documents[i]).copy_(at::arange(end - c.documents[i]));
    }
  return positions;
}

AttentionMask mask_of(const WindowCase& c) {
  AttentionMask mask;
  if (!c.documents.empty())
    mask = kernels::document_mask(positions_of(c), c.keys - c.queries, c.keys, at::kCPU);
  mask.window = c.window;
  return mask;
}

struct WindowInput {
  Tensor q, k, v, sinks, grad;
};

WindowInput input_of(const WindowCase& c, at::ScalarType dtype) {
  const auto make = [&](int64_t length, int64_t heads) {
    return at::randn({c.batch, length, heads, c.head_dim}, at::kDouble).to(dtype).transpose(1, 2);
  };
  return {make(c.queries, c.heads), make(c.keys, c.kv_heads), make(c.keys, c.kv_heads),
          c.sinks ? at::randn({c.heads}, at::kDouble).to(dtype) : Tensor(), make(c.queries, c.heads)};
}

// Output, log-sum-exp and the gradients of q, k, v and the sinks, by a softmax of one more column.
std::vector<Tensor> by_softmax(const WindowCase& c, const WindowInput& in) {
  const Tensor positions = positions_of(c);
  Tensor seen = at::full({c.batch, 1, c.queries, c.keys}, false, at::kBool);
  for (int64_t row = 0; row < c.batch; ++row)
    for (int64_t query = 0; query < c.queries; ++query) {
      const int64_t own = c.keys - c.queries + query;
      for (int64_t key = 0; key <= own; ++key)
        seen[row][0][query][key] =
            own - key <= positions[row][own].item<int64_t>() && (c.window == 0 || own - key < c.window);
    }
  const auto leaf = [](const Tensor& t) { return t.detach().clone().requires_grad_(); };
  const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const Tensor sinks = c.sinks ? leaf(in.sinks) : at::full({c.heads}, -INFINITY, at::kDouble);
  const auto repeated = [&](const Tensor& t) { return t.repeat_interleave(c.heads / c.kv_heads, 1); };
  const Tensor scores = at::matmul(q, repeated(k).transpose(2, 3))
                            .div(std::sqrt(static_cast<double>(c.head_dim)))
                            .masked_fill(seen.logical_not(), -INFINITY);
  const Tensor all =
      at::cat({scores, sinks.view({1, -1, 1, 1}).expand({c.batch, c.heads, c.queries, 1})}, -1);
  const Tensor output = at::matmul(at::softmax(all, -1).narrow(-1, 0, c.keys), repeated(v));
  torch::autograd::backward({output}, {in.grad});
  std::vector<Tensor> results = {output.detach(), at::logsumexp(all.detach(), {-1}), q.grad(), k.grad(),
                                 v.grad()};
  if (c.sinks) results.push_back(sinks.grad());
  return results;
}

template <typename Forward, typename Backward>
std::vector<Tensor> by_kernel(const WindowCase& c, const WindowInput& in, const Forward& forward,
                              const Backward& backward) {
  const AttentionMask mask = mask_of(c);
  kernels::AttentionResult result = forward(in, mask);
  if (c.sinks) kernels::add_sinks(result.output, result.lse, in.sinks);
  const kernels::AttentionGradients grads = backward(in, mask, result);
  std::vector<Tensor> results = {result.output, result.lse, grads.q, grads.k, grads.v};
  if (c.sinks) results.push_back(kernels::sinks_gradient(in.grad, result.output, result.lse, in.sinks));
  return results;
}

std::vector<Tensor> by_plain_form(const WindowCase& c, const WindowInput& in) {
  return by_kernel(
      c, in,
      [](const WindowInput& x, const AttentionMask& mask) {
        return kernels::plain::attention_forward(x.q, x.k, x.v, mask);
      },
      [](const WindowInput& x, const AttentionMask& mask, const kernels::AttentionResult& result) {
        return kernels::plain::attention_backward(x.grad, x.q, x.k, x.v, mask, result);
      });
}

std::vector<Tensor> by_cpu_kernel(const WindowCase& c, const WindowInput& in, Instructions instructions) {
  return by_kernel(
      c, in,
      [&](const WindowInput& x, const AttentionMask& mask) {
        return kernels::cpu::attention_forward(x.q, x.k, x.v, mask, instructions);
      },
      [&](const WindowInput& x, const AttentionMask& mask, const kernels::AttentionResult& result) {
        return kernels::cpu::attention_backward(x.grad, x.q, x.k, x.v, mask, result, instructions);
      });
}

// Relative to the norm of the tensor, but at least to a part of the gradient that came in.
double largest_error(const std::vector<Tensor>& found, const std::vector<Tensor>& wanted,
                     const Tensor& grad) {
  double largest = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Tensor w = wanted[i].to(at::kDouble);
    const double scale = std::max(w.norm().item<double>(), 0.2 * grad.to(at::kDouble).norm().item<double>());
    const double error = (found.at(i).to(at::kDouble) - w).norm().item<double>() / scale;
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

WindowInput widened(const WindowInput& in) {
  const auto wide = [](const Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  return {wide(in.q), wide(in.k), wide(in.v), wide(in.sinks), wide(in.grad)};
}

}  // namespace

TEST_CASE("attention with a window and sinks is a softmax over the keys inside and one more score") {
  at::manual_seed(51);
  for (size_t i = 0; i < kWindows.size(); ++i) {
    const WindowInput in = input_of(kWindows[i], at::kDouble);
    CAPTURE(i);
    CHECK(largest_error(by_plain_form(kWindows[i], in), by_softmax(kWindows[i], in), in.grad) < 1e-13);
  }
}

TEST_CASE("attention on a CPU equals its twin with every window, in documents and with sinks too") {
  at::manual_seed(52);
  std::vector<WindowCase> cases = kWindows;
  for (const int64_t window : {1, 33, 64, 100, 199, 300})
    for (const int64_t queries : {200, 130}) {
      cases.push_back({2, 4, 2, queries, 200, 16, window, {}, window % 2 == 0});
      cases.push_back({2, 4, 2, queries, 200, 16, window, {0, 1, 70, 71, 135}, window % 2 == 1});
    }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (size_t i = 0; i < cases.size(); ++i) {
      const WindowInput in = input_of(cases[i], dtype);
      const std::vector<Tensor> wanted = by_plain_form(cases[i], widened(in));
      for (const Instructions instructions :
           {Instructions::kNone, Instructions::kAvx2, Instructions::kAvx512, Instructions::kAvx512Bf16}) {
        if (!kernels::cpu::processor_has(instructions)) continue;
        CAPTURE(kernels::cpu::text_of(instructions), dtype, i, cases[i].window, cases[i].queries);
        CHECK(largest_error(by_cpu_kernel(cases[i], in, instructions), wanted, in.grad) <
              (dtype == at::kFloat ? 3e-6 : 1.2e-2));
      }
    }
}

TEST_CASE("a window as long as the sequence has the bits of none") {
  at::manual_seed(53);
  WindowCase all{2, 4, 2, 130, 130, 16, 130, {}, false}, none = all;
  none.window = 0;
  const WindowInput in = input_of(all, at::kFloat);
  const auto found = by_cpu_kernel(all, in, kernels::cpu::chosen_instructions()),
             wanted = by_cpu_kernel(none, in, kernels::cpu::chosen_instructions());
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(found[i].equal(wanted[i]));
}

TEST_CASE("blocks of keys outside the windows of a block of queries are not computed") {
  at::manual_seed(54);
  const WindowCase c{1, 2, 1, 1024, 1024, 16, 100, {}, false};
  WindowInput in = input_of(c, at::kFloat);
  in.k.narrow(2, 0, 512).fill_(NAN);
  in.v.narrow(2, 0, 512).fill_(NAN);
  const auto found = by_cpu_kernel(c, in, kernels::cpu::chosen_instructions());
  // The first query whose block has no key of the first half: 512 + 100, rounded up to blocks of 64.
  const int64_t first = (512 + 100 + 63) / 64 * 64;
  for (const Tensor& t : {found[0], found[2]})
    CHECK(t.narrow(2, first, c.queries - first).isfinite().all().item<bool>());
}

TEST_CASE("sinks leave what a softmax with huge and with tiny scores leaves") {
  at::manual_seed(55);
  const WindowCase c{1, 3, 3, 7, 7, 4, 3};
  WindowInput in = input_of(c, at::kFloat);
  in.sinks = at::full({3}, -200, at::kFloat);
  in.sinks[1] = 300;
  const auto found = by_cpu_kernel(c, in, kernels::cpu::chosen_instructions());
  WindowCase without = c;
  without.sinks = false;
  const auto wanted = by_cpu_kernel(without, in, kernels::cpu::chosen_instructions());
  for (const size_t i : {0, 2}) {
    CHECK(found[i].select(1, 0).equal(wanted[i].select(1, 0)));    // a sink that no softmax sees
    CHECK(found[i].select(1, 1).abs().max().item<double>() == 0);  // and one that takes all of it
  }
  CHECK(found[5][0].item<double>() == 0);
}

TEST_CASE("attention refuses a window without a causal mask and sinks without a log-sum-exp") {
  const Tensor q = at::randn({1, 1, 3, 4});
  AttentionMask mask{MaskKind::kAllKeys};
  mask.window = 2;
  CHECK_THAT(error_of(ExitCode::kBug, [&] { kernels::attention_forward(q, q, q, mask); }),
             Catch::Matchers::Contains("a window of 2 that is to all keys"));
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { kernels::add_sinks(q, {}, at::randn({1})); }),
             Catch::Matchers::Contains("attention with sinks and documents"));
}

}  // namespace hyperion::models
