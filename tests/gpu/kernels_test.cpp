// The compiled fused kernels of a GPU against the plain forms, on the GPU and on the CPU; without a GPU
// tests/unit/models/fused_kernels_test.cpp tests what of their source differs from libtorch's arithmetic.
#include "models/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "models/float8/cast.h"
#include "models/float8/scaled_matmul.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/grouped.h"
#include "models/kernels/matmul/matmul.h"
#include "tests/gpu/gpu.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion {
namespace {

using at::Tensor;
using kernels::Heads;
using models::RopeStyle;
using Tensors = std::vector<Tensor>;

// The kernels' results for inputs of one size, on the device of the generator's tensors.
struct Inputs {
  Tensor x, residual, weight, grad, grad_sum, product, heads_grad, cos, sin, gate_up, logits, labels, scale;
  RopeStyle style;
  int64_t heads, kv_heads;

  Heads parts(const Tensor& of) const {
    return {of.narrow(2, 0, heads), of.narrow(2, heads, kv_heads), of.narrow(2, heads + kv_heads, kv_heads)};
  }
};

Inputs make_inputs(int64_t tokens, int64_t width, int64_t head_dim, at::ScalarType dtype) {
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  const int64_t vocabulary = 37 * width;
  const Tensor angles = at::rand({tokens, head_dim / 2}) * 6;
  Tensor labels = at::randint(vocabulary, {tokens}, at::kLong);
  labels[0] = kernels::kIgnoredLabel;
  return {.x = random({1, tokens, width}),
          .residual = random({1, tokens, width}),
          .weight = random({width}),
          .grad = random({1, tokens, width}),
          .grad_sum = random({1, tokens, width}),
          .product = random({1, tokens, 4 + 2 * 2, head_dim}),
          .heads_grad = random({1, tokens, 4 + 2 * 2, head_dim}),
          .cos = angles.cos(),
          .sin = angles.sin(),
          .gate_up = random({1, tokens, 2 * width}),
          .logits = random({tokens, vocabulary}),
          .labels = labels,
          .scale = at::full({}, 0.5),
          .style = width % 2 == 0 ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit,
          .heads = 4,
          .kv_heads = 2};
}

Inputs transformed(Inputs inputs, const std::function<Tensor(const Tensor&)>& transform) {
  for (Tensor* t : {&inputs.x, &inputs.residual, &inputs.weight, &inputs.grad, &inputs.grad_sum,
                    &inputs.product, &inputs.heads_grad, &inputs.cos, &inputs.sin, &inputs.gate_up,
                    &inputs.logits, &inputs.labels, &inputs.scale})
    *t = transform(*t);
  return inputs;
}

Inputs on(at::Device device, const Inputs& inputs) {
  return transformed(inputs, [&](const Tensor& t) { return t.to(device); });
}

// A copy that begins one element behind an aligned address.
Tensor unaligned(const Tensor& t) {
  return at::empty({t.numel() + 1}, t.options()).narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
}

Tensors run_kernels(const Inputs& in, kernels::KernelChoice choice) {
  kernels::choose_kernels(choice, at::kCUDA);
  Tensors all;
  const auto keep = [&](std::initializer_list<Tensor> results) { all.insert(all.end(), results); };
  const kernels::RmsNormResult norm = kernels::table().rms_norm(in.x, in.weight, 1e-5);
  const auto [dx, dw] = kernels::table().rms_norm_backward(in.grad, in.x, in.weight, norm.rstd);
  keep({norm.output, norm.rstd, dx, dw});
  const kernels::AddRmsNormResult added = kernels::table().add_rms_norm(in.x, in.residual, in.weight, 1e-5);
  const auto [of_sum, of_weight] =
      kernels::table().add_rms_norm_backward(in.grad, in.grad_sum, added.sum, in.weight, added.rstd, {});
  keep({added.sum, added.output, added.rstd, of_sum, of_weight});
  const Heads turned =
                  kernels::table().rope_heads(in.parts(in.product), in.cos, in.sin, in.style, /*parts=*/1),
              back = kernels::table().rope_heads_backward(in.parts(in.heads_grad), in.cos, in.sin, in.style,
                                                          /*parts=*/1);
  keep({turned.q, turned.k, turned.v, back.q, back.k, back.v});
  const int64_t width = in.x.size(-1);
  const Tensor gate = in.gate_up.narrow(-1, 0, width), up = in.gate_up.narrow(-1, width, width);
  const auto [of_gate, of_up] =
      kernels::table().gated_activation_backward(in.grad, gate, up, models::Activation::kSilu);
  keep({kernels::table().gated_activation(gate, up, models::Activation::kSilu), of_gate, of_up});
  const int64_t length = in.x.size(1), ranks = (length + 1) / 2;  // of two chunks of one token
  const Tensor k = in.parts(in.product).k, v = in.parts(in.product).v,
               sums = at::empty({2, ranks, 2, 1, 1, in.kv_heads, k.size(3)},
                                k.options().dtype(kernels::opmath_dtype(k))),
               keys = at::empty({2, 1, length, in.kv_heads, k.size(3)}, k.options()),
               packed = at::empty_like(sums, k.options()), unpacked = at::empty_like(keys);
  for (const Tensor& chunks : {sums, packed})
    kernels::table().pack_keys(chunks, k.transpose(1, 2), v.transpose(1, 2));
  kernels::table().add_keys(sums, v.transpose(1, 2), k.transpose(1, 2));
  kernels::table().unpack_keys(keys, sums, /*first_part=*/0);
  kernels::table().unpack_keys(unpacked, packed, /*first_part=*/0);
  keep({sums, keys, packed, unpacked});
  const Tensor merged = k.transpose(1, 2).to(kernels::opmath_dtype(k), false, /*copy=*/true),
               lse = merged.sum(-1);  // of queries as many as keys, by any numbers
  kernels::table().merge_parts(merged, lse, v.transpose(1, 2), lse * 0.5);
  keep({merged, lse});
  const Tensor gradient = in.logits.clone(), part = in.logits.clone();
  const Tensor loss = kernels::table().cross_entropy(gradient, in.labels, &in.scale, 0);
  const kernels::VocabPart whole = {0, in.logits.size(1)};
  const Tensor statistics = kernels::table().vocab_statistics(part, in.labels, whole);
  const Tensor log_sum_exp = statistics.select(1, 0) + statistics.select(1, 1).log();
  kernels::table().vocab_gradient(part, in.labels, whole, log_sum_exp, in.scale, 0);
  keep({loss, gradient, statistics, part});
  kernels::choose_kernels(kernels::KernelChoice::kAuto, at::kCUDA);
  return all;
}

// The largest difference of two results, as a part of the norm of the second.
double largest_error(const Tensors& found, const Tensors& wanted) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor reference = wanted[i].cpu().to(at::kDouble);
    if (found[i].sizes() != wanted[i].sizes() || found[i].scalar_type() != wanted[i].scalar_type())
      return INFINITY;
    const double error =
        ((found[i].cpu().to(at::kDouble) - reference).norm() / reference.norm().clamp_min(1e-30))
            .item<double>();
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

// What kernels on the GPU make and the plain forms on the CPU; numbers, of experts and rows, are equal.
struct Results {
  Tensors found{}, wanted{}, numbers{}, wanted_numbers{};
};

Tensor to_gpu(const Tensor& t) {
  return t.to(at::kCUDA);
}

struct ExpertCase {
  models::ScoreFunction score;
  int64_t groups, unit, width;
};
Results run_expert_kernels(const ExpertCase& c, at::ScalarType dtype) {
  namespace plain = kernels::plain;
  const kernels::Kernels& fused = kernels::table();
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  kernels::RoutingOptions options;
  options.experts = 256;
  options.top_k = 8;
  options.score = c.score;
  options.normalise = true;
  options.groups = c.groups;
  options.limited_groups = c.groups / 2;
  constexpr int64_t kTokens = 700;
  const Tensor logits = random({kTokens, options.experts}), bias = at::randn({options.experts}) * 0.1;
  const auto routed = fused.route_tokens(to_gpu(logits), to_gpu(bias), options);
  const Tensor scores = routed.scores.cpu(), choices = routed.choices.cpu(),
               weights = plain::routing_weights(scores, choices, options), grad = at::randn(weights.sizes());
  const auto order = plain::order_rows(choices, options.experts, c.unit),
             ordered = fused.order_rows(routed.choices, options.experts, c.unit);
  Results all{
      .numbers = {routed.choices, ordered.assignments, ordered.tokens, ordered.rows, ordered.expert_rows},
      .wanted_numbers = {plain::choose_experts(scores, bias, options), order.assignments, order.tokens,
                         order.rows, order.expert_rows}};
  int64_t last = order.assignments.numel();
  if (c.unit > 0) {
    all.numbers.insert(all.numbers.end(), {ordered.ends, ordered.padding});
    all.wanted_numbers.insert(all.wanted_numbers.end(), {order.ends, order.padding});
    last = order.ends[-1].item<int64_t>();
  }
  const auto of_groups = [&](const Tensor& rows) { return rows.narrow(0, 0, last); };
  const Tensor x = random({kTokens, c.width}), added = random({kTokens, c.width}), flat = weights.flatten(),
               rows = plain::gather_rows(x, order, {}), there = to_gpu(rows);
  const auto weighted = fused.weight_rows(there, there, ordered, to_gpu(flat));
  const Tensor packed = plain::pack_row_sums(rows, order.rows, weights), ones = at::ones({kTokens, 1}),
               tokens = at::arange(kTokens, at::kInt);
  const Tensor packed_there = dtype == at::kFloat  // whose tolerance is below a step of packed numbers
                                  ? to_gpu(packed)
                                  : fused.pack_row_sums(there, ordered.rows, to_gpu(weights));
  const auto wanted = plain::weight_rows(rows, rows, order, flat);
  all.found = {
      routed.scores,
      fused.routing_weights(routed.scores, routed.choices, options),
      fused.routing_weights_backward(to_gpu(grad), routed.scores, routed.choices, options, {}, dtype),
      of_groups(fused.gather_rows(to_gpu(x), ordered, {})),
      of_groups(fused.gather_rows(to_gpu(x), ordered, to_gpu(flat))),
      fused.sum_rows(there, ordered.rows, to_gpu(weights), to_gpu(added), options.top_k),
      fused.sum_packed_rows(packed_there, to_gpu(tokens), to_gpu(ones), to_gpu(added), c.width, dtype),
      fused.products_of_rows(there, there, ordered.rows),
      of_groups(weighted.a),
      of_groups(weighted.b),
      weighted.products};
  all.wanted = {plain::expert_scores(logits, options),
                weights,
                plain::routing_weights_backward(grad, scores, choices, options, {}, dtype),
                of_groups(rows),
                of_groups(plain::gather_rows(x, order, flat)),
                plain::sum_rows(rows, order.rows, weights, added, options.top_k),
                plain::sum_packed_rows(packed, tokens, ones, added, c.width, dtype),
                plain::products_of_rows(rows, rows, order.rows),
                of_groups(wanted.a),
                of_groups(wanted.b),
                wanted.products};
  return all;
}

struct LatentCase {
  int64_t plain, rotated, values, value_width;
  bool by_document;
};
Results run_latent_heads(const LatentCase& c, at::ScalarType dtype) {
  const kernels::Kernels& fused = kernels::table();
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  const Tensor q = random({2, 5, 6, c.plain + c.rotated}), kv = random({2, 5, 6, c.plain + c.values}),
               shared = random({2, 5, c.rotated}),
               angles = (c.by_document ? at::rand({2, 5, c.rotated / 2}) : at::rand({5, c.rotated / 2})) * 6,
               cos = angles.cos(), sin = angles.sin();
  const Heads made = fused.latent_heads(to_gpu(q), to_gpu(kv), to_gpu(shared), to_gpu(cos), to_gpu(sin), 1.5,
                                        c.value_width),
              heads = kernels::plain::latent_heads(q, kv, shared, cos, sin, 1.5, c.value_width);
  const auto back = fused.latent_heads_backward(made, to_gpu(cos), to_gpu(sin), 1.5, c.values),
             of_heads = kernels::plain::latent_heads_backward(heads, cos, sin, 1.5, c.values);
  return {.found = {made.q, made.k, made.v, back.q, back.kv, back.shared},
          .wanted = {heads.q, heads.k, heads.v, of_heads.q, of_heads.kv, of_heads.shared}};
}

}  // namespace

