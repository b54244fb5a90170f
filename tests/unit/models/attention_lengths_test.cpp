// Attention of queries to keys of another length, as context parallelism asks for it: the plain form against
// libtorch's operations with a mask that is made pair by pair, and the kernels against the plain form.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/attention/merge.h"
#include "tests/support/error_of.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using kernels::AttentionMask, kernels::MaskKind, kernels::cpu::Instructions;

struct Lengths {
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  MaskKind mask = MaskKind::kCausal;
  // Where documents begin in every row but the first, which is one document; empty: there are none.
  std::vector<int64_t> begins{};
};

const std::vector<Lengths> kLengths = {
    {1, 1, 1, 1, 1, 1},
    {1, 2, 1, 1, 9, 6},
    {3, 4, 2, 5, 12, 3},
    {1, 2, 2, 7, 7, 4},
    {3, 2, 1, 4, 11, 5, MaskKind::kAllKeys},
    {1, 4, 2, 11, 4, 5, MaskKind::kAllKeys},  // fewer keys than queries
    {1, 2, 1, 3, 1, 8, MaskKind::kAllKeys},
    {2, 2, 1, 6, 13, 4, MaskKind::kDocuments, {0}},                   // of the complete length
    {3, 4, 2, 6, 13, 4, MaskKind::kDocuments, {0, 3, 9}},             // over the border
    {3, 4, 2, 6, 13, 4, MaskKind::kDocuments, {0, 7}},                // at the border
    {2, 2, 2, 4, 9, 5, MaskKind::kDocuments, {0, 1, 4, 5, 6, 7, 8}},  // of one token
    {2, 2, 1, 8, 8, 4, MaskKind::kDocuments, {0, 2, 3}},
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

AttentionMask mask_of_case(const Lengths& c) {
  if (c.mask != MaskKind::kDocuments) return {c.mask};
  return kernels::document_mask(positions_of(c), c.keys - c.queries, c.keys, at::kCPU);
}

bool sees(const Lengths& c, const Tensor& positions, int64_t row, int64_t query, int64_t key) {
  if (c.mask == MaskKind::kAllKeys) return true;
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
  const AttentionMask mask = mask_of_case(c);
  const auto result = kernels::plain::attention_forward(in.q, in.k, in.v, mask);
  const auto grads = kernels::plain::attention_backward(in.grad, in.q, in.k, in.v, mask, result);
  return {result.output, result.lse, grads.q, grads.k, grads.v};
}

constexpr Instructions kAllInstructions[] = {Instructions::kNone, Instructions::kAvx2, Instructions::kAvx512,
                                             Instructions::kAvx512Bf16};

LengthInput widened(const LengthInput& in) {
  return {in.q.to(at::kDouble), in.k.to(at::kDouble), in.v.to(at::kDouble), in.grad.to(at::kDouble)};
}

std::vector<Tensor> by_cpu_kernel(const Lengths& c, const LengthInput& in, Instructions instructions) {
  const AttentionMask mask = mask_of_case(c);
  const auto result = kernels::cpu::attention_forward(in.q, in.k, in.v, mask, instructions);
  const auto grads = kernels::cpu::attention_backward(in.grad, in.q, in.k, in.v, mask, result, instructions);
  return {result.output, result.lse, grads.q, grads.k, grads.v};
}

// In the norm of a complete tensor, relative to it, or where it is nearly zero to the gradient that came in.
double largest_relative(const std::vector<Tensor>& found, const std::vector<Tensor>& wanted,
                        const Tensor& grad) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor f = found[i].to(at::kDouble);
    const double scale =
        std::max(wanted[i].norm().item<double>(), 0.2 * grad.norm(2, at::kDouble).item<double>());
    const double error = (f - wanted[i]).norm().item<double>() / scale;
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
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
    CAPTURE(c.batch, c.queries, c.keys, c.begins, c.mask == MaskKind::kAllKeys);
    CHECK(largest_difference(by_plain_form(c, in), by_masked_softmax(c, in)) < 1e-13);
  }
}

TEST_CASE("attention on a CPU takes queries and keys of different lengths") {
  at::manual_seed(32);
  const auto documents = MaskKind::kDocuments;
  const std::vector<Lengths> longer = {
      {1, 2, 1, 64, 128, 6},  // blocks of queries and keys meet on the diagonal
      {1, 2, 2, 65, 200, 16},
      {3, 2, 1, 100, 164, 5},
      {1, 4, 2, 130, 257, 16},
      {1, 2, 1, 40, 333, 80},
      {1, 2, 1, 128, 64, 16, MaskKind::kAllKeys},
      {3, 4, 2, 70, 200, 6, MaskKind::kAllKeys},
      {1, 2, 1, 200, 33, 16, MaskKind::kAllKeys},
      {2, 2, 1, 64, 192, 16, documents, {0, 128}},
      {3, 2, 1, 100, 230, 6, documents, {0, 70, 131, 132, 200}},
      {2, 2, 2, 70, 203, 16, documents, {0, 133}},
  };
  const int threads = at::get_num_threads();
  for (const std::vector<Lengths>& cases : {kLengths, longer})
    for (const Lengths& c : cases)
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        LengthInput in = input_of(c, dtype);
        const std::vector<Tensor> wanted = by_plain_form(c, widened(in));
        for (const Instructions instructions : kAllInstructions) {
          if (!kernels::cpu::processor_has(instructions)) continue;
          CAPTURE(kernels::cpu::text_of(instructions), dtype, c.batch, c.queries, c.keys, c.begins);
          at::set_num_threads(1);
          const std::vector<Tensor> found = by_cpu_kernel(c, in, instructions);
          CHECK(largest_relative(found, wanted, in.grad) < (dtype == at::kFloat ? 3e-6 : 1.2e-2));
          at::set_num_threads(3);
          const std::vector<Tensor> by_threads = by_cpu_kernel(c, in, instructions);
          for (size_t i = 0; i < found.size(); ++i) CHECK(found[i].equal(by_threads[i]));
        }
      }
  at::set_num_threads(threads);
}

