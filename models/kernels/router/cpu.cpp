#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/router/router.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 64;  // of a thread, at least
constexpr auto kLeast = static_cast<float>(kLeastSum);

bool chosen_before(float a, float b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// The indices of the `count` first of values in the order of RoutedTokens. In one pass: most candidates come
// after all of those found before.
template <typename Index>
void choose_first(const float* values, int64_t n, int64_t count, Index* out) {
  int64_t found = 0;
  for (int64_t candidate = 0; candidate < n; ++candidate) {
    if (found == count && !chosen_before(values[candidate], values[out[count - 1]])) continue;
    int64_t place = found < count ? found++ : count - 1;
    for (; place > 0 && chosen_before(values[candidate], values[out[place - 1]]); --place)
      out[place] = out[place - 1];
    out[place] = static_cast<Index>(candidate);
  }
}

void choose_of_tokens(const float* scores, const float* bias, const RoutingOptions& options, int64_t begin,
                      int64_t end, int32_t* choices) {
  const int64_t experts = options.experts, groups = options.groups;
  const int64_t in_group = groups > 0 ? experts / groups : 0;
  std::vector<float> biased(static_cast<size_t>(experts)), of_groups(static_cast<size_t>(groups));
  std::vector<int64_t> chosen(static_cast<size_t>(std::max<int64_t>(groups, 2)));
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t e = 0; e < experts; ++e) biased[e] = scores[token * experts + e] + bias[e];
    if (groups > 0) {
      for (int64_t group = 0; group < groups; ++group) {
        const float* first = biased.data() + group * in_group;
        choose_first(first, in_group, 2, chosen.data());
        of_groups[group] = first[chosen[0]] + first[chosen[1]];
      }
      choose_first(of_groups.data(), groups, groups, chosen.data());
      for (int64_t i = options.limited_groups; i < groups; ++i)
        std::fill_n(biased.begin() + chosen[i] * in_group, in_group, -std::numeric_limits<float>::infinity());
    }
    choose_first(biased.data(), experts, options.top_k, choices + token * options.top_k);
  }
}

}  // namespace

RoutedTokens route_tokens(const Tensor& logits, const Tensor& given_bias, const RoutingOptions& options) {
  const Tensor scores = plain::expert_scores(logits, options).contiguous(),
               bias = given_bias.to(at::kFloat).contiguous();
  const Tensor choices = at::empty({scores.size(0), options.top_k}, scores.options().dtype(at::kInt));
  const auto *score = scores.const_data_ptr<float>(), *added = bias.const_data_ptr<float>();
  auto* out = choices.mutable_data_ptr<int32_t>();
  parallel_for(0, scores.size(0), kTokens,
               [&](int64_t begin, int64_t end) { choose_of_tokens(score, added, options, begin, end, out); });
  return {scores, choices};
}

Tensor routing_weights(const Tensor& given_scores, const Tensor& given_choices,
                       const RoutingOptions& options) {
  const Tensor scores = given_scores.contiguous(), choices = given_choices.contiguous();
  Tensor weights = at::empty(choices.sizes(), scores.options());
  const auto* score = scores.const_data_ptr<float>();
  const auto* choice = choices.const_data_ptr<int32_t>();
  auto* out = weights.mutable_data_ptr<float>();
  const int64_t k = options.top_k, experts = options.experts;
  const auto factor = static_cast<float>(options.scale);
  parallel_for(0, choices.size(0), kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      float sum = 0;
      for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment)
        sum += out[assignment] = score[token * experts + choice[assignment]];
      sum += kLeast;
      for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment)
        out[assignment] = (options.normalise ? out[assignment] / sum : out[assignment]) * factor;
    }
  });
  return weights;
}

Tensor routing_weights_backward(const Tensor& given_grad, const Tensor& given_scores,
                                const Tensor& given_choices, const RoutingOptions& options,
                                const RouterLossGradient& losses, at::ScalarType dtype) {
  const Tensor grads = given_grad.contiguous(), scores = given_scores.contiguous(),
               choices = given_choices.contiguous();
  const Tensor grad_logits = at::empty(scores.sizes(), scores.options());
  const auto *grad = grads.const_data_ptr<float>(), *score = scores.const_data_ptr<float>();
  const auto* choice = choices.const_data_ptr<int32_t>();
  auto* out = grad_logits.mutable_data_ptr<float>();
  const int64_t k = options.top_k, experts = options.experts;
  const auto factor = static_cast<float>(options.scale);
  const bool softmax = options.score == models::ScoreFunction::kSoftmax;
  parallel_for(0, choices.size(0), kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* of = score + token * experts;
      float* to = out + token * experts;
      float sum = 0, dot = 0, of_softmax = 0;
      for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment) {
        sum += of[choice[assignment]];
        dot += grad[assignment] * factor * of[choice[assignment]];
      }
      sum += kLeast;
      std::fill_n(to, experts, 0.0F);
      for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment) {
        const float scaled = grad[assignment] * factor;
        to[choice[assignment]] = options.normalise ? (scaled - dot / sum) / sum : scaled;
        of_softmax += to[choice[assignment]] * of[choice[assignment]];
      }
      for (int64_t e = 0; e < experts; ++e)
        to[e] = softmax ? of[e] * (to[e] - of_softmax) : to[e] * of[e] * (1 - of[e]);
    }
  });
  if (losses.any()) grad_logits.add_(plain::router_loss_gradient(scores, options, losses));
  return grad_logits.to(dtype);
}

}  // namespace hyperion::kernels::cpu