TEST_CASE("fused kernels of a GPU follow the plain forms there and on the CPU and repeat their bits") {
  if (gpus() == 0) return;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [tokens, width, head_dim] :
         {std::tuple(1, 8, 16), std::tuple(5, 45, 14), std::tuple(64, 128, 64), std::tuple(3, 20000, 128)}) {
      CAPTURE(dtype, tokens, width, head_dim);
      const std::vector<double> errors = run_one_rank(
          [&, tokens = tokens, width = width, head_dim = head_dim](const parallel::Environment&) {
            use_gpu(0);
            at::manual_seed(9);
            const Inputs inputs = make_inputs(tokens, width, head_dim, dtype), there = on(at::kCUDA, inputs);
            const Tensors fused = run_kernels(there, kernels::KernelChoice::kAuto);
            const Tensors again = run_kernels(there, kernels::KernelChoice::kAuto);
            double changed = 0;
            for (size_t i = 0; i < fused.size(); ++i) changed += fused[i].equal(again[i]) ? 0 : 1;
            return std::vector{largest_error(fused, run_kernels(there, kernels::KernelChoice::kPlain)),
                               largest_error(fused, run_kernels(inputs, kernels::KernelChoice::kPlain)),
                               changed};
          },
          kGpuTimeout);
      const double limit = dtype == at::kFloat ? 1e-5 : 0.005;  // a bf16 rounding is up to 2^-9
      CHECK(errors[0] < limit);
      CHECK(errors[1] < limit);
      CHECK(errors[2] == 0);
    }
}