TEST_CASE("a stretch of queries has the bits of its rows of the complete sequence") {
  at::manual_seed(33);
  const Lengths all = {2, 4, 2, 256, 256, 16, MaskKind::kDocuments, {0, 100, 101, 190}};
  const Tensor positions = positions_of(all);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const LengthInput in = input_of(all, dtype);
    for (const bool packed : {false, true}) {
      const auto mask = [&](int64_t first, int64_t end) {
        return packed ? kernels::document_mask(positions, first, end, at::kCPU) : AttentionMask();
      };
      const auto one = kernels::attention_forward(in.q, in.k, in.v, mask(0, 256));
      const auto grads = kernels::attention_backward(in.grad, in.q, in.k, in.v, mask(0, 256), one);
      for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, 128}, {128, 192}, {192, 256}}) {
        CAPTURE(dtype, packed, first, end);
        const auto rows = [&](const Tensor& t) { return t.narrow(2, first, end - first); };
        const Tensor q = rows(in.q), k = in.k.narrow(2, 0, end), v = in.v.narrow(2, 0, end);
        const auto part = kernels::attention_forward(q, k, v, mask(first, end));
        const auto of_part = kernels::attention_backward(rows(in.grad), q, k, v, mask(first, end), part);
        CHECK(part.output.equal(rows(one.output)));
        CHECK(part.lse.equal(rows(one.lse)));
        CHECK(of_part.q.equal(rows(grads.q)));
      }
    }
  }
}

TEST_CASE("attention to parts of the keys is merged into that to all, forward and backward") {
  at::manual_seed(34);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const double factor : {1.0, 40.0}) {  // with scores of thousands a part has nearly all of the weight
      const Lengths c = {2, 4, 2, 70, 230, 16};
      LengthInput in = input_of(c, dtype);
      in.q = in.q * factor;
      const std::vector<Tensor> wanted = by_plain_form(c, widened(in));
      const std::vector<int64_t> ends = {70, 71, 160, 230};  // of parts of the keys; the last is causal
      const auto part = [&](const Tensor& t, size_t i) {
        const int64_t first = i == 0 ? 0 : ends[i - 1];
        return t.narrow(2, first, ends[i] - first);
      };
      const auto mask = [&](size_t i) {
        return AttentionMask{i + 1 == ends.size() ? MaskKind::kCausal : MaskKind::kAllKeys};
      };
      auto result = kernels::attention_forward(in.q, part(in.k, 3), part(in.v, 3), mask(3));
      const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
      result.output = result.output.to(wide);
      for (size_t i = 0; i < 3; ++i)
        kernels::merge_attention(result.output, result.lse,
                                 kernels::attention_forward(in.q, part(in.k, i), part(in.v, i), mask(i)));
      result.output = result.output.to(dtype);
      Tensor dq = at::zeros_like(in.q, at::TensorOptions(wide));
      std::vector<Tensor> dk, dv;
      for (size_t i = 0; i < ends.size(); ++i) {
        const auto grads =
            kernels::attention_backward(in.grad, in.q, part(in.k, i), part(in.v, i), mask(i), result);
        dq += grads.q;
        dk.push_back(grads.k);
        dv.push_back(grads.v);
      }
      CAPTURE(dtype, factor);
      CHECK(
          largest_relative({result.output, result.lse, dq, at::cat(dk, 2), at::cat(dv, 2)}, wanted, in.grad) <
          (dtype == at::kDouble ? 1e-12 : (dtype == at::kFloat ? 3e-6 : 1.2e-2) * factor));
    }
}

