// Attention on a GPU, by each kernel that serves it, against a CPU.
#include "models/kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>

#include "models/kernels/attention/merge.h"
#include "tests/gpu/gpu.h"
#include "tests/support/ranks.h"

namespace hyperion {

namespace {

// Relative errors of output and gradients on the GPU over what the dtype allows, against fp32 on the CPU.
struct AttentionCase {
  int64_t seq, head_dim;
  bool documents, deterministic;
  at::ScalarType dtype;
  int64_t v_head_dim = head_dim;
};

std::vector<double> attention_errors(const AttentionCase& c) {
  at::manual_seed(1);
  at::globalContext().setDeterministicAlgorithms(c.deterministic, /*warn_only=*/false);
  // As the model makes them: [batch, seq, heads, head_dim], transposed.
  const auto make = [&](int64_t heads, int64_t width) {
    return at::randn({2, c.seq, heads, width}).to(c.dtype).transpose(1, 2);
  };
  const at::Tensor q = make(8, c.head_dim), k = make(2, c.head_dim), v = make(2, c.v_head_dim),
                   grad = make(8, c.v_head_dim);
  // two documents
  const at::Tensor positions = at::cat({at::arange(c.seq / 3), at::arange(c.seq - c.seq / 3)})
                                   .to(at::kInt)
                                   .expand({2, c.seq})
                                   .contiguous();
  const auto run = [&](auto&& place) {
    const at::Tensor a = place(q), b = place(k), d = place(v);
    const auto documents =
        c.documents ? kernels::document_mask(positions, a.device()) : kernels::AttentionMask();
    const auto forward = kernels::attention_forward(a, b, d, documents);
    const auto back = kernels::attention_backward(place(grad), a, b, d, documents, forward);
    return std::vector<at::Tensor>{forward.output, back.q, back.k, back.v};
  };
  const auto ours = run([](const at::Tensor&t) { return t.to(at::kCUDA); }),
             again = run([](const at::Tensor&t) { return t.to(at::kCUDA); }),
             reference = run([](const at::Tensor&t) { return t.to(at::kFloat); });
  std::vector<double> errors;
  for (size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor found = ours[i].to(at::kCPU, at::kFloat);
    // A gradient may be zero (one position attends to itself alone): then what remains of it is measured
    // against the gradient that came in.
    const double scale = std::max(reference[i].norm().item<double>(), 1e-2 * grad.norm().item<double>());
    const double error = (found - reference[i]).norm().item<double>() / scale;
    errors.push_back(std::isnan(error) ? INFINITY : error / (c.dtype == at::kFloat ? 1e-4 : 2e-2));
    if (c.deterministic && !ours[i].equal(again[i])) errors.push_back(1e9);
  }
  return errors;
}

// error_of(case) of each on the first GPU. A case that throws has the error 1e6, and its message is in the
// test's output.
template <typename Case, typename ErrorOf>
std::vector<double> errors_of(const std::vector<Case>& cases, const ErrorOf& error_of) {
  return run_one_rank(
      [&](const parallel::Environment&) {
        use_gpu(0);
        std::vector<double> results;
        for (const Case& c : cases) try {
            results.push_back(error_of(c));
          } catch (const std::exception& error) {
            std::fprintf(stderr, "%s\n", error.what());
            results.push_back(1e6);
          }
        return results;
      },
      kGpuTimeout);
}

}  // namespace

TEST_CASE("attention on a GPU agrees with the CPU for every kernel and head size and length") {
  if (gpus() == 0) return;
  std::vector<AttentionCase> cases;
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [seq, head_dim] : std::vector<std::pair<int64_t, int64_t>>{
             {64, 64}, {8, 6}, {1, 16}, {50, 16}, {256, 128}, {100, 128}, {64, 192}, {64, 320}})
      for (bool documents : {false, true})
        for (bool deterministic : {false, true})
          cases.push_back({seq, head_dim, documents, deterministic, dtype});
  for (bool documents : {false, true})  // latent attention's heads
    cases.push_back({128, 192, documents, false, at::kBFloat16, /*v_head_dim=*/128});
  const auto worst =
      errors_of(cases, [](const AttentionCase& c) { return std::ranges::max(attention_errors(c)); });
  for (size_t i = 0; i < cases.size(); ++i) {
    const AttentionCase& c = cases[i];
    CAPTURE(c.dtype, c.seq, c.head_dim, c.v_head_dim, c.documents, c.deterministic);
    CHECK(worst.at(i) < 1.0);
  }
}