TEST_CASE("the kernel of a norm's backward on a GPU adds up a gradient's terms") {
  if (gpus() == 0) return;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [tokens, width, head_dim] :
         {std::tuple(1, 8, 16), std::tuple(5, 45, 14), std::tuple(640, 128, 64), std::tuple(3, 20000, 128)}) {
      CAPTURE(dtype, tokens, width, head_dim);
      const int equal = run_one_rank(
          [&, tokens = tokens, width = width, head_dim = head_dim](const parallel::Environment&) {
            use_gpu(0);
            at::manual_seed(10);
            const Inputs in = on(at::kCUDA, make_inputs(tokens, width, head_dim, dtype));
            const auto added = kernels::table().add_rms_norm(in.x, in.residual, in.weight, 1e-5);
            const Tensors more = {in.x, in.residual};
            const auto backward = [&](const Tensor& grad, const Tensors& others) {
              return kernels::table()
                  .add_rms_norm_backward(grad, in.grad_sum, added.sum, in.weight, added.rstd, others)
                  .first;
            };
            return int{backward(in.grad, more).equal(backward(kernels::sum_of_terms(in.grad, more), {}))};
          },
          kGpuTimeout);
      CHECK(equal == 1);
    }
}

TEST_CASE("products of bf16 on a GPU leave fp32 without a rounding and add to what is there") {
  if (gpus() == 0) return;
  for (const auto& [m, k, n] : {std::tuple(1, 8, 3), std::tuple(16, 33, 5), std::tuple(256, 512, 128)}) {
    const std::vector<double> errors = run_one_rank(
        [m = m, k = k, n = n](const parallel::Environment&) {
          use_gpu(0);
          at::manual_seed(11);
          const Tensor
              a = at::randn({k, m}).to(at::kBFloat16).to(at::kCUDA).t(),  // as a gradient's transpose
              b = at::randn({k, n}).to(at::kBFloat16).to(at::kCUDA);
          const Tensor exact = a.cpu().to(at::kDouble).mm(b.cpu().to(at::kDouble));
          const auto error = [&](const Tensor& found, double times) {
            if (found.scalar_type() != at::kFloat) return 1e9;
            return ((found.cpu().to(at::kDouble) - times * exact).abs().max() / exact.abs().max())
                .item<double>();
          };
          const Tensor once = kernels::matmul(a, b, at::kFloat), twice = once.clone();
          kernels::add_matmul(twice, a, b);
          return std::vector<double>{error(once, 1), error(twice, 2)};
        },
        kGpuTimeout);
    CAPTURE(m, k, n);
    for (const double error : errors) CHECK(error < 1e-5);  // bf16 rounds to 4e-3
  }
}

