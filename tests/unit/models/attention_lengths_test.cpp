// Attention of queries to keys of another length, as context parallelism asks for it: the plain form against
// libtorch's operations with a mask that is made pair by pair, and the kernels against the plain form.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/kernels/attention/attention.h"
#include "tests/support/error_of.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using kernels::Causality, kernels::Documents;

struct Lengths {
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  Causality causality = Causality::kFromLastKey;
  // Where documents begin in every row but the first, which is one document; empty: there are none.
  std::vector<int64_t> begins{};
};

const std::vector<Lengths> kLengths = {
    {1, 1, 1, 1, 1, 1},
    {1, 2, 1, 1, 9, 6},
    {3, 4, 2, 5, 12, 3},
    {1, 2, 2, 7, 7, 4},
    {3, 2, 1, 4, 11, 5, Causality::kNone},
    {1, 4, 2, 11, 4, 5, Causality::kNone},  // fewer keys than queries
    {1, 2, 1, 3, 1, 8, Causality::kNone},
    {2, 2, 1, 6, 13, 4, Causality::kFromLastKey, {0}},                   // of the complete length
    {3, 4, 2, 6, 13, 4, Causality::kFromLastKey, {0, 3, 9}},             // over the border
    {3, 4, 2, 6, 13, 4, Causality::kFromLastKey, {0, 7}},                // at the border
    {2, 2, 2, 4, 9, 5, Causality::kFromLastKey, {0, 1, 4, 5, 6, 7, 8}},  // of one token
    {2, 2, 1, 8, 8, 4, Causality::kFromLastKey, {0, 2, 3}},
};

Tensor positions_of(const Lengths& c) {
  Tensor positions = at::arange(c.keys, at::kInt).expand({c.batch, c.keys}).clone();
  for (int64_t row = 1; row < c.batch; ++row)
    for (size_t i = 0; i < c.begins.size(); ++i) {
      const int64_t end = i + 1 < c.begins.size() ? c.begins[i + 1] : c.keys;
      positions[row].narrow(0, c.begins[i], end - c.begins[i]).copy_(at::arange(end - c.begins[i]));
    }
  return positions;
}

Documents documents_of_case(const Lengths& c) {
  if (c.begins.empty()) return {};
  return kernels::documents_of_range(positions_of(c), c.keys - c.queries, c.keys, at::kCPU);
}

bool sees(const Lengths& c, const Tensor& positions, int64_t row, int64_t query, int64_t key) {
  if (c.causality == Causality::kNone) return true;
  const int64_t own = c.keys - c.queries + query;  // the query's own key
  const int64_t first = c.begins.empty() ? 0 : own - positions[row][own].item<int64_t>();
  return first <= key && key <= own;
}

struct LengthInput {
  Tensor q, k, v, grad;
};

LengthInput input_of(const Lengths& c, at::ScalarType dtype) {
  const auto make = [&](int64_t length, int64_t heads) {  // as a model's products leave them
    return at::randn({c.batch, length, heads, c.head_dim}, at::kDouble).to(dtype).transpose(1, 2);
  };
  return {make(c.queries, c.heads), make(c.keys, c.kv_heads), make(c.keys, c.kv_heads),
          make(c.queries, c.heads)};
}

std::vector<Tensor> by_masked_softmax(const Lengths& c, const LengthInput& in) {
  const Tensor positions = positions_of(c);
  Tensor mask = at::zeros({c.batch, 1, c.queries, c.keys}, at::kBool);
  for (int64_t row = 0; row < c.batch; ++row)
    for (int64_t query = 0; query < c.queries; ++query)
      for (int64_t key = 0; key < c.keys; ++key)
        mask[row][0][query][key] = sees(c, positions, row, query, key);
  const auto leaf = [](const Tensor& t) { return t.detach().clone().requires_grad_(); };
  const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const auto repeated = [&](const Tensor& t) { return t.repeat_interleave(c.heads / c.kv_heads, 1); };
  const Tensor scores = at::matmul(q, repeated(k).transpose(2, 3))
                            .div(std::sqrt(static_cast<double>(c.head_dim)))
                            .masked_fill(mask.logical_not(), -INFINITY);
  const Tensor output = at::matmul(at::softmax(scores, -1), repeated(v));
  torch::autograd::backward({output}, {in.grad});
  return {output.detach(), at::logsumexp(scores.detach(), {-1}), q.grad(), k.grad(), v.grad()};
}