namespace {

// Queries that attend to other keys than their own, as context parallel ranks ask for it.
struct LengthsCase {
  int64_t queries, keys, head_dim;
  bool documents, causal, deterministic;
  at::ScalarType dtype;
};

std::vector<at::Tensor> on_device(const std::vector<at::Tensor>& tensors, at::Device device) {
  std::vector<at::Tensor> moved;
  for (const at::Tensor& t : tensors) moved.push_back(t.to(device));
  return moved;
}

// The largest error over what the dtype allows, of output, log-sum-exp and gradients, against plain
// operations in fp64 on the CPU. `parts`: by one call for the keys before the queries' own and one for these,
// merged, as a ring computes it.
double lengths_error(const LengthsCase& c, bool parts) {
  using kernels::AttentionMask, kernels::MaskKind;
  at::manual_seed(2);
  at::globalContext().setDeterministicAlgorithms(c.deterministic, /*warn_only=*/false);
  const auto make = [&](int64_t length, int64_t heads) {
    return at::randn({2, length, heads, c.head_dim}).to(c.dtype).transpose(1, 2);
  };
  const std::vector<at::Tensor> inputs = {make(c.queries, 8), make(c.keys, 2), make(c.keys, 2),
                                          make(c.queries, 8)};
  at::Tensor positions = at::arange(c.keys, at::kInt).expand({2, c.keys}).clone();
  const int64_t border =
      c.keys - c.queries / 2;  // the second row's keys before it are no query's or few ones'
  positions[1].narrow(0, border, c.keys - border).copy_(at::arange(c.keys - border));
  if (const int64_t begin = c.keys - c.queries; begin > 0 && border > begin)  // keys of no query before it
    positions[1].narrow(0, begin, border - begin).copy_(at::arange(border - begin));
  const auto mask = [&](at::Device device) {
    return c.documents ? kernels::document_mask(positions, c.keys - c.queries, c.keys, device)
                       : AttentionMask{c.causal ? MaskKind::kCausal : MaskKind::kAllKeys};
  };
  std::vector<at::Tensor> wide;
  for (const at::Tensor& t : inputs) wide.push_back(t.to(at::kDouble));
  const auto reference = kernels::plain::attention_forward(wide[0], wide[1], wide[2], mask(at::kCPU));
  const auto of_reference =
      kernels::plain::attention_backward(wide[3], wide[0], wide[1], wide[2], mask(at::kCPU), reference);
  const auto in = on_device(inputs, at::Device(at::kCUDA, 0));
  std::vector<at::Tensor> found;
  if (parts) {
    const int64_t before = c.keys - c.queries;
    const auto first = [&](const at::Tensor& t) { return t.narrow(2, 0, before); };
    const auto own = [&](const at::Tensor& t) { return t.narrow(2, before, c.queries); };
    kernels::AttentionResult all = kernels::attention_forward(in[0], own(in[1]), own(in[2]), {});
    all.output = all.output.to(at::kFloat);
    kernels::merge_attention(
        all.output, all.lse,
        kernels::attention_forward(in[0], first(in[1]), first(in[2]), {MaskKind::kAllKeys}));
    all.output = all.output.to(c.dtype);
    const auto a = kernels::attention_backward(in[3], in[0], first(in[1]), first(in[2]), {MaskKind::kAllKeys},
                                               all),
               b = kernels::attention_backward(in[3], in[0], own(in[1]), own(in[2]), {}, all);
    found = {all.output, a.q + b.q, at::cat({a.k, b.k}, 2), at::cat({a.v, b.v}, 2), all.lse};
  } else {
    const auto result = kernels::attention_forward(in[0], in[1], in[2], mask(in[0].device()));
    const auto grads = kernels::attention_backward(in[3], in[0], in[1], in[2], mask(in[0].device()), result);
    found = {result.output, grads.q, grads.k, grads.v};
    if (result.lse.defined()) found.push_back(result.lse);
  }
  const std::vector<at::Tensor> wanted = {reference.output, of_reference.q, of_reference.k, of_reference.v,
                                          reference.lse};
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double scale = std::max(wanted[i].norm().item<double>(), 1e-2 * wide[3].norm().item<double>());
    const double error = (found[i].to(at::kCPU, at::kDouble) - wanted[i]).norm().item<double>() / scale /
                         (c.dtype == at::kFloat ? 1e-4 : 2e-2);
    if (std::isnan(error)) return INFINITY;
    largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace

TEST_CASE("attention to keys of another length on a GPU agrees with plain operations for every kernel") {
  if (gpus() == 0) return;
  std::vector<std::pair<LengthsCase, bool>> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [queries, keys, head_dim] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {64, 128, 64}, {64, 256, 128}, {50, 131, 16}, {1, 40, 6}, {64, 192, 320}})
      for (const bool deterministic : {false, true}) {
        const auto with = [&](bool documents, bool causal) {
          return LengthsCase{queries, keys, head_dim, documents, causal, deterministic, dtype};
        };
        cases.insert(cases.end(), {{with(false, true), false},
                                   {with(true, true), false},
                                   {with(false, false), false},
                                   {with(false, true), true}});
      }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})  // fewer keys than queries
    cases.push_back({{128, 64, 64, false, false, false, dtype}, false});
  const auto errors = errors_of(cases, [](const auto& c) { return lengths_error(c.first, c.second); });
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [c, parts] = cases[i];
    CAPTURE(c.dtype, c.queries, c.keys, c.head_dim, c.documents, c.causal, c.deterministic, parts);
    CHECK(errors.at(i) < 1.0);
  }
}

}  // namespace hyperion