TEST_CASE("products of groups of rows in one launch on a GPU are near those of each group") {
  if (gpus() == 0) return;
  static constexpr kernels::GroupedShape kShape{.groups = 5, .k = 64, .j = 32};
  if (const char* why = kernels::why_not_at_once(at::kBFloat16, gpu_capability(), kShape)) {
    std::printf("skipped: %s\n", why);
    return;
  }
  const std::vector<double> errors = run_one_rank(
      [](const parallel::Environment&) {
        use_gpu(0);
        at::manual_seed(12);
        const std::vector<int64_t> counts = {3, 0, 8, 40, 17};
        const kernels::PaddedGroups padded =
            kernels::pad_groups(at::tensor(counts).to(at::kCUDA), 3 + 0 + 8 + 40 + 17);
        const auto random = [](at::IntArrayRef shape) {
          return at::randn(shape).to(at::kBFloat16).to(at::kCUDA);
        };
        const Tensor rows = random({padded.rows, kShape.k}), grads = random({padded.rows, kShape.j}),
                     stack = random({kShape.groups, kShape.j, kShape.k});
        rows.index_fill_(0, padded.padding, 0);
        grads.index_fill_(0, padded.padding, 0);
        const kernels::RowGroups groups{.ends = padded.ends};
        const auto wide = [](const Tensor& t) { return t.cpu().to(at::kDouble); };
        const Tensor made = wide(kernels::grouped_matmul(rows, stack.transpose(1, 2), groups)),
                     back = wide(kernels::grouped_matmul(grads, stack, groups)),
                     outer = wide(kernels::grouped_outer_matmul(grads, rows, groups)),
                     ends = padded.ends.cpu();
        double error = 0;
        int64_t first = 0;
        const auto compare = [&](const Tensor& found, const Tensor& exact) {
          error = std::max(error, ((found - exact).abs().max() / 10).item<double>());
        };
        for (int64_t e = 0; e < kShape.groups; ++e) {
          const int64_t end = ends[e].item<int64_t>();
          const Tensor r = wide(rows).slice(0, first, end), g = wide(grads).slice(0, first, end),
                       w = wide(stack[e]);
          compare(made.slice(0, first, end), r.mm(w.t()));
          compare(back.slice(0, first, end), g.mm(w));
          compare(outer[e], g.t().mm(r));
          first = end;
        }
        return std::vector<double>{error};
      },
      kGpuTimeout);
  CHECK(errors[0] < 4e-2);  // of numbers near 10 bf16 rounds to 4e-2
}