std::vector<Tensor> by_plain_form(const Lengths& c, const LengthInput& in) {
  const Documents documents = documents_of_case(c);
  const auto result = kernels::plain::attention_forward(in.q, in.k, in.v, documents, c.causality);
  const auto grads =
      kernels::plain::attention_backward(in.grad, in.q, in.k, in.v, documents, result, c.causality);
  return {result.output, result.lse, grads.q, grads.k, grads.v};
}

double largest_difference(const std::vector<Tensor>& found, const std::vector<Tensor>& wanted) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].sizes() == wanted[i].sizes());
    const double difference = (found[i] - wanted[i]).abs().max().item<double>();
    largest = std::isnan(difference) ? difference : std::max(largest, difference);
  }
  return largest;
}

}  // namespace

TEST_CASE("attention's twin takes queries and keys of different lengths") {
  at::manual_seed(31);
  for (const Lengths& c : kLengths) {
    const LengthInput in = input_of(c, at::kDouble);
    CAPTURE(c.batch, c.queries, c.keys, c.begins, c.causality == Causality::kNone);
    CHECK(largest_difference(by_plain_form(c, in), by_masked_softmax(c, in)) < 1e-13);
  }
}

TEST_CASE("documents of a range of queries are those of their own keys") {
  const Tensor positions = at::arange(32, at::kInt).expand({2, 32}).clone();
  positions[0].narrow(0, 10, 16).copy_(at::arange(16));
  positions[0].narrow(0, 26, 6).copy_(at::arange(6));
  const Tensor first_keys = kernels::documents_of_range(positions, 24, 28, at::kCPU).first_keys;
  CHECK(std::ranges::equal(std::vector<int32_t>{10, 10, 26, 26, 0, 0, 0, 0},
                           std::span(first_keys.contiguous().const_data_ptr<int32_t>(), 8)));
  using Bounds = std::vector<int32_t>;
  // Keys 0 to 9 of the first row are a document without queries.
  const kernels::DocumentBounds of_range = kernels::document_bounds(positions, 24, 28);
  CHECK(of_range.queries == Bounds{0, 0, 2, 4, 8});
  CHECK(of_range.keys == Bounds{0, 10, 26, 28, 56});
  const kernels::DocumentBounds all = kernels::document_bounds(positions, 0, 32);
  CHECK(all.queries == Bounds{0, 10, 26, 32, 64});
  CHECK(all.keys == all.queries);
  const kernels::DocumentBounds start = kernels::document_bounds(positions, 0, 11);
  CHECK(start.queries == Bounds{0, 10, 11, 22});
  CHECK(start.keys == start.queries);
  const kernels::DocumentBounds from_the_border = kernels::document_bounds(positions, 26, 32);
  CHECK(from_the_border.queries == Bounds{0, 0, 6, 12});
  CHECK(from_the_border.keys == Bounds{0, 26, 32, 64});
}

TEST_CASE("attention refuses queries that would have no key") {
  const Tensor two = at::zeros({1, 1, 2, 4}), three = at::zeros({1, 1, 3, 4});
  CHECK(error_of(ExitCode::kBug, [&] {
          kernels::attention_forward(three, two, two, {});
        }).find("3 queries from the last of 2 keys") != std::string::npos);
  const Documents documents = kernels::documents_from(at::zeros({1, 2}, at::kInt), at::kCPU);
  CHECK(error_of(ExitCode::kBug, [&] {
          kernels::attention_forward(two, two, two, documents, Causality::kNone);
        }).find("cannot stay inside documents") != std::string::npos);
}

}  // namespace hyperion::models