TEST_CASE("causal attention to more keys in two calls is that of one call") {
  at::manual_seed(36);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto& [queries, keys, v_head_dim] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {64, 128, 24}, {70, 230, 24}, {64, 448, 16}, {1, 9, 16}}) {
      const Lengths c = {2, 4, 2, queries, keys, 24};
      LengthInput in = input_of(c, dtype);
      in.v = in.v.narrow(3, 0, v_head_dim);
      in.grad = in.grad.narrow(3, 0, v_head_dim);
      const auto result = kernels::causal_attention_in_two_calls(in.q, in.k, in.v);
      const auto grads = kernels::causal_attention_in_two_calls_backward(in.grad, in.q, in.k, in.v, result);
      CAPTURE(dtype, queries, keys, v_head_dim);
      CHECK(largest_relative({result.output, result.lse, grads.q, grads.k, grads.v},
                             by_plain_form(c, widened(in)), in.grad) < (dtype == at::kDouble  ? 1e-12
                                                                        : dtype == at::kFloat ? 3e-6
                                                                                              : 1.2e-2));
      CHECK(result.output.scalar_type() == dtype);
      CHECK(grads.v.sizes() == in.v.sizes());
    }
}

TEST_CASE("merging takes log-sum-exps of every size and rows without a key") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    struct Row {
      double lse, other, sum, weight;  // of the other
    };
    const double most = dtype == at::kFloat ? 3e38 : 1e308, log2 = std::log(2.0);
    const std::vector<Row> rows = {{0, 0, log2, 0.5},
                                   {1000, 1000, 1000 + log2, 0.5},
                                   {-1e4, 1e4, 1e4, 1},
                                   {1e4, -1e4, 1e4, 0},
                                   {most, -most, most, 0},
                                   {-most, most, most, 1},
                                   {-INFINITY, 3, 3, 1},
                                   {3, -INFINITY, 3, 0},
                                   {-INFINITY, -INFINITY, -INFINITY, 0},
                                   {std::log(3.0), 0, std::log(4.0), 0.25}};
    const auto count = static_cast<int64_t>(rows.size());
    const auto column = [&](auto member) {
      std::vector<double> values;
      for (const Row& row : rows) values.push_back(row.*member);
      return at::tensor(values, at::kDouble).to(dtype).view({1, 1, count});
    };
    const Tensor output = at::full({1, 1, count, 3}, 2.0, dtype), lse = column(&Row::lse);
    // Views of what they are parts of, as the half of a rank's queries is.
    const auto in_the_middle = [](const Tensor& t) {
      return at::cat({t, t, t}, 2).narrow(2, t.size(2), t.size(2));
    };
    const Tensor merged = in_the_middle(output), of_all = in_the_middle(lse);
    kernels::merge_attention(merged, of_all,
                             {at::full({1, 1, count, 3}, 6.0, dtype), column(&Row::other), {}});
    CAPTURE(dtype);
    CHECK(of_all.eq(column(&Row::sum))
              .logical_or(of_all.sub(column(&Row::sum)).abs().lt(1e-6))
              .all()
              .item<bool>());
    CHECK(merged.sub(2 + 4 * column(&Row::weight).unsqueeze(-1)).abs().max().item<double>() < 1e-5);
  }
}

TEST_CASE("documents of a range of queries are those of their own keys") {
  const Tensor positions = at::arange(32, at::kInt).expand({2, 32}).clone();
  positions[0].narrow(0, 10, 16).copy_(at::arange(16));
  positions[0].narrow(0, 26, 6).copy_(at::arange(6));
  const Tensor first_keys = kernels::document_mask(positions, 24, 28, at::kCPU).first_keys;
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

TEST_CASE("a profile sees whether attention is causal") {
  static std::vector<bool> causal;
  causal.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(range.name()).starts_with("hyperion::attention"))
          causal.push_back(range.inputs().back().toBool());
        return nullptr;
      }).needsInputs(true));
  const Tensor x = at::randn({1, 1, 3, 4});
  for (const MaskKind kind : {MaskKind::kCausal, MaskKind::kAllKeys})
    kernels::attention_backward(x, x, x, x, {kind}, kernels::attention_forward(x, x, x, {kind}));
  at::removeCallback(handle);
  CHECK(causal == std::vector<bool>{true, true, false, false});
}

TEST_CASE("attention refuses queries that would have no key") {
  const Tensor two = at::zeros({1, 1, 2, 4}), three = at::zeros({1, 1, 3, 4});
  CHECK(error_of(ExitCode::kBug, [&] {
          kernels::attention_forward(three, two, two, {});
        }).find("3 queries from the last of 2 keys") != std::string::npos);
}

TEST_CASE("a mask of one document for each row is the causal mask") {
  at::manual_seed(35);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const int64_t queries : {100, 230}) {
      const Lengths c = {2, 4, 2, queries, 230, 16};
      const LengthInput in = input_of(c, dtype);
      const auto attend = [&](const AttentionMask& mask) {
        const auto result = kernels::attention_forward(in.q, in.k, in.v, mask);
        const auto grads = kernels::attention_backward(in.grad, in.q, in.k, in.v, mask, result);
        return std::vector<Tensor>{result.output, result.lse, grads.q, grads.k, grads.v};
      };
      const AttentionMask documents =
          kernels::document_mask(positions_of(c), c.keys - c.queries, c.keys, at::kCPU);
      CHECK(documents.has_documents());
      const std::vector<Tensor> by_document = attend(documents), causal = attend({});
      CAPTURE(dtype, queries);
      for (size_t i = 0; i < causal.size(); ++i) CHECK(by_document[i].equal(causal[i]));
    }
}

}  // namespace hyperion::models