TEST_CASE("fused kernels of experts and latent attention on a GPU follow the plain forms on the CPU") {
  if (gpus() == 0) return;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // Of each case the largest error, how many numbers are wrong and how many results a second run changes.
    const std::vector<double> found = run_one_rank(
        [dtype](const parallel::Environment&) {
          use_gpu(0);
          std::vector<double> all;
          const auto compare = [&](const std::function<Results()>& run) {
            at::manual_seed(13);
            const Results once = run();
            at::manual_seed(13);
            const Results again = run();
            double wrong = 0, changed = 0;
            for (size_t i = 0; i < once.numbers.size(); ++i)
              wrong += once.numbers[i].cpu().equal(once.wanted_numbers[i]) ? 0 : 1;
            for (size_t i = 0; i < once.numbers.size(); ++i)
              changed += once.numbers[i].equal(again.numbers[i]) ? 0 : 1;
            for (size_t i = 0; i < once.found.size(); ++i)
              changed += once.found[i].equal(again.found[i]) ? 0 : 1;
            all.insert(all.end(), {largest_error(once.found, once.wanted), wrong, changed});
          };
          using enum models::ScoreFunction;
          for (const ExpertCase& c : {ExpertCase{kSoftmax, 8, 8, 136}, ExpertCase{kSoftmax, 0, 0, 45},
                                      ExpertCase{kSigmoid, 8, 0, 136}, ExpertCase{kSigmoid, 0, 8, 45}})
            compare([&] { return run_expert_kernels(c, dtype); });
          for (const LatentCase& c :
               {LatentCase{128, 64, 128, 192, false}, LatentCase{128, 64, 128, 128, true},
                LatentCase{12, 10, 12, 22, false}, LatentCase{12, 10, 14, 14, true}})
            compare([&] { return run_latent_heads(c, dtype); });
          return all;
        },
        kGpuTimeout);
    for (size_t i = 0; i < found.size(); i += 3) {
      CAPTURE(dtype, i / 3);
      CHECK(found[i] < (dtype == at::kFloat ? 1e-5 : 0.005));
      CHECK(found[i + 1] == 0);
      CHECK(found[i + 2] == 0);
    }
  }
}

