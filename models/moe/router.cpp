#include "models/moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr double kLeastSum = 1e-20;  // added to what weights are divided by

// The indices of the `count` largest of values, the largest first and of equal ones the lower. NaN is chosen
// like any number where it comes first, so that indices are valid and distinct whatever the values are.
template <typename T>
void largest(const T* values, int64_t n, int64_t count, std::vector<char>& taken, int64_t* out) {
  std::fill_n(taken.begin(), n, 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t best = -1;
    for (int64_t candidate = 0; candidate < n; ++candidate)
      if (!taken[candidate] && (best < 0 || values[candidate] > values[best])) best = candidate;
    taken[best] = 1;
    out[i] = best;
  }
}

template <typename T>
void choose_of_tokens(const T* scores, const T* bias, const RoutingOptions& options, int64_t begin,
                      int64_t end, int64_t* choices) {
  const int64_t experts = options.experts, groups = options.groups;
  const int64_t in_group = groups > 0 ? experts / groups : 0;
  std::vector<T> biased(static_cast<size_t>(experts)), of_groups(static_cast<size_t>(groups));
  std::vector<char> taken(static_cast<size_t>(experts));
  std::vector<int64_t> chosen(static_cast<size_t>(std::max<int64_t>(groups, 2)));
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t e = 0; e < experts; ++e) biased[e] = scores[token * experts + e] + bias[e];
    if (groups > 0) {
      for (int64_t group = 0; group < groups; ++group) {
        const T* first = biased.data() + group * in_group;
        largest(first, in_group, 2, taken, chosen.data());
        of_groups[group] = first[chosen[0]] + first[chosen[1]];
      }
      largest(of_groups.data(), groups, groups, taken, chosen.data());
      for (int64_t i = options.limited_groups; i < groups; ++i)
        std::fill_n(biased.begin() + chosen[i] * in_group, in_group, -std::numeric_limits<T>::infinity());
    }
    largest(biased.data(), experts, options.top_k, taken, choices + token * options.top_k);
  }
}

Tensor largest_first(const Tensor& values) {
  return std::get<1>(at::sort(values, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
}

struct RoutingWeightsFunction : Function<RoutingWeightsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& /*logits, for autograd*/,
                        const Tensor& scores, const Tensor& choices, const RoutingOptions& options) {
    context->save_for_backward({scores, choices});
    context->saved_data["softmax"] = options.score == ScoreFunction::kSoftmax;
    context->saved_data["normalise"] = options.normalise;
    context->saved_data["scale"] = options.scale;
    Tensor weights = scores.gather(1, choices);
    if (options.normalise) weights = weights / (weights.sum(1, /*keepdim=*/true) + kLeastSum);
    return weights * options.scale;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &scores = saved[0], &choices = saved[1];
    Tensor grad = grads[0] * context->saved_data["scale"].toDouble();
    if (context->saved_data["normalise"].toBool()) {
      const Tensor chosen = scores.gather(1, choices), sum = chosen.sum(1, true) + kLeastSum;
      grad = (grad - (grad * chosen).sum(1, true) / sum) / sum;
    }
    const Tensor of_scores = at::zeros_like(scores).scatter_(1, choices, grad);
    const Tensor of_logits = context->saved_data["softmax"].toBool()
                                 ? scores * (of_scores - (of_scores * scores).sum(1, true))
                                 : of_scores * scores * (1 - scores);
    return {of_logits, Tensor(), Tensor(), Tensor()};  // autograd rounds it to the logits' dtype
  }
};

}  // namespace

RoutingOptions::RoutingOptions(const ModelArgs& args)
    : experts(args.num_experts),
      top_k(args.top_k),
      score(args.score_func),
      normalise(args.route_norm),
      scale(args.route_scale),
      groups(args.expert_groups),
      limited_groups(args.limited_groups) {}

Tensor expert_scores(const Tensor& logits, const RoutingOptions& options) {
  const Tensor wide = logits.to(kernels::opmath_dtype(logits));
  return options.score == ScoreFunction::kSoftmax ? at::softmax(wide, -1) : at::sigmoid(wide);
}

Tensor choose_experts(const Tensor& scores, const Tensor& bias, const RoutingOptions& options) {
  if (!scores.is_cpu()) return plain::choose_experts(scores, bias, options);
  const Tensor values = scores.contiguous(), added = bias.to(scores.scalar_type());
  const Tensor choices = at::empty({scores.size(0), options.top_k}, scores.options().dtype(at::kLong));
  auto* out = choices.mutable_data_ptr<int64_t>();
  constexpr int64_t kGrain = 64;
  parallel_for(0, scores.size(0), kGrain, [&](int64_t begin, int64_t end) {
    if (values.scalar_type() == at::kDouble)
      choose_of_tokens(values.const_data_ptr<double>(), added.const_data_ptr<double>(), options, begin, end,
                       out);
    else
      choose_of_tokens(values.const_data_ptr<float>(), added.const_data_ptr<float>(), options, begin, end,
                       out);
  });
  return choices;
}

namespace plain {

Tensor choose_experts(const Tensor& scores, const Tensor& bias, const RoutingOptions& options) {
  Tensor biased = scores + bias.to(scores.scalar_type());
  if (options.groups > 0) {
    const Tensor grouped = biased.view({scores.size(0), options.groups, -1});
    const Tensor of_groups =
        std::get<0>(at::sort(grouped, true, -1, /*descending=*/true)).narrow(-1, 0, 2).sum(-1);
    const Tensor kept = largest_first(of_groups).narrow(1, 0, options.limited_groups);
    const Tensor left_out =
        at::ones_like(of_groups, of_groups.options().dtype(at::kBool)).scatter_(1, kept, false);
    biased = grouped.masked_fill(left_out.unsqueeze(-1), -INFINITY).view(scores.sizes());
  }
  return largest_first(biased).narrow(1, 0, options.top_k).contiguous();
}

}  // namespace plain

Tensor balanced_choices(const Tensor& scores, const RoutingOptions& options) {
  return at::arange(scores.size(0) * options.top_k, scores.options().dtype(at::kLong))
      .remainder(options.experts)
      .view({scores.size(0), options.top_k});
}

Tensor routing_weights(const Tensor& logits, const Tensor& scores, const Tensor& choices,
                       const RoutingOptions& options) {
  return RoutingWeightsFunction::apply(logits, scores, choices, options);
}

}  // namespace hyperion::models