TEST_CASE("gradients that a GPU packs lie side by side in one tensor") {
  if (gpus() == 0) return;
  const std::vector<int> packed = run_one_rank(
      [](const parallel::Environment&) {
        use_gpu(0);
        const Inputs there = on(at::kCUDA, make_inputs(6, 16, 8, at::kBFloat16));
        const Heads back = kernels::table().rope_heads_backward(there.parts(there.heads_grad), there.cos,
                                                                there.sin, there.style, /*parts=*/1);
        const Tensor gate = there.gate_up.narrow(-1, 0, 16), up = there.gate_up.narrow(-1, 16, 16);
        const auto [of_gate, of_up] =
            kernels::table().gated_activation_backward(there.grad, gate, up, models::Activation::kSilu);
        const Heads turned = kernels::table().rope_heads(there.parts(there.product), there.cos, there.sin,
                                                         there.style, /*parts=*/1);
        return std::vector<int>{back.q.is_alias_of(back.k),
                                back.q.is_alias_of(back.v),
                                back.k.storage_offset() == 4 * 8,
                                back.v.storage_offset() == 6 * 8,
                                back.q.stride(1) == 8 * 8,
                                of_gate.is_alias_of(of_up),
                                of_gate.stride(1) == 32 && of_up.storage_offset() == 16,
                                !turned.v.is_alias_of(there.product)};
      },
      kGpuTimeout);
  for (const int each : packed) CHECK(each == 1);
}

TEST_CASE("tensors that no fused kernel takes run the plain form and each reason is logged once") {
  if (gpus() == 0) return;
  const std::vector<char> logged = run_one_rank(
      [](const parallel::Environment&) {
        use_gpu(0);
        std::ostringstream logged;
        spdlog::set_default_logger(
            std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_st>(logged)));
        spdlog::set_pattern("%v");
        const Inputs wide = on(at::kCUDA, make_inputs(5, 8, 4, at::kDouble));
        const Inputs narrow = on(at::kCUDA, make_inputs(5, 8, 4, at::kBFloat16));
        for (int times = 0; times < 2; ++times) {
          run_kernels(wide, kernels::KernelChoice::kAuto);
          kernels::table().rms_norm(narrow.x, narrow.weight.to(at::kFloat), 1e-5);
          kernels::table().rope_heads(narrow.parts(narrow.product), narrow.cos.to(at::kDouble),
                                      narrow.sin.to(at::kDouble), narrow.style, /*parts=*/1);
          kernels::table().cross_entropy(narrow.logits.t().contiguous().t(), narrow.labels, nullptr, 0);
        }
        run_kernels(narrow, kernels::KernelChoice::kAuto);
        const std::string text = logged.str();
        return std::vector<char>(text.begin(), text.end());
      },
      kGpuTimeout);
  std::multiset<std::string> lines;
  std::istringstream each(std::string(logged.begin(), logged.end()));
  for (std::string line; std::getline(each, line);) lines.insert(line);
  std::multiset<std::string> expected;
  for (const char* reason :
       {"RMSNorm for a weight of another dtype", "RMSNorm for tensors of dtype Double",
        "residual sum with RMSNorm for tensors of dtype Double", "RoPE for angles that are not fp32",
        "RoPE for tensors of dtype Double", "gated activation for tensors of dtype Double",
        "chunks of keys for tensors of dtype Double", "parts of attention for tensors of dtype Double",
        "cross-entropy for rows with gaps", "cross-entropy for tensors of dtype Double"})
    expected.insert(fmt::format("No fused {}: its plain form runs instead", reason));
  CHECK(lines == expected);
}

// compute-sanitizer watches this one (scripts/gpu_checks.py), so nothing runs in a process of its own, and
// few kernels are not ours.
TEST_CASE("every kernel takes odd shapes and one row and long rows and unaligned addresses in one process") {
  if (const DriverProbe driver = probe_driver(); driver.devices == 0) {
    std::printf("skipped: no GPU: %s\n", driver.reason.c_str());
    return;
  }
  use_gpu(0);
  at::manual_seed(12);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [tokens, width, head_dim, aligned] :
         {std::tuple(5, 45, 14, true), std::tuple(1, 8, 16, true), std::tuple(3, 20000, 128, true),
          std::tuple(64, 128, 64, false)}) {
      CAPTURE(dtype, tokens, width, aligned);
      Inputs in = on(at::kCUDA, make_inputs(tokens, width, head_dim, dtype));
      if (!aligned) in = transformed(in, unaligned);
      Tensors results = run_kernels(in, kernels::KernelChoice::kAuto);
      if (device_library().compute_capability(0) >= 89) {
        Tensor x = at::randn({tokens, (width + 15) / 16 * 16}).to(dtype).to(at::kCUDA);
        if (!aligned) x = unaligned(x);
        using float8::Granularity;
        for (const auto& [rows, columns] : {std::pair(Granularity::kTensor, Granularity::kTensor),
                                            std::pair(Granularity::kRow, Granularity::kColumn)}) {
          const float8::Operands found = float8::quantize_operands(x, float8::Scaling{.granularity = rows},
                                                                   float8::Scaling{.granularity = columns});
          Tensor product = x.to(at::kBFloat16).clone();
          float8::rescale_in_place(product, found.rows.inverse, found.columns.inverse);
          results.insert(results.end(), {found.rows.values, found.columns.values, product});
        }
      }
      for (const Tensor& result : results) CHECK(result.cpu().to(at::kFloat).isfinite().all().item<bool>());
    }
}

}  // namespace hyperion
